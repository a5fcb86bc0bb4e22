"""Raw log -> events: source, target, time, weight, label; rejected rows with reasons.

An events frame has the columns `source, target` (the user's own ids; Categorical, so that each text is held once),
`time` (Int64: microseconds since the epoch, or the log's integer step), `weight` (Float64), `label` (Int8, null where
there is none), `file` and `line` (where the row stands), in the order of the log.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.raw_logs.event_times import read_times
from dyformer.raw_logs.id_texts import ID, IdTexts
from dyformer.raw_logs.raw_log import EmptyLog, NoUsableRows, RawFile, TooManyBadRows, UnreadableTime
from dyformer.raw_logs.raw_rows import raw_rows
from dyformer.raw_logs.read_plan import Declared, ReadPlan, declared_by, describe
from dyformer.raw_logs.sniffing import sniff_plan

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

EVENT_SCHEMA = pl.Schema(
    {
        "source": ID,
        "target": ID,
        "time": pl.Int64,
        "weight": pl.Float64,
        "label": pl.Int8,
        "file": pl.String,
        "line": pl.Int64,
    }
)
QUARANTINE_SCHEMA = pl.Schema({"file": pl.String, "line": pl.Int64, "reason": pl.String, "raw": pl.String})

HASHED_ROWS = 1 << 18

CONTENT = ("source", "target", "time", "weight", "label")
"""Rows equal in these are exact duplicates."""

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
    """What is to be known of a log's rows to judge them."""

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
    per_file = [_file_rows(file, plan) for file in files]
    events = _joined([events for events, _ in per_file], EVENT_SCHEMA)
    quarantine = _joined([quarantine for _, quarantine in per_file], QUARANTINE_SCHEMA)
    check_usable(events.height, quarantine, files, plan)
    is_duplicate = _repeats(events, [name for name in CONTENT if getattr(plan.columns, name) is not None])
    num_usable, num_duplicates = events.height, int(is_duplicate.sum())
    if drop_duplicates and num_duplicates:
        events = events.filter(~is_duplicate)
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
    columns = [name for name in EVENT_SCHEMA.names() if name not in constants]
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


def _file_rows(file: RawFile, plan: ReadPlan) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Read one file: its events, and its quarantined rows."""
    constants = _constants(file, plan)
    columns = [name for name in EVENT_SCHEMA.names() if name not in constants]
    texts, good, bad = IdTexts(), [], []
    for events, quarantine in _judged_blocks(file, plan, columns):
        good.append(events.with_columns(texts.of(events["source"]), texts.of(events["target"])))
        if quarantine.height:
            bad.append(quarantine)
    events = _joined(good, pl.Schema({name: EVENT_SCHEMA[name] for name in columns}))
    return events.with_columns(**constants).select(EVENT_SCHEMA.names()), _joined(bad, QUARANTINE_SCHEMA)


def _constants(file: RawFile, plan: ReadPlan) -> dict[str, pl.Expr]:
    """Columns with one value in all rows of a file."""
    absent = {name: value for name, value in ABSENT.items() if getattr(plan.columns, name) is None}
    return absent | {"file": pl.lit(file.name)}


def _judged_blocks(file: RawFile, plan: ReadPlan, columns: list[str]) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """Part the usable rows, of which some columns are wanted, from the rejected ones."""
    for rows in raw_rows(file, plan):
        judged = _judged(rows, plan)
        is_bad = judged["reason"].is_not_null()
        events, quarantine = judged.select(columns), QUARANTINE_SCHEMA.to_frame()
        if is_bad.any():
            quarantine = _quarantined(judged.filter(is_bad).with_columns(file=pl.lit(file.name)), plan)
            events = events.filter(~is_bad)
        yield events, quarantine


def _joined(parts: list[pl.DataFrame], schema: pl.Schema) -> pl.DataFrame:
    if len(parts) == 1:
        return parts[0]
    return pl.concat(parts, rechunk=False) if parts else schema.to_frame()


def _judged(rows: pl.DataFrame, plan: ReadPlan) -> pl.DataFrame:
    """Turn the texts into values, and give each row that cannot be used its reason."""
    times = read_times(rows["time"], plan.time_unit)
    texts = {
        name: value for name, value in (("weight", _weight_value()), ("label", _label_value())) if name in rows.columns
    }
    rows = rows.with_columns(
        time=times["time"],
        time_reason=times["reason"],
        time_text=pl.col("time"),
        **{f"{name}_value": value for name, value in texts.items()},
    )
    reason = pl.coalesce("reason", *_reasons_of(rows))
    return (
        rows.with_columns(reason=reason)
        .rename({name: f"{name}_text" for name in texts})
        .rename({f"{name}_value": name for name in texts})
    )


def _reasons_of(rows: pl.DataFrame) -> list[pl.Expr]:
    """What may be wrong with a row's values, the most telling first."""
    reasons = []
    if rows.schema["source"] == pl.String:
        no_end = (pl.col("source").fill_null("") == "") | (pl.col("target").fill_null("") == "")
        reasons.append(pl.when(no_end).then(pl.lit("empty id")))
    reasons.append(pl.col("time_reason"))
    if "weight_value" in rows.columns:
        reasons.append(_weight_reason())
    if "label_value" in rows.columns:
        unread = pl.col("label_value").is_null() & (pl.col("label").fill_null("") != "")
        reasons.append(pl.when(unread).then(pl.lit("bad label")))
    return reasons


def _weight_value() -> pl.Expr:
    return pl.col("weight").cast(pl.Float64, strict=False)


def _label_value() -> pl.Expr:
    value = pl.col("label").cast(pl.Float64, strict=False)
    return pl.when(value == value.floor()).then(value.cast(pl.Int8, strict=False))


def _weight_reason() -> pl.Expr:
    value = pl.col("weight_value")
    return (
        pl.when(value.is_null())
        .then(pl.lit("unreadable weight"))
        .when(~value.is_finite())
        .then(pl.lit("weight is not finite"))
        .when(value < 0)
        .then(pl.lit("negative weight"))
    )


def _quarantined(rows: pl.DataFrame, plan: ReadPlan) -> pl.DataFrame:
    """Keep file, line, reason and the raw text; a Parquet row's text is its values as JSON."""
    fields = [name for name in rows.columns if name.startswith("field_")]
    if fields:
        texts = [pl.col(name).cast(pl.String).fill_null("") for name in fields]
        return rows.select("file", "line", "reason", raw=pl.concat_str(texts, separator=str(plan.separator)))
    texts = [name for name in ("source", "target", "time_text", "weight_text", "label_text") if name in rows.columns]
    values = pl.struct([pl.col(name).alias(name.removesuffix("_text")) for name in texts])
    return rows.select("file", "line", "reason", raw=pl.coalesce("raw", values.struct.json_encode()))


def _repeats(events: pl.DataFrame, columns: list[str]) -> pl.Series:
    """Mark every row whose content an earlier row has. Equal hashes find the few rows worth comparing."""
    hash_R = np.empty(events.height, dtype=np.uint64)
    for first, hash_B in _content_hashes(events, columns):
        hash_R[first : first + len(hash_B)] = hash_B
    hash_R.sort()
    twice = np.unique(hash_R[1:][hash_R[1:] == hash_R[:-1]])
    del hash_R
    repeats = pl.repeat(False, events.height, eager=True, dtype=pl.Boolean)
    if not twice.size:
        return repeats
    suspects = np.concatenate([first + _members(hash_B, twice) for first, hash_B in _content_hashes(events, columns)])
    first = events.select(columns)[suspects].select(pl.struct(columns).is_first_distinct()).to_series()
    return repeats.scatter(suspects[~first.to_numpy()], True)


def _content_hashes(events: pl.DataFrame, columns: list[str]) -> Iterator[tuple[int, NDArray[np.uint64]]]:
    """Hash the rows block by block; with the position of each block's first row."""
    hashes = [pl.col(column).to_physical().hash(seed) for seed, column in enumerate(columns, 1)]
    content = pl.reduce(lambda one, other: one ^ other, hashes)
    for index, block in enumerate(events.iter_slices(HASHED_ROWS)):
        yield index * HASHED_ROWS, block.select(content).to_series().to_numpy()


def _members(hash_B: NDArray[np.uint64], wanted: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Find the rows with one of some hashes; the first bits of a hash leave few of them to be looked up."""
    is_wanted = np.zeros(1 << 20, dtype=bool)
    is_wanted[wanted >> np.uint64(44)] = True
    row_S = np.flatnonzero(is_wanted[hash_B >> np.uint64(44)])
    return row_S[pl.Series(hash_B[row_S]).is_in(pl.Series(wanted).implode()).to_numpy()]


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
