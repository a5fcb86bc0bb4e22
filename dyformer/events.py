"""Raw log -> events: source, target, time, weight, label; rejected rows with reasons.

An events frame has the columns `source, target` (String, the user's own ids), `time` (Int64: microseconds since the
epoch, or the log's integer step), `weight` (Float64), `label` (Int8, null where there is none), `file` and `line`
(where the row stands), in the order of the log.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from dyformer.raw_logs.event_times import read_times
from dyformer.raw_logs.raw_log import EmptyLog, NoUsableRows, RawFile, TooManyBadRows, UnreadableTime
from dyformer.raw_logs.raw_rows import raw_rows
from dyformer.raw_logs.read_plan import Declared, ReadPlan, declared_by, describe
from dyformer.raw_logs.sniffing import sniff_plan

__all__ = [
    "Declared",
    "RawFile",
    "ReadPlan",
    "ReadResult",
    "declared_by",
    "describe",
    "read_events",
    "sniff_plan",
    "too_many_bad",
]

EVENT_SCHEMA = pl.Schema(
    {
        "source": pl.String,
        "target": pl.String,
        "time": pl.Int64,
        "weight": pl.Float64,
        "label": pl.Int8,
        "file": pl.String,
        "line": pl.Int64,
    }
)
QUARANTINE_SCHEMA = pl.Schema({"file": pl.String, "line": pl.Int64, "reason": pl.String, "raw": pl.String})

CONTENT = ("source", "target", "time", "weight", "label")
"""Rows equal in these are exact duplicates."""


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


def read_events(files: Sequence[RawFile], plan: ReadPlan, *, drop_duplicates: bool = False) -> ReadResult:
    """Read every row of a log, in the order of the files.

    Exact duplicates are interactions of their own (two messages in one second) unless `drop_duplicates`, which keeps
    the first of each content, over all files.

    Raises EmptyLog, DamagedLog and ColumnNotFound with the file; UnreadableTime or NoUsableRows where no row is usable.
    """
    good, bad = [EVENT_SCHEMA.to_frame()], [QUARANTINE_SCHEMA.to_frame()]
    for file in files:
        for rows in raw_rows(file, plan):
            judged = _judged(rows, plan).with_columns(file=pl.lit(file.name))
            is_bad = judged["reason"].is_not_null()
            if is_bad.any():
                bad.append(_quarantined(judged.filter(is_bad)))
                judged = judged.filter(~is_bad)
            good.append(judged.select(EVENT_SCHEMA.names()).rechunk())
    events, quarantine = pl.concat(good), pl.concat(bad)
    _check_usable(events, quarantine, files, plan)
    is_duplicate = _repeats(events)
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


def too_many_bad(result: ReadResult, max_bad: float) -> None:
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


def _judged(rows: pl.DataFrame, plan: ReadPlan) -> pl.DataFrame:
    """Turn the texts into values, and give each row that cannot be used its reason."""
    times = read_times(rows["time"], plan.time_unit)
    has_weight, has_label = "weight" in rows.columns, "label" in rows.columns
    rows = rows.with_columns(
        time_text=pl.col("time"),
        time=times["time"],
        time_reason=times["reason"],
        weight_value=pl.col("weight").cast(pl.Float64, strict=False) if has_weight else pl.lit(1.0),
        label_value=_label_value() if has_label else pl.lit(None, pl.Int8),
    )
    no_end = (pl.col("source").fill_null("") == "") | (pl.col("target").fill_null("") == "")
    reason = (
        pl.when(pl.col("reason").is_not_null())
        .then("reason")
        .when(no_end)
        .then(pl.lit("empty id"))
        .when(pl.col("time_reason").is_not_null())
        .then("time_reason")
    )
    if has_weight:
        reason = _weight_reasons(reason)
    if has_label:
        unread = pl.col("label_value").is_null() & (pl.col("label").fill_null("") != "")
        reason = reason.when(unread).then(pl.lit("bad label"))
    texts = [name for name in ("weight", "label") if name in rows.columns]
    return (
        rows.with_columns(reason=reason.otherwise(None))
        .rename({name: f"{name}_text" for name in texts})
        .rename({"weight_value": "weight", "label_value": "label"})
    )


def _label_value() -> pl.Expr:
    value = pl.col("label").cast(pl.Float64, strict=False)
    return pl.when(value == value.floor()).then(value.cast(pl.Int8, strict=False))


def _weight_reasons(reason):
    value = pl.col("weight_value")
    return (
        reason.when(value.is_null())
        .then(pl.lit("unreadable weight"))
        .when(~value.is_finite())
        .then(pl.lit("weight is not finite"))
        .when(value < 0)
        .then(pl.lit("negative weight"))
    )


def _quarantined(rows: pl.DataFrame) -> pl.DataFrame:
    """Keep file, line, reason and the raw text; a Parquet row's text is its values as JSON."""
    texts = [name for name in ("source", "target", "time_text", "weight_text", "label_text") if name in rows.columns]
    values = pl.struct([pl.col(name).alias(name.removesuffix("_text")) for name in texts])
    return rows.select("file", "line", "reason", raw=pl.coalesce("raw", values.struct.json_encode()))


def _column_hashes() -> list[pl.Expr]:
    return [pl.col(column).hash(seed) for seed, column in enumerate(CONTENT, 1)]


def _repeats(events: pl.DataFrame) -> pl.Series:
    """Mark every row whose content an earlier row has. Equal hashes find the few rows worth comparing."""
    repeats = pl.repeat(False, events.height, eager=True, dtype=pl.Boolean)
    hashes = events.select(pl.reduce(lambda one, other: one ^ other, _column_hashes())).to_series()
    ordered = np.sort(hashes.to_numpy())
    twice = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    if not twice.size:
        return repeats
    suspects = hashes.is_in(pl.Series(twice).implode()).arg_true()
    first = events.select(CONTENT)[suspects].select(pl.struct(CONTENT).is_first_distinct()).to_series()
    return repeats.scatter(suspects.filter(~first), True)


def _check_usable(events: pl.DataFrame, quarantine: pl.DataFrame, files: Sequence[RawFile], plan: ReadPlan) -> None:
    if events.height:
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
