"""Snapshots and settings -> the report of the run on them, if there is one already.

A run without new rows loads this module alone, and nothing that trains, evaluates or draws.
"""

from dyformer.experiments.settings import Experiment, as_record
from flows.made import plan
from flows.tasks.snapshots import open_snapshots
from storage.artifacts.made import Planned
from storage.layout import Layout
from storage.tracking.runs import open_tracker

CODE = (
    "dyformer.experiments.methods",  # all that a run trains and scores by
    "dyformer.evaluation.drift",
    "dyformer.evaluation.forecasts.best_partners",
    "dyformer.evaluation.forecasts.forecast_rows",
    "dyformer.evaluation.forecasts.stored_forecast",
    "dyformer.evaluation.metric_rows",
    "dyformer.evaluation.promotion",
    "dyformer.evaluation.ranking_rows",
    "dyformer.scoring.candidate_pairs",
    "dyformer.scoring.vector_spaces",
)
"""Code on which the numbers of a run depend."""


def finished_report(snapshots: str, experiment: Experiment, seed: int = 0) -> str | None:
    """Return the address of the report that a run on these snapshots would write, if it exists."""
    report = planned_report(snapshots, experiment, seed)
    return report.address if report.is_current else None


def send_spooled() -> None:
    """Send the records of earlier runs that wait for MLflow; they wait on if it is still unreachable."""
    open_tracker(Layout.from_environment()).replay_spool()


def planned_report(snapshots: str, experiment: Experiment, seed: int) -> Planned:
    """Return the address and the lineage of the report that a run on these snapshots writes."""
    opened = open_snapshots(snapshots)
    settings = {**as_record(experiment), "seed": seed}
    return plan(opened, "report", until=opened.num_steps, settings=settings, code=CODE)
