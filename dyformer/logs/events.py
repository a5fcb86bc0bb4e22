"""Raw log -> events: source, target, time, weight, label; rejected rows with reasons.

An events frame has one row for each usable row of the log, in the order of the log. Its columns are

- `source`, `target`: the user's own ids. UInt32 or Int64 if all are integers without leading zeros; else Categorical,
  which stores each text once.
- `time`: Int64, microseconds since the epoch, or the log's own integer steps.
- `weight`: Float64, 1 where the log has none. `label`: Int8, null where the log has none.
- `file`, `line`: the file and the line of the row.

R rows    B rows of one block    S rows whose hash equals that of another row
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from numbers import Real
from typing import get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.logs.delimited import delimited_rows
from dyformer.logs.ids import compact, united
from dyformer.logs.json_lines import json_rows
from dyformer.logs.plan import FORMAT_NAMES, ReadPlan
from dyformer.logs.raw_file import (
    PARQUET_MAGIC,
    EmptyLog,
    NoUsableRows,
    OtherFormat,
    RawFile,
    TooManyBadRows,
    UnreadableTime,
    first_bytes,
)
from dyformer.logs.records import parquet_rows
from dyformer.logs.sample import check_text, empty_message
from dyformer.logs.time_windows import TimeUnit
from dyformer.logs.validation import (
    COMMENT,
    QUARANTINE_SCHEMA,
    far_bounds,
    order_positions,
    quarantined,
    quarantined_events,
    validated,
)

CONTENT = ("source", "target", "time", "weight", "label")
"""Rows equal in these, and in their columns that no role reads, are exact duplicates."""

REST = "rest"
"""A hash of a row with its unread columns, in the blocks of a log that has some; else null."""

EVENT_COLUMNS = (*CONTENT, "file", "line")

ALIKE = ("source", "target", "time")

ABSENT = {"weight": pl.lit(1.0), "label": pl.lit(None, pl.Int8)}
"""The value of every event if the log lacks the column."""

CHOOSE_COLUMNS = "choose the columns with `source`, `target` and `time`, or the separator with `separator`"
QUERIES = "the documentation has the queries under 'Rows of another form'"
REMEDIES = {
    "an object or a list": "nested values are not read: write them as columns of their own first, for example with"
    f" DuckDB ({QUERIES})",
    "not UTF-8 text": "convert the log to UTF-8 (of a Western European program: iconv -f WINDOWS-1252 -t UTF-8)",
    "unreadable weight": "a weight is a number such as 1234.56, without a decimal comma, a thousands separator or a"
    f" currency: write such amounts anew first, for example with DuckDB ({QUERIES}), or choose another column with"
    " `weight`, or leave it out in the first ingest of a log: then each row counts as one",
}
"""What to do where one kind of fault is that of all rows; otherwise CHOOSE_COLUMNS."""

NUMBERS = {pl.UInt32: np.uint32, pl.UInt64: np.uint64, pl.Int64: np.int64, pl.Float64: np.float64}
"""Types of the columns that have a value in every event."""

BLOCK_BYTES = 1 << 22
BLOCK_ROWS = 1 << 17


@dataclass(frozen=True, kw_only=True)
class ReadResult:
    """The rows of a log: num_read = num_accepted + num_quarantined + num_dropped."""

    events: pl.DataFrame
    quarantine: pl.DataFrame  # file, line, reason, raw
    num_read: int  # blank lines, comment lines and headers are not counted
    num_accepted: int
    num_quarantined: int
    num_dropped: int  # duplicates, dropped because the user wants it
    num_duplicates: int  # usable rows equal to an earlier one, whether dropped or not
    num_comments: int = 0  # lines that begin with a comment mark
    num_alike: int = 0  # usable rows with the ends and the time of an earlier one that are no exact duplicates


def read_events(files: Sequence[RawFile], plan: ReadPlan, *, drop_duplicates: bool = False) -> ReadResult:
    """Read every row of a log, in the order of the files.

    Exact duplicates count as separate interactions (two messages in one second). With `drop_duplicates` only the first
    of equal rows, over all files, is kept. Rows that differ in a column that no role reads are not equal.

    Raises EmptyLog, DamagedLog and ColumnNotFound with the file; UnreadableTime or NoUsableRows where no row is usable.
    """
    events, quarantine, num_comments = _all_rows(files, plan)
    events, quarantine = _without_far_times(events, quarantine, files[0].limits.max_years_apart, plan.time_unit)
    read = [name for name in CONTENT if name in plan.columns.by_role()]
    is_repeat_R = repeats(events.select(read + ([REST] if plan.has_unread else [])))
    num_usable, num_duplicates = events.height, int(is_repeat_R.sum())
    num_alike = 0
    if plan.has_unread or len(read) > len(ALIKE):
        num_alike = int(repeats(events.select(ALIKE)).sum()) - num_duplicates
    events = events.drop(REST)
    if drop_duplicates and num_duplicates:
        columns = [events.select(name) for name in EVENT_COLUMNS]
        del events
        for index in range(len(columns)):  # one by one, so that the old column is freed before the next is made
            columns[index] = columns[index].filter(~is_repeat_R)
        events = pl.concat(columns, how="horizontal")
    return ReadResult(
        events=events,
        quarantine=quarantine,
        num_read=num_usable + quarantine.height,
        num_comments=num_comments,
        num_accepted=events.height,
        num_quarantined=quarantine.height,
        num_dropped=num_usable - events.height,
        num_duplicates=num_duplicates,
        num_alike=num_alike,
    )


def _without_far_times(
    events: pl.DataFrame, quarantine: pl.DataFrame, max_years: int, unit: TimeUnit
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Move the rows whose times are far from the others to the quarantine."""
    time = events["time"]
    if (positions := order_positions(events.height, time.min(), time.max(), max_years, unit)) is None:
        return events, quarantine
    low, high = np.partition(time.to_numpy(), positions)[list(positions)]
    first, last = far_bounds(int(low), int(high), max_years)
    is_far = ~time.is_between(first, last)
    if not is_far.any():
        return events, quarantine
    far = quarantined_events(events.filter(is_far), max_years)
    return events.filter(~is_far), pl.concat([quarantine, far])


def event_blocks(file: RawFile, plan: ReadPlan) -> Iterator[tuple[pl.DataFrame, pl.DataFrame, int]]:
    """Read one file block by block: events, whose ids are String or Int64, quarantined rows, number of comments.

    Events have EVENT_COLUMNS and REST.
    """
    constants = _constants(file, plan)
    columns = [name for name in (*EVENT_COLUMNS, REST) if name not in constants]
    for texts in raw_rows(file, plan):
        rows = _with_rest(validated(texts, plan), plan)
        is_bad = rows.select(pl.col("reason").is_not_null()).to_series()
        events, quarantine, num_comments = rows.select(columns), QUARANTINE_SCHEMA.to_frame(), 0
        if is_bad.any():
            bad = rows.filter(is_bad)
            num_comments = int((bad["reason"] == COMMENT).sum())
            bad = bad.filter(pl.col("reason") != COMMENT)
            quarantine = quarantined(bad.with_columns(file=pl.lit(file.name)), plan)
            events = events.filter(~is_bad)
        yield events.with_columns(**constants).select(*EVENT_COLUMNS, REST), quarantine, num_comments


def _with_rest(rows: pl.DataFrame, plan: ReadPlan) -> pl.DataFrame:
    """Add the hash of each row with its unread columns: of its text, or in Parquet of their values."""
    if not plan.has_unread:
        return rows.with_columns(pl.lit(None, pl.UInt64).alias(REST))
    if REST in rows.columns:
        return rows
    fields = [pl.col(name).cast(pl.String).fill_null("") for name in rows.columns if name.startswith("field_")]
    text = pl.concat_str(fields, separator=str(plan.separator)) if fields else pl.col("raw")
    return rows.with_columns(text.hash(0).alias(REST))


def raw_rows(file: RawFile, plan: ReadPlan, *, block_bytes: int = BLOCK_BYTES) -> Iterator[pl.DataFrame]:
    """Split one file into rows, block by block; raises DamagedLog and ColumnNotFound.

    Blank lines and headers are left out. A block has the columns

    - `source`, `target`, `time` and, where planned, `weight`, `label`: stripped texts, null where missing.
    - `line`: from 1; in Parquet the number of the row.
    - `raw`: the whole line, unchanged; null in Parquet.
    - `reason`: why the row cannot be split, or `COMMENT`; null if it can be split.

    If all ids of a block are integers without sign or leading zeros, they are Int64, and so are such times. This block
    has null in `raw`, and every field of the text in `field_0`, `field_1`, ... instead.
    """
    start = first_bytes(file)
    if start.startswith(PARQUET_MAGIC) != (plan.format == "parquet"):
        is_no = "is no Parquet" if plan.format == "parquet" else "is Parquet"
        raise OtherFormat(
            f"{file.name} {is_no}, unlike the files before it: write its rows as {FORMAT_NAMES[plan.format]}, or read"
            " it on its own"
        )
    if plan.format == "parquet":
        return parquet_rows(file, plan)
    check_text(start, file.name)
    return (json_rows if plan.format == "jsonl" else delimited_rows)(file, plan, block_bytes)


def check_usable(
    num_events: int, quarantine: pl.DataFrame, files: Sequence[RawFile], plan: ReadPlan, num_comments: int
) -> None:
    """Raise EmptyLog, UnreadableTime or NoUsableRows where no row is usable."""
    if num_events:
        return
    names = ", ".join(file.name for file in files[:5])
    if quarantine.is_empty():
        raise EmptyLog(empty_message(names, len(files), num_comments))
    first = quarantine.row(0, named=True)
    raw, reasons = repr(first["raw"][:80]), _reasons(quarantine, plan.row_name)
    if quarantine["reason"].str.contains("time", literal=True).all():
        raise UnreadableTime(
            f"no time of {names} can be read as {plan.time_unit}: {reasons}, {raw}. Where this is not the"
            f" unit of these times, name theirs with `time_unit` ({', '.join(get_args(TimeUnit))}), else name their"
            f" column with `time`"
        )
    where = f"first in {first['file']}, {plan.row_name} {first['line']}: {raw}"
    cannot = f"none of the {quarantine.height:,} rows of {names} can be used"
    if quarantine.height == 1:
        cannot = f"the only row of {names} cannot be used"
    raise NoUsableRows(f"{cannot}: {reasons} ({where}); {_remedy(quarantine) or CHOOSE_COLUMNS}")


def check_bad_rows(quarantine: pl.DataFrame, num_read: int, max_fraction: float, row_name: str = "line") -> None:
    """Raise TooManyBadRows where the fraction of rejected rows is above `max_fraction` (0.01 is one in a hundred).

    `row_name` is that of the plan by which they were read.
    """
    if not isinstance(max_fraction, Real) or not 0 <= max_fraction <= 1:
        raise InvalidInput(f"the fraction of bad rows allowed must be from 0 to 1 (0% to 100%), got {max_fraction!r}")
    if quarantine.height > max_fraction * num_read:
        remedy = (
            "Repair the log, or allow more with `max_bad`" if max_fraction else "Repair these rows, or leave them out"
        )
        raise TooManyBadRows(
            f"{quarantine.height:,} of {num_read:,} rows ({quarantine.height / num_read:.2%}) cannot be used, more"
            f" than the {max_fraction:.2%} allowed: {_reasons(quarantine, row_name)}. {remedy}"
            f"{f'; {more}' if (more := _remedy(quarantine)) else ''}"
        )


def repeats(rows: pl.DataFrame) -> NDArray[np.bool_]:
    """Mark every row [R] that equals an earlier one. Only rows with equal hashes are compared."""
    row_S = _suspects(_hashed(rows), np.uint64(rows.height.bit_length()))
    is_first_S = rows[row_S].select(pl.struct(pl.all()).is_first_distinct()).to_series().to_numpy()
    is_repeat_R = np.zeros(rows.height, dtype=np.bool_)
    is_repeat_R[row_S[~is_first_S]] = True
    return is_repeat_R


def in_pieces(blocks: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Join consecutive blocks of the same types; a block's memory is freed before the next block is read."""
    for _, run in groupby(blocks, key=lambda block: block.schema):
        yield _in_one(run)


def _all_rows(files: Sequence[RawFile], plan: ReadPlan) -> tuple[pl.DataFrame, pl.DataFrame, int]:
    """Read all files: events, quarantined rows, number of comments; raises where no row is usable."""
    good: list[pl.DataFrame] = []
    bad = [QUARANTINE_SCHEMA.to_frame()]
    num_comments = 0

    def usable(file: RawFile, constants: Iterable[str]) -> Iterator[pl.DataFrame]:
        nonlocal num_comments
        for events, quarantine, comments in event_blocks(file, plan):
            bad.append(quarantine)
            num_comments += comments
            if events.height:
                yield compact(events.drop(constants))

    for file in files:
        constants = _constants(file, plan) | ({} if plan.has_unread else {REST: pl.lit(None, pl.UInt64)})
        pieces = in_pieces(usable(file, constants))
        good += [piece.with_columns(**constants).select(*EVENT_COLUMNS, REST) for piece in pieces]
    quarantine = pl.concat(bad)
    check_usable(sum(piece.height for piece in good), quarantine, files, plan, num_comments)
    return pl.concat(united(good), rechunk=False), quarantine, num_comments


def _constants(file: RawFile, plan: ReadPlan) -> dict[str, pl.Expr]:
    """Give the columns that have one value in all rows of a file."""
    absent = {name: value for name, value in ABSENT.items() if name not in plan.columns.by_role()}
    return absent | {"file": pl.lit(file.name)}


def _reasons(quarantine: pl.DataFrame, row_name: str) -> str:
    counts = quarantine.group_by("reason").agg(pl.len(), pl.first("file"), pl.first("line"))
    return "; ".join(
        f"{count:,} x {reason} (as in {file}, {row_name} {line})"
        for reason, count, file, line in counts.sort("len", "reason", descending=[True, False]).head(5).iter_rows()
    )


def _remedy(quarantine: pl.DataFrame) -> str | None:
    """Give what to do where all rejected rows have one kind of fault."""
    return next((remedy for fault, remedy in REMEDIES.items() if quarantine["reason"].str.contains(fault).all()), None)


def _in_one(blocks: Iterable[pl.DataFrame]) -> pl.DataFrame:
    # A bytearray grows in place, so it takes no more memory than its content.
    numbers, others, dtypes = defaultdict(bytearray), defaultdict(list), {}
    for block in blocks:
        dtypes = block.schema
        for column in block:
            if column.dtype in NUMBERS:
                assert not column.null_count()
                numbers[column.name] += column.to_numpy().data.cast("B")
            else:
                others[column.name].append(column)
    return pl.DataFrame(
        [
            pl.concat(others[name], rechunk=True).alias(name)
            if name in others
            else pl.from_numpy(np.frombuffer(numbers[name], NUMBERS[dtype]), schema=[name]).to_series()
            for name, dtype in dtypes.items()
        ]
    )


def _hashed(rows: pl.DataFrame) -> NDArray[np.uint64]:
    """Hash the rows; equal rows have equal hashes [R]."""
    columns = [pl.col(column).to_physical().hash(seed) for seed, column in enumerate(rows.columns, 1)]
    content = pl.reduce(lambda one, other: one ^ other, columns)
    hash_R = np.empty(rows.height, dtype=np.uint64)
    for index, block in enumerate(rows.iter_slices(BLOCK_ROWS)):
        hash_B = block.select(content).to_series().to_numpy()
        hash_R[index * BLOCK_ROWS : index * BLOCK_ROWS + len(hash_B)] = hash_B
    return hash_R


def _suspects(hash_R: NDArray[np.uint64], row_bits: np.uint64) -> NDArray[np.uint64]:
    """Find the rows [S] that may repeat another one, because their hashes have equal leading bits.

    They are grouped by these bits, and ascending in each group.
    """
    # A key holds leading bits and row, because sorting keys is several times as fast as sorting positions.
    key_R = hash_R
    for first in range(0, len(key_R), BLOCK_ROWS):
        key_B = key_R[first : first + BLOCK_ROWS]
        key_B >>= row_bits
        key_B <<= row_bits
        key_B |= np.arange(first, first + len(key_B), dtype=np.uint64)
    key_R.sort()
    is_suspect_R = np.zeros(len(key_R), dtype=np.bool_)
    for first in range(0, len(key_R), BLOCK_ROWS):
        key_B = key_R[first : first + BLOCK_ROWS + 1]
        row_S = np.flatnonzero((key_B[1:] ^ key_B[:-1]) >> row_bits == 0)
        is_suspect_R[first + row_S] = is_suspect_R[first + row_S + 1] = True
    return key_R[is_suspect_R] & ((np.uint64(1) << row_bits) - np.uint64(1))
