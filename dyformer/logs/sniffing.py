"""The start of a raw log and the user's declarations -> ReadPlan.

The rules are this project's own, because the sniffers of the csv module and of DuckDB do not find the roles of columns
(source, target, time). Where two readings fit, they choose one without notice.
"""

import re
from collections.abc import Collection
from dataclasses import fields
from datetime import UTC, datetime
from itertools import combinations
from typing import Any

import polars as pl

from dyformer.logs.counts import counted
from dyformer.logs.datasets import Columns
from dyformer.logs.names import LABELS, PAIRS, TIMES, WEIGHTS, named_pairs, plain_name
from dyformer.logs.plan import UNIT_NAMES, Declared, ReadPlan, listed, position
from dyformer.logs.raw_file import AmbiguousLog, RawFile, SameColumn, UnreadableTime
from dyformer.logs.sample import Table, is_compact_date, is_number, mostly, sample_table, shortened, time_like
from dyformer.logs.time_windows import TimeUnit
from dyformer.logs.validation import DAY_PATTERN, MEAN_YEAR, MICROSECONDS, are_since_epoch, read_times, unit_of

SPREADSHEET_DAYS = (30_000, 60_000)  # days since 1899-12-30: the years 1982 to 2064
FAR_YEAR = 1_000_000  # beyond it a message has no year


def sniff_plan(files: list[RawFile], declared: Declared | None = None, *, absent: Collection[str] = ()) -> ReadPlan:
    """Guess from a log's start how to read it; declared properties are taken unchanged.

    The roles in `absent` are those of no column unless they are declared.
    Raises a LogError that names file, place and remedy: EmptyLog, OneColumn, WrongSeparator, ColumnNotFound,
    SameColumn, AmbiguousLog, UnreadableTime, DamagedLog.
    """
    declared = declared or Declared()
    table = sample_table(files, declared)
    roles, notes = _roles(table, declared, absent)
    return _plan(table, declared, roles, _time_unit(table, roles["time"], declared), notes)


def _plan(table: Table, declared: Declared, roles: dict[str, Any], unit: TimeUnit, notes: list[str]) -> ReadPlan:
    named: dict[str, Any] = {
        role: at if at is None or at >= len(table.names) or table.names.count(table.names[at]) > 1 else table.names[at]
        for role, at in roles.items()
    }
    bipartite = declared.bipartite
    if bipartite is None:
        bipartite = table.konect.startswith("bip") or _names_two_kinds(named)
        if bipartite:
            notes.append(
                "two id spaces, from the columns' names or the KONECT header; if they are one, pass `bipartite=False`"
            )
        elif not _has_common_id(table, roles):
            notes.append(
                f"one id space, as neither the columns' names nor a KONECT header name two; but no source of the first"
                f" {counted(len(table.rows), 'row')} is a target, too: if user 7 and item 7 are two nodes, pass"
                " `bipartite=True`"
            )
    directed = declared.directed
    if directed is None:
        directed = not table.konect.startswith("sym")
        if not directed:
            notes.append("undirected, from the KONECT header; if the order of the ends matters, pass `directed=True`")
    if declared.time_unit is None and roles["time"] not in table.clock_columns:  # whose type is no guess
        notes.append(f"time unit {unit}, from {table.column(roles['time'])[0]!r} in {table.where}")
    open_end = table.has_header and len(table.names) < table.num_fields
    return ReadPlan(
        format=table.format,
        columns=Columns(**named),
        time_unit=unit,
        separator=table.separator,
        has_header=table.has_header,
        names=table.names,
        min_fields=len(table.names) if table.names else table.num_fields,
        max_fields=None if open_end or table.format != "delimited" else table.num_fields,
        bipartite=bipartite,
        directed=directed,
        comment_marks=declared.comment_marks,
        since_epoch=roles["time"] not in table.clock_columns and are_since_epoch(table.column(roles["time"]), unit),
        notes=tuple(notes),
    )


def _roles(table: Table, declared: Declared, absent: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Find the position of each role: first as declared, then by the columns' names, then by their values."""
    num_fields = max(table.num_fields, len(table.names))
    column_of = {field.name: getattr(declared, field.name) for field in fields(Columns)}
    if declared.is_known and table.names[:1] == ("",):
        column_of = {role: column + 1 if isinstance(column, int) else column for role, column in column_of.items()}
    options = {
        role: position(role, column, table.names, num_fields, table.where)
        for role, column in column_of.items()
        if column is not None
    }
    guessed = dict(options)
    _add_named(table, guessed)
    if "time" not in guessed:
        guessed["time"] = _time_by_value(table, guessed)
    _add_ends(table, guessed)
    if not table.names and "weight" not in options and table.num_fields == 4 and "label" not in options:
        _add_weight(table, guessed)
    how = "by name" if table.names else "by position and value"
    guessed = {role: at for role, at in guessed.items() if role in options or role not in absent}
    _check_distinct(table, guessed)
    guesses = [f"{role} column, {how}" for role in guessed if role not in options]
    roles = {field.name: guessed.get(field.name) for field in fields(Columns)}
    return roles, guesses


def _check_distinct(table: Table, roles: dict[str, int]) -> None:
    """Raise SameColumn if one column would be two of source, target and time."""
    for one, other in combinations(("source", "target", "time"), 2):
        if one in roles and roles[one] == roles.get(other):
            at = roles[one]
            name = repr(table.names[at]) if at < len(table.names) else f"at position {at}"
            raise SameColumn(
                f"{table.where}: the column {name} cannot be both {one} and {other}; choose two columns with `{one}`"
                f" and `{other}`"
            )


def _add_named(table: Table, roles: dict[str, int]) -> None:
    """Add the roles whose columns have a usual name."""
    names = [plain_name(name) for name in table.names]

    def named(usual: frozenset[str]) -> list[int]:
        return [at for at, name in enumerate(names) if name in usual]

    if "source" not in roles and "target" not in roles:
        pairs = named_pairs(table.names)
        if len(pairs) > 1:
            both = (f"{_named(table, source)} and {_named(table, target)}" for source, target in pairs)
            problems = "; ".join(both)
            raise AmbiguousLog(
                f"{table.where}: several pairs of columns could be the ends of an interaction ({problems});"
                " choose with `source` and `target`"
            )
        roles.update(zip(("source", "target"), next(iter(pairs), ()), strict=False))
    _add_one(table, roles, "time", named(TIMES))
    for role, usual in (("weight", WEIGHTS), ("label", LABELS)):  # texts, as of an edge list of Gephi, are neither
        _add_one(table, roles, role, [at for at in named(usual) if mostly(table.column(at), _is_number_or_missing)])


def _is_number_or_missing(text: str) -> bool:
    return text.lower() in ("", "nan") or is_number(text)


def _named(table: Table, at: int) -> str:
    """Give a column's name, and its position if another column has the same."""
    name = table.names[at]
    return name if table.names.count(name) == 1 else f"{name} at position {at}"


def _add_one(table: Table, roles: dict[str, int], role: str, columns: list[int]) -> None:
    free = sorted(set(columns) - set(roles.values()))
    if role in roles or not free:
        return
    if len(free) > 1:
        names = ", ".join(_named(table, at) for at in free)
        raise AmbiguousLog(f"{table.where}: several columns could be the {role} ({names}); choose with `{role}`")
    roles[role] = free[0]


def _add_ends(table: Table, roles: dict[str, int]) -> None:
    """Take the first free columns as source and target; raises AmbiguousLog where named columns leave a choice."""
    missing = [role for role in ("source", "target") if role not in roles]
    free = [at for at in range(table.num_fields) if at not in roles.values()]
    if missing and table.names and len(free) != len(missing):
        raise AmbiguousLog(
            f"{table.where}: the {' and '.join(missing)} column cannot be guessed from the names"
            f" ({listed(table.names)}); choose with {' and '.join(f'`{role}`' for role in missing)}"
        )
    roles.update(zip(missing, free, strict=False))


def _add_weight(table: Table, roles: dict[str, int]) -> None:
    free = [at for at in range(2, 4) if at not in roles.values()]
    if len(free) == 1 and all(is_number(cell) and float(cell) > 0 for cell in table.column(free[0])):
        roles["weight"] = free[0]


def _time_by_value(table: Table, roles: dict[str, int]) -> int:
    """Find the time column by its values: dates, large counts, else the only column of numbers that changes."""
    taken = set(roles.values())
    if table.konect and table.num_fields == 4 and 3 not in taken:
        return 3
    if table.konect and table.num_fields == 3 and not time_like(table):
        raise UnreadableTime(f"{table.where}: a KONECT file of three columns has weights but no times; choose another")
    like = [at for at in time_like(table) if at not in taken]
    late = [at for at in like if at >= 2]
    numbers = [at for at in range(2, table.num_fields) if at not in taken and mostly(table.column(at), is_number)]
    changing = [at for at in numbers if len(set(table.column(at))) > 1]
    for candidates in (like, late, numbers, changing):
        if len(candidates) == 1:
            return candidates[0]
    if not like and not numbers:
        example = table.rows[:2][-1][-1]  # the second row's, as the first one may name the columns
        raise UnreadableTime(
            f"{table.where}: no column holds a time (last column: {shortened(example)}); write ISO 8601, a count since"
            " the epoch or an integer step, or name the column with `time` and its unit with `time_unit`"
        )
    columns = ", ".join(table.names[at] if table.names else str(at) for at in late or like or numbers)
    raise AmbiguousLog(f"{table.where}: several columns could be the time ({columns}); choose with `time`")


def _time_unit(table: Table, at: int, declared: Declared) -> TimeUnit:
    if at in table.clock_columns:
        return "us"
    if declared.time_unit is not None:
        return declared.time_unit
    texts = [text for text in table.column(at) if text]
    if not texts:
        raise UnreadableTime(
            f"{table.where}: the time column ({table.names[at] if table.names else at}) is empty in the first"
            f" {counted(len(table.rows), 'row')}; name another column with `time`, or its unit with `time_unit`"
        )
    if mostly(texts, is_number):
        return _unit_of_counts([text for text in texts if is_number(text)], table)
    dates = [match for text in texts if (match := re.match(DAY_PATTERN, text))]
    if len(dates) > len(texts) / 2:
        return _first_of_date(dates, table)
    if read_times(pl.Series(texts), "iso")["time"].null_count() == len(texts):
        unread = next(text for text in texts if not is_number(text))
        raise UnreadableTime(
            f"from {table.where} on: the time {shortened(unread)} is neither a number nor a date"
            " (2024-05-31T10:00:00Z, 31/05/2024 10:00); name another column with `time`, or rewrite the times"
        )
    return "iso"


def _unit_of_counts(texts: list[str], table: Table) -> TimeUnit:
    """Guess the unit of counts; raises AmbiguousLog for days of a spreadsheet and for a median after next year."""
    if mostly(texts, is_compact_date):
        return "iso"
    unit, counts = unit_of(texts), [float(text) for text in texts]
    first, last = SPREADSHEET_DAYS
    if unit == "s" and all(first <= count <= last for count in counts) and any(count % 1 for count in counts):
        raise AmbiguousLog(
            f"{table.where}: the time {shortened(texts[0])} may count seconds, or days of a spreadsheet; if it is"
            ' seconds, say so with `time_unit="s"`, else write the times as dates (2024-05-31T10:00:00Z)'
        )
    year = 1970 + sorted(counts)[len(counts) // 2] * MICROSECONDS.get(unit, 0.001) / MEAN_YEAR
    if unit != "step" and year >= datetime.now(UTC).year + 2:
        far = f"in {int(year)}" if year < FAR_YEAR else f"after {FAR_YEAR:,}"  # the float may be infinite
        raise AmbiguousLog(
            f"{table.where}: the times, such as {shortened(texts[0])}, are after next year ({far}) if they are"
            f" {UNIT_NAMES[unit]}; choose another unit or column with `time_unit` and `time`, or insist with"
            f' `time_unit="{unit}"`'
        )
    return unit


def _first_of_date(dates: list[re.Match[str]], table: Table) -> TimeUnit:
    """Guess whether the day or the month is first: the one that exceeds 12."""
    is_day_first, is_month_first = (any(int(date[part]) > 12 for date in dates) for part in (1, 3))
    if is_day_first == is_month_first:
        raise AmbiguousLog(
            f"{table.where}: dates like {dates[0][0]!r} may have the day or the month first; choose with"
            ' `time_unit="day-first"` or `time_unit="month-first"`'
        )
    return "day-first" if is_day_first else "month-first"


def _names_two_kinds(roles: dict[str, Any]) -> bool:
    source, target = plain_name(str(roles["source"])), plain_name(str(roles["target"]))
    return any(two_spaces and source in sources and target in targets for sources, targets, two_spaces in PAIRS)


def _has_common_id(table: Table, roles: dict[str, Any]) -> bool:
    """Whether an id of the sample is a source and a target; 7.0 is 7, as in all rows."""
    sources, targets = (
        {re.sub(r"\.0+$", "", text.strip()) for text in table.column(roles[end])} for end in ("source", "target")
    )
    return not sources.isdisjoint(targets)
