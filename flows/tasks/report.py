"""Scores and a summary of a finished run -> its report, which a rerun on the same data reads instead."""

import json
from typing import Any

import polars as pl

from dyformer.evaluation.metric_rows import METRICS_SCHEMA
from dyformer.experiments.settings import Experiment, as_record
from flows.tasks.evaluate import metrics
from flows.tasks.rank import ranking_metrics
from flows.tasks.snapshots import open_snapshots
from storage.artifacts.artifact import (
    ArtifactMissing,
    Lineage,
    is_current,
    names,
    read_bytes,
    read_table,
    write_artifact,
)

SUMMARY = "summary.json"


def write_report(
    snapshots: str, rows: pl.DataFrame, summary: dict[str, Any], experiment: Experiment, seed: int = 0
) -> str:
    """Write the metrics and the summary of a run and return the report's address."""
    address, lineage = _planned(snapshots, experiment, seed)
    return write_artifact(address, {"metrics": rows, SUMMARY: json.dumps(summary, indent=1).encode()}, lineage)


def run_metrics(snapshots: str, rankings: list[str], scores: list[str]) -> pl.DataFrame:
    """Return the metrics of both protocols as rows of METRICS_SCHEMA; none of a protocol without addresses."""
    parts = [pl.DataFrame(schema=METRICS_SCHEMA)]
    parts += [ranking_metrics(rankings, snapshots)] if rankings else []
    parts += [metrics(scores, snapshots)] if scores else []
    return pl.concat(parts)


def read_report(address: str) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Return the metrics and the summary of a report. Raises ArtifactMissing for one of an earlier version."""
    rows = read_table(address, "metrics") if "metrics.parquet" in names(address) else pl.DataFrame()
    if rows.columns != METRICS_SCHEMA.names():
        raise ArtifactMissing(
            f"the report {address} is of an earlier version of dyformer: delete it and run `dyformer run` again"
        )
    return rows, json.loads(read_bytes(address, SUMMARY))


def finished_report(snapshots: str, experiment: Experiment, seed: int = 0) -> str | None:
    """Return the address of the report that a run on these snapshots would write, if it exists."""
    address, lineage = _planned(snapshots, experiment, seed)
    return address if is_current(address, lineage) else None


def _planned(snapshots: str, experiment: Experiment, seed: int) -> tuple[str, Lineage]:
    opened = open_snapshots(snapshots)
    settings = {**as_record(experiment), "seed": seed}
    lineage = opened.lineage("report", until=opened.num_steps, settings=settings)
    keys = {"version": opened.version, "until": opened.num_steps, "settings": lineage.settings_hash, "seed": seed}
    return opened.layout.report(opened.dataset, **keys), lineage
