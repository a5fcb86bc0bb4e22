"""Flow: snapshots up to a cut -> trained weights."""

from typing import Any

from prefect import flow, task

from flows.steps.snapshots import cut_snapshots, newest_cut
from flows.steps.train import train_model

# A retry goes on from the training's own checkpoint.
train_task = task(name="train model", task_run_name="train until step {until}", retries=1)(train_model)


@flow(flow_run_name="train {dataset}")
def train(
    dataset: str,
    until: int | None = None,
    changes: dict[str, Any] | None = None,
    seed: int = 0,
    version: int | None = None,
) -> str:
    """Pre-train and fine-tune on the steps up to `until`, the last but one by default; returns the model's address."""
    snapshots = cut_snapshots(dataset, version)
    return train_task(snapshots, newest_cut(snapshots) if until is None else until, changes, seed)
