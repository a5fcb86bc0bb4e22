"""Windows and durations: the rules by which a log is split into snapshots, and their text form."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args
from zoneinfo import ZoneInfo

from dyformer import InvalidInput

TimeUnit = Literal["s", "ms", "us", "ns", "iso", "day-first", "month-first", "step"]
"""How a log writes its times: counts since the epoch (fractions allowed), ISO 8601, dates such as 31/12/2024 23:59 or
12/31/2024 23:59, or an integer step."""

WindowRule = Literal["equal_time", "equal_count", "calendar"]

FIXED_UNITS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
"""Microseconds of each unit whose length never changes."""

CALENDAR_UNITS = ("d", "w", "mo", "y")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

IF_SECONDS = (
    'if its times count seconds, read it with `time_unit="s"` (if it is in a store: after `dyformer drop NAME`)'
)
"""Advice for a clock window on integer steps."""


class WindowError(InvalidInput):
    """A window rule that cannot be understood or does not fit the log."""


YEAR = 365 * FIXED_UNITS["d"]
THOUSAND_YEARS = 365_250 * FIXED_UNITS["d"]
LONGEST = {"mo": 12 * 99, "y": 99, "": 1 << 53}
"""Longest durations of other units than the fixed ones, because dates end with the year 9999."""


def parse_duration(text: str) -> tuple[int, str]:
    """Split "10d" into (10, "d"); a plain number is a count of integer steps, with unit "".

    Raises WindowError when the text is not a duration.
    """
    match = re.fullmatch(r"\s*([0-9]{1,20})\s*([a-z]*)\s*", text)
    allowed = {*FIXED_UNITS, *CALENDAR_UNITS, ""}
    if match is None or match[2] not in allowed:
        raise WindowError(
            f"{text!r} is not a duration: write a number and one of {', '.join([*FIXED_UNITS, 'mo', 'y'])}"
            ' (as in "10d"), or a plain number of steps for a log with integer steps'
        )
    amount, unit = int(match[1]), match[2]
    longest = LONGEST.get(unit) or THOUSAND_YEARS // FIXED_UNITS[unit]
    if amount > longest:
        raise WindowError(f"the duration {text!r} is too long: write {longest}{unit} or less")
    return amount, unit


def fixed_duration(text: str, time_unit: TimeUnit) -> int:
    """Convert a duration to the unit of the events' time: microseconds, or steps on a log with integer steps.

    Raises WindowError for months and years (their length changes) and where clock and step are mixed.
    """
    amount, unit = parse_duration(text)
    if (time_unit == "step") != (unit == ""):
        has = "integer steps" if time_unit == "step" else "clock times"
        advice = (
            f'a plain number, as in "1"; {IF_SECONDS}' if time_unit == "step" else 'a number with a unit, as in "10d"'
        )
        raise WindowError(f"the duration {text!r} does not fit a log with {has}: write {advice}")
    if unit in ("mo", "y"):
        raise WindowError(f'{text!r} has no fixed length: write a number of days, or for a window "calendar {text}"')
    return amount * FIXED_UNITS.get(unit, 1)


def horizon_length(text: str, time_unit: TimeUnit) -> int:
    """Read the length of a horizon in the unit of the events' time. Raises WindowError unless it is above 0."""
    length = fixed_duration(text, time_unit)
    if length <= 0:
        raise WindowError(f"the horizon {text!r}: expected a length of time above 0")
    return length


@dataclass(frozen=True, kw_only=True)
class Window:
    """How a log is split into snapshots.

    First, the trims leave only rows with `min + trim_start <= time <= max - trim_end`. Let `first` and `last` be the
    ends of this range (`min + trim_start`; `max - trim_end`). Then the rules are:

    - equal_time with a length: step 1 + floor((time - first) / length). In a time zone other than UTC, all times are
      read on that zone's wall clock first. A day then stays a day when the clocks change (ml-10m's rule).
    - equal_time with a count: step 1 + min(count - 1, floor(count * (time - first) / (last - first))).
    - equal_count: the rows in order of time are divided into `count` parts of equal size. Rows of equal time are in the
      order of the log. If the division leaves a remainder, the first parts have one row more.
    - calendar: each step is one or more whole days, weeks (from Monday), months or years of the time zone. Step 1 is
      the one with the first row.

    Windows without a row are steps, too.
    """

    rule: WindowRule
    length: str | None = None  # "10d", "250000s", "1mo"; "1" on a log with integer steps
    count: int | None = None
    time_zone: str = "UTC"
    trim_start: str | None = None
    trim_end: str | None = None

    def __post_init__(self):
        if self.rule not in get_args(WindowRule):
            raise WindowError(f"the window rule {self.rule!r} is not one of {', '.join(get_args(WindowRule))}")
        _check_extent(self)
        for trim in (self.trim_start, self.trim_end):
            if trim is not None and parse_duration(trim)[1] in ("mo", "y"):
                raise WindowError(f"the trim {trim!r} has no fixed length: give it in days")
        if not _is_time_zone(self.time_zone):
            raise WindowError(f"{self.time_zone!r} is not a time zone: write a name like UTC or America/Chicago")

    @classmethod
    def parse(cls, text: str) -> "Window":
        """Read the text that `str(window)` writes.

        Examples are "7d", "12 equal" (also "12 equal count"), "100 equal time", "calendar 1mo" and "1" (steps). Each
        may be followed by "in Europe/Berlin" and by "trim 5d 60d".
        """
        return _parse_window(text)

    def __str__(self):
        head = {
            "equal_time": self.length or f"{self.count} equal time",
            "equal_count": f"{self.count} equal",
            "calendar": f"calendar {self.length}",
        }[self.rule]
        zone = "" if self.time_zone == "UTC" else f" in {self.time_zone}"
        trims = f" trim {self.trim_start or 0} {self.trim_end or 0}" if self.trim_start or self.trim_end else ""
        return head + zone + trims


def _is_time_zone(name: str) -> bool:
    """Whether there is a time zone of this name; a list of all would read some 600 files at each start."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # no file of this name; a path out of their folder; a folder
        return False
    return True


def _check_extent(window: Window) -> None:
    """Check that the rule has the length or the count that it needs, and no other."""
    if window.rule != "equal_count" and window.length is not None and window.count is None:
        amount, unit = parse_duration(window.length)
        if amount < 1:
            raise WindowError(f"the window length {window.length!r} must be at least 1")
        allowed = CALENDAR_UNITS if window.rule == "calendar" else (*FIXED_UNITS, "")
        if unit not in allowed:
            whole = f'; "calendar {window.length}" has whole months or years' if unit in CALENDAR_UNITS else ""
            needed = ", ".join(filter(None, allowed))
            raise WindowError(f"the window length {window.length!r} needs one of {needed}{whole}")
    elif window.rule == "calendar" or window.count is None or window.length is not None:
        needs = {"calendar": "a length", "equal_count": "a count", "equal_time": "either a length or a count"}
        raise WindowError(
            f"the window rule {window.rule} needs {needs[window.rule]} alone;"
            f" got length={window.length!r}, count={window.count!r}"
        )
    elif window.count < 1:
        raise WindowError(f"the number of windows must be at least 1, got {window.count}")


def _parse_window(text: str) -> Window:
    match = re.fullmatch(
        r"\s*(?:(?P<count>\d+)\s+equal(?:[\s_]+(?P<kind>time|count))?|(?P<calendar>calendar\s+)?(?P<length>\d+\s*[a-z]*))"
        r"(?:\s+in\s+(?P<zone>\S+))?(?:\s+trim\s+(?P<start>\w+)\s+(?P<end>\w+))?\s*",
        text,
    )
    if match is None:
        raise WindowError(
            f"{text!r} is not a window: write a width (7d), a number of windows (12 equal, 12 equal time) or a calendar"
            " period (calendar 1mo), then, if wanted, `in TIME_ZONE` and `trim START END`"
        )
    rule = "calendar" if match["calendar"] else "equal_time"
    if match["count"]:
        rule = "equal_time" if match["kind"] == "time" else "equal_count"
    return Window(
        rule=rule,
        length=match["length"],
        count=int(match["count"]) if match["count"] else None,
        time_zone=match["zone"] or "UTC",
        trim_start=_trim(match["start"]),
        trim_end=_trim(match["end"]),
    )


def _trim(text: str | None) -> str | None:
    return None if text in (None, "0") else text


def written_time(time: int, unit: TimeUnit) -> str:
    """Write a time of the events as a date, or as a step."""
    if unit == "step":
        return f"step {time:,}"
    try:
        return f"{EPOCH + time * MICROSECOND:%Y-%m-%d}"
    except OverflowError:
        return f"the year {1970 + time // YEAR}"
