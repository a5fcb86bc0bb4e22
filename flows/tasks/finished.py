"""Snapshots and settings -> the report of the run on them, or the tables of a benchmark, if there are some already.

A run without new rows loads this module alone, and nothing that trains, evaluates or draws.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import polars as pl

from dyformer.evaluation.protocols import PROTOCOLS
from dyformer.experiments.printed import PrintedTable, from_record
from dyformer.experiments.settings import Experiment, as_record
from flows.tasks.made import plan
from flows.tasks.retention import KEEP
from flows.tasks.snapshots import open_snapshots
from storage.artifacts.artifact import MANIFEST, digest, is_complete, manifest, read_bytes, read_table
from storage.artifacts.made import Planned
from storage.bytes import files
from storage.bytes.checksums import Damaged
from storage.layout import Layout

TABLES = "tables.json"
SUMMARY = "summary.json"  # of a report
PUBLISHED = ("vectors", "forecasts")
VERSION = re.compile(r"version=(\d+)")
CODE = (
    "dyformer.experiments.methods",  # all that a run trains and scores by
    *(PROTOCOLS[name] for name in ("prequential", "paper", "forecasts")),  # those of `run_metrics`
    "dyformer.evaluation.drift",
    "dyformer.evaluation.forecasts.best_partners",
    "dyformer.evaluation.forecasts.forecast_rows",
    "dyformer.evaluation.forecasts.stored_forecast",
    "dyformer.evaluation.promotion",
    "dyformer.evaluation.scored_pairs",
    "dyformer.scoring.candidate_pairs",
    "dyformer.scoring.vector_spaces",
)
"""Code on which the numbers of a run depend."""


def finished_report(snapshots: str, experiment: Experiment, seed: int = 0) -> str | None:
    """Return the address of the report that a run on these snapshots would write, if it exists.

    None, too, if what the run published is not there any more: `dyformer verify --repair` may have removed a damaged
    part of it, and the next run makes it again.
    """
    report = planned_report(snapshots, experiment, seed)
    if not report.is_current:
        return None
    published = json.loads(read_bytes(report.address, SUMMARY))["addresses"]
    layout = open_snapshots(snapshots).layout
    is_there = all(is_complete(layout.absolute(published[name])) for name in PUBLISHED)
    return report.address if is_there else None


def unsent_alarm(report: str) -> dict[str, Any] | None:
    """Return what a report has of its drift, if it raised an alarm that this run did not send."""
    drift = json.loads(read_bytes(report, SUMMARY))["drift"]
    return drift if drift["alarms"] and drift["alarm"] != "sent" else None


def lacks_published(
    layout: Layout, dataset: str, experiment: Experiment, seed: int, note: Callable[[str], None] = lambda problem: None
) -> bool:
    """Whether a part of what the newest report of these settings published is missing: a repair has removed it.

    A run of these settings makes it again; what runs of other settings published, it would not. Reports are opened from
    the newest version on, down to the oldest that `reconcile` keeps, so that a look takes no longer in an old store. A
    damaged one is named by `note`, and the next one is opened.
    """
    settings = json.loads(json.dumps(_settings(experiment, seed)))  # tuples are lists in a record
    for address in _newest_reports(layout, dataset):
        try:
            if _has_settings(address, settings):
                published = json.loads(read_bytes(address, SUMMARY))["addresses"]
                return not all(is_complete(layout.absolute(published[name])) for name in PUBLISHED)
        except (Damaged, files.ReadFailed) as error:
            note(str(error))
    return False


def _newest_reports(layout: Layout, dataset: str) -> Iterator[str]:
    """Yield the addresses of the reports of the newest versions, those of the last steps first."""
    names = files.children(layout.artifacts("report", dataset))
    versions = sorted({int(match[1]) for name in names if (match := VERSION.fullmatch(name))}, reverse=True)
    for version in versions[:KEEP]:
        manifests = files.find(layout.artifacts("report", dataset, version=version), MANIFEST)
        reports = [location.removesuffix(f"/{MANIFEST}") for location in manifests]
        yield from sorted(reports, key=lambda report: int(layout.describe(report)[1]["until"]), reverse=True)


def _has_settings(address: str, settings: dict[str, Any]) -> bool:
    """Whether a report was made with these settings, of whichever windows."""
    lineage = manifest(address)
    return lineage is not None and {**lineage.settings, **settings} == lineage.settings


def planned_report(snapshots: str, experiment: Experiment, seed: int) -> Planned:
    """Return the address and the lineage of the report that a run on these snapshots writes."""
    opened = open_snapshots(snapshots)
    settings = {**_settings(experiment, seed), "directed": opened.directed}
    return plan(opened, "report", until=opened.num_steps, settings=settings, code=CODE)


def _settings(experiment: Experiment, seed: int) -> dict[str, Any]:
    return {**as_record(experiment), "seed": seed}


class Finished(NamedTuple):
    """What a finished benchmark prints, and its rows for --json."""

    tables: list[PrintedTable]
    rows: pl.DataFrame


def finished_benchmark(snapshots: str, options: dict[str, Any]) -> Finished | None:
    """Return what a benchmark prints, if it ended on these snapshots before and its metrics are as they were.

    `options` has all that the command was given: protocol, its settings, names of methods, experiment, steps and seeds.
    """
    planned = planned_tables(snapshots, options)
    if not planned.is_current:
        return None
    record = json.loads(read_bytes(planned.address, TABLES))
    metrics = open_snapshots(snapshots).layout.absolute(record["metrics"])
    if not is_complete(metrics) or digest(metrics) != record["digest"]:
        return None
    return Finished([from_record(table) for table in record["tables"]], read_table(metrics, record["written"]))


def remember_tables(
    snapshots: str, options: dict[str, Any], tables: Sequence[PrintedTable], metrics: str, written: str
) -> None:
    """Store what a benchmark prints; `metrics` is the address of its rows, and `written` their table for --json."""
    record = {
        "tables": [table.record() for table in tables],
        "metrics": open_snapshots(snapshots).layout.relative(metrics),
        "digest": digest(metrics),
        "written": written,
    }
    planned_tables(snapshots, options).made(lambda: {TABLES: json.dumps(record).encode()})


def planned_tables(snapshots: str, options: dict[str, Any]) -> Planned:
    """Return the address and the lineage of the tables that a benchmark prints."""
    opened = open_snapshots(snapshots)
    code = ("flows.benchmark", PROTOCOLS[options["protocol"]])  # with all that they import: what evaluates and prints
    return plan(opened, "tables", until=opened.num_steps, settings=options, code=code)
