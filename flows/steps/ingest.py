"""A raw log -> committed events: what cannot be used goes to quarantine, and every row is counted."""

import re
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from typing import Any

from dyformer.datasets import DATASETS, OWN_LOG_WINDOW, Window, dataset_named
from dyformer.events import Declared, declared_by, describe, read_events, sniff_plan, too_many_bad
from storage.declarations import declaration, declare
from storage.events_table import append, history, ingested_datasets, newest_version
from storage.layout import Layout
from storage.raw_files import find_logs, source_sha256

FIXED = ("time_unit", "bipartite")  # what the rows already committed depend on
SEPARATORS = {"comma": ",", "tab": "\t", "\\t": "\t", "semicolon": ";", "pipe": "|", "space": " ", "spaces": " "}


class UnknownReading(ValueError):
    """An option for reading a log that does not exist or does not fit."""


def ingest_log(
    dataset: str, reading: dict[str, Any] | None = None, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Commit the rows of a log; the same bytes again change nothing.

    Args:
        dataset: a known name, or one of the user's own.
        reading: plain values by the names in `flows.options.READING_OPTIONS`; what is missing is remembered from an
            earlier ingest, known of the dataset, or guessed.
        say: is told how the log will be read, before it is.

    Returns:
        dataset, version of the event table, whether this call changed it, and the counts of rows.
    """
    layout, reading = Layout.from_environment(), reading or {}
    declared, window = declared_log(layout, dataset, reading)
    if "log" not in reading and dataset not in DATASETS:
        return _known(layout, dataset, declared, window, history(layout, dataset).row(-1, named=True))
    files = find_logs(reading.get("log"), dataset, layout.raw(dataset))
    digest = source_sha256(files)
    if dataset in ingested_datasets(layout):
        known = history(layout, dataset).filter(batch=digest)
        if known.height:
            return _known(layout, dataset, declared, window, known.row(0, named=True))
    plan = sniff_plan(files, declared)
    say(f"reading {dataset} from {', '.join(file.name for file in files)}\n{describe(plan)}\nwindow   {window}")
    drop_duplicates = bool(reading.get("drop_duplicates"))
    result = read_events(files, plan, drop_duplicates=drop_duplicates)
    too_many_bad(result, share(reading.get("max_bad", "1%")))
    found = replace(declared, time_unit=plan.time_unit, bipartite=plan.bipartite)
    declare(layout, dataset, {**asdict(found), "window": str(window)}, fixed=FIXED)
    ingest = append(layout, dataset, result, digest, bipartite=plan.bipartite, drop_known=drop_duplicates)
    return {"dataset": dataset, **asdict(ingest)}


def known_and_ingested() -> list[dict[str, Any]]:
    """List the known logs and the user's own: name, title, window, where it comes from, whether it is in the store."""
    layout = Layout.from_environment()
    ingested = ingested_datasets(layout)
    known = [
        {"name": dataset.name, "title": dataset.title, "window": str(dataset.window), "origin": dataset.homepage}
        for dataset in DATASETS.values()
    ]
    own = [
        {"name": name, "title": "", "window": (declaration(layout, name) or {}).get("window"), "origin": None}
        for name in ingested
        if name not in DATASETS
    ]
    return [{**row, "ingested": row["name"] in ingested} for row in known + own]


def _known(layout: Layout, dataset: str, declared: Declared, window: Window, row: dict[str, Any]) -> dict[str, Any]:
    """Take rows that were committed before; only the window may be another."""
    declare(layout, dataset, {**asdict(declared), "window": str(window)}, fixed=FIXED)
    counts = {name: value for name, value in row.items() if name.startswith("num_")}
    version = newest_version(layout, dataset)
    return {"dataset": dataset, "version": version, "changed": False, "batch": row["batch"], **counts}


def declared_log(layout: Layout, dataset: str, reading: dict[str, Any]) -> tuple[Declared, Window]:
    """Put together what is known of a log: built in, then remembered, then said now."""
    known = DATASETS.get(dataset)
    record = declaration(layout, dataset) or {}
    if known is None and not record and "log" not in reading:
        dataset_named(dataset)
    names = {field.name for field in fields(Declared)}
    base = declared_by(known) if known else Declared()
    base = replace(base, **{name: value for name, value in record.items() if name in names})
    said = {name: _plain(name, value) for name, value in reading.items() if name in names}
    window = reading.get("window") or record.get("window") or (known.window if known else OWN_LOG_WINDOW)
    return replace(base, **said), Window.parse(str(window))


def share(text: str | float) -> float:
    """Read "5%" or "0.05" as a share of the rows.

    Raises:
        UnknownReading: it is neither, or not between 0 and 100 %.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*", str(text))
    value = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= value <= 1:
        raise UnknownReading(f"--max-bad {text!r}: expected a share such as 5% or 0.05, from 0 to 100%")
    return value


def _plain(name: str, value: Any) -> Any:
    return SEPARATORS.get(value, value) if name == "separator" else value
