"""Flow: snapshots up to a cut -> trained weights."""

from typing import Any

from prefect import flow, task

from flows.tasks.snapshots import make_snapshots, newest_until
from flows.tasks.track import train_and_tell
from flows.tasks.train import train_model

# A retry goes on from the training's own checkpoint.
training = task(name="train model", task_run_name="train until step {until}", retries=1)
train_task, told_task = training(train_model), training(train_and_tell)


@flow(flow_run_name="train {dataset}")
def train(
    dataset: str,
    until: int | None = None,
    changes: dict[str, Any] | None = None,
    seed: int = 0,
    version: int | None = None,
) -> str:
    """Pre-train and fine-tune on the steps up to `until`, the last but one by default; returns the model's address."""
    snapshots = make_snapshots(dataset, version)
    return told_task(snapshots, newest_until(snapshots) if until is None else until, changes, seed)
