"""Snapshots, methods and a step -> the outcome of the leak audit, as an artifact: a table, Markdown and JSON."""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import polars as pl

from dyformer.embedder import Scorer
from dyformer.evaluation.audit.case import AuditCase, Check
from dyformer.evaluation.audit.checks import NUM_CHECKS, audit
from dyformer.evaluation.audit.events import NUM_EVENT_CHECKS, EventAuditCase, audit_events
from dyformer.evaluation.event_splits import EventTrial, TooFewEvents, Visibility, split_events
from dyformer.evaluation.protocols.prequential import PROTOCOL as PREQUENTIAL
from dyformer.evaluation.protocols.protocol import Log
from dyformer.evaluation.protocols.tgb import log_of
from dyformer.experiments.methods import EVENT_METHODS, METHODS, Method, Variation
from dyformer.experiments.settings import Experiment
from flows.console import tracked
from flows.tasks.evaluation.audit_store import SHORT, STORE_CHECKS, audit_store
from flows.tasks.evaluation.evaluate import units_of
from flows.tasks.methods import chosen_methods, record_of
from flows.tasks.snapshots import Snapshots, open_snapshots
from storage.artifacts.artifact import read_bytes, read_table, write_artifact

CHECKS, PAGE, RECORD = "audit", "audit.md", "audit.json"
OUTCOMES = {True: "passed", False: "FAILED", None: "not possible"}
CHECKS_SCHEMA = pl.Schema(
    {
        "check": pl.String(),
        "outcome": pl.String(),
        "compared": pl.String(),
        "methods": pl.List(pl.String()),
        "detail": pl.String(),
        "seconds": pl.Float64(),
    }
)
DEFAULT_METHODS = (*(title for title, method in METHODS.items() if isinstance(method, Scorer)), "DyFormer")


def audit_log(
    snapshots: str, names: Sequence[str] | None, step: int | None, experiment: Experiment, seed: int = 0
) -> str:
    """Run all checks on the log of the snapshots and return the address of the report.

    Args:
        snapshots: address of the snapshots.
        names: methods, as in chosen_methods; by default all scorers of METHODS and DyFormer. DyFormer and its
            variations are trained for a few batches, because a leak does not need a good model.
        step: the last step that the methods know; by default the last but two that can be forecast.
        experiment: settings of the graph.
        seed: of the draws.

    Raises:
        StepOutOfRange: the step after `step` cannot be forecast, or no step follows.
    """
    opened = open_snapshots(snapshots)
    until, methods = _known_until(snapshots, step), _short_methods(names)
    settings = {"methods": {name: record_of(method) for name, method in methods.items()}, "seed": seed, "step": until}
    # An audit is never taken from an earlier one, because the program may have changed.
    settings |= {"started": datetime.now(UTC).isoformat()}
    lineage = opened.lineage("audit", until=opened.num_steps, settings=settings)
    keys = {"version": lineage.table_version, "until": until, "settings": lineage.settings_hash, "seed": seed}
    address = opened.layout.audit(opened.dataset, **keys)
    graph = opened.graph(opened.num_steps, interactions=True)
    case = AuditCase(graph=graph, until=until, methods=methods, seed=seed, config=experiment.graph)
    rows = _timed(
        [audit(case), event_checks(opened, seed), audit_store(opened, until, experiment, seed)],
        f"audit {opened.dataset}",
    )
    table = pl.DataFrame(rows, schema=CHECKS_SCHEMA, orient="row")
    record = _record(opened, until, list(methods), seed, table)
    files = {RECORD: json.dumps(record, indent=1).encode(), PAGE: as_markdown(record).encode()}
    return write_artifact(address, {CHECKS: table, **files}, lineage)


def read_audit(address: str) -> tuple[pl.DataFrame, str, dict[str, Any]]:
    """Return the checks of an audit as a table, its page in Markdown, and the same as plain values."""
    return read_table(address, CHECKS), read_bytes(address, PAGE).decode(), json.loads(read_bytes(address, RECORD))


def event_checks(log: Log, seed: int = 0) -> Iterator[Check]:
    """Audit EVENT_METHODS on the log's events; a log that cannot be split has one check that is not possible."""
    events = log_of(log)
    try:
        trial = EventTrial(log=events, splits=split_events(events), visibility=Visibility())
    except TooFewEvents as error:
        yield Check(name="events", compared="the log's events", methods=(), passed=None, detail=str(error))
        return
    yield from audit_events(EventAuditCase(trial=trial, methods=EVENT_METHODS, seed=seed))


def _known_until(snapshots: str, step: int | None) -> int:
    if step is not None:
        return units_of(snapshots, PREQUENTIAL, str(step + 1))[0] - 1
    steps = units_of(snapshots, PREQUENTIAL)
    return steps[max(0, len(steps) - 2)] - 1  # so that a later step follows the forecast one


def _short_methods(names: Sequence[str] | None) -> dict[str, Method]:
    chosen = chosen_methods(names or DEFAULT_METHODS)
    return {
        name: replace(method, changes={**method.changes, **SHORT}) if isinstance(method, Variation) else method
        for name, method in chosen.items()
    }


def _timed(parts: Iterable[Iterator[Check]], title: str) -> list[tuple]:
    rows, started = [], time.monotonic()
    for check in tracked(
        (check for part in parts for check in part), title, NUM_CHECKS + NUM_EVENT_CHECKS + len(STORE_CHECKS)
    ):
        seconds = round(time.monotonic() - started, 2)
        rows.append((check.name, OUTCOMES[check.passed], check.compared, list(check.methods), check.detail, seconds))
        started = time.monotonic()
    return rows


def _record(opened: Snapshots, until: int, methods: list[str], seed: int, table: pl.DataFrame) -> dict[str, Any]:
    failed = table.filter(outcome=OUTCOMES[False])["check"].to_list()
    return {
        "dataset": opened.dataset,
        "table_version": opened.version,
        "window": opened.window,
        "step": until,
        "num_steps": opened.num_steps,
        "seed": seed,
        "methods": methods,
        "passed": not failed,
        "failed": failed,
        "seconds": round(float(table["seconds"].sum()), 2),
        "checks": table.to_dicts(),
    }


def as_markdown(record: dict[str, Any]) -> str:
    """Format the record of an audit as a page."""
    checks, failed = record["checks"], record["failed"]
    verdict = f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}." if failed else "No check failed."
    about = (
        f"Event table version {record['table_version']}, window `{record['window']}`, as of step {record['step']} of "
    )
    about += f"{record['num_steps']}, seed {record['seed']}, {record['seconds']:.0f} s."
    lines = [
        f"# Leak audit of {record['dataset']}",
        "",
        verdict,
        "",
        about,
        "",
        f"Methods: {', '.join(record['methods'])}.",
        "",
        "| check | outcome | compared | found | seconds |",
        "| --- | --- | --- | --- | ---: |",
    ]
    cells = [[row["check"], row["outcome"], row["compared"], row["detail"], f"{row['seconds']:.1f}"] for row in checks]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in cells]
    return "\n".join([*lines, ""])
