"""What a finished run has to say, kept beside its forecasts: a rerun that would change nothing reads it instead."""

import json
from typing import Any

import polars as pl

from dyformer.experiments.settings import as_record
from flows.tasks.evaluate import metrics
from flows.tasks.snapshots import open_snapshots
from flows.tasks.train import experiment_of
from storage.artifacts.artifact import Lineage, is_current, read_bytes, read_table, write_artifact

SUMMARY = "summary.json"


def write_report(
    snapshots: str, scores: list[str], summary: dict[str, Any], changes: dict[str, Any] | None = None, seed: int = 0
) -> str:
    """Keep the metrics and the summary of a run and give the report's address."""
    address, lineage = _place(snapshots, changes, seed)
    contents = {"metrics": metrics(scores, snapshots), SUMMARY: json.dumps(summary, indent=1).encode()}
    return write_artifact(address, contents, lineage)


def read_report(address: str) -> tuple[pl.DataFrame, dict[str, Any]]:
    """Give the metrics and the summary of a report."""
    return read_table(address, "metrics"), json.loads(read_bytes(address, SUMMARY))


def finished_report(snapshots: str, changes: dict[str, Any] | None = None, seed: int = 0) -> str | None:
    """Give the address of the report that a run on these snapshots would write, if it is there already."""
    address, lineage = _place(snapshots, changes, seed)
    return address if is_current(address, lineage) else None


def _place(snapshots: str, changes: dict[str, Any] | None, seed: int) -> tuple[str, Lineage]:
    opened = open_snapshots(snapshots)
    settings = {**as_record(experiment_of(opened.dataset, changes)), "seed": seed}
    lineage = opened.lineage("report", until=opened.num_steps, settings=settings)
    keys = {"version": opened.version, "until": opened.num_steps, "settings": lineage.settings_hash, "seed": seed}
    return opened.layout.report(opened.dataset, **keys), lineage
