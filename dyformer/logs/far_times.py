"""Times far from those of nearly all rows of a file, such as placeholders: by what bounds, and as quarantined rows."""

import math

import polars as pl

from dyformer.logs.time_windows import TimeUnit
from dyformer.logs.validation import QUARANTINE_SCHEMA

YEAR = 31_556_952_000_000  # microseconds of a mean year
OUTER = 0.01  # of the rows at either end may be far from the others
LEAST_ROWS = 100  # the outer part of fewer rows is less than one
SPANS = 3


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
    if last - first <= max_years * YEAR:
        return None
    return math.ceil(OUTER * (num_rows - 1)), math.floor((1 - OUTER) * (num_rows - 1))


def far_bounds(low: int, high: int, max_years: int) -> tuple[int, int]:
    """Give the bounds of times, both usable, by those of the rows at `order_positions`."""
    margin = max(max_years * YEAR, SPANS * (high - low))
    return low - margin, high + margin


def far_reason(max_years: int) -> str:
    """Give the reason of a row whose time is far from the others."""
    return f"time more than {max_years} years from the others"


def quarantined_events(events: pl.DataFrame, max_years: int) -> pl.DataFrame:
    """Give events as rejected rows; their text is their values as JSON, the time in microseconds since the epoch."""
    values = pl.struct(pl.col("source", "target").cast(pl.String), "time", "weight", "label")
    line, reason = pl.col("line").cast(QUARANTINE_SCHEMA["line"]), pl.lit(far_reason(max_years))
    return events.select("file", line, reason=reason, raw=values.struct.json_encode())
