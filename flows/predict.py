"""Flow: a trained model and the newest snapshots -> node vectors and link forecasts."""

from typing import Any

from prefect import flow, task

from flows.tasks.predict import write_forecasts, write_vectors
from flows.tasks.snapshots import make_snapshots, newest_until
from flows.tasks.train import train_model

vectors_task = task(name="write vectors", task_run_name="vectors")(write_vectors)
forecasts_task = task(name="write forecasts", task_run_name="forecasts")(write_forecasts)


@flow(flow_run_name="predict {dataset}")
def predict(
    dataset: str, changes: dict[str, Any] | None = None, seed: int = 0, version: int | None = None
) -> dict[str, str]:
    """Write every node's vector and its most probable new links as of the newest step; returns the addresses."""
    snapshots = make_snapshots(dataset, version)
    model = train_model(snapshots, newest_until(snapshots), changes, seed)  # at once where it is trained already
    return {
        "vectors": vectors_task(snapshots, model, seed=seed),
        "forecasts": forecasts_task(snapshots, model, seed=seed),
    }
