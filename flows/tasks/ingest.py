"""A raw log -> committed events: unusable rows go to quarantine, and every row is counted."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.graphs.windows import FarRows, TooFewRows, emptiness, far_rows, split_windows
from dyformer.logs.contract import ForeignLog
from dyformer.logs.counts import counted
from dyformer.logs.datasets import DATASETS
from dyformer.logs.events import ReadResult, check_bad_rows, read_events
from dyformer.logs.plan import Declared, ReadPlan, describe
from dyformer.logs.raw_file import EmptyLog, LogError, RawFile, ReadLimits
from dyformer.logs.sniffing import sniff_plan
from dyformer.logs.time_windows import Window, written_time
from flows.console import ongoing
from flows.tasks.reading import (
    MAX_NAMED,
    absent_roles,
    check_contract,
    check_duplicates,
    check_form,
    check_format,
    check_lateness,
    check_refused,
    check_repeats,
    check_unread,
    declared_log,
    fraction,
    known_form,
    name_missing,
    name_of,
    time_range,
    with_form,
    without_forms,
)
from storage.bytes.checksums import Damaged
from storage.bytes.files import ReadFailed
from storage.events import scratch_database
from storage.events.commits import Ingest, TakenBack, append_all, take_back
from storage.events.declarations import declaration, declare
from storage.events.disk_rows import SpilledRows, spill_events, times_of
from storage.events.table import DatasetNotIngested, has_events, history, ingested_datasets, newest_version, scan_events
from storage.events.versions import COUNTS, newest
from storage.layout import Layout
from storage.locks import in_use
from storage.raw.contents import Content, content_of, exact_files, known_contents, remember_contents
from storage.raw.log_files import find_logs, raw_file
from storage.raw.received import COLUMNS as RECEIVED_COLUMNS
from storage.raw.received import close_received, received_files, set_aside
from storage.removal import remove_dropped, remove_leftovers

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

OF_RECEIVED = ReadLimits(max_years_apart=10_000)  # of events that a server has accepted, so that none is rejected


def ingest_log(
    dataset: str,
    reading: dict[str, Any] | None = None,
    show: Callable[[str], None] = lambda line: print(line, flush=True),  # a run on a server replaces `print`
    check: Callable[[int], None] | None = None,
    layout: Layout | None = None,
) -> dict[str, Any]:
    """Commit the rows of a log, file by file; a file whose bytes were committed before changes nothing.

    All files are read and checked before the first is committed. A log with too many bad rows, or whose window does not
    fit it, therefore changes nothing. Fewer rows than windows of equal count are no error, because the log may grow.

    Args:
        dataset: a known name, or one of the user's own.
        reading: plain values by the names in READING_OPTIONS. A missing one is taken from an earlier
            ingest or from the known dataset, or is guessed. Without `log`, the rows committed before are used.
        show: called with a description of the reading plan before any row is read.
        check: called with the number of snapshots before anything is committed; raises if they are too few.
        layout: the store, by default that of the environment.

    Returns:
        dataset, version of the event table, whether this call changed it, the counts of the log's rows, and those of
        the rows that were read `before` this call, with the number of their files.
    """
    with ongoing(f"ingest {dataset}", to_errors=True):
        return _ingested(layout or Layout.from_environment(), dataset, reading or {}, show, check)


def _ingested(
    layout: Layout,
    dataset: str,
    reading: dict[str, Any],
    show: Callable[[str], None],
    check: Callable[[int], None] | None,
) -> dict[str, Any]:
    before = declaration(layout, dataset) or {}
    declared, window = declared_log(layout, dataset, reading)
    stored = history(layout, dataset).to_dicts() if has_events(layout, dataset) else []
    logs = _new_and_known(layout, dataset, reading, stored, show)
    received = _received(layout, dataset, stored)
    if stored and not logs.fresh:
        check_unread(layout, dataset, reading, [file for _, file in logs.all])
        check_duplicates(layout, dataset, reading, sum(row["num_duplicates"] for row in logs.known))
    plan, results = None, {}
    with _database_if_large(layout, [*logs.fresh, *received], stored) as database:
        if logs.fresh:
            with _named_if_empty(show, is_new=not stored):
                plan, results = _read_fresh(
                    layout, dataset, logs, _as_first_read(declared, before), reading, show, database
                )
                declared = replace(declared, time_unit=plan.time_unit, bipartite=plan.bipartite)
                declared = declared if plan.directed else replace(declared, directed=False)
        if received:
            results |= _read_received(received, declared, show, database, len(results))
        check_repeats(layout, dataset, results, {content.sha256 for content in received}, reading, show)
        name_missing(dataset, results, show)
        time_R = _sorted_times(layout, dataset, results, database)
        check_lateness(reading.get("lateness"), declared.time_unit)
        far = _check_window(
            time_R,
            window,
            declared.time_unit,
            check,
            show,
            may_be_short=check is None and "window" not in reading,
            newest=max((row["last_time"] for row in stored if row["last_time"] is not None), default=None),
        )
        _check_far(
            dataset,
            far,
            _far_files(far, results, received),
            declared.time_unit,
            show,
            force=reading.get("force"),
        )
        with _committing(layout, dataset, was_there=bool(stored)):
            declare(layout, dataset, partial(_record, before, declared, window, reading, plan, results))
            ingests = append_all(
                layout, dataset, results, bipartite=bool(declared.bipartite), drop_known=_drops(reading)
            )
            _remember(layout, dataset, logs.all, received, ingests)
    _name_new_window(dataset, before, window, show)
    return {
        "dataset": dataset,
        "version": newest_version(layout, dataset),
        "changed": any(ingest.changed for ingest in ingests),
        **_counts(logs.known, [asdict(ingest) for ingest in ingests]),
        "num_alike": sum(result.num_alike for result in results.values()),
        "num_comments": sum(result.num_comments for result in results.values()),  # of the files that were read
    }


def _remember(
    layout: Layout,
    dataset: str,
    logs: Sequence[tuple[Content, RawFile]],
    received: Mapping[Content, RawFile],
    ingests: Sequence[Ingest],
) -> None:
    """Record the contents of files, and set received ones aside whose rows were all left out: no commit has them."""
    remember_contents(layout, dataset, [(file.name, content) for content, file in (*logs, *received.items())])
    repeats = {ingest.batch for ingest in ingests if not ingest.num_accepted}
    set_aside(layout, dataset, [file.name for content, file in received.items() if content.sha256 in repeats])


def _name_new_window(dataset: str, before: Mapping[str, Any], window: Window, show: Callable[[str], None]) -> None:
    """Name the window of this call where it replaces another one, for all calls that give none."""
    if (earlier := before.get("window", str(window))) != str(window):
        show(f"{dataset}: windows of {str(window)!r} from now on, where no `window` is given; before, of {earlier!r}")


def _counts(known: list[dict[str, Any]], added: list[dict[str, Any]]) -> dict[str, Any]:
    """Give the counts of the log's rows, and those of the rows `before` this call, with the number of their files."""
    counts, earlier = ({name: sum(row[name] for row in part) for name in COUNTS} for part in (known + added, known))
    return {**counts, "before": {"num_files": len(known), **earlier}}


def undo_ingest(dataset: str) -> TakenBack:
    """Take back the newest commit of a log; champions, publications and the ledger stay as they are.

    What was made of the rows before is current again. The form of the files of this commit is forgotten.

    Raises:
        DatasetNotIngested: the store lacks the log.
        ValueError: no other commit has events, or the commit was taken back before an error.
    """
    layout = Layout.from_environment()
    before = newest_version(layout, dataset)  # raises where there is none
    with _committing(layout, dataset, was_there=True):
        try:
            taken = take_back(layout, dataset)
            declare(layout, dataset, partial(without_forms, batches=taken.batches))
        except BaseException as error:
            if newest_version(layout, dataset) == before:
                raise
            raise InvalidInput(
                f"dataset {dataset!r}: its newest commit is taken back, and an error came after it; do not repeat the"
                f" command, which would take back the one before ({error or type(error).__name__})"
            ) from error
    return taken


class _Logs(NamedTuple):
    """The files of a log."""

    all: list[tuple[Content, RawFile]]  # those that can be read to their end
    known: list[dict[str, Any]]  # earlier ingests of files; of all if none was looked for
    fresh: dict[Content, RawFile]  # without an ingest
    refused: dict[str, LogError]  # errors of the others, by name


def _new_and_known(
    layout: Layout, dataset: str, reading: dict[str, Any], stored: list[dict[str, Any]], show: Callable[[str], None]
) -> _Logs:
    """Find the files of a log and their contents; a file that was read before is opened only if it has changed.

    A new file that has the bytes of another one is named. Raises LogError where there is no other new file than those
    that are refused.
    """
    if stored and "log" not in reading:
        return _Logs([], stored, {}, {})
    contents_before = known_contents(layout, dataset)
    contents: list[tuple[Content, RawFile]] = []
    refused: dict[str, LogError] = {}
    for file in find_logs(reading.get("log"), dataset, layout.raw(dataset)):
        with _noted(file, refused):
            contents.append((content_of(file, contents_before.get(file.name)), file))
    known, fresh = _known_and_fresh(stored, contents)
    if not fresh:
        check_refused(refused, len(refused))
    first = dict(reversed([(content, file.name) for content, file in contents]))
    copies = [
        f"{file.name} has the bytes of {first[content]}, and is not read"
        for content, file in contents
        if first[content] != file.name and contents_before.get(file.name) != content
    ]
    if copies:
        more = f"; and {counted(len(copies) - MAX_NAMED, 'more file')}" if len(copies) > MAX_NAMED else ""
        show("; ".join(copies[:MAX_NAMED]) + more)
    return _Logs(contents, known, fresh, refused)


@contextmanager
def _noted(file: RawFile, refused: dict[str, LogError] | None) -> Iterator[None]:
    """Put the error of a file to those of others, if these are collected, unless the file has no row."""
    try:
        yield
    except EmptyLog:
        raise
    except LogError as error:
        if refused is None:
            raise
        refused[file.name] = error


def _received(layout: Layout, dataset: str, stored: list[dict[str, Any]]) -> dict[Content, RawFile]:
    """Find the files of received events that are not committed, and let servers begin new ones."""
    close_received(layout, dataset)
    contents_before, batches = known_contents(layout, dataset), {row["batch"] for row in stored}
    files_by_content: dict[Content, RawFile] = {}
    for path in received_files(layout, dataset):
        file = replace(raw_file(path), limits=OF_RECEIVED)
        content = content_of(file, contents_before.get(file.name))
        if content.sha256 not in batches:
            files_by_content[content] = file
    return files_by_content


@contextmanager
def _named_if_empty(show: Callable[[str], None], *, is_new: bool) -> Iterator[None]:
    """Name new files without a row, which a quiet day leaves; raises EmptyLog where the log has no other rows."""
    try:
        yield
    except EmptyLog as error:
        if is_new:
            raise
        show(f"no new row: {error}")


def _as_first_read(declared: Declared, before: Mapping[str, Any]) -> Declared:
    """Give what is declared; where nothing is, a stored log has directed links, whatever header a later file has."""
    return replace(declared, directed=True) if before and declared.directed is None else declared


def _names(files: Sequence[RawFile]) -> str:
    """List the names of a few files; of more the number, the first and the last one."""
    if len(files) > MAX_NAMED:
        return f"{len(files):,} files, the first {files[0].name}, the last {files[-1].name}"
    return ", ".join(file.name for file in files)


def _read_fresh(
    layout: Layout,
    dataset: str,
    logs: _Logs,
    declared: Declared,
    reading: dict[str, Any],
    show: Callable[[str], None],
    database: "DuckDBPyConnection | None",
) -> tuple[ReadPlan, dict[str, ReadResult | SpilledRows]]:
    """Plan how new files are read, read them, and check that they continue the log.

    All files are read before the errors of some are raised, beside those that are refused already.
    """
    fresh, refused = logs.fresh, logs.refused
    num_files = len(fresh) + len(refused)
    with exact_files(fresh) as files:
        for line in known_form(dataset, reading):  # before an error of a file that has another form
            show(line)
        try:
            first, plan = _planned(layout, dataset, list(files.values()), declared, reading, refused)
            show(f"reading {dataset} from {_names(list(fresh.values()))}\n{describe(plan)}")
            files = {content: file for content, file in files.items() if file.name not in refused}
            results = read_files(files, plan, reading, database, refused=refused)
            check_refused(refused, num_files, first.name)
            if empty := [file for content, file in fresh.items() if content.sha256 not in results]:
                show(f"no row in {_names(empty)}: check that nothing is missing")
        except LogError:  # whose remedy would be of no use to a file of another format
            if num_files == 1:
                check_format(layout, dataset, list(files.values()), declared, reading)
            raise
    check_contract(layout, dataset, plan, results, reading)
    return plan, results


def _planned(
    layout: Layout,
    dataset: str,
    files: list[RawFile],
    declared: Declared,
    reading: dict[str, Any],
    refused: dict[str, LogError],
) -> tuple[RawFile, ReadPlan]:
    """Plan by the first file with rows; of several, one that has no plan or another form than the log is refused."""
    num_files, absent = len(files) + len(refused), absent_roles(layout, dataset)
    if num_files == 1:
        return files[0], sniff_plan(files, declared, absent=absent)
    for file in files:
        with _noted(file, refused), suppress(EmptyLog):
            try:
                plan = sniff_plan([file], declared, absent=absent)
            except LogError:
                check_format(layout, dataset, [file], declared, reading)
                raise
            check_form(layout, dataset, file, plan, reading)
            return file, plan
    check_refused(refused, num_files)
    return files[0], sniff_plan(files, declared)  # raises EmptyLog


def _read_received(
    received: dict[Content, RawFile],
    declared: Declared,
    show: Callable[[str], None],
    database: "DuckDBPyConnection | None",
    first: int,
) -> dict[str, ReadResult | SpilledRows]:
    """Read received events, whose form is the server's own, and which it has checked when they came."""
    show(f"reading what `dyformer serve` has received: {counted(len(received), 'file')}")
    source, target, time, weight = RECEIVED_COLUMNS
    form = Declared(
        source=source,
        target=target,
        time=time,
        weight=weight,
        format="jsonl",
        time_unit="step" if declared.time_unit == "step" else "iso",
        bipartite=declared.bipartite,
        directed=declared.directed,
    )
    with exact_files(received) as files:
        return read_files(files, sniff_plan(list(files.values()), form), {}, database, first)


def check_logs(readings: Mapping[str, dict[str, Any]]) -> None:
    """Raise as find_logs does, before any row is read, for the first dataset without a log."""
    layout = Layout.from_environment()
    stored = ingested_datasets(layout)
    for dataset, reading in readings.items():
        if "log" in reading or dataset not in stored:
            find_logs(reading.get("log"), dataset, layout.raw(dataset))


def _record(
    before: Mapping[str, Any],
    declared: Declared,
    window: Window,
    reading: dict[str, Any],
    plan: ReadPlan | None,
    results: Mapping[str, Any],
    stored: dict[str, Any],
) -> dict[str, Any]:
    """Give what is declared about a log: what is stored by now, and what this call changes of what was `before` it."""
    named = {name: reading[name] for name in ("lateness", "finished", "new_ids") if name in reading}
    drops = {}
    if plan is not None:
        drops = {"drop_duplicates": _drops(reading), "forms": with_form(stored, plan, next(iter(results), ""))}
    if plan is not None and {before.get("time_unit"), declared.time_unit}.isdisjoint({None, "step"}):
        declared = replace(declared, time_unit=before["time_unit"])  # that of a file; rows have microseconds anyway
    reading_record = asdict(declared) | {"window": str(window)}
    changed = {name: value for name, value in reading_record.items() if value != before.get(name)}
    return reading_record | stored | changed | named | drops


def _known_and_fresh(
    stored: list[dict[str, Any]], logs: list[tuple[Content, RawFile]]
) -> tuple[list[dict[str, Any]], dict[Content, RawFile]]:
    """Return the ingests of files, and the files without one."""
    digests = {content.sha256 for content, _ in logs}
    earlier = [row for row in stored if row["batch"] in digests]
    batches = {row["batch"] for row in earlier}
    fresh: dict[Content, RawFile] = {}
    for content, file in logs:
        if content.sha256 not in batches:
            fresh.setdefault(content, file)  # of equal files the first, with its own stamp
    return earlier, fresh


def read_files(
    fresh: dict[Content, RawFile],
    plan: ReadPlan,
    reading: dict[str, Any],
    database: "DuckDBPyConnection | None" = None,
    first: int = 0,
    refused: dict[str, LogError] | None = None,
) -> dict[str, ReadResult | SpilledRows]:
    """Read every file by one plan, into a database if one is given; skip files without rows if there are several.

    `first` is the number of files that the database has. The errors of files go to `refused`, if that is given.

    Raises:
        TooManyBadRows: more rows of a file than `max_bad` allows are unusable.
        LogError: a file cannot be read.
    """
    results: dict[str, ReadResult | SpilledRows] = {}
    for index, (content, file) in enumerate(fresh.items(), first):
        with _noted(file, refused), suppress(EmptyLog) if len(fresh) > 1 else nullcontext():
            if database is None:
                result = read_events([file], plan, drop_duplicates=_drops(reading))
            else:
                result = spill_events(database, f"file_{index}", file, plan, drop_duplicates=_drops(reading))
            allowed = fraction(reading.get("max_bad", "1%"))
            check_bad_rows(result.quarantine, result.num_read, allowed, plan.row_name)
            results[content.sha256] = result
    return results


def _database_if_large(
    layout: Layout, contents: Sequence[Content], stored: Sequence[Mapping[str, Any]]
) -> "AbstractContextManager[DuckDBPyConnection | None]":
    """Open a database on disk if the files' text, or the events already stored, do not fit in memory."""
    num_bytes = sum(content.num_bytes for content in contents)
    num_stored = sum(source["num_accepted"] for source in stored)
    return scratch_database.open_spill(layout) if scratch_database.is_large(num_bytes, num_stored) else nullcontext()


def _sorted_times(
    layout: Layout,
    dataset: str,
    results: dict[str, ReadResult | SpilledRows],
    database: "DuckDBPyConnection | None",
) -> NDArray[np.int64]:
    """Sort the times of the stored and the new rows."""
    stored = [scan_events(layout, dataset).select("time")] if has_events(layout, dataset) else []
    if database is not None:
        return times_of(database, stored, [rows for rows in results.values() if isinstance(rows, SpilledRows)])
    new = [rows.events.select("time") for rows in results.values() if isinstance(rows, ReadResult)]
    return pl.concat([*(rows.collect() for rows in stored), *new])["time"].sort().to_numpy()


def _check_window(
    time_R: NDArray[np.int64],
    window: Window,
    time_unit: Any,
    check: Callable[[int], None] | None,
    show: Callable[[str], None],
    *,
    may_be_short: bool,
    newest: int | None,
) -> FarRows | None:
    """Raise WindowError if the window does not fit the log; pass the number of snapshots to `check`.

    Most windows without a row are named, and so are fewer rows than windows in a log that may be short. Returned are
    few rows far after all others; the log had rows up to the time `newest`.
    """
    try:
        windows = split_windows(time_R, window, time_unit)
    except TooFewRows as error:
        if not may_be_short:
            raise
        show(f"no snapshots yet: {error}")
        return None
    if sentence := emptiness(windows, time_R, time_unit):
        show(sentence)
    if check is not None:
        check(len(windows.start_time_T))
    return None if window.count is not None else far_rows(windows, time_R, newest)


def _far_files(
    far: FarRows | None, results: Mapping[str, ReadResult | SpilledRows], received: Mapping[Content, RawFile]
) -> list[str]:
    """List the names of the new files that have far rows, without those of events that a server received."""
    taken = {content.sha256 for content in received}
    files = [result for batch, result in results.items() if batch not in taken]
    return [name_of(result) for result in files if far is not None and time_range(result)[1] >= far.first]


def _check_far(
    dataset: str,
    far: FarRows | None,
    names: Sequence[str],
    time_unit: Any,
    show: Callable[[str], None],
    *,
    force: bool | None,
) -> None:
    """Raise ForeignLog where a few rows lie far after all others; where no file has them they are named.

    A server has accepted its events, so that they are committed in any case.
    """
    if far is None:
        return
    first, before = (written_time(time, time_unit) for time in (far.first, far.before))
    sentence = (
        f"{far.num_rows:,} {'row lies' if far.num_rows == 1 else 'rows lie'} far after all others, from {first}, where"
        f" the others end at {before}, and would end {counted(far.num_windows, 'window')}"
        " that may still grow"
    )
    if force or not names:
        show(f"{dataset}: {sentence}")
        return
    more = f" and {counted(len(names) - MAX_NAMED, 'more file')}" if len(names) > MAX_NAMED else ""
    raise ForeignLog(
        f"{', '.join(names[:MAX_NAMED])}{more}: {sentence}. Nothing was committed; correct the times, or insist with"
        " `force`"
    )


@contextmanager
def _committing(layout: Layout, dataset: str, *, was_there: bool) -> Iterator[None]:
    """Lock a dataset against `dyformer drop`; raises DatasetNotIngested if it was dropped after the log was read."""
    remove_leftovers(layout, dataset)
    remove_dropped(layout)
    with in_use(layout, dataset).read_lock():
        if was_there and not has_events(layout, dataset):
            raise DatasetNotIngested(f"dataset {dataset!r} was dropped while its log was read: ingest it again")
        yield


def _drops(reading: dict[str, Any]) -> bool:
    return bool(reading.get("drop_duplicates"))


def known_and_ingested(on_damage: Callable[[str], None] = print) -> list[dict[str, Any]]:
    """List the known logs and the user's own: name, title, window, origin, and whether it is in the store.

    `on_damage` is called with a message for each damaged dataset.
    """
    layout = Layout.from_environment()
    ingested = ingested_datasets(layout)
    published_logs = [
        {"name": dataset.name, "title": dataset.title, "window": str(dataset.window), "origin": dataset.homepage}
        for dataset in DATASETS.values()
    ]
    windows = {name: _declared_window(layout, name, on_damage) for name in ingested}
    own_logs = [
        {"name": name, "title": "", "window": window, "origin": None}
        for name, window in windows.items()
        if name not in DATASETS
    ]
    return [{**row, "ingested": row["name"] in ingested} for row in published_logs + own_logs]


def _declared_window(layout: Layout, dataset: str, on_damage: Callable[[str], None]) -> str | None:
    """Return the window of a stored log, and report damage of its records."""
    try:
        newest(layout, dataset)
        return (declaration(layout, dataset) or {}).get("window")
    except (Damaged, ReadFailed) as error:
        on_damage(str(error))
        return None
