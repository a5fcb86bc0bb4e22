"""Times as users write them -> microseconds since the epoch or the log's own integer steps, and back."""

import re
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation

import polars as pl

from dyformer import InvalidInput
from dyformer.logs.time_windows import EPOCH, MICROSECOND, TimeUnit
from dyformer.logs.validation import FIRST_CLOCK_TIME, LAST_CLOCK_TIME, OUT_OF_RANGE, read_times

MICROSECONDS_OF = {"s": Decimal(1_000_000), "ms": Decimal(1_000), "us": Decimal(1), "ns": Decimal("0.001")}
LARGEST = 1 << 62  # count of a unit, or step
YEARS = "expected one of the years 1 to 9999"
USUAL_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{6})?(?:Z|[+-]\d\d:[0-5]\d)?", re.ASCII)
"""Dates that Python reads as `validation` does, and a thousand times as fast."""


class UnreadableMoment(InvalidInput):
    """A time that does not fit those of the log."""


def read_moment(written: str | float, unit: TimeUnit) -> int:
    """Read a time of a log: a date with the year first (in UTC if it has no zone), or a count in the unit of the log.

    A date is read as one of a log with dates of ISO 8601. In such a log, one of digits alone such as 20240301 is a
    date, too. A count may be negative, which in a log is a placeholder. Raises UnreadableMoment for a date in a log
    with integer steps, a count in one with dates, or a time before the year 1 or after 9999.
    """
    text = str(written).strip()
    try:
        count = None if unit == "iso" else Decimal(text)
    except InvalidOperation:
        count = None
    # A comparison, because arithmetic on 1e999999999 overflows, and an integer of it would fill the memory.
    is_small = count is not None and count.is_finite() and -LARGEST < count < LARGEST
    if unit == "step":
        if count is None or not is_small or count != int(count):
            raise UnreadableMoment(f"the time {text[:40]!r}: expected an integer, because this log has integer steps")
        return int(count)
    if count is not None and unit not in MICROSECONDS_OF:
        raise UnreadableMoment(f"the time {text[:40]!r}: expected a date such as 2024-03-01T10:00:00Z, as the log has")
    if count is not None and not is_small:
        raise UnreadableMoment(f"the time {text[:40]!r}: expected a finite number in the unit {unit!r} of the log")
    time = _of_date(text, unit) if count is None else _of_count(count, unit)
    if not FIRST_CLOCK_TIME <= time <= LAST_CLOCK_TIME:
        counted = "" if count is None else f", and numbers in the unit {unit!r} of the log"
        raise UnreadableMoment(f"the time {text[:40]!r}: {YEARS}{counted}")
    return time


def expected_times(unit: TimeUnit) -> str:
    """Say in words how `read_moment` takes the times of a log."""
    if unit == "step":
        return "which are integer steps"
    counted = f", or as numbers in its unit {unit!r}" if unit in MICROSECONDS_OF else ""
    return f"as dates such as 2024-03-01T10:00:00Z{counted}"


def _of_count(count: Decimal, unit: TimeUnit) -> int:
    """Give the microseconds of a count; fractions are rounded as `validation` rounds those of a log, in floats."""
    if unit == "ns" or count == int(count):
        return int(count * MICROSECONDS_OF[unit])
    return round(float(count) * float(MICROSECONDS_OF[unit]))


def _of_date(text: str, unit: TimeUnit) -> int:
    if USUAL_DATE.fullmatch(text):
        with suppress(ValueError):
            date = datetime.fromisoformat(text)
            return ((date if date.tzinfo else date.replace(tzinfo=UTC)) - EPOCH) // MICROSECOND
    time, reason = read_times(pl.Series([text]), "iso").row(0)
    if reason == OUT_OF_RANGE:
        raise UnreadableMoment(f"the time {text[:40]!r}: {YEARS}")
    if reason is not None:
        counted = f", or a number in the unit {unit!r} of the log" if unit in MICROSECONDS_OF else ""
        raise UnreadableMoment(f"the time {text[:40]!r}: expected a date such as 2024-03-01T10:00:00Z{counted}")
    return time


def written_moment(time: int, unit: TimeUnit) -> str | int:
    """Write a time of the events as a date of ISO 8601 with microseconds, or as a step."""
    if unit == "step":
        return time
    try:
        return (EPOCH + time * MICROSECOND).isoformat(timespec="microseconds").replace("+00:00", "Z")
    except OverflowError:
        return time
