"""The start of a raw log, and what the user declared -> ReadPlan."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import polars as pl

from dyformer.logs.column_names import LABELS, PAIRS, TIMES, WEIGHTS
from dyformer.logs.datasets import Columns, TimeUnit
from dyformer.logs.log_file import (
    AmbiguousLog,
    DamagedLog,
    EmptyLog,
    OneColumn,
    RawFile,
    UnreadableTime,
    WrongSeparator,
)
from dyformer.logs.plan import SEPARATOR_NAMES, Declared, ReadPlan, position
from dyformer.logs.sample import Sample, common_length, sample_log, split_rows
from dyformer.logs.times import ISO_PATTERN, read_times, unit_of

Row = list[str]

MIN_EPOCH = 1e8  # seconds: 1973


@dataclass(frozen=True, kw_only=True)
class Table:
    """The sample's rows under one separator."""

    place: str  # file and first line
    names: tuple[str, ...]
    rows: list[Row]  # all of the most frequent length
    num_fields: int
    separator: str | None = None
    has_header: bool = False
    konect: str = ""  # KONECT's first comment words, "asym positive" or "bip positive"

    def column(self, at: int) -> Row:
        """Give the sample's texts of one column."""
        return [row[at] for row in self.rows]


def sniff_plan(files: list[RawFile], declared: Declared | None = None) -> ReadPlan:
    """Look at the start of a log and make the plan of reading it; whatever is declared is taken as it is.

    Raises a LogError that names file, place and remedy: EmptyLog, OneColumn, WrongSeparator, ColumnNotFound,
    AmbiguousLog, UnreadableTime, DamagedLog.
    """
    declared = declared or Declared()
    _check_separator(declared.separator)
    sample = sample_log(files, declared.comment_marks)
    if declared.format not in (None, sample.format):
        raise DamagedLog(f"{sample.file} is declared as {declared.format}, but its start reads as {sample.format}")
    if sample.format == "delimited":
        table = _delimited_table(sample, declared)
    else:
        place = f"{sample.file}, row 1"
        table = Table(
            place=place, names=sample.names, rows=[list(row) for row in sample.rows], num_fields=len(sample.names)
        )
    roles, notes = _roles(table, declared)
    unit = _time_unit(table, sample, roles["time"], declared)
    return _plan(table, sample, declared, roles, unit, notes)


def _plan(
    table: Table, sample: Sample, declared: Declared, roles: dict[str, Any], unit: TimeUnit, notes: list[str]
) -> ReadPlan:
    unique = len(set(table.names)) == len(table.names)
    named: dict[str, Any] = {
        role: table.names[at] if unique and at is not None and at < len(table.names) else at
        for role, at in roles.items()
    }
    bipartite = declared.bipartite
    if bipartite is None:
        bipartite = table.konect.startswith("bip") or _names_two_kinds(named)
        if bipartite:
            notes.append("two id spaces, from the columns' names or the KONECT header; say so if they are one")
    if declared.time_unit is None:
        notes.append(f"time unit {unit}, from {table.column(roles['time'])[0]!r} in {table.place}")
    open_end = table.has_header and len(table.names) < table.num_fields
    return ReadPlan(
        format=sample.format,
        columns=Columns(**named),
        time_unit=unit,
        separator=table.separator,
        has_header=table.has_header,
        names=table.names,
        min_fields=len(table.names) if table.names else table.num_fields,
        max_fields=None if open_end or sample.format != "delimited" else table.num_fields,
        bipartite=bipartite,
        directed=declared.directed if declared.directed is not None else True,
        comment_marks=declared.comment_marks,
        notes=tuple(notes),
    )


def _delimited_table(sample: Sample, declared: Declared) -> Table:
    fitting = _fitting(sample)
    if declared.separator is not None:
        table = _table(sample, declared.separator, declared)
        if table.num_fields < 3:
            others = " or ".join(SEPARATOR_NAMES[separator] for separator in fitting)
            raise WrongSeparator(
                f"the separator {SEPARATOR_NAMES.get(declared.separator, declared.separator)!r} finds"
                f" {table.num_fields} column(s) in {table.place}: {_shown(','.join(table.rows[0]))};"
                f" {f'did you mean {others}?' if others else 'no separator fits this file'}"
            )
        return table
    if not fitting:
        first = split_rows(sample, ",")[0][0]
        raise OneColumn(
            f"{sample.file}, line {first} has no three columns (source, target, time) under any of"
            f" {', '.join(SEPARATOR_NAMES.values())}: {_shown(sample.lines[first - 1])}; declare the separator with"
            " --separator, or write the missing columns"
        )
    tables = [_table(sample, separator, declared) for separator in fitting]
    timed = [table for table in tables if _time_like(table)] or tables
    if len(timed) > 1:
        names = " and ".join(SEPARATOR_NAMES[str(table.separator)] for table in timed)
        raise AmbiguousLog(f"{timed[0].place}: {names} separate equally well; choose one with --separator")
    return timed[0]


def _check_separator(separator: str | None) -> None:
    if separator is None or (len(separator) == 1 and separator.isascii() and separator not in '"\r\n'):
        return
    names = ", ".join(SEPARATOR_NAMES.values())
    raise WrongSeparator(
        f"the separator {separator!r} is not a single ASCII character: choose one of {names}, or rewrite the log"
        " (sed 's/::/,/g' FILE)"
    )


def _fitting(sample: Sample) -> list[str]:
    """Find the separators that give most rows three fields or more; spaces only where no other does."""
    fitting = []
    for separator in SEPARATOR_NAMES:
        if not any(separator in line for line in sample.lines):
            continue
        rows = [row for _, row in split_rows(sample, separator)]
        if common_length(rows) >= 3 and sum(len(row) >= 3 for row in rows) > 0.6 * len(rows):
            fitting.append(separator)
    return [separator for separator in fitting if separator != " "] or fitting


def _table(sample: Sample, separator: str, declared: Declared) -> Table:
    lines, rows = zip(*split_rows(sample, separator), strict=True)
    has_header = declared.has_header
    if has_header is None:
        has_header = _looks_like_header(rows, declared)
    first = 1 if has_header else 0
    body = rows[first:]
    if not body:
        raise EmptyLog(f"{sample.file}: the log is empty, there is only a header in line {lines[0]}")
    num_fields = common_length(body)
    konect = re.match(r"%\s*((?:sym|asym|bip)\s+\w+)", sample.lines[0])
    return Table(
        place=f"{sample.file}, line {lines[first]}",
        names=tuple(rows[0])[:num_fields] if has_header else (),
        rows=[row for row in body if len(row) == num_fields],
        num_fields=num_fields,
        separator=separator,
        has_header=has_header,
        konect=konect[1] if konect else "",
    )


def _looks_like_header(rows: Sequence[Row], declared: Declared) -> bool:
    """Say whether the first row names the columns: no number or date in it, but below it."""
    columns = (declared.source, declared.target, declared.time)
    if any(isinstance(column, str) and not column.isdecimal() for column in columns):
        return True
    first = rows[0]
    if any(map(_is_value, first)) or not all(first) or len(set(first)) < len(first):
        return False
    return len(rows) == 1 or any(_is_value(cell) for row in rows[1:20] for cell in row)


def _roles(table: Table, declared: Declared) -> tuple[dict[str, Any], list[str]]:
    """Give each role its position; the declared first, then by name, then by what the columns hold."""
    num_fields = max(table.num_fields, len(table.names))
    given = {
        field.name: position(getattr(declared, field.name), table.names, num_fields, table.place)
        for field in fields(Columns)
        if getattr(declared, field.name) is not None
    }
    guessed = dict(given)
    _add_named(table, guessed)
    if "time" not in guessed:
        guessed["time"] = _time_by_value(table, guessed)
    _add_ends(table, guessed)
    if not table.names and "weight" not in given and table.num_fields == 4 and "label" not in given:
        _add_weight(table, guessed)
    how = "by name" if table.names else "by position and value"
    guesses = [f"{role} column, {how}" for role in guessed if role not in given]
    roles = {field.name: guessed.get(field.name) for field in fields(Columns)}
    return roles, guesses


def _add_named(table: Table, roles: dict[str, int]) -> None:
    """Add the roles whose columns go by a usual name."""
    at = {name.lower(): index for index, name in reversed(list(enumerate(table.names)))}
    if "source" not in roles and "target" not in roles:
        pairs = {
            (at[source], at[target])
            for sources, targets, _ in PAIRS
            for source in sources & at.keys()
            for target in targets & at.keys()
        }
        if len(pairs) > 1:
            shown = "; ".join(f"{table.names[source]} and {table.names[target]}" for source, target in sorted(pairs))
            raise AmbiguousLog(
                f"{table.place}: several pairs of columns could be the ends of an"
                f" interaction ({shown}); choose with --source and --target"
            )
        roles.update(zip(("source", "target"), next(iter(pairs), ()), strict=False))
    _add_one(table, roles, "time", [at[name] for name in TIMES & at.keys()])
    _add_one(table, roles, "weight", [at[name] for name in WEIGHTS & at.keys()])
    _add_one(table, roles, "label", [at[name] for name in LABELS & at.keys()])


def _add_one(table: Table, roles: dict[str, int], role: str, columns: list[int]) -> None:
    free = sorted(set(columns) - set(roles.values()))
    if role in roles or not free:
        return
    if len(free) > 1:
        names = ", ".join(table.names[at] for at in free)
        raise AmbiguousLog(f"{table.place}: several columns could be the {role} ({names}); choose with --{role}")
    roles[role] = free[0]


def _add_ends(table: Table, roles: dict[str, int]) -> None:
    """Take the first two free columns as source and target, where there is no doubt."""
    missing = [role for role in ("source", "target") if role not in roles]
    free = [at for at in range(table.num_fields) if at not in roles.values()]
    if missing and table.names and len(free) != len(missing):
        raise AmbiguousLog(
            f"{table.place}: the {' and '.join(missing)} column cannot be told from the names"
            f" ({', '.join(table.names)}); choose with {' and '.join('--' + role for role in missing)}"
        )
    roles.update(zip(missing, free, strict=False))


def _add_weight(table: Table, roles: dict[str, int]) -> None:
    free = [at for at in range(2, 4) if at not in roles.values()]
    if len(free) == 1 and all(_is_number(cell) and float(cell) > 0 for cell in table.column(free[0])):
        roles["weight"] = free[0]


def _time_by_value(table: Table, roles: dict[str, int]) -> int:
    """Find the time column by what it holds: dates, large counts, else the one column of numbers that changes."""
    taken = set(roles.values())
    if table.konect and table.num_fields == 4 and 3 not in taken:
        return 3
    if table.konect and table.num_fields == 3 and not _time_like(table):
        raise UnreadableTime(f"{table.place}: a KONECT file of three columns has weights but no times; choose another")
    like = [at for at in _time_like(table) if at not in taken]
    late = [at for at in like if at >= 2]
    numbers = [at for at in range(2, table.num_fields) if at not in taken and _mostly(table.column(at), _is_number)]
    changing = [at for at in numbers if len(set(table.column(at))) > 1]
    for candidates in (like, late, numbers, changing):
        if len(candidates) == 1:
            return candidates[0]
    if not like and not numbers:
        example = table.rows[0][-1]
        raise UnreadableTime(
            f"{table.place}: no column holds a time (last column: {_shown(example)}); write ISO 8601, a count since the"
            " epoch or an integer step, or name the column with --time and its unit with --time-unit"
        )
    columns = ", ".join(table.names[at] if table.names else str(at) for at in late or like or numbers)
    raise AmbiguousLog(f"{table.place}: several columns could be the time ({columns}); choose with --time")


def _time_like(table: Table) -> list[int]:
    """Find the columns of dates; without one, those of counts large enough for an epoch."""
    dates = [at for at in range(table.num_fields) if _mostly(table.column(at), _is_date)]
    large = [at for at in range(table.num_fields) if _mostly(table.column(at), _is_epoch)]
    return dates or large


def _time_unit(table: Table, sample: Sample, at: int, declared: Declared) -> TimeUnit:
    if at in sample.clock_columns:
        return "us"
    if declared.time_unit is not None:
        return declared.time_unit
    texts = [row[at] for row in table.rows]
    if _mostly(texts, _is_number):
        return unit_of([text for text in texts if _is_number(text)])
    if read_times(pl.Series(texts), "iso")["time"].null_count() == len(texts):
        raise UnreadableTime(
            f"{table.place}: the time {_shown(texts[0])} is neither a number nor ISO 8601 (2024-05-31T10:00:00Z);"
            " name another column with --time, or rewrite the times"
        )
    return "iso"


def _names_two_kinds(roles: dict[str, Any]) -> bool:
    source, target = str(roles["source"]).lower(), str(roles["target"]).lower()
    return any(two_spaces and source in sources and target in targets for sources, targets, two_spaces in PAIRS)


def _mostly(texts: Row, test: Callable[[str], bool]) -> bool:
    return sum(map(test, texts)) >= 0.7 * len(texts)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", text) is not None


def _is_date(text: str) -> bool:
    return re.search(ISO_PATTERN, text) is not None


def _is_epoch(text: str) -> bool:
    return _is_number(text) and float(text) >= MIN_EPOCH


def _is_value(text: str) -> bool:
    return _is_number(text) or _is_date(text)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
