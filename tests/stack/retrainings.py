"""Retrainings on the stack that a fault can meet in the middle, and what has to be true after each of them.

All use one log and the same settings, each in a dataset of its own, so that the champion and the forecasts have to be
those of a retraining that nothing disturbs.
"""

import time
from collections import Counter
from pathlib import Path
from typing import Any

from compose_stack import Stack
from published import latest
from stack_processes import wait_until

from storage.artifacts.artifact import read_table
from storage.champions import publications, read_champion
from storage.layout import Layout
from storage.tracking.marks import due

# Long enough to be stopped in: the epochs are short, and there are many.
SETTINGS = {
    "pretrain": None,
    "finetune.epochs": 120,
    "finetune.patience": None,
    "finetune.batches_per_epoch": 2,
    "model.width": 16,
    "model.num_heads": 2,
    "model.num_layers": 1,
}
READING = {"source": "user", "target": "item", "time": "created_at", "window": "7d"}


def started(stack: Stack, log: Path, dataset: str, deployment: str = "retrain/any") -> str:
    """Start a retraining on the worker; returns its id."""
    parameters = {"dataset": dataset, "reading": {**READING, "log": [str(log)]}, "changes": SETTINGS}
    return stack.run_of(deployment, parameters)


def published(store: Layout, dataset: str) -> dict[str, Any]:
    """Give what must be the same for all datasets of the same log, as JSON can hold it."""
    record = read_champion(store, dataset)[0]
    assert record is not None
    forecasts = read_table(latest(store, dataset)["forecasts"], "forecasts")
    return {
        "champion": record["title"],  # its weights are those of the forecasts
        "number": record.get("number"),
        "reason": record["reason"],
        "num_published": publications(store, dataset).height,
        "forecasts": forecasts.drop("space_id", strict=False).write_json(),
    }


def in_training(stack: Stack, store: Layout, run: str, dataset: str) -> list[int]:
    """Wait until a run trains; returns its processes."""
    wait_until(lambda: stack.state(run) == "Running", 120, "the run did not begin")
    pattern = f"model-{dataset}-*"
    wait_until(lambda: list((Path(store.state) / "locks").glob(pattern)), 120, "the training did not begin")
    time.sleep(3)  # less than the first pause between checkpoints, and than the training takes
    found = stack.processes_of(run)
    assert found
    assert publications(store, dataset).height == 0
    return found


def assert_sound(stack: Stack, store: Layout, dataset: str, undisturbed: dict[str, Any]) -> None:
    """The right champion; nothing doubled, in the store and in MLflow; nothing runs that is dead; no slot is taken."""
    assert published(store, dataset) == undisturbed
    assert_tracked_once(stack, dataset)
    active = {"flow_runs": {"state": {"type": {"any_": ["RUNNING", "PENDING"]}}}}
    assert stack.request("/flow_runs/filter", active) == []
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


def reconciled(stack: Stack, store: Layout) -> None:
    """Look at everything, as a person does, and wait until all results are in MLflow.

    The look of the minute may be sending some, which this one then leaves to it.
    """
    run = stack.run_of("reconcile/any")
    wait_until(lambda: stack.state(run) == "Completed", 180, "reconcile did not complete")
    wait_until(lambda: not due(store), 120, "results are not in MLflow")
