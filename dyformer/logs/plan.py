"""How the rows of a log are read: the user's declarations, and the plan made from them."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, get_args

from dyformer import InvalidInput
from dyformer.logs.datasets import Columns, Dataset
from dyformer.logs.raw_file import AmbiguousLog, ColumnNotFound
from dyformer.logs.time_windows import TimeUnit

MAX_LISTED = 20  # names in a message

LogFormat = Literal["delimited", "jsonl", "parquet"]

SEPARATOR_NAMES = {",": "comma", "\t": "tab", ";": "semicolon", "|": "pipe", " ": "runs of spaces"}

FORMAT_NAMES = {"delimited": "delimited text", "jsonl": "JSON lines", "parquet": "Parquet"}

UNIT_NAMES = {
    "s": "seconds since the epoch",
    "ms": "milliseconds since the epoch",
    "us": "microseconds since the epoch",
    "ns": "nanoseconds since the epoch",
    "iso": "ISO 8601, UTC where no zone is written",
    "day-first": "dates with the day first (31/12/2024 23:59), UTC",
    "month-first": "dates with the month first (12/31/2024 23:59), UTC",
    "step": "integer steps",
}


@dataclass(frozen=True, kw_only=True)
class Declared:
    """The user's declarations; None leaves a property to be guessed. Columns by name, or by position from 0."""

    source: str | int | None = None
    target: str | int | None = None
    time: str | int | None = None
    weight: str | int | None = None
    label: str | int | None = None
    format: LogFormat | None = None
    separator: str | None = None  # " " stands for any run of spaces and tabs
    has_header: bool | None = None
    time_unit: TimeUnit | None = None
    bipartite: bool | None = None  # two id spaces: source 7 and target 7 are different nodes
    directed: bool | None = None
    comment_marks: str = "%#"  # a line that starts with one of these is left out
    is_known: bool = False  # a known log; a copy of it may have row numbers before the columns, under an empty name

    def __post_init__(self) -> None:
        """Raise InvalidInput for a value of the wrong kind, also where no column needs it."""
        if self.time_unit is not None and self.time_unit not in get_args(TimeUnit):
            raise InvalidInput(f"`time_unit`: {self.time_unit!r} is not one of {', '.join(get_args(TimeUnit))}")
        if not isinstance(self.comment_marks, str):
            raise InvalidInput(f'comment_marks = {self.comment_marks!r}: expected a text such as "%#", "" for none')
        for name in ("bipartite", "directed"):
            if (value := getattr(self, name)) not in (None, False, True):
                raise InvalidInput(f"{name} = {value!r}: expected True, False or None")


@dataclass(frozen=True, kw_only=True)
class ReadPlan:
    """How every row of a log is read."""

    format: LogFormat
    columns: Columns
    time_unit: TimeUnit
    separator: str | None = None
    has_header: bool = False
    names: tuple[str, ...] = ()  # the columns found, where they have names
    min_fields: int = 3
    max_fields: int | None = None  # None: no limit, because the last column stands for many (JODIE's features)
    bipartite: bool = False
    directed: bool = True
    comment_marks: str = "%#"
    since_epoch: bool = False  # most counts of the sample are times of the years from 1973 on
    notes: tuple[str, ...] = ()  # each guess and its reason

    @property
    def row_name(self) -> str:
        """What the numbers of rows count, from 1: lines of a text, or rows of Parquet and of a data frame."""
        return "row" if self.format == "parquet" else "line"

    @property
    def has_unread(self) -> bool:
        """Whether rows have columns that no role reads."""
        num_fields = len(self.names) if self.format != "delimited" else self.min_fields
        return num_fields > len(self.columns.by_role()) or (self.format == "delimited" and self.max_fields is None)

    @property
    def unread(self) -> tuple[str, ...]:
        """The columns that no role reads, as far as they have names."""
        read = {position(role, at, self.names, len(self.names), "") for role, at in self.columns.by_role().items()}
        return tuple(name for at, name in enumerate(self.names) if at not in read)


def declared_by(dataset: Dataset) -> Declared:
    """Declare the properties of a known log."""
    return Declared(
        **asdict(dataset.columns),
        separator=dataset.separator,
        has_header=None if dataset.has_header else False,  # guessed, so that a copy without its header loses no row
        time_unit=dataset.time_unit,
        bipartite=dataset.bipartite,
        directed=dataset.directed,
        is_known=True,
    )


def describe(plan: ReadPlan) -> str:
    """Write the plan as text, one property a line."""
    separator = "" if plan.separator is None else f", separator {SEPARATOR_NAMES.get(plan.separator, plan.separator)}"
    header = {True: ", header", False: ", no header"}[plan.has_header] if plan.format == "delimited" else ""
    spaces = "two id spaces" if plan.bipartite else "one id space"
    lines = [
        f"format   {FORMAT_NAMES[plan.format]}{separator}{header}",
        "columns  " + ", ".join(f"{role} = {_where(at, plan.names)}" for role, at in plan.columns.by_role().items()),
        f"time     {UNIT_NAMES[plan.time_unit]}",
        f"nodes    {spaces}, {'directed' if plan.directed else 'undirected'}",
    ]
    if plan.has_unread:
        unread = [name or "a column without a name" for name in plan.unread] if plan.names else ["the other columns"]
        lines.append(f"unread   {listed(unread)}")
    return "\n".join(lines + [f"guessed  {note}" for note in plan.notes])


def position(role: str, column: str | int, names: tuple[str, ...], num_fields: int, where: str) -> int:
    """Find the column declared for a role among those of a file: by its name, else as a position from 0.

    Raises ColumnNotFound with the columns found, and AmbiguousLog for a name that stands twice.
    """
    if column in names:
        positions = [at for at, name in enumerate(names) if name == column]
        if len(positions) > 1:
            raise AmbiguousLog(
                f"{where}: the name {column!r} stands twice, at the positions {' and '.join(map(str, positions))},"
                f" counted from 0; choose one of them with `{role}`"
            )
        return positions[0]
    if str(column).isdecimal() and int(column) < num_fields:
        return int(column)
    there = listed(names) if names else f"positions 0 to {num_fields - 1} and no header"
    raise ColumnNotFound(f"{where} has no column {column!r}; found: {there}. Name one of these with `{role}`")


def listed(names: Sequence[str]) -> str:
    """List names for a message, the first ones if they are many."""
    more = f" and {len(names) - MAX_LISTED:,} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more


def _where(column: str | int, names: tuple[str, ...]) -> str:
    if column in names or not str(column).isdecimal():
        return str(column)
    name = f" ({names[int(column)]})" if int(column) < len(names) else ""
    return f"column {int(column) + 1}{name}"
