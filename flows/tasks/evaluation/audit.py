"""Snapshots, methods and a step -> the outcome of the leak audit, as an artifact: a table, Markdown and JSON.

A log in the store is checked from the raw file to trained weights, each time in a temporary store.
"""

import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dyformer.evaluation.audit.case import AuditCase, Check
from dyformer.evaluation.audit.checks import NUM_CHECKS, audit
from dyformer.evaluation.audit.events import NUM_EVENT_CHECKS, EventAuditCase, audit_events
from dyformer.evaluation.audit.poisons import malformed
from dyformer.evaluation.event_splits import EventTrial, TooFewEvents, Visibility, split_events
from dyformer.evaluation.protocols.prequential import PROTOCOL as PREQUENTIAL
from dyformer.evaluation.protocols.protocol import Log
from dyformer.evaluation.protocols.tgb import log_of
from dyformer.experiments.methods import Method, Variation, default_methods, own_errors, pair_scorers
from dyformer.experiments.settings import Experiment
from dyformer.graphs.snapshots import StepOutOfRange, to_tables
from dyformer.logs.time_windows import Window
from dyformer.scoring.interfaces import Ranker
from flows.console import tracked
from flows.tasks.evaluation.evaluate import units_of
from flows.tasks.ingest import ingest_log
from flows.tasks.methods import record_of, resolved
from flows.tasks.snapshots import Snapshots, make_snapshots, open_snapshots
from flows.tasks.train import train_model
from storage.artifacts.artifact import read_bytes, read_table, write_artifact
from storage.bytes import files
from storage.events.declarations import declared_record
from storage.events.table import node_dictionary, read_events
from storage.layout import WEIGHTS, Layout

MALFORMED, LATE = "malformed bytes", "late rows"
STORE_CHECKS = (MALFORMED, LATE)
DATASET = "audited"
NUM_GOOD_LINES, NUM_LATE_LINES = 400, 50
TINY_STAGE = {"epochs": 1, "batches_per_epoch": 4, "validation_batches": 1, "num_targets": 64, "num_positives": 32}
SHORT: dict[str, Any] = {
    "model.width": 16,
    "model.num_heads": 2,
    "model.num_layers": 1,
    "model.feed_forward_width": 16,
    "model.num_context": 64,
    **{f"{stage}.{name}": value for stage in ("pretrain", "finetune") for name, value in TINY_STAGE.items()},
}
"""Settings of a training of a few batches."""

Made = dict[str, bytes]
"""Name of a result as of a step -> its bytes."""
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
REMEMBERING = "EdgeBank (last)"
DEFAULT_METHODS = (*pair_scorers(on_request=True), "DyFormer")


@dataclass(frozen=True, kw_only=True)
class RawLog:
    """A log as text, divided after a step, and how it is read."""

    until: int
    header: bytes
    past: list[bytes]
    later: list[bytes]  # the newest row last, because a trim at the end of a log is measured from it
    reading: dict[str, Any]
    experiment: Experiment
    seed: int

    def ingested(self, folder: Path, name: str, lines: list[bytes]) -> str:
        """Commit lines as one more file; return the address of the snapshots."""
        path = folder / f"{name}.csv"
        path.write_bytes(b"\n".join([self.header, *lines, b""]))
        layout = _layout(folder)
        ingest_log(DATASET, {**self.reading, "log": [str(path)]}, lambda text: None, layout=layout)
        return make_snapshots(DATASET, layout=layout)

    def made(self, address: str) -> Made:
        """Give the snapshots, the ids of their nodes and the weights of a short training, as of the step."""
        opened = open_snapshots(address)
        graph = opened.graph(self.until)
        dictionary = node_dictionary(opened.layout, DATASET, opened.version)
        nodes = dictionary.filter(pl.col("node").is_in(graph.node_N.tolist()))
        tables = {f"snapshots/{name}": table.write_ndjson().encode() for name, table in to_tables(graph).items()}
        weights = read_bytes(train_model(address, self.until, self.experiment, self.seed), WEIGHTS)
        return {**tables, "node dictionary": nodes.write_ndjson().encode(), "weights": weights}


def audit_store(opened: Snapshots, until: int, experiment: Experiment, seed: int = 0) -> Iterator[Check]:
    """Compare what is made of raw files that differ after a step, or that arrive later, each in a temporary store.

    The log is written as text again, with its permanent numbers for ids.
    """
    log = _raw_log(opened, until, experiment, seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        address = log.ingested(folder, "log", [*log.past, *log.later])
        tables = log.made(address)
        yield _malformed_check(log, tables)
        yield _late_check(log, folder, address, tables)


def _raw_log(opened: Snapshots, until: int, experiment: Experiment, seed: int) -> RawLog:
    events = read_events(opened.layout, opened.dataset, opened.version).select("source", "target", "time", "weight")
    header, *lines = events.write_csv().encode().splitlines()
    is_past_R = (events["time"] < opened.time("end_time", until)).to_numpy()
    newest = int(events["time"].arg_max() or 0)
    later = [line for row, line in enumerate(lines) if not is_past_R[row] and row != newest]
    record = declared_record(opened.layout, opened.dataset)
    reading = {name: name for name in ("source", "target", "time", "weight")}
    reading |= {"separator": ",", "has_header": True, "max_bad": "100%", "window": opened.window}
    reading |= {"bipartite": bool(record["bipartite"]), "directed": opened.directed}
    short = SHORT if experiment.pretrain else {key: SHORT[key] for key in SHORT if not key.startswith("pretrain.")}
    return RawLog(
        until=until,
        header=header,
        past=[line for row, line in enumerate(lines) if is_past_R[row]],
        later=[*later, lines[newest]],
        reading={**reading, "time_unit": "step" if record["time_unit"] == "step" else "us"},
        experiment=experiment.changed(short),
        seed=seed,
    )


def _malformed_check(log: RawLog, expected: Made) -> Check:
    """Replace later lines by a mix with bytes that are no rows."""
    description = {
        "name": MALFORMED,
        "compared": f"lines after step {log.until}: some of them among bytes that are no rows",
    }
    if Window.parse(log.reading["window"]).count is not None:
        detail = f"{log.reading['window']!r} divides the whole log, so that later rows move the windows"
        return Check(**description, methods=(), passed=None, detail=detail)
    junk = malformed(log.later[:NUM_GOOD_LINES], np.random.default_rng(log.seed))
    with tempfile.TemporaryDirectory() as folder:
        tables = log.made(log.ingested(Path(folder), "log", [*log.past, *junk, log.later[-1]]))
    return _check(description, tables, expected)


def _late_check(log: RawLog, folder: Path, address: str, expected: Made) -> Check:
    """Commit one more file with earlier times: the first version, made again, must not know it, the second must."""
    compared = f"{NUM_LATE_LINES} rows before step {log.until} that arrive in a later file, as of the earlier version"
    description = {"name": LATE, "compared": compared}
    ends = [line.split(b",", 2) for line in log.past[-NUM_LATE_LINES:]]
    targets = np.random.default_rng(log.seed).permutation(len(ends))
    late = [b",".join((ends[row][0], ends[other][1], ends[row][2])) for row, other in enumerate(targets)]
    second = open_snapshots(log.ingested(folder, "late", late))
    for folder_of_kind in second.layout.artifact_folders:
        files.remove_folder(folder_of_kind)
    again = make_snapshots(DATASET, version=1, layout=second.layout)
    check = _check(description, log.made(again), expected)
    tables = to_tables(open_snapshots(make_snapshots(DATASET, layout=second.layout)).graph(log.until))
    if again != address:
        return replace(check, passed=False, detail=f"the earlier version has another address: {again} for {address}")
    if check.passed and tables["edges"].write_ndjson().encode() == expected["snapshots/edges"]:
        return replace(check, passed=False, detail="the late rows are missing in the newer version too")
    return check


def _check(about: dict[str, str], found: Made, expected: Made) -> Check:
    changed = [name for name in expected if found[name] != expected[name]]
    detail = f"changed: {', '.join(changed)}" if changed else f"{len(expected)} results, byte for byte the same"
    return Check(**about, methods=("DyFormer",), passed=not changed, detail=detail)


def _layout(folder: Path) -> Layout:
    """Give the temporary store in a folder."""
    return Layout(str(folder / "store"))


def audit_log(
    snapshots: str, names: Sequence[str] | None, step: int | None, experiment: Experiment, seed: int = 0
) -> str:
    """Run all checks on the log of the snapshots and return the address of the report.

    Args:
        snapshots: address of the snapshots.
        names: methods, as in `resolved`; by default all scorers of METHODS and DyFormer. DyFormer and its
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
    address = opened.layout.artifact("audit", opened.dataset, **keys)
    graph = opened.graph(opened.num_steps, interactions=True)
    remembering = {REMEMBERING: pair_scorers()[REMEMBERING]}
    case = AuditCase(
        graph=graph, until=until, methods=methods, remembering=remembering, seed=seed, config=experiment.graph
    )
    rows = _timed(
        [_named(audit(case), case), event_checks(opened, seed), audit_store(opened, until, experiment, seed)],
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
    """Audit the methods that rank as of every event, but those of ON_REQUEST, on the log's events.

    A log that cannot be split has one check that is not possible.
    """
    events = log_of(log)
    try:
        trial = EventTrial(log=events, splits=split_events(events), visibility=Visibility())
    except TooFewEvents as error:
        yield Check(name="events", compared="the log's events", methods=(), passed=None, detail=str(error))
        return
    yield from audit_events(EventAuditCase(trial=trial, methods=default_methods((Ranker,)), seed=seed))


def _known_until(snapshots: str, step: int | None) -> int:
    if step is not None:
        try:
            return units_of(snapshots, PREQUENTIAL, str(step + 1))[0] - 1
        except StepOutOfRange as error:
            raise StepOutOfRange(f"step {step}, after which step {step + 1} is forecast: {error}") from error
    steps = units_of(snapshots, PREQUENTIAL)
    return steps[max(0, len(steps) - 2)] - 1  # so that a later step follows the forecast one


def _short_methods(names: Sequence[str] | None) -> dict[str, Method]:
    chosen = resolved(names or DEFAULT_METHODS)
    return {
        name: replace(method, changes={**method.changes, **SHORT}) if isinstance(method, Variation) else method
        for name, method in chosen.items()
    }


def _named(checks: Iterator[Check], case: AuditCase) -> Iterator[Check]:
    """Name the user's own method and the step in its errors."""
    with ExitStack() as stack:
        for title, method in case.methods.items():
            stack.enter_context(own_errors(title, method, f"step {case.until + 1}", is_alone=False))
        yield from checks


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
    sentence = (
        f"Event table version {record['table_version']}, window `{record['window']}`, as of step {record['step']} of "
    )
    sentence += f"{record['num_steps']}, seed {record['seed']}, {record['seconds']:.0f} s."
    lines = [
        f"# Leak audit of {record['dataset']}",
        "",
        verdict,
        "",
        sentence,
        "",
        f"Methods: {', '.join(record['methods'])}.",
        "",
        "| check | outcome | compared | found | seconds |",
        "| --- | --- | --- | --- | ---: |",
    ]
    cells = [[row["check"], row["outcome"], row["compared"], row["detail"], f"{row['seconds']:.1f}"] for row in checks]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in cells]
    return "\n".join([*lines, ""])
