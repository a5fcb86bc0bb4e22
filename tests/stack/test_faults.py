"""A killed or stopped worker, a schedule that fires: each ends with the work done once, and nothing that hangs."""

import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from own_log import own_log
from stack_processes import Up, called, command, running, wait_until

from flows.service.processes import marked

pytestmark = pytest.mark.stack

# Long enough to be stopped in: the epochs are short, and there are many.
LONG = {"pretrain": None, "finetune.epochs": 900, "finetune.patience": None, "finetune.batches_per_epoch": 2}
SHORT = {"pretrain": None, "finetune.epochs": 2, "finetune.batches_per_epoch": 2}
SMALL = {"model.width": 16, "model.num_heads": 2, "model.num_layers": 1}
READING = {"source": "user", "target": "item", "time": "created_at", "max_bad": "5%"}


def started(up: Up, log: Path, changes: dict[str, Any]) -> str:
    """Start a retraining on the worker; returns its id."""
    deployment = up.request("/deployments/name/retrain/any")
    parameters = {"dataset": "mylog", "reading": {**READING, "log": [str(log)]}, "changes": {**SMALL, **changes}}
    return up.request(f"/deployments/{deployment['id']}/create_flow_run", {"parameters": parameters})["id"]


def state(up: Up, run: str) -> str:
    return up.request(f"/flow_runs/{run}")["state_name"]


def process_of(up: Up, run: str) -> list[int]:
    """Processes that execute a run."""
    found = []
    for process in marked(f"{up.record['mark']}-worker"):
        try:
            environment = Path(f"/proc/{process}/environ").read_bytes()
        except OSError:
            continue
        if f"PREFECT__FLOW_RUN_ID={run}".encode() in environment:
            found.append(process)
    return found


def checkpoints(store: Path) -> list[Path]:
    return list((store / "5_checkpoints" / "finetune").rglob("*.safetensors"))


def runs_in_mlflow(up: Up) -> list[str]:
    """Statuses of the runs of trainings."""
    url = up.record["mlflow"] + "/api/2.0/mlflow/"
    experiment = called(f"{url}experiments/search", {"max_results": 10, "filter": "name = 'dyformer-mylog'"})
    ids = [each["experiment_id"] for each in experiment.get("experiments", [])]
    found = called(f"{url}runs/search", {"experiment_ids": ids}).get("runs", []) if ids else []
    return [run["info"]["status"] for run in found]


def worker_of(up: Up) -> int:
    """Process of the worker, without the runs that it started."""
    [worker] = [
        each
        for each in marked(f"{up.record['mark']}-worker")
        if b"worker\0start" in Path(f"/proc/{each}/cmdline").read_bytes()
    ]
    return worker


def wrapper_of(up: Up) -> int:
    """Process that a service's manager knows as the worker."""
    return int(Path(f"/proc/{worker_of(up)}/stat").read_text().rpartition(")")[2].split()[1])


def in_training(up: Up, store: Path, run: str) -> list[int]:
    """Wait until a run trains; returns its processes."""
    wait_until(lambda: state(up, run) == "Running", 120, "the run did not begin")
    before = datetime.now(UTC).timestamp()
    wait_until(
        lambda: any(lock.stat().st_mtime > before - 60 for lock in (store / "locks").glob("model-mylog-*")),
        120,
        "the training did not begin",
    )
    time.sleep(4)  # less than the first pause between checkpoints
    found = process_of(up, run)
    assert found
    return found


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Up, Path]]:
    store = tmp_path_factory.mktemp("faults") / "store"
    with running(store) as one:
        yield one, store


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return own_log(tmp_path_factory.mktemp("log") / "mylog.csv")


def test_a_run_whose_worker_gets_sigterm_saves_is_handed_back_and_completes(up: tuple[Up, Path], log: Path) -> None:
    stack, store = up
    run = started(stack, log, LONG)
    in_training(stack, store, run)
    assert checkpoints(store) == []
    os.kill(wrapper_of(stack), signal.SIGTERM)
    wait_until(lambda: checkpoints(store), 40, "no checkpoint was saved")
    wait_until(lambda: state(stack, run) == "Completed", 480, "the run did not complete")
    found = stack.request(f"/flow_runs/{run}")
    assert found["run_count"] == 2
    history = [each["name"] for each in stack.request(f"/flow_run_states/?flow_run_id={run}")]
    assert "AwaitingRetry" in history
    assert "Crashed" not in history
    assert runs_in_mlflow(stack).count("RUNNING") == 0


def test_a_run_that_is_killed_with_its_worker_ends_and_frees_its_slot_within_two_minutes(
    up: tuple[Up, Path], log: Path
) -> None:
    stack, store = up
    run = started(stack, log, {**LONG, "model.width": 8})
    processes = in_training(stack, store, run)
    for process in (worker_of(stack), *processes):
        os.kill(process, signal.SIGKILL)
    killed = time.monotonic()
    assert state(stack, run) == "Running"
    wait_until(lambda: state(stack, run) == "Crashed", 120, "the run stands as running")
    print(f"ended {time.monotonic() - killed:.0f} s after the kill")
    next_one = started(stack, log, SHORT)
    wait_until(lambda: state(stack, next_one) == "Running", 60, "the slot is not free")
    wait_until(lambda: state(stack, next_one) == "Completed", 300, "the next run did not complete")
    deployment = stack.request("/deployments/name/reconcile/any")
    look = stack.request(f"/deployments/{deployment['id']}/create_flow_run", {})["id"]
    wait_until(lambda: state(stack, look) in ("Completed", "Cancelled"), 120, "reconcile did not complete")
    wait_until(lambda: "RUNNING" not in runs_in_mlflow(stack), 400, "a run of MLflow stands as running")
    tasks = stack.request("/task_runs/filter", {"task_runs": {"state": {"type": {"any_": ["RUNNING", "PENDING"]}}}})
    assert tasks == []


def test_a_schedule_made_by_the_command_fires(up: tuple[Up, Path], log: Path) -> None:
    stack, store = up
    settings = [text for name, value in {**SMALL, **SHORT}.items() for text in ("--set", f"{name}={value}")]
    options = ["--log", str(log), "--source", "user", "--target", "item", "--time", "created_at", "--max-bad", "5%"]
    made = command(store, "schedule", "mylog", "--interval", "1m", *options, *settings)
    assert made.returncode == 0, made.stderr

    def fired() -> list[str]:
        found = stack.request("/flow_runs/filter", {"flow_runs": {"tags": {"all_": ["dyformer-schedule"]}}})
        return [each["state_name"] for each in found if each["state_name"] == "Completed"]

    wait_until(fired, 240, "the schedule did not fire")
    assert command(store, "schedule", "mylog", "--remove").returncode == 0
