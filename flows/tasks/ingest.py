"""A raw log -> committed events: unusable rows go to quarantine, and every row is counted."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
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
from storage.events import scratch_database
from storage.events.declarations import declaration, declare
from storage.events.disk_rows import SpilledRows, spill_events, times_of
from storage.events.table import DatasetNotIngested, append, history, ingested_datasets, newest_version, scan_events
from storage.layout import Layout
from storage.locks import in_use
from storage.raw.log_files import Content, content_of, find_logs

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

FIXED = ("time_unit", "bipartite")  # the committed rows depend on these
SEPARATORS = {"comma": ",", "tab": "\t", "\\t": "\t", "semicolon": ";", "pipe": "|", "space": " ", "spaces": " "}
COUNTS = ("num_read", "num_accepted", "num_quarantined", "num_dropped", "num_duplicates")


class UnknownReading(ValueError):
    """An option for reading a log that does not exist or does not fit."""


def ingest_log(
    dataset: str,
    reading: dict[str, Any] | None = None,
    show: Callable[[str], None] = print,
    check: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Commit the rows of a log, file by file; a file whose bytes were committed before changes nothing.

    All files are read and checked before the first is committed. A log with too many bad rows, or whose window does not
    fit it, therefore changes nothing. Fewer rows than windows of equal count are no error, because the log may grow.

    Args:
        dataset: a known name, or one of the user's own.
        reading: plain values by the names in `flows.options.READING_OPTIONS`. A missing one is taken from an earlier
            ingest or from the known dataset, or is guessed. Without `log`, the rows committed before are used.
        show: called with a description of the reading plan before any row is read.
        check: called with the number of snapshots before anything is committed; raises if they are too few.

    Returns:
        dataset, version of the event table, whether this call changed it, and the counts of the log's rows.
    """
    layout, reading = Layout.from_environment(), reading or {}
    declared, window = declared_log(layout, dataset, reading)
    known = history(layout, dataset).to_dicts() if dataset in ingested_datasets(layout) else []
    num_stored = sum(row["num_accepted"] for row in known)
    fresh: dict[Content, RawFile] = {}
    if "log" in reading or not known:
        found = {content_of(file): file for file in find_logs(reading.get("log"), dataset, layout.raw(dataset))}
        known = [row for row in known if row["batch"] in {content.sha256 for content in found}]
        batches = {row["batch"] for row in known}
        fresh = {content: file for content, file in found.items() if content.sha256 not in batches}
    results: dict[str, ReadResult | SpilledRows] = {}
    with _database_if_large(layout, sum(content.num_bytes for content in fresh), num_stored) as database:
        if fresh:
            plan = sniff_plan(list(fresh.values()), declared)
            show(f"reading {dataset} from {', '.join(file.name for file in fresh.values())}\n{describe(plan)}")
            results = read_files(fresh, plan, reading, database)
            declared = replace(declared, time_unit=plan.time_unit, bipartite=plan.bipartite)
        time_R = _sorted_times(layout, dataset, results, database)
        if check is None and "window" not in reading and len(time_R) < _least_rows(window):
            show(f"no snapshots yet: {window} needs at least {window.count} rows, but the log has {len(time_R)}")
        else:
            _check_window(time_R, window, declared.time_unit, check)
        with _committing(layout, dataset, was_there=num_stored > 0):
            declare(layout, dataset, {**asdict(declared), "window": str(window)}, fixed=FIXED)
            made = [
                append(layout, dataset, result, digest, bipartite=bool(declared.bipartite), drop_known=_drops(reading))
                for digest, result in results.items()
            ]
    rows = known + [asdict(ingest) for ingest in made]
    counts = {name: sum(row[name] for row in rows) for name in COUNTS}
    changed = any(ingest.changed for ingest in made)
    return {"dataset": dataset, "version": newest_version(layout, dataset), "changed": changed, **counts}


def read_files(
    fresh: dict[Content, RawFile],
    plan: ReadPlan,
    reading: dict[str, Any],
    database: "DuckDBPyConnection | None" = None,
) -> dict[str, ReadResult | SpilledRows]:
    """Read every file by one plan, into a database if one is given; skip files without rows if there are several.

    Raises:
        TooManyBadRows: more rows of a file than `max_bad` allows are unusable.
        LogError: a file cannot be read.
    """
    results: dict[str, ReadResult | SpilledRows] = {}
    for index, (content, file) in enumerate(fresh.items()):
        with suppress(EmptyLog) if len(fresh) > 1 else nullcontext():
            if database is None:
                result = read_events([file], plan, drop_duplicates=_drops(reading))
            else:
                result = spill_events(database, f"file_{index}", file, plan, drop_duplicates=_drops(reading))
            check_bad_rows(result.quarantine, result.num_read, fraction(reading.get("max_bad", "1%")))
            results[content.sha256] = result
    return results


def _database_if_large(
    layout: Layout, num_bytes: int, num_stored: int
) -> "AbstractContextManager[DuckDBPyConnection | None]":
    """Open a database on disk if the files' text, or the events already stored, do not fit in memory."""
    return scratch_database.open_spill(layout) if scratch_database.is_large(num_bytes, num_stored) else nullcontext()


def _sorted_times(
    layout: Layout,
    dataset: str,
    results: dict[str, ReadResult | SpilledRows],
    database: "DuckDBPyConnection | None",
) -> NDArray[np.int64]:
    """Sort the times of the stored and the new rows."""
    stored = [scan_events(layout, dataset).select("time")] if dataset in ingested_datasets(layout) else []
    if database is not None:
        return times_of(database, stored, [rows for rows in results.values() if isinstance(rows, SpilledRows)])
    new = [rows.events.select("time") for rows in results.values() if isinstance(rows, ReadResult)]
    return pl.concat([*(rows.collect() for rows in stored), *new])["time"].sort().to_numpy()


def _least_rows(window: Window) -> int:
    return window.count or 0 if window.rule == "equal_count" else 0


def _check_window(
    time_R: NDArray[np.int64], window: Window, time_unit: Any, check: Callable[[int], None] | None
) -> None:
    """Raise WindowError if the window does not fit the log; pass the number of snapshots to `check`."""
    windows = split_windows(time_R, window, time_unit)
    if check is not None:
        check(len(windows.start_time_T))


@contextmanager
def _committing(layout: Layout, dataset: str, *, was_there: bool) -> Iterator[None]:
    """Lock a dataset against `dyformer drop`; raises DatasetNotIngested if it was dropped after the log was read."""
    with in_use(layout, dataset).read_lock():
        if was_there and dataset not in ingested_datasets(layout):
            raise DatasetNotIngested(f"dataset {dataset!r} was dropped while its log was read: ingest it again")
        yield


def _drops(reading: dict[str, Any]) -> bool:
    return bool(reading.get("drop_duplicates"))


def known_and_ingested() -> list[dict[str, Any]]:
    """List the known logs and the user's own: name, title, window, origin, and whether it is in the store."""
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
    """Declare a log: by the built-in record, then the remembered one, then the options of this call."""
    known = DATASETS.get(dataset)
    record = declaration(layout, dataset) or {}
    if known is None and not record and "log" not in reading:
        dataset_named(dataset)
    names = {field.name for field in fields(Declared)}
    base = declared_by(known) if known else Declared()
    base = replace(base, **{name: value for name, value in record.items() if name in names})
    given = {name: _plain(name, value) for name, value in reading.items() if name in names}
    window = reading.get("window") or record.get("window") or (known.window if known else OWN_LOG_WINDOW)
    return replace(base, **given), Window.parse(str(window))


def fraction(text: str | float) -> float:
    """Read "5%" or "0.05" as a fraction of the rows.

    Raises:
        UnknownReading: it is neither, or not between 0 and 100 %.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*", str(text))
    value = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= value <= 1:
        raise UnknownReading(f"--max-bad {text!r}: expected a fraction such as 5% or 0.05, from 0 to 100%")
    return value


def _plain(name: str, value: Any) -> Any:
    if name == "time_unit" and value not in get_args(TimeUnit):
        raise UnknownReading(f"--time-unit {value!r}: expected one of {', '.join(get_args(TimeUnit))}")
    return SEPARATORS.get(value, value) if name == "separator" else value
