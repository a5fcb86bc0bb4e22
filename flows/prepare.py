"""Flow: snapshots up to a cut -> the tables of their union graph."""

from typing import Any

from prefect import flow, task

from flows.tasks.prepare import prepare_tables
from flows.tasks.snapshots import make_snapshots, newest_until

prepare_task = task(name="prepare tables", task_run_name="tables until step {until}")(prepare_tables)


@flow(flow_run_name="prepare {dataset}")
def prepare(
    dataset: str, until: int | None = None, changes: dict[str, Any] | None = None, version: int | None = None
) -> dict[str, str]:
    """Write the PageRank and distance tables of the steps up to `until`, the last but one by default."""
    snapshots = make_snapshots(dataset, version)
    return prepare_task(snapshots, newest_until(snapshots) if until is None else until, changes)
