"""Snapshots and settings -> the report of the run on them, if there is one already.

A run without new rows loads this module alone, and nothing that trains, evaluates or draws.
"""

from dyformer.experiments.settings import Experiment, as_record
from flows.tasks.snapshots import open_snapshots
from storage.artifacts.artifact import Lineage, is_current
from storage.layout import Layout
from storage.tracking.runs import open_tracker


def finished_report(snapshots: str, experiment: Experiment, seed: int = 0) -> str | None:
    """Return the address of the report that a run on these snapshots would write, if it exists."""
    address, lineage = planned_report(snapshots, experiment, seed)
    return address if is_current(address, lineage) else None


def send_spooled() -> None:
    """Send the records of earlier runs that wait for MLflow; they wait on if it is still unreachable."""
    open_tracker(Layout.from_environment()).replay_spool()


def planned_report(snapshots: str, experiment: Experiment, seed: int) -> tuple[str, Lineage]:
    """Return the address and the lineage of the report that a run on these snapshots writes."""
    opened = open_snapshots(snapshots)
    settings = {**as_record(experiment), "seed": seed}
    lineage = opened.lineage("report", until=opened.num_steps, settings=settings)
    keys = {
        "version": lineage.table_version,
        "until": opened.num_steps,
        "settings": lineage.settings_hash,
        "seed": seed,
    }
    return opened.layout.report(opened.dataset, **keys), lineage
