"""What dies, hangs or is away in the middle of a retraining: each ends like an undisturbed one, and nothing hangs.

All faults use one log and the same settings, each in a dataset of its own, so that the champion and the forecasts have
to be those of a retraining that nothing disturbed.
"""

import os
import signal
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from compose_stack import Stack, ends, wait_until
from weekly_log import rows_of

from flows.service.processes import marked
from storage.artifacts.artifact import read_table
from storage.champions import read_champion
from storage.events.table import ingested_datasets
from storage.files import find
from storage.layout import Layout
from storage.published import latest, publications

pytestmark = pytest.mark.stack

# Long enough to be stopped in: the epochs are short, and there are many.
SETTINGS = {
    "pretrain": None,
    "finetune.epochs": 600,
    "finetune.patience": None,
    "finetune.batches_per_epoch": 2,
    "model.width": 16,
    "model.num_heads": 2,
    "model.num_layers": 1,
}
READING = {"source": "user", "target": "item", "time": "created_at", "window": "7d"}
OPTIONS = ["--source", "user", "--target", "item", "--time", "created_at", "--window", "7d"]
SLOT_SECONDS = 120.0


@pytest.fixture(scope="module")
def log(stack: Stack) -> Path:
    """A log in the folder that the workers see."""
    path = Path(stack.environment("worker-cpu")["DYFORMER_LOGS"]) / "faults.csv"
    path.write_bytes(rows_of(range(28)))
    return path


@pytest.fixture(scope="module")
def undisturbed(stack: Stack, store: Layout, log: Path) -> dict[str, Any]:
    """Champion and forecasts of a retraining that nothing disturbs."""
    begun = time.monotonic()
    run = started(stack, log, "undisturbed")
    ends(stack, run)
    print(f"undisturbed: {time.monotonic() - begun:.0f} s")
    return published(store, "undisturbed")


def started(stack: Stack, log: Path, dataset: str, deployment: str = "retrain/any") -> str:
    """Start a retraining on the worker; returns its id."""
    parameters = {"dataset": dataset, "reading": {**READING, "log": [str(log)]}, "changes": SETTINGS}
    return stack.run_of(deployment, parameters)


def published(store: Layout, dataset: str) -> dict[str, Any]:
    """Give what must be the same for all datasets of the same log."""
    record = read_champion(store, dataset)[0]
    assert record is not None
    forecasts = read_table(latest(store, dataset)["forecasts"], "forecasts")
    return {
        "champion": record["title"],  # its weights are those of the forecasts
        "number": record.get("number"),
        "reason": record["reason"],
        "num_published": publications(store, dataset).height,
        "forecasts": forecasts.drop("space_id", strict=False).to_dicts(),
    }


def in_training(stack: Stack, store: Layout, run: str, dataset: str) -> list[int]:
    """Wait until a run trains; returns its processes."""
    wait_until(lambda: stack.state(run) == "Running", 120, "the run did not begin")
    pattern = f"model-{dataset}-*"
    wait_until(lambda: list((Path(store.state) / "locks").glob(pattern)), 120, "the training did not begin")
    time.sleep(3)  # less than the first pause between checkpoints
    found = stack.processes_of(run)
    assert found
    assert publications(store, dataset).height == 0
    return found


def prefect_worker(stack: Stack) -> int:
    """Process of Prefect's worker, which the service's own process started."""
    [worker] = [
        each
        for each in marked(f"{stack.mark}-worker-cpu")
        if b"worker\0start" in Path(f"/proc/{each}/cmdline").read_bytes()
    ]
    return worker


def names_of_states(stack: Stack, run: str) -> list[str]:
    return [each["name"] for each in stack.request(f"/flow_run_states/?flow_run_id={run}")]


def assert_sound(stack: Stack, store: Layout, dataset: str, undisturbed: dict[str, Any]) -> None:
    """The right champion; nothing doubled, in the store and in MLflow; nothing runs that is dead; no slot is taken."""
    assert published(store, dataset) == undisturbed
    assert_tracked_once(stack, dataset)
    active = {"flow_runs": {"state": {"type": {"any_": ["RUNNING", "PENDING"]}}}}
    assert [run["name"] for run in stack.request("/flow_runs/filter", active) if run["name"] != "reconcile"] == []
    assert stack.request("/task_runs/filter", {"task_runs": active["flow_runs"]}) == []
    slots = stack.request("/deployments/name/retrain/any")["global_concurrency_limit"]
    assert (slots["limit"], slots["active_slots"]) == (1, 0)


def assert_tracked_once(stack: Stack, dataset: str) -> None:
    """Each run, each point of a curve and each version of the model is in MLflow once, and no run goes on."""
    experiment = stack.tracked(f"experiments/get-by-name?experiment_name=dyformer-{dataset}")["experiment"]
    found = stack.tracked("runs/search", {"experiment_ids": [experiment["experiment_id"]]})["runs"]
    assert {run["info"]["status"] for run in found} == {"FINISHED"}
    keys = Counter(tag["value"] for run in found for tag in run["data"]["tags"] if tag["key"] == "dyformer.run_key")
    assert len(keys) == len(found)
    num_curves = 0
    for run in found:
        curves = [each["key"] for each in run["data"].get("metrics", []) if each["key"].startswith("finetune/")]
        num_curves += len(curves)
        for metric in curves:
            history = stack.tracked(f"metrics/get-history?run_id={run['info']['run_id']}&metric_key={metric}")
            steps = [point.get("step", 0) for point in history.get("metrics", [])]
            assert sorted(steps) == list(range(1, SETTINGS["finetune.epochs"] + 1)), (run["info"]["run_name"], metric)
    assert num_curves >= 2
    versions = stack.tracked(f"model-versions/search?filter=name%3D%27dyformer-{dataset}%27").get("model_versions", [])
    assert len({version["run_id"] for version in versions}) == len(versions) == 1


def reconciled(stack: Stack) -> None:
    """Run the flow that is scheduled every five minutes."""
    run = stack.run_of("reconcile/any")
    wait_until(lambda: stack.state(run) == "Completed", 180, "reconcile did not complete")


def test_a_killed_flow_ends_and_the_next_one_goes_on(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any]
) -> None:
    run = started(stack, log, "flow-killed")
    for process in in_training(stack, store, run, "flow-killed"):
        os.kill(process, signal.SIGKILL)
    ends(stack, run, SLOT_SECONDS, "Crashed")
    ends(stack, started(stack, log, "flow-killed"))
    reconciled(stack)
    assert_sound(stack, store, "flow-killed", undisturbed)


def test_the_run_of_a_killed_worker_completes_and_is_not_repeated(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any]
) -> None:
    run = started(stack, log, "worker-killed")
    [*_, process] = in_training(stack, store, run, "worker-killed")
    os.kill(stack.processes["worker-cpu"].pid, signal.SIGKILL)
    os.kill(prefect_worker(stack), signal.SIGKILL)
    stack.processes["worker-cpu"].wait()
    stack.restart("worker-cpu")
    assert Path(f"/proc/{process}").exists()
    ends(stack, run)
    assert stack.request(f"/flow_runs/{run}")["run_count"] == 1
    assert_sound(stack, store, "worker-killed", undisturbed)


def test_a_run_that_is_killed_with_its_worker_frees_its_slot_and_is_resumed_by_the_next(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any]
) -> None:
    run = started(stack, log, "both-killed")
    in_training(stack, store, run, "both-killed")
    stack.stop("worker-cpu", signal.SIGKILL)
    killed = time.monotonic()
    assert stack.processes_of(run) == []
    assert stack.state(run) == "Running"
    stack.restart("worker-cpu")
    ends(stack, run, SLOT_SECONDS - (time.monotonic() - killed), "Crashed")
    print(f"ended {time.monotonic() - killed:.0f} s after the kill")
    following = started(stack, log, "both-killed")
    wait_until(lambda: stack.state(following) == "Running", 60, "the slot is not free")
    ends(stack, following)
    reconciled(stack)
    assert_sound(stack, store, "both-killed", undisturbed)


def test_a_run_whose_worker_gets_sigterm_saves_is_handed_back_and_completes(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any]
) -> None:
    run = started(stack, log, "sigterm")
    in_training(stack, store, run, "sigterm")
    folder = f"{store.root}/5_checkpoints/finetune/dataset=sigterm"
    assert find(folder) == []
    stack.stop("worker-cpu")
    assert find(folder) != []
    stack.restart("worker-cpu")
    ends(stack, run)
    assert stack.request(f"/flow_runs/{run}")["run_count"] == 2
    assert "AwaitingRetry" in names_of_states(stack, run)
    assert "Crashed" not in names_of_states(stack, run)
    assert_sound(stack, store, "sigterm", undisturbed)


def test_a_run_that_was_being_submitted_at_sigterm_is_due_again(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any]
) -> None:
    run = started(stack, log, "submitted")
    until = time.monotonic() + 60
    while stack.request(f"/flow_runs/{run}")["state_type"] != "PENDING":
        assert time.monotonic() < until
    stack.stop("worker-cpu")
    stopped = time.monotonic()
    assert stack.request(f"/flow_runs/{run}")["state_type"] in ("PENDING", "SCHEDULED")
    stack.restart("worker-cpu")
    wait_until(lambda: stack.state(run) in ("Running", "Completed"), SLOT_SECONDS, "the run did not begin")
    print(f"began {time.monotonic() - stopped:.0f} s after the stop")
    ends(stack, run)
    assert_sound(stack, store, "submitted", undisturbed)


def test_a_server_that_is_started_again_loses_no_run(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any]
) -> None:
    run = started(stack, log, "server-restarted")
    in_training(stack, store, run, "server-restarted")
    stack.stop("prefect-server")
    time.sleep(5)
    stack.restart("prefect-server")
    ends(stack, run)
    assert stack.request(f"/flow_runs/{run}")["run_count"] == 1
    assert_sound(stack, store, "server-restarted", undisturbed)


def test_results_wait_while_mlflow_is_down_and_are_sent_once(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any]
) -> None:
    run = started(stack, log, "mlflow-down")
    in_training(stack, store, run, "mlflow-down")
    stack.stop("mlflow")
    ends(stack, run)
    stack.restart("mlflow")
    assert list(Path(store.spool).iterdir()) != []
    reconciled(stack)
    assert_sound(stack, store, "mlflow-down", undisturbed)


def test_results_wait_while_mlflow_hangs_and_are_sent_once(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any]
) -> None:
    run = started(stack, log, "mlflow-hanging")
    in_training(stack, store, run, "mlflow-hanging")
    with stack.hanging("mlflow"):
        ends(stack, run)
    reconciled(stack)
    assert_sound(stack, store, "mlflow-hanging", undisturbed)


@pytest.mark.parametrize("seconds", [30, 120])
def test_a_run_outlasts_an_object_store_that_is_away(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any], seconds: int
) -> None:
    run = started(stack, log, f"store-away-{seconds}")
    in_training(stack, store, run, f"store-away-{seconds}")
    stack.stop("s3")
    time.sleep(seconds)
    stack.restart("s3")
    ends(stack, run, 400)
    reconciled(stack)
    assert_sound(stack, store, f"store-away-{seconds}", undisturbed)


def test_a_run_outlasts_an_object_store_that_hangs(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any]
) -> None:
    run = started(stack, log, "store-hanging")
    in_training(stack, store, run, "store-hanging")
    with stack.hanging("s3"):
        time.sleep(45)
    ends(stack, run, 400)
    reconciled(stack)
    assert_sound(stack, store, "store-hanging", undisturbed)


def test_rows_that_came_while_the_server_was_away_are_retrained_on(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any]
) -> None:
    settings = [text for name, value in SETTINGS.items() for text in ("--set", f"{name}={str(value).lower()}")]
    made = stack.command("schedule", "event-lost", "--cron", "0 0 1 1 *", "--log", str(log), *OPTIONS, *settings)
    assert made.returncode == 0, made.stderr
    stack.stop("prefect-server")
    committed = stack.command("ingest", "event-lost", "--log", str(log), *OPTIONS)
    assert committed.returncode == 0, committed.stderr
    assert "event-lost" in ingested_datasets(store)
    stack.restart("prefect-server")
    reconciled(stack)
    deployment = stack.request("/deployments/name/retrain/event-lost-schedule")
    of_this = {"deployments": {"id": {"any_": [deployment["id"]]}}, "flow_runs": {"start_time": {"is_null_": False}}}
    [run] = wait_until(lambda: stack.request("/flow_runs/filter", of_this), 60, "no retraining was started")
    ends(stack, run["id"])
    reconciled(stack)
    assert len(stack.request("/flow_runs/filter", of_this)) == 1
    assert_sound(stack, store, "event-lost", undisturbed)


def test_two_retrainings_at_once_with_states_of_their_own_double_nothing(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    settings = [text for name, value in SETTINGS.items() for text in ("--set", f"{name}={str(value).lower()}")]
    arguments = ["retrain", "at-once", "--log", str(log), *OPTIONS, *settings]
    with ThreadPoolExecutor(2) as pool:
        ended = list(
            pool.map(lambda name: stack.command(*arguments, DYFORMER_STATE=str(tmp_path / name)), ("one", "two"))
        )
    assert {each.returncode for each in ended} <= {0, 3}, [each.stderr for each in ended]
    again = stack.command("spool", "--replay", DYFORMER_STATE=str(tmp_path / "two"))
    assert again.returncode == 0, again.stderr
    assert_sound(stack, store, "at-once", undisturbed)


def test_deploying_twice_at_once_and_again_makes_nothing_twice(stack: Stack) -> None:
    def counts() -> dict[str, int]:
        found = {
            "deployments": "/deployments/filter",
            "pools": "/work_pools/filter",
            "automations": "/automations/filter",
        }
        return {name: len(stack.request(path, {})) for name, path in found.items()}

    before = counts()
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(lambda _: stack.command("deploy"), range(2)))
    ended.append(stack.command("deploy"))
    assert [each.returncode for each in ended] == [0, 0, 0], [each.stderr for each in ended]
    assert all("made" not in each.stdout for each in ended)
    assert counts() == before
