"""The rows that a dataset has and those of a new file -> whether they are of one log.

Three things have to agree: the form of the file (format, separator, columns), the unit and the era of the times, and
the ids. Every function gives differences as sentences, for a ForeignLog that names the files.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from dyformer.logs.names import plain_name, roles_by_name
from dyformer.logs.plan import FORMAT_NAMES, SEPARATOR_NAMES, LogFormat, ReadPlan, position
from dyformer.logs.raw_file import LogError
from dyformer.logs.time_windows import FIXED_UNITS, YEAR, TimeUnit, written_time
from dyformer.logs.validation import MICROSECONDS, MIN_EPOCH, compact_date

SAMPLED_ROWS = 100_000  # of a file: enough for the median of its times and for the share of known ids
ENDS = ("source", "target", "time")
VALUES = ("weight", "label")

SECOND = FIXED_UNITS["s"]
EPOCH_START = int(MIN_EPOCH) * SECOND
CLOCK_GAP = 10 * YEAR  # a file may be so far from the stored rows, or
SPANS = 3  # times their duration
STEP_GAP = 1_000
STEP_SPANS = 30  # integer steps have no calendar, and the first file may be short
LEAST_IDS = 20  # of both the stored rows and a file, for their ids to be compared
LEAST_KNOWN = 0.01  # of the ids of the smaller of the two
SPREADSHEET_DAYS = (20_000, 80_000)  # the years 1954 to 2119


class ForeignLog(LogError):
    """Files whose rows do not continue those that the dataset has; the message has the differences of each."""


@dataclass(frozen=True, kw_only=True)
class Form:
    """The form of a file, as far as later files must have it too."""

    format: LogFormat
    separator: str | None
    names: tuple[str, ...]  # none without a header
    columns: Mapping[str, str | int]  # role -> name, or position where the columns have no names
    num_fields: int


@dataclass(frozen=True, kw_only=True)
class TimeRange:
    """Times of rows: microseconds since the epoch, or steps."""

    first: int
    last: int

    @property
    def span(self) -> int:
        """The time from the first row to the last one."""
        return self.last - self.first

    def distance(self, time: int) -> int:
        """Give how far a time is outside of the range, 0 within it."""
        return max(self.first - time, time - self.last, 0)


def form_of(plan: ReadPlan) -> Form:
    """Give the form of the files that a plan reads."""
    return Form(
        format=plan.format,
        separator=plan.separator,
        names=plan.names,
        columns=plan.columns.by_role(),
        num_fields=plan.min_fields,
    )


def form_record(form: Form) -> dict[str, Any]:
    """Give a form as values of JSON."""
    return asdict(form) | {"names": list(form.names), "columns": dict(form.columns)}


def form_from(record: Mapping[str, Any]) -> Form:
    """Read a form from its record, which may name the source that had it first."""
    values = {name: value for name, value in record.items() if name != "batch"}
    return Form(**{**values, "names": tuple(record["names"])})


def form_differences(new: Form, stored: Sequence[Form], stated: Collection[str] = ()) -> list[str]:
    """List the differences of a form from the stored one that is nearest to it; none without a stored form.

    A property that is in `stated`, because the user named it in this call, is no difference, except another column of a
    file that has the earlier one too. Other columns that are not read, another order of named columns, and a missing
    header above the same columns are none either.
    """
    differences = [_form_differences(new, other, stated) for other in stored]
    return min(differences, key=len, default=[])


def format_difference(new: LogFormat, stored: LogFormat) -> str:
    """Name the format of a file, and another one that earlier files have."""
    return f"its format is {FORMAT_NAMES[new]}, so far {FORMAT_NAMES[stored]}"


def _form_differences(new: Form, stored: Form, stated: Collection[str]) -> list[str]:
    if new.format != stored.format:
        return [format_difference(new.format, stored.format)]
    differences = []
    if new.separator != stored.separator and "separator" not in stated:
        was, now = (SEPARATOR_NAMES.get(str(form.separator), str(form.separator)) for form in (stored, new))
        differences.append(f"its separator is the {now}, so far the {was}")
    roles = [role for role in ENDS if _column_of(new, stored, role) != _column_of(stored, new, role)]
    has_both = {role for role in roles if role in stated and _has_column_of(new, stored, role)}
    differences += [
        f"its {role} is {_written(new, role)}, so far {_written(stored, role)}"
        f"{', which it has too' if role in has_both else ''}"
        for role in roles
        if role not in stated or role in has_both
    ]
    differences += [
        f"it has no {role}, so far {_written(stored, role)}; if it has one, name it with `{role}`"
        for role in VALUES
        if role in stored.columns and role not in new.columns and role not in stated
    ]
    if not new.names and not stored.names and new.num_fields != stored.num_fields:
        differences.append(f"its rows have {new.num_fields} columns, so far {stored.num_fields}")
    return differences + _otherwise_named(new, stored, stated)


def _otherwise_named(new: Form, stored: Form, stated: Collection[str]) -> list[str]:
    """List the columns whose names contradict the role that they have by position, where a header is new."""
    if stored.names or not new.names or any(isinstance(stored.columns[role], str) for role in ENDS):
        return []
    by_name = roles_by_name(new.names)
    return [
        f"its header names the column at position {_at(new, role)} {new.names[_at(new, role)]!r}, so far the {role}"
        for role in ENDS
        if role in by_name
        and role not in stated
        and by_name[role] != _at(new, role)
        and _column_of(new, stored, role) == _column_of(stored, new, role)
    ]


def _column_of(form: Form, other: Form, role: str) -> str | int:
    """Give the column of a role: its name if both forms have names, else its position.

    Capitals and punctuation of a name are left out, unless two columns of the file differ in nothing else.
    """
    column = form.columns[role]
    if not form.names or not other.names:
        return _at(form, role)
    plain_names = [plain_name(name) for name in form.names]
    if isinstance(column, str) and len(set(plain_names)) == len(plain_names):
        return plain_name(column)
    return column


def _has_column_of(form: Form, other: Form, role: str) -> bool:
    """Whether a form has the column, by name, that has a role in another one."""
    column = other.columns[role]
    return isinstance(column, str) and plain_name(column) in map(plain_name, form.names)


def _at(form: Form, role: str) -> int:
    column = form.columns[role]
    return position(role, column, form.names, len(form.names), "the header") if form.names else int(column)


def _written(form: Form, role: str) -> str:
    column = form.columns[role]
    return f"the column {column!r}" if isinstance(column, str) else f"column {column + 1}"


def time_difference(median: int, stored: TimeRange, unit: TimeUnit) -> str | None:
    """Say how the median time of a file does not fit the stored rows, and name the units that do, None if it fits."""
    far = far_time(median, stored, unit)
    return None if far is None else f"its times are {far}{_unit_hint(median, stored, unit)}"


def far_time(median: int, stored: TimeRange, unit: TimeUnit) -> str | None:
    """Say how a time does not fit the stored rows, None if it does.

    Counts of another unit land around 1970, while the stored rows do not, or far in the future. Times of any unit may
    be outside of the stored range by its length three times, and by ten years at least.
    """
    distance, is_step = stored.distance(median), unit == "step"
    gap = max(STEP_GAP, STEP_SPANS * stored.span) if is_step else max(CLOCK_GAP, SPANS * stored.span)
    is_count = unit in (*MICROSECONDS, "ns")
    is_slip = is_count and (
        median < EPOCH_START <= stored.first
        or (stored.last < EPOCH_START <= median and distance > SPANS * max(stored.span, SECOND))
    )
    if distance <= gap and not is_slip:
        return None
    return (
        f"around {written_time(median, unit)}, so far {written_time(stored.first, unit)} to"
        f" {written_time(stored.last, unit)}"
    )


def unit_difference(median: int, first_median: int, unit: TimeUnit) -> str | None:
    """Say that one of two new files has counts since the epoch and the other has none, None if they agree."""
    if unit not in (*MICROSECONDS, "ns") or (median < EPOCH_START) == (first_median < EPOCH_START):
        return None
    at = TimeRange(first=first_median, last=first_median)
    return (
        f"its times are around {written_time(median, unit)}, those of the first file around"
        f" {written_time(first_median, unit)}{_unit_hint(median, at, unit)}"
    )


def _unit_hint(median: int, stored: TimeRange, unit: TimeUnit) -> str:
    """Name the units in which the same counts would fit the stored rows."""
    if unit not in (*MICROSECONDS, "ns", "step"):
        return ""
    count = median if unit == "step" else median * 1_000 if unit == "ns" else median // MICROSECONDS[unit]
    if unit == "step":
        return "; times since the epoch are no steps" if count >= MIN_EPOCH else ""
    near = max(CLOCK_GAP, SPANS * stored.span)
    fitting = [name for name, factor in MICROSECONDS.items() if stored.distance(count * factor) <= near]
    fitting += ["ns"] if stored.distance(count // 1_000) <= near else []
    if compact_date(str(count)) is not None:
        fitting = ["iso"]
    if SPREADSHEET_DAYS[0] <= count <= SPREADSHEET_DAYS[1]:
        return f"; {count} may be a day of a spreadsheet: write it as a date"
    named = " or ".join(f'`time_unit="{name}"`' for name in fitting if name != unit)
    return f"; in another unit they fit: {named}" if named else ""


def id_difference(num_stored: int, num_new: int, num_known: int, num_swapped: int = 0) -> str | None:
    """Say that nearly all ids differ, None if enough of them are known or too few are there to say.

    In a log with two id spaces an id of the other side is another node.

    Args:
        num_stored: distinct ids of the stored rows.
        num_new: distinct ids of a file, or of a sample of its rows.
        num_known: those of `num_new` that the stored rows have.
        num_swapped: those of `num_new` that the stored rows have on the other side.
    """
    fewest = min(num_stored, num_new)
    if fewest < LEAST_IDS or num_known >= LEAST_KNOWN * fewest:
        return None
    are = "is an id" if num_swapped == 1 else "are ids"
    swapped = f"; {num_swapped:,} {are} of the other end: are source and target swapped?" if num_swapped else ""
    return f"of its {num_new:,} ids, {num_known or 'none'} is among the {num_stored:,} known ones{swapped}"


def sampled_ids(rows: pl.DataFrame, *, target_side: int) -> pl.DataFrame:
    """Give the distinct nodes of a sample of rows, sources and targets: id, as text, and side."""
    ends = [
        rows.select(pl.col(end).cast(pl.String).alias("id"), pl.lit(side, pl.Int8).alias("side"))
        for end, side in (("source", 0), ("target", target_side))
    ]
    return pl.concat(ends).unique()
