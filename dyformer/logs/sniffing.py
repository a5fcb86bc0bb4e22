"""The start of a raw log, and what the user declared -> ReadPlan.

The separator, the header and the time unit are guessed by this project's own rules: the sniffers of the csv module and
of DuckDB know neither which column is the time nor comment lines, and choose where two readings fit.
"""

from dataclasses import fields
from typing import Any

import polars as pl

from dyformer.logs.datasets import Columns, TimeUnit
from dyformer.logs.plan import Declared, ReadPlan, position
from dyformer.logs.raw_file import AmbiguousLog, RawFile, UnreadableTime
from dyformer.logs.sample import Table, is_number, mostly, sample_table, shortened, time_like
from dyformer.logs.validation import read_times, unit_of

PAIRS = tuple(
    (frozenset(sources), frozenset(targets), two_kinds)
    for sources, targets, two_kinds in (
        (("source", "source_id", "src"), ("target", "target_id", "dst", "dest", "destination"), False),
        (("from", "from_id", "from_node", "fromnodeid"), ("to", "to_id", "to_node", "tonodeid"), False),
        (("sender", "sender_id"), ("recipient", "recipient_id", "receiver", "receiver_id"), False),
        (("follower", "follower_id"), ("followee", "followee_id", "followed"), False),
        (("user", "user_id", "userid"), ("friend", "friend_id", "contact", "contact_id"), False),
        (("caller",), ("callee",), False),
        (("u",), ("v",), False),
        (("i",), ("j",), False),
        (("node1", "id1", "user1"), ("node2", "id2", "user2"), False),
        (("head", "subject"), ("tail", "object"), False),
        (
            ("user", "user_id", "userid", "u", "uid", "customer", "customer_id", "reviewer", "editor"),
            (
                *("item", "item_id", "itemid", "i", "iid", "product", "product_id", "business", "business_id"),
                *("page", "page_id", "movie", "movie_id", "tag", "subreddit"),
            ),
            True,
        ),
    )
)
"""Names of sources, names of their targets, and whether the pair means two kinds of things."""

TIMES = frozenset(
    {
        *("time", "timestamp", "time_stamp", "ts", "t", "date", "datetime", "date_time", "when", "at", "step"),
        *("created", "created_at", "created_utc", "event_time", "unix_time", "unixtime", "unix_seconds", "epoch"),
    }
)
WEIGHTS = frozenset({"weight", "w"})
LABELS = frozenset({"label", "state_label"})


def sniff_plan(files: list[RawFile], declared: Declared | None = None) -> ReadPlan:
    """Look at the start of a log and make the plan of reading it; whatever is declared is taken as it is.

    Raises a LogError that names file, place and remedy: EmptyLog, OneColumn, WrongSeparator, ColumnNotFound,
    AmbiguousLog, UnreadableTime, DamagedLog.
    """
    declared = declared or Declared()
    table = sample_table(files, declared)
    roles, notes = _roles(table, declared)
    return _plan(table, declared, roles, _time_unit(table, roles["time"], declared), notes)


def _plan(table: Table, declared: Declared, roles: dict[str, Any], unit: TimeUnit, notes: list[str]) -> ReadPlan:
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
        directed=declared.directed if declared.directed is not None else True,
        comment_marks=declared.comment_marks,
        notes=tuple(notes),
    )


def _roles(table: Table, declared: Declared) -> tuple[dict[str, Any], list[str]]:
    """Give each role its position; the declared first, then by name, then by what the columns hold."""
    num_fields = max(table.num_fields, len(table.names))
    given = {
        field.name: position(getattr(declared, field.name), table.names, num_fields, table.where)
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
                f"{table.where}: several pairs of columns could be the ends of an"
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
        raise AmbiguousLog(f"{table.where}: several columns could be the {role} ({names}); choose with --{role}")
    roles[role] = free[0]


def _add_ends(table: Table, roles: dict[str, int]) -> None:
    """Take the first two free columns as source and target, where there is no doubt."""
    missing = [role for role in ("source", "target") if role not in roles]
    free = [at for at in range(table.num_fields) if at not in roles.values()]
    if missing and table.names and len(free) != len(missing):
        raise AmbiguousLog(
            f"{table.where}: the {' and '.join(missing)} column cannot be told from the names"
            f" ({', '.join(table.names)}); choose with {' and '.join('--' + role for role in missing)}"
        )
    roles.update(zip(missing, free, strict=False))


def _add_weight(table: Table, roles: dict[str, int]) -> None:
    free = [at for at in range(2, 4) if at not in roles.values()]
    if len(free) == 1 and all(is_number(cell) and float(cell) > 0 for cell in table.column(free[0])):
        roles["weight"] = free[0]


def _time_by_value(table: Table, roles: dict[str, int]) -> int:
    """Find the time column by what it holds: dates, large counts, else the one column of numbers that changes."""
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
        example = table.rows[0][-1]
        raise UnreadableTime(
            f"{table.where}: no column holds a time (last column: {shortened(example)}); write ISO 8601, a count since"
            " the epoch or an integer step, or name the column with --time and its unit with --time-unit"
        )
    columns = ", ".join(table.names[at] if table.names else str(at) for at in late or like or numbers)
    raise AmbiguousLog(f"{table.where}: several columns could be the time ({columns}); choose with --time")


def _time_unit(table: Table, at: int, declared: Declared) -> TimeUnit:
    if at in table.clock_columns:
        return "us"
    if declared.time_unit is not None:
        return declared.time_unit
    texts = table.column(at)
    if mostly(texts, is_number):
        return unit_of([text for text in texts if is_number(text)])
    if read_times(pl.Series(texts), "iso")["time"].null_count() == len(texts):
        raise UnreadableTime(
            f"{table.where}: the time {shortened(texts[0])} is neither a number nor ISO 8601 (2024-05-31T10:00:00Z);"
            " name another column with --time, or rewrite the times"
        )
    return "iso"


def _names_two_kinds(roles: dict[str, Any]) -> bool:
    source, target = str(roles["source"]).lower(), str(roles["target"]).lower()
    return any(two_spaces and source in sources and target in targets for sources, targets, two_spaces in PAIRS)
