"""Flow: one dataset from new interactions to an evaluated, tracked model and its forecasts."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows.artifacts import show_report, show_table
from flows.stages import (
    Changes,
    baselines_task,
    evaluate_task,
    experiment_of,
    forecasts_task,
    ingest_task,
    snapshots_task,
    tracked_train_task,
    vectors_task,
)
from flows.tasks.evaluate import metrics, steps_to_evaluate
from flows.tasks.promote import promote_if_better
from flows.tasks.report import finished_report, write_report
from flows.tasks.snapshots import newest_until
from flows.tasks.track import track_run

promote_task = task(name="promote if better", cache_policy=NO_CACHE)(promote_if_better)
track_task = task(name="track run", cache_policy=NO_CACHE)(track_run)
report_task = task(name="write report", cache_policy=NO_CACHE)(write_report)


@flow(flow_run_name="retrain {dataset}")
def retrain(dataset: str, reading: dict[str, Any] | None = None, changes: Changes = None, seed: int = 0) -> str:
    """Bring a dataset from new interactions to evaluated forecasts; returns the address of the report.

    Without new rows or settings, it returns the report of the earlier run.
    """
    experiment = experiment_of(dataset, changes)
    seconds: dict[str, float] = {}
    with _timed(seconds, "ingest"):
        counts = ingest_task(dataset, reading)
        snapshots = snapshots_task(dataset, counts["version"])
    finished = finished_report(snapshots, experiment, seed)
    if finished is not None:
        return finished
    until = newest_until(snapshots)
    with _timed(seconds, "train"):
        model = tracked_train_task(snapshots, until, experiment, seed)
    with _timed(seconds, "evaluate"):
        scores = [evaluate_task(snapshots, model, until + 1, seed=seed), baselines_task(snapshots, until + 1, seed)]
        earlier = [baselines_task(snapshots, step, seed) for step in steps_to_evaluate(snapshots)]
        show_table(dataset, metrics(scores, snapshots))
    with _timed(seconds, "predict"):
        vectors = vectors_task(snapshots, model, seed=seed)
        made = {"vectors": vectors, "forecasts": forecasts_task(snapshots, model, vectors, seed=seed)}
    promotion = promote_task(snapshots, model, scores, seed)
    with _timed(seconds, "track"):
        tracked = track_task(snapshots, model, scores, earlier, made, promotion["champion"] == model)
    summary = {
        "dataset": dataset,
        "counts": {**counts, "snapshots": snapshots},
        "addresses": {"snapshots": snapshots, "model": model, "scores": scores, **made},
        "promotion": promotion,
        "tracking": tracked,
        "seconds": seconds,
    }
    report = report_task(snapshots, scores, summary, experiment, seed)
    show_report(report)
    return report


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    seconds[stage] = round(time.monotonic() - started, 2)
