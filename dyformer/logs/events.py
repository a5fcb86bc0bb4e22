"""Raw log -> events: source, target, time, weight, label; rejected rows with reasons.

An events frame has the columns `source, target` (the user's own ids: UInt32 or Int64 where each is the usual text of an
integer, else Categorical, so that each text is held once), `time` (Int64: microseconds since the epoch, or the log's
integer step), `weight` (Float64), `label` (Int8, null where there is none), `file` and `line` (where the row stands),
in the order of the log.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.logs.duplicates import repeats
from dyformer.logs.ids import compact, united
from dyformer.logs.log_file import EmptyLog, NoUsableRows, RawFile, TooManyBadRows, UnreadableTime
from dyformer.logs.plan import Declared, ReadPlan, declared_by, describe
from dyformer.logs.reader import raw_rows
from dyformer.logs.row_blocks import in_pieces
from dyformer.logs.sniffing import sniff_plan
from dyformer.logs.validation import QUARANTINE_SCHEMA, quarantined, validated

__all__ = [
    "Declared",
    "RawFile",
    "ReadPlan",
    "ReadResult",
    "check_usable",
    "declared_by",
    "describe",
    "event_blocks",
    "read_events",
    "sniff_plan",
    "too_many_bad",
]

CONTENT = ("source", "target", "time", "weight", "label")
"""Rows equal in these are exact duplicates."""

EVENT_COLUMNS = (*CONTENT, "file", "line")

ABSENT = {"weight": pl.lit(1.0), "label": pl.lit(None, pl.Int8)}
"""What a log has where no column is planned."""


@dataclass(frozen=True, kw_only=True)
class ReadResult:
    """What became of every row: num_read = num_accepted + num_quarantined + num_dropped."""

    events: pl.DataFrame
    quarantine: pl.DataFrame  # file, line, reason, raw
    num_read: int  # blank lines, comment lines and headers are no rows
    num_accepted: int
    num_quarantined: int
    num_dropped: int  # duplicates, dropped because the user asked for it
    num_duplicates: int  # usable rows beyond the first of their content, whether dropped or kept


class RowCounts(Protocol):
    """What is to be known of a log's rows to evaluate them."""

    @property
    def quarantine(self) -> pl.DataFrame:
        """Rejected rows: file, line, reason, raw."""
        ...

    @property
    def num_read(self) -> int:
        """All rows."""
        ...

    @property
    def num_quarantined(self) -> int:
        """Rejected rows."""
        ...


def read_events(files: Sequence[RawFile], plan: ReadPlan, *, drop_duplicates: bool = False) -> ReadResult:
    """Read every row of a log, in the order of the files.

    Exact duplicates are interactions of their own (two messages in one second) unless `drop_duplicates`, which keeps
    the first of each content, over all files.

    Raises EmptyLog, DamagedLog and ColumnNotFound with the file; UnreadableTime or NoUsableRows where no row is usable.
    """
    events, quarantine = _all_rows(files, plan)
    is_repeat_R = repeats(events.select(name for name in CONTENT if getattr(plan.columns, name) is not None))
    num_usable, num_duplicates = events.height, int(is_repeat_R.sum())
    if drop_duplicates and num_duplicates:
        columns = [events.select(name) for name in EVENT_COLUMNS]
        del events
        events = _kept(columns, ~is_repeat_R)
    return ReadResult(
        events=events,
        quarantine=quarantine,
        num_read=num_usable + quarantine.height,
        num_accepted=events.height,
        num_quarantined=quarantine.height,
        num_dropped=num_usable - events.height,
        num_duplicates=num_duplicates,
    )


def event_blocks(file: RawFile, plan: ReadPlan) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """Read one file block by block: events, whose ids are String or Int64, and quarantined rows."""
    constants = _constants(file, plan)
    columns = [name for name in EVENT_COLUMNS if name not in constants]
    for events, quarantine in _judged_blocks(file, plan, columns):
        yield events.with_columns(**constants), quarantine


def too_many_bad(result: RowCounts, max_bad: float) -> None:
    """Raise TooManyBadRows where the share of rejected rows is above `max_bad` (0.01 is one in a hundred)."""
    if not 0 <= max_bad <= 1:
        raise ValueError(f"the share of bad rows allowed must be from 0 to 1 (0% to 100%), got {max_bad}")
    if result.num_quarantined <= max_bad * result.num_read:
        return
    share = result.num_quarantined / result.num_read
    raise TooManyBadRows(
        f"{result.num_quarantined:,} of {result.num_read:,} rows ({share:.2%}) cannot be used, more than the"
        f" {max_bad:.2%} allowed: {_reasons(result.quarantine)}. Nothing was stored; repair the log, or allow more"
        " with --max-bad"
    )


def _all_rows(files: Sequence[RawFile], plan: ReadPlan) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Read all files: their events, and their quarantined rows; raises where no row is usable."""
    good: list[pl.DataFrame] = []
    bad = [QUARANTINE_SCHEMA.to_frame()]

    def usable(blocks: Iterator[tuple[pl.DataFrame, pl.DataFrame]]) -> Iterator[pl.DataFrame]:
        for events, quarantine in blocks:
            bad.append(quarantine)
            if events.height:
                yield compact(events)

    for file in files:
        constants = _constants(file, plan)
        columns = [name for name in EVENT_COLUMNS if name not in constants]
        pieces = in_pieces(usable(_judged_blocks(file, plan, columns)))
        good += [piece.with_columns(**constants).select(EVENT_COLUMNS) for piece in pieces]
    quarantine = pl.concat(bad)
    check_usable(sum(piece.height for piece in good), quarantine, files, plan)
    return pl.concat(united(good), rechunk=False), quarantine


def _kept(columns: list[pl.DataFrame], is_kept_R: NDArray[np.bool_]) -> pl.DataFrame:
    """Filter frames of one column each, in place, so that what was in one is free before the next is made."""
    for index in range(len(columns)):
        columns[index] = columns[index].filter(is_kept_R)
    return pl.concat(columns, how="horizontal")


def _constants(file: RawFile, plan: ReadPlan) -> dict[str, pl.Expr]:
    """Columns with one value in all rows of a file."""
    absent = {name: value for name, value in ABSENT.items() if getattr(plan.columns, name) is None}
    return absent | {"file": pl.lit(file.name)}


def _judged_blocks(file: RawFile, plan: ReadPlan, columns: list[str]) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """Part the usable rows, of which some columns are wanted, from the rejected ones."""
    for texts in raw_rows(file, plan):
        rows = validated(texts, plan)
        is_bad = rows.select(pl.col("reason").is_not_null()).to_series()
        events, quarantine = rows.select(columns), QUARANTINE_SCHEMA.to_frame()
        if is_bad.any():
            quarantine = quarantined(rows.filter(is_bad).with_columns(file=pl.lit(file.name)), plan)
            events = events.filter(~is_bad)
        yield events, quarantine


def check_usable(num_events: int, quarantine: pl.DataFrame, files: Sequence[RawFile], plan: ReadPlan) -> None:
    """Raise EmptyLog, UnreadableTime or NoUsableRows where no row is usable."""
    if num_events:
        return
    names = ", ".join(file.name for file in files[:5])
    if quarantine.is_empty():
        raise EmptyLog(
            f"{names}: the log is empty (no row in {len(files)} file(s)); check that it was written completely"
        )
    first = quarantine.row(0, named=True)
    where = f"first in {first['file']}, line {first['line']}: {first['raw'][:80]!r}"
    if quarantine["reason"].str.contains("time", literal=True).all():
        raise UnreadableTime(
            f"no time of {names} can be read as {plan.time_unit} ({_reasons(quarantine)}; {where}); say where it stands"
            " with --time and what it counts with --time-unit (s, ms, us, ns, iso, step)"
        )
    raise NoUsableRows(
        f"none of the {quarantine.height:,} rows of {names} can be used: {_reasons(quarantine)} ({where}); check"
        " --separator and the columns against the plan that was printed"
    )


def _reasons(quarantine: pl.DataFrame) -> str:
    counts = quarantine.group_by("reason").agg(pl.len(), pl.first("file"), pl.first("line"))
    return "; ".join(
        f"{count:,} x {reason} (as in {file}, line {line})"
        for reason, count, file, line in counts.sort("len", "reason", descending=[True, False]).head(5).iter_rows()
    )
