"""A benchmark or a leak audit -> MLflow: one run for each method and seed, and one with the comparison."""

from collections.abc import Mapping
from typing import Any

import polars as pl

from dyformer.experiments.plots import reliability_diagram
from flows.tasks.evaluation.audit import RECORD, read_audit
from flows.tasks.evaluation.evaluate import metrics
from flows.tasks.snapshots import Snapshots, open_snapshots
from flows.tasks.tracking.content import (
    difference_tags,
    draw,
    draw_families,
    outcome,
    run_key,
    tags_of,
    track_data,
    track_metrics,
    track_tables,
)
from storage.artifacts.artifact import digest, lineage_of, read_bytes
from storage.layout import Layout
from storage.tracking.runs import Tracker, open_tracker


def track_benchmark(snapshots: str, scores: list[str], study: str | None = None) -> dict[str, Any]:
    """Track a benchmark: one run per method and seed with its metrics of every step, and one with the comparison.

    `study` is the experiment that the runs belong to: it is a tag, and makes them other runs.
    """
    opened = open_snapshots(snapshots)
    table = metrics(scores, snapshots)
    tracker = open_tracker(opened.layout)
    tracker.replay_spool()  # records of earlier runs that could not be sent
    whole = run_key(*_kind(study), *(digest(address) for address in scores))
    tags = {**tags_of(opened, None), **_study_tag(study), "stage": "benchmark", "steps": _steps(table)}
    _track_methods(tracker, opened, table, tags, whole)
    name = _run_name(opened, "comparison of methods", table)
    with tracker.run(dataset=opened.dataset, name=name, tags={**tags, "method": "all"}, key=whole) as run:
        track_data(run, opened)
        draw(run, table, table)
        track_tables(run, table, opened.dataset)
    return outcome(tracker, run, None)


def track_rankings(
    snapshots: str,
    scores: list[str],
    table: pl.DataFrame,
    reliability_rows: pl.DataFrame | None = None,
    study: str | None = None,
) -> dict[str, Any]:
    """Track a benchmark of ranks or forecasts: one run per method and seed with its metrics, and one with all.

    Args:
        snapshots: address of the snapshots.
        scores: addresses of the scored queries, the ranks or the backtests.
        table: their metrics, of one protocol.
        reliability_rows: the reliability of the probabilities, where the protocol has some.
        study: as in track_benchmark.
    """
    opened = open_snapshots(snapshots)
    tracker = open_tracker(opened.layout)
    tracker.replay_spool()  # records of earlier runs that could not be sent
    whole = run_key(*_kind(study), *(digest(address) for address in scores))
    tags = {
        **tags_of(opened, None),
        **_study_tag(study),
        "protocol": table["protocol"][0],
        "stage": "benchmark",
        "steps": _steps(table),
    }
    _track_methods(tracker, opened, table, tags, whole)
    name = _run_name(opened, "comparison of methods", table)
    with tracker.run(dataset=opened.dataset, name=name, tags={**tags, "method": "all"}, key=whole) as run:
        track_data(run, opened)
        draw_families(run, table)
        run.table("metrics.csv", table)
        if reliability_rows is not None:
            run.table("reliability.csv", reliability_rows)
            if (reliability_rows["fraction"] > 0).any():
                run.plot("plots/reliability.png", reliability_diagram(reliability_rows))
    return outcome(tracker, run, None)


def track_study(study: str, snapshots: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    """Track the tables and plots of a study on one dataset as the files of one run."""
    opened = open_snapshots(snapshots)
    tracker = open_tracker(opened.layout)
    with tracker.run(
        dataset=opened.dataset,
        name=f"tables of {study}, {opened.dataset} v{opened.version}",
        tags={**tags_of(opened, None), **_study_tag(study), "stage": "experiment", "method": "all"},
        key=run_key("experiment", study, *(content.hex() for _, content in sorted(files.items()))),
    ) as run:
        for name, content in files.items():
            run.artifact(name, content)
    return outcome(tracker, run, None)


def track_audit(report: str) -> dict[str, Any]:
    """Track a leak audit: the number of checks that passed and failed, and the report as table, Markdown and JSON."""
    audited = lineage_of(report)
    table, page, record = read_audit(report)
    layout = Layout.from_environment()
    tracker = open_tracker(layout)
    tracker.replay_spool()  # records of earlier runs that could not be sent
    tags = {"stage": "audit", "method": "all", "seed": record["seed"], "until": record["step"]}
    tags |= {"table_version": audited.table_version, "window": record["window"], "passed": record["passed"]}
    with tracker.run(
        dataset=audited.dataset,
        name=f"audit, {audited.dataset} v{audited.table_version} step {record['step']}",
        tags=tags,
        key=run_key("audit", digest(report)),
    ) as run:
        num_failed = len(record["failed"])
        counts = {"num_checks": table.height, "num_failed": num_failed, "seconds": record["seconds"]}
        run.metrics({f"audit/{name}": value for name, value in counts.items()})
        run.table("checks.csv", table.with_columns(pl.col("methods").list.join(", ")))
        run.artifact("audit.md", page.encode())
        run.artifact("audit.json", read_bytes(report, RECORD))
    return outcome(tracker, run, None)


def _kind(study: str | None) -> tuple[str, ...]:
    return ("benchmark",) if study is None else ("benchmark", study)


def _study_tag(study: str | None) -> dict[str, str]:
    return {} if study is None else {"experiment": study}


def _track_methods(tracker: Tracker, opened: Snapshots, table: pl.DataFrame, tags: dict[str, Any], key: str) -> None:
    evaluated = table.filter(pl.col("seed").is_not_null())
    # MLflow shows the newest runs first, and charts of ten: those of our methods.
    evaluated = evaluated.sort("is_baseline", descending=True, maintain_order=True)
    for (method, seed), rows in evaluated.group_by("method", "seed", maintain_order=True):
        protocols = ", ".join(rows["protocol"].unique(maintain_order=True))
        own = {
            **tags,
            "protocol": protocols,
            "method": method,
            "seed": seed,
            "sweep": key[:12],
            **difference_tags(rows),
        }
        with tracker.run(
            dataset=opened.dataset,
            name=_run_name(opened, str(method), rows, seed),
            tags=own,
            key=run_key(key, str(method), str(seed)),
        ) as run:
            track_metrics(run, rows)


def _run_name(opened: Snapshots, title: str, table: pl.DataFrame, seed: object = None) -> str:
    """Name a run: "L3, uci v1 steps 3-13, seed 0"."""
    name = f"{title}, {opened.dataset} v{opened.version} steps {_steps(table)}"
    return name if seed is None else f"{name}, seed {seed}"


def _steps(table: pl.DataFrame) -> str:
    steps = sorted(int(step) for step in table["step"].unique() if step.isdecimal())
    return f"{steps[0]}-{steps[-1]}"
