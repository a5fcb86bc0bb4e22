"""A raw log -> committed events: what cannot be used goes to quarantine, and every row is counted."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.graphs.windows import split_windows
from dyformer.logs.datasets import DATASETS, OWN_LOG_WINDOW, TimeUnit, Window, dataset_named
from dyformer.logs.events import ReadResult, check_bad_rows, read_events
from dyformer.logs.plan import Declared, ReadPlan, declared_by, describe
from dyformer.logs.raw_file import EmptyLog, RawFile
from dyformer.logs.sniffing import sniff_plan
from storage.events import scratch_database as spill
from storage.events.declarations import declaration, declare
from storage.events.disk_rows import SpilledRows, spill_events, times_of
from storage.events.table import append, history, ingested_datasets, newest_version, scan_events
from storage.layout import Layout
from storage.raw.files import content_of, find_logs

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

FIXED = ("time_unit", "bipartite")  # what the rows already committed depend on
SEPARATORS = {"comma": ",", "tab": "\t", "\\t": "\t", "semicolon": ";", "pipe": "|", "space": " ", "spaces": " "}
COUNTS = ("num_read", "num_accepted", "num_quarantined", "num_dropped", "num_duplicates")


class UnknownReading(ValueError):
    """An option for reading a log that does not exist or does not fit."""


def ingest_log(
    dataset: str,
    reading: dict[str, Any] | None = None,
    say: Callable[[str], None] = print,
    check: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Commit the rows of a log, file by file; a file whose bytes were committed before changes nothing.

    Every file is read and checked before any is committed, so that a log with too many bad rows, or with a window that
    does not fit it, leaves no trace.

    Args:
        dataset: a known name, or one of the user's own.
        reading: plain values by the names in `flows.options.READING_OPTIONS`; what is missing is remembered from an
            earlier ingest, known of the dataset, or guessed. Without a log, rows committed before are taken.
        say: is told how the log will be read, before it is.
        check: is given the number of snapshots before anything is committed, and raises where that will not do.

    Returns:
        dataset, version of the event table, whether this call changed it, and the counts of the log's rows.
    """
    layout, reading = Layout.from_environment(), reading or {}
    declared, window = declared_log(layout, dataset, reading)
    ingested = dataset in ingested_datasets(layout)
    if "log" not in reading and (ingested or dataset not in DATASETS):
        with _database(layout, dataset, 0) as database:
            _check_cut(_sorted_times(layout, dataset, {}, database), window, declared.time_unit, check)
        declare(layout, dataset, {**asdict(declared), "window": str(window)}, fixed=FIXED)
        return _outcome(layout, dataset, history(layout, dataset).to_dicts(), changed=False)
    found = {content_of(file): file for file in find_logs(reading.get("log"), dataset, layout.raw(dataset))}
    files = {content.sha256: file for content, file in found.items()}
    known = history(layout, dataset).filter(pl.col("batch").is_in(list(files))).to_dicts() if ingested else []
    fresh = {digest: file for digest, file in files.items() if digest not in {row["batch"] for row in known}}
    results: dict[str, ReadResult | SpilledRows] = {}
    num_bytes = sum(content.num_bytes for content in found if content.sha256 in fresh)
    with _database(layout, dataset, num_bytes) as database:
        if fresh:
            plan = sniff_plan(list(fresh.values()), declared)
            say(f"reading {dataset} from {', '.join(file.name for file in fresh.values())}\n{describe(plan)}")
            results = read_files(fresh, plan, reading, database)
            declared = replace(declared, time_unit=plan.time_unit, bipartite=plan.bipartite)
        _check_cut(_sorted_times(layout, dataset, results, database), window, declared.time_unit, check)
        declare(layout, dataset, {**asdict(declared), "window": str(window)}, fixed=FIXED)
        made = [
            append(layout, dataset, result, digest, bipartite=bool(declared.bipartite), drop_known=_drops(reading))
            for digest, result in results.items()
        ]
    return _outcome(layout, dataset, known + [asdict(ingest) for ingest in made], changed=any(i.changed for i in made))


def read_files(
    fresh: dict[str, RawFile],
    plan: ReadPlan,
    reading: dict[str, Any],
    database: "DuckDBPyConnection | None" = None,
) -> dict[str, ReadResult | SpilledRows]:
    """Read every file by the same plan, into a database where one is given; of several, those without a row are left.

    Raises:
        TooManyBadRows: more rows of a file than `max_bad` allows are unusable.
        LogError: a file cannot be read.
    """
    results: dict[str, ReadResult | SpilledRows] = {}
    for index, (digest, file) in enumerate(fresh.items()):
        with suppress(EmptyLog) if len(fresh) > 1 else nullcontext():
            if database is None:
                results[digest] = read_events([file], plan, drop_duplicates=_drops(reading))
            else:
                results[digest] = spill_events(database, f"file_{index}", file, plan, drop_duplicates=_drops(reading))
            check_bad_rows(results[digest].quarantine, results[digest].num_read, share(reading.get("max_bad", "1%")))
    return results


def _database(layout: Layout, dataset: str, num_bytes: int) -> "AbstractContextManager[DuckDBPyConnection | None]":
    """Open a database on disk where the files' text, or the events already stored, are too much for memory."""
    ingested = dataset in ingested_datasets(layout)
    num_stored = int(history(layout, dataset)["num_accepted"].sum()) if ingested else 0
    return spill.open_spill(layout) if spill.is_large(num_bytes, num_stored) else nullcontext()


def _sorted_times(
    layout: Layout,
    dataset: str,
    results: dict[str, ReadResult | SpilledRows],
    database: "DuckDBPyConnection | None",
) -> NDArray[np.int64]:
    """Put the times of the stored and the new rows in order."""
    stored = [scan_events(layout, dataset).select("time")] if dataset in ingested_datasets(layout) else []
    if database is not None:
        return times_of(database, stored, [rows for rows in results.values() if isinstance(rows, SpilledRows)])
    new = [rows.events.select("time") for rows in results.values() if isinstance(rows, ReadResult)]
    return pl.concat([*(rows.collect() for rows in stored), *new])["time"].sort().to_numpy()


def _check_cut(time_R: NDArray[np.int64], window: Window, time_unit: Any, check: Callable[[int], None] | None) -> None:
    """Cut sorted times: what is wrong with the window, or the number of snapshots, is said here."""
    windows = split_windows(time_R, window, time_unit)
    if check is not None:
        check(len(windows.start_time_T))


def _drops(reading: dict[str, Any]) -> bool:
    return bool(reading.get("drop_duplicates"))


def _outcome(layout: Layout, dataset: str, rows: list[dict[str, Any]], *, changed: bool) -> dict[str, Any]:
    counts = {name: sum(row[name] for row in rows) for name in COUNTS}
    return {"dataset": dataset, "version": newest_version(layout, dataset), "changed": changed, **counts}


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
    if name == "time_unit" and value not in get_args(TimeUnit):
        raise UnknownReading(f"--time-unit {value!r}: expected one of {', '.join(get_args(TimeUnit))}")
    return SEPARATORS.get(value, value) if name == "separator" else value
