"""The options for reading a log, and what is stored of earlier ingests -> what is declared about the log.

New files that do not continue the rows of a dataset are refused by an error that names each.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from itertools import compress, zip_longest
from typing import Any

import numpy as np
import polars as pl

from dyformer import InvalidInput
from dyformer.logs.contract import (
    SAMPLED_ROWS,
    VALUES,
    ForeignLog,
    Form,
    TimeRange,
    form_differences,
    form_from,
    form_of,
    form_record,
    format_difference,
    id_difference,
    sampled_ids,
    time_difference,
    unit_difference,
)
from dyformer.logs.counts import counted
from dyformer.logs.datasets import DATASETS, OWN_LOG_WINDOW, dataset_named
from dyformer.logs.events import ReadResult
from dyformer.logs.ids import ENDS
from dyformer.logs.plan import Declared, ReadPlan, declared_by, listed
from dyformer.logs.raw_file import LogError, OtherFormat, RawFile
from dyformer.logs.sample import sample_table
from dyformer.logs.sniffing import sniff_plan
from dyformer.logs.time_windows import TimeUnit, Window, fixed_duration
from flows.tasks.reading_options import READING_OPTIONS, SWITCHES
from storage.events import disk_rows, rows
from storage.events.declarations import FIXED, declaration
from storage.events.disk_rows import SpilledRows
from storage.events.rows import STORED_COLUMNS
from storage.events.table import has_events, history, ingested_datasets, newest_version, node_dictionary, scan_events
from storage.layout import Layout

SEPARATORS = {"comma": ",", "tab": "\t", "\\t": "\t", "semicolon": ";", "pipe": "|", "space": " ", "spaces": " "}
MAX_NAMED = 5  # files in a message
LEAST_ROWS = 20  # of a file, for a copy of another to be refused
MISSING_NAMES = ("null", "none", "nil", "na", "n/a", "#n/a", "<na>", "(null)", "undefined", "unknown")
MISSING = [
    *(write(name) for name in MISSING_NAMES for write in (str.lower, str.upper, str.capitalize)),
    *("nan", "NaN", "NAN", "NaT", "\\N", "-", "?"),
]
"""What programs write where an id is missing."""


def declared_log(layout: Layout, dataset: str, reading: dict[str, Any]) -> tuple[Declared, Window]:
    """Give the declarations of a log, and its window.

    The options of this call come first, then the stored declaration, then the known dataset of this name. Where a call
    names the column of one end alone, the other one is that of the newest files. Raises ValueError for a name that is
    no option, and for a value that no option takes.
    """
    _check_names(reading)
    fraction(reading.get("max_bad", "1%"))  # also checked if no row is read
    dataset_entry = DATASETS.get(dataset)
    record = declaration(layout, dataset) or {}
    if dataset_entry is None and not record and "log" not in reading:
        dataset_named(dataset, ingested_datasets(layout))
    names = {field.name for field in fields(Declared)}
    base = declared_by(dataset_entry) if dataset_entry else Declared()
    base = replace(base, **{name: value for name, value in record.items() if name in names})
    options = {name: value for name, value in reading.items() if name in names}
    options |= _other_end(record, options)
    if "separator" in options:
        options["separator"] = SEPARATORS.get(options["separator"], options["separator"])
    window = (
        reading.get("window") or record.get("window") or (dataset_entry.window if dataset_entry else OWN_LOG_WINDOW)
    )
    return replace(base, **options), Window.parse(str(window))


def _check_names(reading: Mapping[str, Any]) -> None:
    """Raise ValueError for a name of no option, and for a switch that is neither true nor false.

    The parameters of a deployment are any values: a misspelt `log` would commit nothing, and the text "no" is true.
    """
    for name, value in reading.items():
        if name not in READING_OPTIONS:
            near = ", ".join(get_close_matches(name, READING_OPTIONS, n=3, cutoff=0))
            raise InvalidInput(f"there is no option {name!r} for reading a log; the nearest are {near}")
        if name in SWITCHES and value not in (None, True, False):
            raise InvalidInput(f"`{name}`: expected true or false, got {value!r}")


def known_form(dataset: str, reading: Mapping[str, Any]) -> list[str]:
    """Give a line for files that a call names for a known dataset, because a log of one's own may have this name."""
    if "log" not in reading or dataset not in DATASETS:
        return []
    line = (
        f"{dataset} is the name of a known dataset: its files are read in their published form (columns, separator,"
        " unit of times) where no option names another; give a log of your own another name"
    )
    return [line]


def _other_end(record: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, str]:
    """Give the end that a call does not name beside the other, because one end alone cannot be guessed by its name."""
    left = {"source", "target"} - given.keys()
    forms = record.get("forms") or []
    if len(left) != 1 or not forms:
        return {}
    return {name: str(forms[-1]["columns"][name]) for name in left if record.get(name) is None}


def check_unread(layout: Layout, dataset: str, reading: dict[str, Any], old_files: Sequence[RawFile]) -> None:
    """Check the options of a call that reads no row, because all files of the log were committed before.

    An option may name again what was declared or guessed when the rows were read. Without files it is compared with
    the stored declaration alone. Raises ValueError for any other value.
    """
    declared, _ = declared_log(layout, dataset, reading)
    record = declaration(layout, dataset) or {}
    names = [field.name for field in fields(Declared) if field.name in reading and field.name not in FIXED]
    changed = [name for name in names if str(getattr(declared, name)) != str(record.get(name))]
    before = replace(declared, **{name: record.get(name) for name in names})
    if not changed or (old_files and _plan(old_files, declared) == _plan(old_files, before)):
        return
    was = ", ".join(f"{name} = {'(guessed)' if record.get(name) is None else repr(record[name])}" for name in changed)
    now = ", ".join(f"{name} = {getattr(declared, name)!r}" for name in changed)
    raise InvalidInput(
        f"dataset {dataset!r} was ingested with {was}, but now {now}, and there is no new row to read: leave out"
        f" {' and '.join(f'`{name}`' for name in changed)}, name a new file with `log`, or remove the dataset with"
        f" `dyformer drop {dataset}` and ingest it again"
    )


def check_duplicates(layout: Layout, dataset: str, reading: dict[str, Any], num_duplicates: int) -> None:
    """Raise ValueError if repeats are to be dropped, but the newest rows were committed with theirs."""
    were_dropped = (declaration(layout, dataset) or {}).get("drop_duplicates")
    if reading.get("drop_duplicates") and not were_dropped and num_duplicates:
        raise InvalidInput(
            f"dataset {dataset!r} was ingested with {counted(num_duplicates, 'exact duplicate')}, and there is no"
            f" new row to read: leave out `drop_duplicates`, or remove the dataset with `dyformer drop {dataset}` and"
            " ingest it again"
        )


def check_repeats(
    layout: Layout,
    dataset: str,
    results: Mapping[str, ReadResult | SpilledRows],
    received: Collection[str],
    reading: Mapping[str, Any],
    show: Callable[[str], None],
) -> None:
    """Raise ForeignLog for new files most of whose distinct rows are in the log already, or in another new file.

    A file that grew at its end, or was corrected, would count them twice. Fewer such rows are named, and so are those
    of the batches `received` by a server, which has accepted them. Files whose times overlap with those of no other are
    not compared, and none is where repeats are left out.
    """
    if reading.get("drop_duplicates"):
        return
    refused: list[str] = []
    for batch, (num_shared, num_rows) in _shared_rows(layout, dataset, results).items():
        sentence = (
            f"{name_of(results[batch])}: {num_shared:,} of {num_rows:,} distinct rows are in the log already, or in"
            " another new file"
        )
        is_allowed = num_rows < LEAST_ROWS or num_shared <= num_rows / 2 or batch in received or reading.get("force")
        if not is_allowed:
            refused.append(sentence)
        elif num_shared:
            show(f"{sentence}, and count once more")
    if refused:
        more = f"; and {counted(len(refused) - MAX_NAMED, 'more file')}" if len(refused) > MAX_NAMED else ""
        raise ForeignLog(
            f"{'; '.join(refused[:MAX_NAMED])}{more}, as in a file that grew or was corrected. Nothing was committed;"
            f" leave these rows out with `drop_duplicates`, take an earlier file back with `dyformer ingest {dataset}"
            " --undo`, or insist with `force`, so that they count once more"
        )


def _shared_rows(
    layout: Layout, dataset: str, results: Mapping[str, ReadResult | SpilledRows]
) -> dict[str, tuple[int, int]]:
    """Count the distinct rows of each new file that are elsewhere too, and all its distinct rows.

    Files whose times overlap with those of no other are left out, and so is one that another process has committed
    since it was looked for.
    """
    version = newest_version(layout, dataset) if has_events(layout, dataset) else None
    stored = None if version is None else history(layout, dataset, version).drop_nulls("first_time")
    committed = set() if stored is None else set(stored["batch"])
    results = {batch: result for batch, result in results.items() if batch not in committed}
    ranges = [time_range(result) for result in results.values()]
    others = [] if stored is None else stored.select("first_time", "last_time").rows()
    begin_S, end_S = np.array([*ranges, *others], dtype=np.int64).reshape(-1, 2).T
    overlaps = [int(((begin_S <= last) & (end_S >= first)).sum()) > 1 for first, last in ranges]
    if not any(overlaps):
        return {}
    compared = dict(compress(results.items(), overlaps))
    first, last = min(compress(ranges, overlaps))[0], max(last for _, last in compress(ranges, overlaps))
    stored_rows = pl.LazyFrame(schema=STORED_COLUMNS) if version is None else scan_events(layout, dataset, version)
    stored_rows = stored_rows.filter(pl.col("time").is_between(first, last))
    spilled = [result for result in compared.values() if isinstance(result, SpilledRows)]
    if spilled:
        counts = disk_rows.shared_rows(spilled[0].connection, stored_rows, spilled)
    else:
        held = [result.events for result in compared.values() if isinstance(result, ReadResult)]
        counts = rows.shared_rows(stored_rows, held)
    return dict(zip(compared, counts, strict=True))


def time_range(result: ReadResult | SpilledRows) -> tuple[int, int]:
    """Time of the first and of the last event of a file."""
    if isinstance(result, SpilledRows):
        return result.time_range()
    first, last = result.events["time"].min(), result.events["time"].max()
    assert isinstance(first, int), "a file without events is refused before"
    assert isinstance(last, int), "a file without events is refused before"
    return first, last


def name_missing(dataset: str, results: Mapping[str, ReadResult | SpilledRows], show: Callable[[str], None]) -> None:
    """Say how many of the new events have an id that may stand for a missing one; all of them are of one node."""
    for end in ENDS:
        total: Counter[str] = Counter()
        for result in results.values():
            total.update(_num_missing(result, end))
        for written, num_rows in sorted(total.items()):
            show(
                f"{dataset}: {written!r} is the {end} of {counted(num_rows, 'row')}; where it stands for a missing id,"
                " remove these rows from the log, because they are read as those of one node"
            )


def _num_missing(result: ReadResult | SpilledRows, end: str) -> dict[str, int]:
    """Count the events of a file with an id of MISSING, by the id as it is written."""
    if isinstance(result, SpilledRows):
        return result.num_with(end, MISSING)
    ids = result.events[end]
    if ids.dtype.is_integer():
        return {}
    found = ids.filter(ids.is_in(MISSING)).cast(pl.String)
    return dict(found.value_counts(name="num_rows").rows())


def check_lateness(text: str | None, time_unit: TimeUnit | None) -> None:
    """Raise WindowError unless the lateness is a duration that fits the times of the log; "0" is none."""
    if text not in (None, "0"):
        fixed_duration(text, time_unit or "us")


def fraction(text: str | float) -> float:
    """Read "5%" or "0.05" as a fraction of the rows.

    Raises:
        ValueError: it is neither, or not between 0 and 100 %.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*", str(text))
    value = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= value <= 1:
        raise InvalidInput(f"`max_bad` {text!r}: expected a fraction such as 5% or 0.05, from 0 to 100%")
    return value


def _plan(files: Sequence[RawFile], declared: Declared) -> ReadPlan:
    return replace(sniff_plan(list(files), declared), notes=())


def check_contract(
    layout: Layout,
    dataset: str,
    plan: ReadPlan,
    results: Mapping[str, ReadResult | SpilledRows],
    reading: Mapping[str, Any],
) -> None:
    """Raise ForeignLog for new files whose form, times or ids do not fit those of the dataset's rows.

    A property of the form that the call names may differ. If the dataset has no rows, the times of the files are
    compared with those of the first. Ids are not compared in a log that is declared to have new ones. With `force` in
    `reading`, nothing is compared.
    """
    if reading.get("force"):
        return
    names = [name_of(result) for result in results.values()]
    times = _stored_times(layout, dataset)
    _check(dataset, {names[0]: _foreign_form(layout, dataset, plan, reading)})
    if times is None and len(results) < 2:
        return
    samples = [_sample(result) for result in results.values()]
    medians = [int(sample["time"].median() or 0) for sample in samples]  # pyright: ignore[reportArgumentType]
    of_times = [
        time_difference(median, times, plan.time_unit) if times else unit_difference(median, medians[0], plan.time_unit)
        for median in medians
    ]
    has_new = reading.get("new_ids", (declaration(layout, dataset) or {}).get("new_ids"))
    of_ids = _id_differences(layout, dataset, samples) if times and not has_new else []
    differences = [[sentence for sentence in pair if sentence] for pair in zip_longest(of_times, of_ids)]
    _check(dataset, dict(zip(names, differences, strict=True)))


def check_form(layout: Layout, dataset: str, file: RawFile, plan: ReadPlan, reading: Mapping[str, Any]) -> None:
    """Raise ForeignLog for one of several new files whose form is not that of the dataset's rows; not with `force`."""
    if differences := _foreign_form(layout, dataset, plan, reading):
        raise ForeignLog(f"{file.name} does not continue the log: {', '.join(differences)} (insist with `force`)")


def _foreign_form(layout: Layout, dataset: str, plan: ReadPlan, reading: Mapping[str, Any]) -> list[str]:
    # A declaration without rows is of a first ingest that failed: its form binds nobody.
    is_free = reading.get("force") or _stored_times(layout, dataset) is None
    return [] if is_free else form_differences(form_of(plan), _forms(layout, dataset), stated=reading.keys())


def absent_roles(layout: Layout, dataset: str) -> frozenset[str]:
    """Give the roles of values that no row of a log has: a later file's column is read as one only if it is named."""
    forms = [] if _stored_times(layout, dataset) is None else _forms(layout, dataset)
    return frozenset(VALUES).difference(*(form.columns for form in forms)) if forms else frozenset()


def check_refused(refused: Mapping[str, LogError], num_files: int, first: str | None = None) -> None:
    """Raise the error of the only new file, or one LogError for those of several; none without an error.

    `first` is the file by which the reading was planned.
    """
    if not refused:
        return
    errors = list(refused.values())
    if num_files == 1:
        raise errors[0]
    others = [f"also {listed(list(refused)[MAX_NAMED:])}"] if len(errors) > MAX_NAMED else []
    named = [
        f"{error}{', the first time with `force`' if isinstance(error, OtherFormat) else ''}"
        for error in errors[:MAX_NAMED]
    ]
    problems = "; ".join([*named, *others])
    by_plan = f" by the plan of {first}" if first else ""
    raise LogError(
        f"{len(errors):,} of {num_files:,} new files cannot be read{by_plan}: {problems}."
        " Nothing was committed, because windows would be complete without their rows: mend these files, or leave them"
        " out, in a folder by names that begin with '.', and the others are ingested without them"
    ) from errors[0]


def check_format(
    layout: Layout, dataset: str, files: list[RawFile], declared: Declared, reading: Mapping[str, Any]
) -> None:
    """Raise ForeignLog for new files of another format than those of the dataset's rows; not with `force`."""
    stored = _forms(layout, dataset)
    if reading.get("force") or not stored or _stored_times(layout, dataset) is None:
        return
    try:
        new = sample_table(files, declared).format
    except LogError:  # the one that the caller has
        return
    is_known = any(form.format == new for form in stored)
    _check(dataset, {files[0].name: [] if is_known else [format_difference(new, stored[-1].format)]})


def _check(dataset: str, differences: Mapping[str, Sequence[str]]) -> None:
    wrong = {file: sentences for file, sentences in differences.items() if sentences}
    if not wrong:
        return
    problems = "; ".join(f"{file}: {', '.join(sentences)}" for file, sentences in list(wrong.items())[:MAX_NAMED])
    more = f"; and {counted(len(wrong) - MAX_NAMED, 'more file')}" if len(wrong) > MAX_NAMED else ""
    raise ForeignLog(
        f"this log does not continue dataset {dataset!r}: {problems}{more}. Nothing was committed; ingest it under"
        " another name, or insist with `force` (with `new_ids` where ids alone are other ones, such as those of"
        " sessions)"
    )


def with_form(record: Mapping[str, Any], plan: ReadPlan, batch: str) -> list[dict[str, Any]]:
    """Give the forms of a declaration, with that of new files, the first of which is `batch`."""
    stored, new = record.get("forms") or [], form_of(plan)
    return stored if new in map(form_from, stored) else [*stored, form_record(new) | {"batch": batch}]


def without_forms(record: Mapping[str, Any], batches: Collection[str]) -> dict[str, Any]:
    """Give a declaration without the forms that came with one of the sources `batches`."""
    forms = [form for form in record.get("forms") or [] if form["batch"] not in batches]
    return {**record, "forms": forms}


def _forms(layout: Layout, dataset: str) -> list[Form]:
    return [form_from(record) for record in (declaration(layout, dataset) or {}).get("forms") or []]


def _stored_times(layout: Layout, dataset: str) -> TimeRange | None:
    if not has_events(layout, dataset):
        return None
    first, last = history(layout, dataset).select(pl.min("first_time"), pl.max("last_time")).row(0)
    return None if first is None else TimeRange(first=first, last=last)


def _sample(result: ReadResult | SpilledRows) -> pl.DataFrame:
    """Take rows at equal distances."""
    if isinstance(result, SpilledRows):
        return result.sampled(SAMPLED_ROWS)
    rows = result.events.select("source", "target", "time")
    return rows.gather_every(max(1, rows.height // SAMPLED_ROWS))


def name_of(result: ReadResult | SpilledRows) -> str:
    """Give the name of the file that the rows were read from."""
    return result.file if isinstance(result, SpilledRows) else result.events["file"][0]


def _id_differences(layout: Layout, dataset: str, samples: Sequence[pl.DataFrame]) -> list[str | None]:
    stored = node_dictionary(layout, dataset).select("id", "side").unique()
    target_side = int(1 in stored["side"])
    ids = [
        sampled_ids(sample, target_side=target_side).with_columns(file=index) for index, sample in enumerate(samples)
    ]
    other = stored.with_columns(side=(1 - pl.col("side")).cast(pl.Int8))
    known, swapped = (
        dict(pl.concat(ids).join(nodes, on=["id", "side"], how="semi")["file"].value_counts().iter_rows())
        for nodes in (stored, other)
    )
    return [
        id_difference(len(stored), len(of_file), known.get(index, 0), swapped.get(index, 0))
        for index, of_file in enumerate(ids)
    ]
