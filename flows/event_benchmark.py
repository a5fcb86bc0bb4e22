"""Flow: rankers and the events of a log -> their ranks as of every event, tracked."""

from typing import Any

import polars as pl
from prefect import flow

from dyformer.experiments.event_tables import printed_events
from flows.artifacts import show_tables
from flows.console import tracked
from flows.service.managed import managed
from flows.service.outages import stored_task
from flows.stages import ingest
from flows.tasks.evaluation.events import check_events, draw_events, event_metrics, rank_events
from flows.tasks.methods import event_methods, record_of
from flows.tasks.snapshots import open_snapshots
from flows.tasks.tracking.content import outcome, run_key, tags_of, track_data
from storage.artifacts.artifact import digest
from storage.tracking.runs import open_tracker

RUN_METRICS = {"value": "", "low": "_low", "high": "_high", "difference": "_difference"}


def track_events(
    snapshots: str, scores: list[str], rows: pl.DataFrame, by_seed: pl.DataFrame, settings: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Track one run per method and seed with its metrics, and one with the rows of all; `settings` by title."""
    opened = open_snapshots(snapshots)
    tracker = open_tracker(opened.layout)
    tracker.replay_spool()  # records of earlier runs that could not be sent
    tags = {**tags_of(opened, None), "protocol": "tgb", "visible": rows["visible"][0], "stage": "benchmark"}
    whole = run_key("benchmark", "tgb", *(digest(address) for address in scores))
    title = f"{opened.dataset} v{opened.version} visible {rows['visible'][0]}"
    macro = by_seed.filter(step="macro")
    for (method, seed), own in macro.group_by("method", "seed", maintain_order=True):
        with tracker.run(
            dataset=opened.dataset,
            name=f"{method}, {title}, seed {seed}",
            tags={**tags, "method": method, "seed": seed, "sweep": whole[:12]},
            key=run_key(whole, str(method), str(seed)),
        ) as run:
            run.params(settings[str(method)])
            run.metrics(_run_metrics(own), step=0, replace=True)
    with tracker.run(
        dataset=opened.dataset, name=f"comparison of methods, {title}", tags={**tags, "method": "all"}, key=whole
    ) as run:
        track_data(run, opened)
        run.table("events.csv", rows)
        run.table("metrics.csv", by_seed)
    return outcome(tracker, run, None)


def _run_metrics(rows: pl.DataFrame) -> dict[str, float]:
    """Name the metrics of a run: test/mrr, validation/hits_at_10, test/mrr_low, test/mrr_difference, ..."""
    named = {}
    for row in rows.iter_rows(named=True):
        name = f"{row['family']}/{row['metric'].replace('@', '_at_')}"
        named |= {name + end: row[key] for key, end in RUN_METRICS.items() if row[key] is not None}
    return named


track_task = stored_task(name="track benchmark of events")(track_events)
draw_task = stored_task(name="draw negatives of events")(draw_events)
rank_task = stored_task(name="rank events", task_run_name="{title}, seed {seed}")(
    lambda snapshots, negatives, title, method, visible, seed: rank_events(
        snapshots, negatives, {title: method}, visible, seed
    )
)


@flow(flow_run_name="tgb benchmark {dataset}")
@managed
def tgb(
    dataset: str,
    reading: dict[str, Any] | None = None,
    seeds: int = 1,
    methods: list[str] | None = None,
    visible: str = "strict",
) -> dict[str, Any]:
    """Rank all validation and test events by every method, and track one run per method and seed.

    Ranks of an earlier run are reused. `methods` as in event_methods; `visible` as in Visibility.

    Returns:
        snapshots: address; scores: addresses of the ranks.
    """
    chosen = event_methods(methods)
    snapshots = ingest(dataset, reading)["snapshots"]
    check_events(snapshots, visible)
    negatives = draw_task(snapshots)
    jobs = [(title, seed) for seed in range(seeds) for title in chosen]
    scores = [
        rank_task(snapshots, negatives, title, chosen[title], visible, seed)
        for title, seed in tracked(jobs, f"tgb benchmark {dataset}", len(jobs))
    ]
    rows, by_seed = event_metrics(scores, snapshots)
    show_tables(dataset, {"tgb": printed_events(rows, dataset)})
    track_task(
        snapshots, scores, rows, by_seed, {title: {"method": record_of(method)} for title, method in chosen.items()}
    )
    return {"snapshots": snapshots, "scores": scores}
