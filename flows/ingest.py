"""Flow: a raw log -> committed events and their snapshots."""

from typing import Any

from prefect import flow, task

from flows.tasks.ingest import ingest_log
from flows.tasks.snapshots import make_snapshots

ingest_task = task(name="ingest log", task_run_name="ingest {dataset}")(ingest_log)
snapshots_task = task(name="cut snapshots", task_run_name="snapshots of {dataset}")(make_snapshots)


@flow(flow_run_name="ingest {dataset}")
def ingest(dataset: str, reading: dict[str, Any] | None = None) -> dict[str, Any]:
    """Commit what is new in a log and cut it into snapshots; returns the counts and the snapshots' address."""
    counts = ingest_task(dataset, reading)
    return {**counts, "snapshots": snapshots_task(dataset, counts["version"])}
