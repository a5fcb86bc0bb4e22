"""Rows of texts (or of integers, where a block holds no texts) -> values, and a reason for each rejected row."""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

import polars as pl

from dyformer.logs.plan import ReadPlan
from dyformer.logs.time_windows import TimeUnit

TEXTS = {"weight", "label"}
COMMENT = "comment line"  # the reason of a line that is no row; such lines are counted and left out
OUT_OF_RANGE = "time out of range"
INFINITE_TIME, INFINITE_WEIGHT = "time is not finite", "weight is not finite"
QUARANTINE_SCHEMA = pl.Schema({"file": pl.String, "line": pl.Int64, "reason": pl.String, "raw": pl.String})

LAST_CLOCK_TIME = 253_402_300_799_999_999  # the end of year 9999
FIRST_CLOCK_TIME = -62_135_596_800_000_000  # the start of year 1
LAST_STEP = 2**53
LAST_COUNT = 2**63 - 1025  # the last one whose float is below 2^63

MIN_EPOCH = 1e8  # seconds: 1973
EPOCH_SECONDS = (10**7, 10**11)  # April 1970 to the year 5138: each of the other units puts the years from 1973 outside

MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}

MEAN_YEAR = 31_556_952_000_000  # microseconds
OUTER = 0.01  # of the rows at either end may be far from the others
LEAST_ROWS = 100  # the outer part of fewer rows is less than one
SPANS = 3

ISO_PATTERN = r"^\d{4}[/-]\d{1,2}[/-]\d{1,2}(?:[T ].*)?$|^\d{8}T\d{4}"

DAY_PATTERN = r"^(\d{1,2})([/.-])(\d{1,2})[/.-](\d{4})(?:[ T,]+(\d.*))?$"
"""A date with the day or the month first: 31/12/2024, 31.12.2024 23:59, 12/31/2024 11:59:59 PM."""

DAY_FORMS = ("%H:%M", "%H:%M:%S%.f", "%I:%M %p", "%I:%M:%S%.f %p")

ISO_FORMS = ("%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f%#z")

COMPACT_FORMS = {8: "%Y%m%d", 12: "%Y%m%d%H%M", 14: "%Y%m%d%H%M%S"}
"""Dates of digits alone, by their number: 20240531, 202405311000, 20240531100000."""

COMPACT_YEARS = range(1900, 2100)  # other numbers of so many digits are counts

WHOLE_FLOAT = r"^(-?[1-9]\d*|0)\.0+$"
"""A float that is whole, as programs write it."""

MAX_WHOLE_FLOAT = 2**53  # beyond it a float stands for several integers
INEXACT_ID = "id beyond 2^53 as a float, which stands for several integers"

UNIT_BOUNDS: tuple[tuple[float, TimeUnit], ...] = ((1e8, "step"), (1e11, "s"), (1e14, "ms"), (1e17, "us"))
"""Values below each bound are read in its unit: as seconds, 1e8 to 1e11 are the years 1973 to 5138."""


def validated(rows: pl.DataFrame, plan: ReadPlan) -> pl.DataFrame:
    """Turn the texts of `raw_rows` into values, and give each row that cannot be used its `reason`."""
    rows = rows.with_columns(whole_ids(rows[end]) for end in ("source", "target"))
    times = read_times(rows["time"], plan.time_unit, since_epoch=plan.since_epoch)
    if rows.schema["source"] == pl.Int64 and not TEXTS & set(rows.columns) and not times["time"].null_count():
        return rows.with_columns(times["time"])  # all numbers, all usable
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


def whole_ids(texts: pl.Series) -> pl.Series:
    """Write an id like 7.0 as 7, in every format alike: a column of integers with gaps was stored as floats."""
    if texts.dtype != pl.String or not _may_be_floats(texts):
        return texts
    whole = pl.col("text").str.extract(WHOLE_FLOAT)
    is_exact = whole.cast(pl.Int64, strict=False).abs() <= MAX_WHOLE_FLOAT
    frame = texts.to_frame("text")
    return frame.select(pl.when(is_exact).then(whole).otherwise("text")).to_series().alias(texts.name)


def _may_be_floats(texts: pl.Series) -> bool:
    return bool((texts.str.ends_with("0") & texts.str.contains(".", literal=True)).any())


def _reasons_of(rows: pl.DataFrame) -> list[pl.Expr]:
    """List the possible faults of a row's values; the first that holds is the reason."""
    reasons = []
    if rows.schema["source"] == pl.String:
        no_source, no_target = _is_missing("source"), _is_missing("target")
        reasons.append(
            pl.when(no_source & no_target)
            .then(pl.lit("empty source and target ids"))
            .when(no_source)
            .then(pl.lit("empty source id"))
            .when(no_target)
            .then(pl.lit("empty target id"))
        )
        if any(_may_be_floats(rows[end]) for end in ("source", "target")):
            inexact = [pl.col(end).str.contains(WHOLE_FLOAT) for end in ("source", "target")]
            reasons.append(pl.when(pl.any_horizontal(inexact)).then(pl.lit(INEXACT_ID)))
    is_clock = rows.schema["time_text"].is_temporal()
    no_time = pl.col("time_text").is_null() if is_clock else _is_missing("time_text")
    reasons += [pl.when(no_time).then(pl.lit("missing time")), pl.col("time_reason")]
    if "weight_value" in rows.columns:
        reasons.append(_weight_reason())
    if "label_value" in rows.columns:
        unread = pl.col("label_value").is_null() & (pl.col("label").fill_null("") != "")
        reasons.append(pl.when(unread).then(pl.lit("bad label")))
    return reasons


def _is_missing(name: str) -> pl.Expr:
    return pl.col(name).cast(pl.String).fill_null("") == ""


def _weight_value() -> pl.Expr:
    return pl.col("weight").cast(pl.Float64, strict=False)


def _label_value() -> pl.Expr:
    value = pl.col("label").cast(pl.Float64, strict=False)
    return pl.when(value == value.floor()).then(value.cast(pl.Int8, strict=False))


def _weight_reason() -> pl.Expr:
    value = pl.col("weight_value")
    return (
        pl.when(_is_missing("weight"))
        .then(pl.lit("missing weight"))
        .when(value.is_null())
        .then(pl.lit("unreadable weight"))
        .when(~value.is_finite())
        .then(pl.lit(INFINITE_WEIGHT))
        .when(value < 0)
        .then(pl.lit("negative weight"))
    )


def quarantined(rows: pl.DataFrame, plan: ReadPlan) -> pl.DataFrame:
    """Give file, line, reason and the raw text of rejected rows; a Parquet row's text is its values as JSON."""
    fields = [name for name in rows.columns if name.startswith("field_")]
    if fields:
        texts = [pl.col(name).cast(pl.String).fill_null("") for name in fields]
        return rows.select("file", "line", "reason", raw=pl.concat_str(texts, separator=str(plan.separator)))
    texts = [name for name in ("source", "target", "time_text", "weight_text", "label_text") if name in rows.columns]
    if rows.schema["time_text"].is_temporal():
        rows = rows.with_columns(time_text=_written(pl.col("time_text").cast(pl.Int64)))
    values = pl.struct([pl.col(name).alias(name.removesuffix("_text")) for name in texts])
    return rows.select("file", "line", "reason", raw=pl.coalesce("raw", values.struct.json_encode()))


def _written(time: pl.Expr) -> pl.Expr:
    """Write microseconds since the epoch as ISO 8601; those out of range stay numbers."""
    in_range = pl.when(time.is_between(FIRST_CLOCK_TIME, LAST_CLOCK_TIME)).then(time)
    return pl.coalesce(pl.from_epoch(in_range, "us").dt.strftime("%Y-%m-%dT%H:%M:%S%.fZ"), time.cast(pl.String))


def read_times(text: pl.Series, unit: TimeUnit, *, since_epoch: bool = False) -> pl.DataFrame:
    """Read stripped texts, integers or values of a time type into `time` and `reason`.

    `time` is Int64, null where it is unusable; `reason` is null where it is usable. Counts may carry fractions; a date
    without a zone is UTC. Clock counts before 1970 are rejected, because a negative count is a placeholder far more
    often than a time; dates before 1970 are read. With `since_epoch`, counts outside EPOCH_SECONDS are rejected too,
    because they are of another unit than the others, or placeholders.
    """
    if text.dtype.is_temporal():
        return _clock_values(text, unit)
    if unit == "iso":
        return _dates(text.cast(pl.String), ISO_FORMS, _rare_iso_times)
    if unit in ("day-first", "month-first"):
        day = "%d/%m/%Y" if unit == "day-first" else "%m/%d/%Y"
        return _dates(_with_slashes(text.cast(pl.String)), [f"{day} {form}" for form in DAY_FORMS])
    return _counted_times(text, unit, since_epoch)


def compact_date(text: str) -> datetime | None:
    """Read a date of digits alone, such as 20240531 or 20240531100000; None for any other text."""
    form = COMPACT_FORMS.get(len(text))
    if form is None or not (text.isascii() and text.isdecimal()) or int(text[:4]) not in COMPACT_YEARS:
        return None
    try:
        return datetime.strptime(text, form).replace(tzinfo=UTC)
    except ValueError:
        return None


def unit_of(texts: list[str]) -> TimeUnit:
    """Guess the unit of counts from the size of their median; small counts with a point are relative seconds."""
    median = sorted(float(text) for text in texts)[len(texts) // 2]
    for bound, unit in UNIT_BOUNDS:
        if median < bound:
            return "s" if unit == "step" and any("." in text for text in texts) else unit
    return "ns"


def are_since_epoch(texts: Sequence[str], unit: TimeUnit) -> bool:
    """Whether most counts of a sample are times of the years from 1973 on, and no steps or seconds since a start."""
    if unit not in (*MICROSECONDS, "ns"):
        return False
    counts = pl.Series(texts, dtype=pl.String).cast(pl.Float64, strict=False)
    return float(counts.median() or 0) >= MIN_EPOCH * _second(unit)  # pyright: ignore[reportArgumentType]


def _second(unit: TimeUnit) -> int:
    """Counts in a second."""
    return 1_000_000_000 if unit == "ns" else 1_000_000 // MICROSECONDS[unit]


def _clock_values(times: pl.Series, unit: TimeUnit) -> pl.DataFrame:
    """Take times of a date or time type as they are, those before 1970 too, whatever the unit of other files is."""
    count = times.cast(pl.Int64)
    if unit == "step":
        reason = pl.lit("a date is no step")
    else:
        in_range = pl.col("time").is_between(FIRST_CLOCK_TIME, LAST_CLOCK_TIME)
        missing = pl.when(pl.col("time").is_null()).then(pl.lit("unreadable time"))
        reason = missing.when(~in_range).then(pl.lit(OUT_OF_RANGE)).otherwise(None)
    frame = count.to_frame("time").with_columns(reason=reason)
    return frame.select(time=pl.when(pl.col("reason").is_null()).then("time"), reason="reason")


def _counted_times(text: pl.Series, unit: TimeUnit, since_epoch: bool) -> pl.DataFrame:
    bounds = tuple(seconds * _second(unit) for seconds in EPOCH_SECONDS) if since_epoch else None
    if text.dtype == pl.Int64 and _all_usable(text, unit, bounds):
        time = text * MICROSECONDS[unit] if unit in MICROSECONDS else text // 1000 if unit == "ns" else text
        return pl.DataFrame({"time": time}).with_columns(reason=pl.lit(None, pl.String))
    whole = text.cast(pl.Int64, strict=False)
    value = text.cast(pl.Float64, strict=False)
    frame = pl.DataFrame({"whole": whole, "value": value}).with_columns(reason=_count_reason(unit, bounds))
    return frame.select(time=pl.when(pl.col("reason").is_null()).then(_microseconds(unit)), reason="reason")


def _all_usable(whole: pl.Series, unit: TimeUnit, bounds: tuple[int, ...] | None) -> bool:
    first, last = bounds or (0, LAST_COUNT)
    return whole.null_count() == 0 and bool(whole.is_between(first, min(last, _last(unit))).all())


def _last(unit: TimeUnit) -> int:
    return min(
        {"step": LAST_STEP, "ns": LAST_CLOCK_TIME * 1000}.get(unit) or LAST_CLOCK_TIME // MICROSECONDS[unit], LAST_COUNT
    )


def _count_reason(unit: TimeUnit, bounds: tuple[int, ...] | None) -> pl.Expr:
    value = pl.col("value")
    reason = (
        pl.when(value.is_null())
        .then(pl.lit("unreadable time"))
        .when(~value.is_finite())
        .then(pl.lit(INFINITE_TIME))
        .when(value < 0)
        .then(pl.lit("negative time"))
        .when(value > _last(unit))
        .then(pl.lit(OUT_OF_RANGE))
    )
    if bounds is not None:
        reason = reason.when(~value.is_between(bounds[0], bounds[1])).then(
            pl.lit("time far from the others, as if of another unit")
        )
    if unit == "step":
        reason = reason.when(value != value.floor()).then(pl.lit("time is not a whole step"))
    return reason.otherwise(None)


def _microseconds(unit: TimeUnit) -> pl.Expr:
    whole, value = pl.col("whole"), pl.col("value")
    if unit == "step":
        return pl.coalesce(whole, value.cast(pl.Int64, strict=False))
    if unit == "ns":
        return pl.coalesce(whole, value.cast(pl.Int64, strict=False)) // 1000
    factor = MICROSECONDS[unit]
    return pl.coalesce(whole * factor, (value * factor).round().cast(pl.Int64, strict=False))


def _dates(
    text: pl.Series, forms: Sequence[str], read_others: Callable[[pl.Series], pl.Series] | None = None
) -> pl.DataFrame:
    """Read dates by the form that fits the first dates best, and the dates that it does not fit by other forms."""
    start = text.head(64)
    first, *others = sorted(forms, key=lambda form: _clock(start, form).null_count())
    time = _clock(text, first)
    for form in others:
        time = _filled(time, text, lambda rest, form=form: _clock(rest, form))
    if read_others is not None:
        time = _filled(time, text, read_others)
    in_range = (pl.col("time") >= FIRST_CLOCK_TIME) & (pl.col("time") <= LAST_CLOCK_TIME)
    reason = (
        pl.when(pl.col("time").is_null())
        .then(pl.lit("unreadable time"))
        .when(~in_range)
        .then(pl.lit(OUT_OF_RANGE))
        .otherwise(None)
    )
    return pl.DataFrame({"time": time}).select(time=pl.when(in_range).then("time"), reason=reason)


def _clock(text: pl.Series, pattern: str) -> pl.Series:
    return text.str.to_datetime(pattern, time_unit="us", strict=False).dt.epoch("us")


def _filled(time: pl.Series, text: pl.Series, read: Callable[[pl.Series], pl.Series]) -> pl.Series:
    """Read the texts that no earlier form fits by one more form."""
    missing = time.is_null().arg_true()
    if missing.len() == 0:
        return time
    return time.scatter(missing, read(text.gather(missing)))


def _with_slashes(text: pl.Series) -> pl.Series:
    """Rewrite dates with slashes and a time of day; null for any other text."""
    column = pl.col("text")
    full = column.str.replace(DAY_PATTERN, "${1}/${3}/${4} ${5}").str.replace(r" $", " 00:00")
    return text.to_frame("text").select(pl.when(column.str.contains(DAY_PATTERN)).then(full)).to_series()


def _rare_iso_times(text: pl.Series) -> pl.Series:
    """Rewrite rare spellings of a date with the year first as the usual one; read it.

    They are dates alone, no minutes or seconds, slashes, basic form, decimal comma, and `UTC`.
    """
    full = (
        text.str.to_uppercase()
        .str.replace(r"\s*(?:UTC|GMT)$", "Z")
        .str.replace(",", ".", literal=True)
        .str.replace(r"^(\d{4})/(\d{1,2})/", "${1}-${2}-")
        .str.replace(r"^(\d{8})(\d{4}|\d{6})$", "${1}T${2}")
        .str.replace(r"^(\d{4})(\d{2})(\d{2})(T|$)", "${1}-${2}-${3}${4}")
        .str.replace(r"T(\d{2})(\d{2})(\d{2})?", "T${1}:${2}:${3}")
        .str.replace(r":([Z+\-.]|$)", "$1")
        .str.replace(r"^(\d{4}-\d{1,2}-\d{1,2})$", "${1}T00:00:00")
        .str.replace(r"^(\d{4}-\d{1,2}-\d{1,2})\s+(\d.*)$", "${1}T${2}")
        .str.replace(r"^([\d-]+T\d{1,2})($|Z|\s*[+-])", "${1}:00${2}")
        .str.replace(r"^([\d-]+T\d{1,2}:\d{2})($|Z|\s*[+-])", "${1}:00${2}")
        .str.replace(r"^([\d-]+T[\d:.]+)$", "${1}Z")
    )
    return _clock(full, "%Y-%m-%dT%H:%M:%S%.f%#z")


def order_positions(
    num_rows: int, first: object, last: object, max_years: int, unit: TimeUnit
) -> tuple[int, int] | None:
    """Give the positions, in order of time, of the first and the last row among nearly all of them.

    Args:
        num_rows: rows of the file.
        first: time of the first row, None without one.
        last: time of the last row.
        max_years: years beyond which a time is far.
        unit: unit of the times.

    Returns:
        None where no row can be far from the others: in steps, with few rows, or in a short range of times.
    """
    if unit == "step" or num_rows < LEAST_ROWS or not isinstance(first, int) or not isinstance(last, int):
        return None
    if last - first <= max_years * MEAN_YEAR:
        return None
    return math.ceil(OUTER * (num_rows - 1)), math.floor((1 - OUTER) * (num_rows - 1))


def far_bounds(low: int, high: int, max_years: int) -> tuple[int, int]:
    """Give the bounds of times, both usable, by those of the rows at `order_positions`."""
    margin = max(max_years * MEAN_YEAR, SPANS * (high - low))
    return low - margin, high + margin


def far_reason(max_years: int) -> str:
    """Give the reason of a row whose time is far from the others."""
    return f"time more than {max_years} years from the others"


def quarantined_events(events: pl.DataFrame, max_years: int) -> pl.DataFrame:
    """Give events as rejected rows; their text is their values as JSON, the time in ISO 8601."""
    values = pl.struct(pl.col("source", "target").cast(pl.String), _written(pl.col("time")), "weight", "label")
    line, reason = pl.col("line").cast(QUARANTINE_SCHEMA["line"]), pl.lit(far_reason(max_years))
    return events.select("file", line, reason=reason, raw=values.struct.json_encode())
