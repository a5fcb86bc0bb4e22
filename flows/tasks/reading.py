"""The options for reading a log, and what is stored of earlier ingests -> what is declared about the log."""

import re
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, get_args

from dyformer.logs.datasets import DATASETS, OWN_LOG_WINDOW, dataset_named
from dyformer.logs.plan import Declared, ReadPlan, declared_by
from dyformer.logs.raw_file import RawFile
from dyformer.logs.sniffing import sniff_plan
from dyformer.logs.time_windows import TimeUnit, Window, fixed_duration
from storage.events.declarations import declaration
from storage.layout import Layout

FIXED = ("time_unit", "bipartite")  # the committed rows depend on these
SEPARATORS = {"comma": ",", "tab": "\t", "\\t": "\t", "semicolon": ";", "pipe": "|", "space": " ", "spaces": " "}


class UnknownReading(ValueError):
    """An option for reading a log that does not exist or does not fit."""


class OptionsWithoutEffect(ValueError):
    """Options that would read the committed rows in another way, although no row is left to read."""


def declared_log(layout: Layout, dataset: str, reading: dict[str, Any]) -> tuple[Declared, Window]:
    """Give the declarations of a log, and its window.

    The options of this call come first, then the stored declaration, then the known dataset of this name. Raises
    UnknownReading for a value that no option takes.
    """
    fraction(reading.get("max_bad", "1%"))  # also checked if no row is read
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


def check_unread(layout: Layout, dataset: str, reading: dict[str, Any], old_files: Sequence[RawFile]) -> None:
    """Check the options of a call that reads no row, because all files of the log were committed before.

    An option may name again what was declared or guessed when the rows were read. Without files it is compared with
    the stored declaration alone. Raises OptionsWithoutEffect for any other value.
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
    raise OptionsWithoutEffect(
        f"dataset {dataset!r} was ingested with {was}, but now {now}, and there is no new row to read: leave out"
        f" {' and '.join(f'`{name}`' for name in changed)}, name a new file with `log`, or remove the dataset with"
        f" `dyformer drop {dataset}` and ingest it again"
    )


def check_duplicates(layout: Layout, dataset: str, reading: dict[str, Any], num_duplicates: int) -> None:
    """Raise OptionsWithoutEffect if repeats are to be dropped, but the newest rows were committed with theirs."""
    were_dropped = (declaration(layout, dataset) or {}).get("drop_duplicates")  # None in a store of an earlier version
    if reading.get("drop_duplicates") and were_dropped is False and num_duplicates:
        raise OptionsWithoutEffect(
            f"dataset {dataset!r} was ingested with {num_duplicates:,} exact duplicates, and there is no new row to"
            f" read: leave out `drop_duplicates`, or remove the dataset with `dyformer drop {dataset}` and ingest it"
            " again"
        )


def check_lateness(text: str | None, time_unit: TimeUnit | None) -> None:
    """Raise WindowError unless the lateness is a duration that fits the times of the log; "0" is none."""
    if text not in (None, "0"):
        fixed_duration(text, time_unit or "us")


def fraction(text: str | float) -> float:
    """Read "5%" or "0.05" as a fraction of the rows.

    Raises:
        UnknownReading: it is neither, or not between 0 and 100 %.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*", str(text))
    value = float(match[1]) / (100 if match[2] else 1) if match else -1.0
    if not 0 <= value <= 1:
        raise UnknownReading(f"`max_bad` {text!r}: expected a fraction such as 5% or 0.05, from 0 to 100%")
    return value


def _plan(files: Sequence[RawFile], declared: Declared) -> ReadPlan:
    return replace(sniff_plan(list(files), declared), notes=())


def _plain(name: str, value: Any) -> Any:
    if name == "time_unit" and value not in get_args(TimeUnit):
        raise UnknownReading(f"`time_unit` {value!r}: expected one of {', '.join(get_args(TimeUnit))}")
    return SEPARATORS.get(value, value) if name == "separator" else value
