"""A log in the store -> checks from the raw file to trained weights, each in a temporary store."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dyformer.evaluation.audit.case import Check
from dyformer.evaluation.audit.poisons import malformed
from dyformer.experiments.settings import Experiment
from dyformer.graphs.snapshots import to_tables
from dyformer.logs.time_windows import Window
from flows.tasks.ingest import ingest_log
from flows.tasks.snapshots import Snapshots, make_snapshots, open_snapshots
from flows.tasks.train import train_model
from storage import files
from storage.artifacts.artifact import read_bytes
from storage.events.declarations import declaration
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
        known = dictionary.filter(pl.col("node").is_in(graph.node_N.tolist()))
        tables = {f"snapshots/{name}": table.write_ndjson().encode() for name, table in to_tables(graph).items()}
        weights = read_bytes(train_model(address, self.until, self.experiment, self.seed), WEIGHTS)
        return {**tables, "node dictionary": known.write_ndjson().encode(), "weights": weights}


def audit_store(opened: Snapshots, until: int, experiment: Experiment, seed: int = 0) -> Iterator[Check]:
    """Compare what is made of raw files that differ after a step, or that arrive later, each in a temporary store.

    The log is written as text again, with its permanent numbers for ids.
    """
    log = _raw_log(opened, until, experiment, seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        address = log.ingested(folder, "log", [*log.past, *log.later])
        made = log.made(address)
        yield _malformed_check(log, made)
        yield _late_check(log, folder, address, made)


def _raw_log(opened: Snapshots, until: int, experiment: Experiment, seed: int) -> RawLog:
    events = read_events(opened.layout, opened.dataset, opened.version).select("source", "target", "time", "weight")
    header, *lines = events.write_csv().encode().splitlines()
    is_past_R = (events["time"] < opened.time("end_time", until)).to_numpy()
    newest = int(events["time"].arg_max() or 0)
    later = [line for row, line in enumerate(lines) if not is_past_R[row] and row != newest]
    record = declaration(opened.layout, opened.dataset) or {}
    reading = {name: name for name in ("source", "target", "time", "weight")}
    reading |= {"separator": ",", "has_header": True, "max_bad": "100%", "window": opened.window}
    reading |= {"bipartite": bool(record.get("bipartite")), "directed": opened.directed}
    short = SHORT if experiment.pretrain else {key: SHORT[key] for key in SHORT if not key.startswith("pretrain.")}
    return RawLog(
        until=until,
        header=header,
        past=[line for row, line in enumerate(lines) if is_past_R[row]],
        later=[*later, lines[newest]],
        reading={**reading, "time_unit": "step" if record.get("time_unit") == "step" else "us"},
        experiment=experiment.changed(short),
        seed=seed,
    )


def _malformed_check(log: RawLog, expected: Made) -> Check:
    """Replace later lines by a mix with bytes that are no rows."""
    about = {"name": MALFORMED, "compared": f"lines after step {log.until}: some of them among bytes that are no rows"}
    if Window.parse(log.reading["window"]).count is not None:
        detail = f"{log.reading['window']!r} divides the whole log, so that later rows move the windows"
        return Check(**about, methods=(), passed=None, detail=detail)
    junk = malformed(log.later[:NUM_GOOD_LINES], np.random.default_rng(log.seed))
    with tempfile.TemporaryDirectory() as folder:
        found = log.made(log.ingested(Path(folder), "log", [*log.past, *junk, log.later[-1]]))
    return _check(about, found, expected)


def _late_check(log: RawLog, folder: Path, address: str, expected: Made) -> Check:
    """Commit one more file with earlier times: the first version, made again, must not know it, the second must."""
    compared = f"{NUM_LATE_LINES} rows before step {log.until} that arrive in a later file, as of the earlier version"
    about = {"name": LATE, "compared": compared}
    ends = [line.split(b",", 2) for line in log.past[-NUM_LATE_LINES:]]
    targets = np.random.default_rng(log.seed).permutation(len(ends))
    late = [b",".join((ends[row][0], ends[other][1], ends[row][2])) for row, other in enumerate(targets)]
    second = open_snapshots(log.ingested(folder, "late", late))
    for made in second.layout.artifact_folders:
        files.remove_folder(made)
    again = make_snapshots(DATASET, version=1, layout=second.layout)
    check = _check(about, log.made(again), expected)
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
