"""Flow: one dataset from new interactions to a evaluated, tracked model and its forecasts."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prefect import flow, task

from flows.artifacts import show_summary
from flows.evaluate import baselines, evaluate
from flows.ingest import ingest
from flows.predict import predict
from flows.prepare import prepare
from flows.summary import as_markdown
from flows.tasks.promote import promote_if_better
from flows.tasks.report import finished_report, write_report
from flows.tasks.snapshots import newest_until
from flows.tasks.track import track_run
from flows.train import train

promote_task = task(name="promote if better")(promote_if_better)
track_task = task(name="track run")(track_run)
report_task = task(name="write report")(write_report)


@flow(flow_run_name="retrain {dataset}")
def retrain(
    dataset: str, reading: dict[str, Any] | None = None, changes: dict[str, Any] | None = None, seed: int = 0
) -> str:
    """Bring a dataset from new interactions to evaluated forecasts; returns the address of the report.

    Where nothing is new, the report of the earlier run is the answer.
    """
    seconds: dict[str, float] = {}
    with _timed(seconds, "ingest"):
        counts = ingest(dataset, reading)
    snapshots, version = counts["snapshots"], counts["version"]
    finished = finished_report(snapshots, changes, seed)
    if finished is not None:
        return finished
    until = newest_until(snapshots)
    with _timed(seconds, "prepare"):
        tables = prepare(dataset, until, changes, version)
    with _timed(seconds, "train"):
        model = train(dataset, until, changes, seed, version)
    with _timed(seconds, "evaluate"):
        scores = evaluate(dataset, until, changes, seed, version)
        earlier = baselines(dataset, seed, version)
    with _timed(seconds, "predict"):
        made = predict(dataset, changes, seed, version)
    seat = promote_task(snapshots, model, scores, seed)
    with _timed(seconds, "track"):
        tracked = track_task(snapshots, model, scores, earlier, made, seat["champion"] == model)
    summary = {
        "dataset": dataset,
        "counts": counts,
        "addresses": {"snapshots": snapshots, **tables, "model": model, "scores": scores, **made},
        "promotion": seat,
        "tracking": tracked,
        "seconds": seconds,
    }
    report = report_task(snapshots, scores, summary, changes, seed)
    show_summary(dataset, as_markdown(report))
    return report


@contextmanager
def _timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    started = time.monotonic()
    yield
    seconds[stage] = round(time.monotonic() - started, 2)
