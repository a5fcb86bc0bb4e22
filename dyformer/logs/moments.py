"""Times as users write them -> microseconds since the epoch or the log's own integer steps, and back."""

from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation

from dyformer.logs.time_windows import EPOCH, MICROSECOND, TimeUnit
from dyformer.logs.validation import compact_date

MICROSECONDS_OF = {"s": Decimal(1_000_000), "ms": Decimal(1_000), "us": Decimal(1), "ns": Decimal("0.001")}
LARGEST = 1 << 62  # count of a unit, or step
FIRST_YEAR, LAST_YEAR = 1678, 2262
RANGE = tuple((datetime(year, 1, 1, tzinfo=UTC) - EPOCH) // MICROSECOND for year in (FIRST_YEAR, LAST_YEAR))


class UnreadableMoment(ValueError):
    """A time that does not fit those of the log."""


def read_moment(written: str | float, unit: TimeUnit) -> int:
    """Read a time of a log: a date of ISO 8601 (in UTC if it has no zone), or a count in the unit of the log.

    In a log with dates of ISO 8601, one of digits alone such as 20240301 is a date, too. Raises UnreadableMoment for a
    date in a log with integer steps, a count in one with dates, or a year before 1678 or after 2261.
    """
    text = str(written).strip()
    try:
        count = None if unit == "iso" and compact_date(text) else Decimal(text)
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
    if not RANGE[0] <= time < RANGE[1]:
        counted = "" if count is None else f", and numbers in the unit {unit!r} of the log"
        raise UnreadableMoment(
            f"the time {text[:40]!r}: expected one of the years {FIRST_YEAR} to {LAST_YEAR - 1}{counted}"
        )
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
    try:
        date = compact_date(text) or datetime.fromisoformat(text)
    except ValueError:
        counted = f", or a number in the unit {unit!r} of the log" if unit in MICROSECONDS_OF else ""
        raise UnreadableMoment(
            f"the time {text[:40]!r}: expected a date such as 2024-03-01T10:00:00Z{counted}"
        ) from None
    try:
        return ((date if date.tzinfo else date.replace(tzinfo=UTC)) - EPOCH) // MICROSECOND
    except OverflowError:
        raise UnreadableMoment(
            f"the time {text[:40]!r}: expected one of the years {FIRST_YEAR} to {LAST_YEAR - 1}"
        ) from None


def written_moment(time: int, unit: TimeUnit) -> str | int:
    """Write a time of the events as a date of ISO 8601 with microseconds, or as a step."""
    if unit == "step":
        return time
    try:
        return (EPOCH + time * MICROSECOND).isoformat(timespec="microseconds").replace("+00:00", "Z")
    except OverflowError:
        return time
