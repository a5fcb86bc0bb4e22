"""Sorted times -> the windows of the snapshots (paper, Table 1).

R rows in order of time    T windows    B bounds: the start of each window and the end of the last one

The calendar code is our own, because polars ends daylight saving in 2100 and refuses days that a time zone skipped.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from dyformer.logs.time_windows import (
    EPOCH,
    IF_SECONDS,
    MICROSECOND,
    TimeUnit,
    Window,
    WindowError,
    fixed_duration,
    parse_duration,
    written_time,
)

MAX_WINDOWS = 100_000
"""More windows than this are refused, because their length is most likely a mistake."""

FEW_WINDOWS = 20
"""With fewer windows, those without a row do no harm."""

USEFUL_WINDOWS = 3
"""With fewer windows there is no step to evaluate, so no message recommends them."""

FAR_SHARE = 0.01  # of the rows of a window: so few far rows are an error sooner than the log going on
FAR_GAPS = 2  # times the longest time without a row before
VERY_FAR_SHARE = 0.5  # the same fraction where the gap is very long, as the next two say
VERY_FAR_SPANS = 3  # times the log before the gap
VERY_FAR_WINDOWS = 100  # times the longest window
FIRST_SHARE = 0.01  # of the rows of a first ingest, which may have had longer pauses than it shows
FIRST_ROWS = 100  # in fewer, one row is no small fraction

BLOCK_ROWS = 1 << 17
KEY_BITS = 62
DAY = 86_400_000_000
FIRST_CLOCK_TIME = (datetime(2, 1, 1, tzinfo=UTC) - EPOCH) // MICROSECOND
LAST_CLOCK_TIME = (datetime(9900, 1, 1, tzinfo=UTC) - EPOCH) // MICROSECOND


class TooFewRows(WindowError):
    """Fewer rows than windows of equal count; the log may grow."""


class WindowsMove(WindowError):
    """A number of windows divides the whole log, so that new rows move all of them."""


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Window t holds the rows `first_row_T[t] <= row < end_row_T[t]`; every row that is not trimmed is in one window.

    A window of a given length ends where the next one starts. The last window may still grow: events before its
    `end_time` may come. A window of a given number of rows starts at the time of its first row and ends right after
    that of its last row. If rows of equal time fall into two windows, the windows overlap by that moment.
    """

    start_time_T: NDArray[np.int64]
    end_time_T: NDArray[np.int64]  # excluded
    first_row_T: NDArray[np.int64]
    end_row_T: NDArray[np.int64]  # excluded


def time_order(time_R: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give the positions of the rows in order of time; rows of equal times keep their order."""
    if bool((time_R[1:] >= time_R[:-1]).all()):
        return np.arange(len(time_R))
    key_R, row_bits = time_keys(time_R)
    key_R.sort()  # several times faster than sorting positions
    key_R &= (1 << row_bits) - 1
    return key_R


def time_keys(time_R: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """Give each row a key from 0 to 2^62, and the number of bits of a key that hold the row number.

    Sorted keys are in order of time, and of the row number where times are equal. The upper bits of a key are the time.
    A time with too many bits is replaced by its rank among all times.
    """
    row_bits = len(time_R).bit_length()
    key_R = _short_times(time_R, KEY_BITS - row_bits)
    key_R <<= row_bits
    for first in range(0, len(key_R), BLOCK_ROWS):  # small blocks bound the memory of intermediate arrays
        key_B = key_R[first : first + BLOCK_ROWS]
        key_B |= np.arange(first, first + len(key_B))
    return key_R, row_bits


def _short_times(time_R: NDArray[np.int64], num_bits: int) -> NDArray[np.int64]:
    """Shift and scale times to numbers of few bits, in the same order."""
    first, last = (int(time_R.min()), int(time_R.max())) if len(time_R) else (0, 0)
    if last - first < 1 << KEY_BITS:
        since_R = time_R - first
        unit = 1_000_000 if _are_multiples(since_R, 1_000_000) else 1
        if ((last - first) // unit).bit_length() <= num_bits:
            since_R //= unit
            return since_R
    return np.unique(time_R, return_inverse=True)[1]


def _are_multiples(since_R: NDArray[np.int64], unit: int) -> bool:
    blocks = (since_R[first : first + BLOCK_ROWS] for first in range(0, len(since_R), BLOCK_ROWS))
    return all(np.array_equal(since_B // unit * unit, since_B) for since_B in blocks)


def split_windows(time_R: NDArray[np.int64], window: Window, time_unit: TimeUnit) -> Windows:
    """Split rows in order of time by the rule of `Window`.

    Raises WindowError where the rule does not fit the log: the trims leave no row, there are too many windows, or the
    rule needs clock times and the log has integer steps.
    """
    _check_fit(window, time_unit)
    if len(time_R) == 0:
        raise WindowError("there is no interaction to split into windows: the log is empty")
    first = int(time_R[0]) + _trim(window.trim_start, time_unit)
    last = int(time_R[-1]) - _trim(window.trim_end, time_unit)
    begin, end = np.searchsorted(time_R, first, "left"), np.searchsorted(time_R, last, "right")
    if begin >= end:
        raise WindowError(
            f"the trims {window.trim_start or 0} and {window.trim_end or 0} leave no interaction: make them shorter"
        )
    if window.rule == "equal_count":
        return _equal_count(time_R[begin:end], int(begin), window.count or 1)
    bound_B = _time_bounds(first, last, window, time_unit)
    if window.trim_start is not None:  # a calendar period begins before the first row that the trim leaves
        bound_B[0] = first
    row_B = np.searchsorted(time_R, bound_B, "left")
    row_B[-1] = end
    return Windows(start_time_T=bound_B[:-1], end_time_T=bound_B[1:], first_row_T=row_B[:-1], end_row_T=row_B[1:])


def emptiness(windows: Windows, time_R: NDArray[np.int64], time_unit: TimeUnit) -> str | None:
    """Say that most windows have no row, as those of a row far from the others have; None if most have one.

    Args:
        windows: windows of the rows.
        time_R: times of the rows, ascending.
        time_unit: unit of the times.
    """
    num_windows = len(windows.first_row_T)
    num_empty = int(np.count_nonzero(windows.first_row_T == windows.end_row_T))
    if num_windows < FEW_WINDOWS or 2 * num_empty <= num_windows:
        return None
    before = int(np.diff(time_R).argmax())  # the row before the longest time without one
    ends = (time_R[0], time_R[-1], time_R[before], time_R[before + 1])
    first, last, *gap = (written_time(int(time), time_unit) for time in ends)
    return (
        f"{num_empty:,} of {num_windows:,} windows have no row: the first row is of {first} and the last of {last}, and"
        f" the longest time without one is from {' to '.join(gap)}; choose longer windows, or ones of equal counts,"
        " with `window`, or look whether these times are right"
    )


class FarRows(NamedTuple):
    """The newest rows of a log, where they are few and far after all others."""

    num_rows: int
    before: int  # time of the last row of the others
    first: int  # time of the first far row
    num_windows: int  # that they end


def far_rows(windows: Windows, time_R: NDArray[np.int64], newest: int | None) -> FarRows | None:
    """Find few rows that lie more than a window after all others, as a mistyped date does; None without such rows.

    They would end windows that may still grow. The gap before them is more than FAR_GAPS times as long as any gap
    before it, and they are at most FAR_SHARE of the rows of a window with rows, or one, or VERY_FAR_SHARE where the gap
    is more than VERY_FAR_SPANS times as long as the log before it and has more than VERY_FAR_WINDOWS windows. In a
    first ingest of FIRST_ROWS or more, such a gap alone counts, and they are at most FIRST_SHARE of all rows.

    Args:
        windows: windows of the rows, of a given length.
        time_R: times of the rows, ascending.
        newest: the gap begins at this time or later; None in a first ingest.
    """
    begin = 0 if newest is None else max(int(np.searchsorted(time_R, newest, "right")) - 1, 0)
    gap_G = np.diff(time_R[begin:])
    if not len(gap_G) or (len(time_R) < FIRST_ROWS if newest is None else begin == 0):
        return None
    row = begin + int(gap_G.argmax())
    num_far, gap = len(time_R) - 1 - row, int(gap_G.max())
    num_used = int(np.count_nonzero(windows.end_row_T > windows.first_row_T))
    earlier = int(np.diff(time_R[: row + 1]).max(initial=0))
    length = int((windows.end_time_T - windows.start_time_T).max())
    very_far = max(VERY_FAR_SPANS * int(time_R[row] - time_R[0]), VERY_FAR_WINDOWS * length)
    most = (VERY_FAR_SHARE if gap > very_far else FAR_SHARE) * len(time_R) / num_used
    if newest is None:
        most = min(most, FIRST_SHARE * len(time_R))
    is_far = gap > length and gap > FAR_GAPS * earlier and num_far <= max(1, most)
    if not is_far or (newest is None and gap <= very_far):
        return None
    before, first = int(time_R[row]), int(time_R[row + 1])
    return FarRows(num_far, before, first, int(((windows.end_time_T > before) & (windows.end_time_T <= first)).sum()))


def complete_ends(
    first: int, newest: int, window: Window, time_unit: TimeUnit, *, now: int | None = None, lateness: str | None = None
) -> NDArray[np.int64]:
    """Give the ends of the complete windows of a growing log whose rows lie from `first` to `newest`.

    A window is complete when it ends at or before `now` (by default the newest row's time) less the `lateness`, a
    duration. A trim at the end removes the newest rows, so that the last of the windows that it leaves must also have
    none of its rows removed. Windows after the one with the newest row are none yet.

    Raises WindowsMove for a number of windows, and WindowError where the rule or the lateness does not fit the log.
    """
    _check_fit(window, time_unit)
    if window.count is not None:
        raise WindowsMove(
            f"the window {str(window)!r} divides the whole log, so that every new row moves all windows: choose windows"
            ' of fixed length, as in `window="7d"`'
        )
    begin, last = first + _trim(window.trim_start, time_unit), newest - _trim(window.trim_end, time_unit)
    until = (newest if now is None else now) - _trim(None if lateness == "0" else lateness, time_unit)
    if begin > last:
        return np.empty(0, dtype=np.int64)
    end_T = _time_bounds(begin, last, window, time_unit)[1:]
    return end_T[end_T <= (min(until, last + 1) if window.trim_end else until)]


def _check_fit(window: Window, time_unit: TimeUnit) -> None:
    if time_unit == "step" and (window.rule == "calendar" or window.time_zone != "UTC"):
        raise WindowError(
            f"the window {str(window)!r} needs clock times, and this log has integer steps: write a number of steps,"
            ' as in "1", or a number of windows, as in "12 equal"; '
            f"{IF_SECONDS}"
        )


def _trim(text: str | None, time_unit: TimeUnit) -> int:
    return 0 if text is None else fixed_duration(text, time_unit)


def _equal_count(time_R: NDArray[np.int64], offset: int, num_windows: int) -> Windows:
    if num_windows > len(time_R):
        fewer = len(time_R) // 2
        remedy = f', or choose fewer windows, as in `window="{fewer} equal"`' if fewer >= USEFUL_WINDOWS else ""
        rows = "interaction" if len(time_R) == 1 else "interactions"
        raise TooFewRows(
            f"{len(time_R)} {rows} cannot fill {num_windows} windows of equal count: add "
            f"interactions until there are {num_windows}{remedy}"
        )
    length, num_longer = divmod(len(time_R), num_windows)
    index_B = np.arange(num_windows + 1)
    row_B = index_B * length + np.minimum(index_B, num_longer)
    return Windows(
        start_time_T=time_R[row_B[:-1]],
        end_time_T=time_R[row_B[1:] - 1] + 1,
        first_row_T=row_B[:-1] + offset,
        end_row_T=row_B[1:] + offset,
    )


def _time_bounds(first: int, last: int, window: Window, time_unit: TimeUnit) -> NDArray[np.int64]:
    if window.count is not None:
        return _equal_widths(first, last, window.count)
    if window.rule == "equal_time" and window.time_zone == "UTC":
        length = fixed_duration(window.length or "", time_unit)
        num_windows = (last - first) // length + 1
        _check_number(num_windows, window)
        return first + length * np.arange(num_windows + 1)
    return _clock_bounds(first, last, window)


def _equal_widths(first: int, last: int, num_windows: int) -> NDArray[np.int64]:
    # Window k starts at the earliest integer time with floor(num_windows (time - first) / (last - first)) >= k, because
    # `Window` defines the windows by this formula. The last window ends at last + 1, so it holds the last row.
    if first == last:
        raise WindowError(f"all interactions have the same time: it cannot be split into {num_windows} equal widths")
    inner = [first - (-index * (last - first) // num_windows) for index in range(num_windows)]
    return np.array([*inner, last + 1], dtype=np.int64)


def _check_number(num_windows: int, window: Window) -> None:
    if num_windows > MAX_WINDOWS:
        raise WindowError(
            f"the window {str(window)!r} splits this log into {num_windows:,} windows, and at most {MAX_WINDOWS:,} are"
            " allowed: make it longer, or check the unit of the log's times"
        )


def _clock_bounds(first: int, last: int, window: Window) -> NDArray[np.int64]:
    """Give bounds whose distances are equal on the wall clock of the window's time zone, in microseconds of UTC."""
    if first < FIRST_CLOCK_TIME or last > LAST_CLOCK_TIME:
        raise WindowError(
            f"the window {str(window)!r} needs times in the years 2 to 9900, but the log has times outside of them:"
            " check the unit of the times"
        )
    amount, unit = parse_duration(window.length or "")
    zone = ZoneInfo(window.time_zone)
    if window.rule == "calendar":
        wall_bound, shortest = _calendar(_wall(first, zone), amount, unit)
    else:
        shortest = fixed_duration(window.length or "", "us")
        wall_bound = _regular(_wall(first, zone), shortest)
    _check_number((last - first) // shortest, window)
    bounds = []
    for index in count():
        bounds.append(_instant(wall_bound(index), zone))
        if bounds[-1] > last:
            return np.array(bounds, dtype=np.int64)
    raise AssertionError("bounds grow until they pass the last row")


def _regular(first: int, length: int) -> Callable[[int], int]:
    return lambda index: first + index * length


def _calendar(first: int, amount: int, unit: str) -> tuple[Callable[[int], int], int]:
    """Give the start of each calendar period, from the one with `first` on, and the least length of a period."""
    if unit in ("d", "w"):
        monday = first - (first // DAY + 3) % 7 * DAY  # the epoch was a Thursday
        length = amount * DAY * (7 if unit == "w" else 1)
        start = (monday if unit == "w" else first) // DAY * DAY
        return _regular(start, length), length
    months = amount * (12 if unit == "y" else 1)
    moment = EPOCH + first * MICROSECOND
    start = moment.year * 12 + (moment.month - 1 if unit == "mo" else 0)

    def bound(index: int) -> int:
        year, month = divmod(start + index * months, 12)
        return (datetime(year, month + 1, 1, tzinfo=UTC) - EPOCH) // MICROSECOND

    return bound, months * 28 * DAY


def _wall(instant: int, zone: ZoneInfo) -> int:
    """Give the time on a zone's wall clock, in microseconds as if it were UTC."""
    offset = (EPOCH + instant * MICROSECOND).astimezone(zone).utcoffset()
    return instant + (offset or timedelta()) // MICROSECOND


def _instant(wall: int, zone: ZoneInfo) -> int:
    """Give the first instant at which the wall clock shows `wall` or, where the clocks skip this time, a later one."""
    offsets = sorted(_wall(near, zone) - near for near in (wall - DAY, wall + DAY))
    late, early = wall - offsets[0], wall - offsets[1]
    for instant in (early, late):
        if _wall(instant, zone) == wall:
            return instant
    return early + bisect_left(range(late - early), wall, key=lambda past: _wall(early + past, zone))


class Horizon(NamedTuple):
    """The window that is forecast, in the unit of the events' times."""

    start: int
    end: int | None  # excluded; None where the window ends with a number of rows, at a time that nobody knows


def next_window(first: int, end: int, num_windows: int, window: Window, time_unit: TimeUnit) -> Horizon:
    """Give the window after the newest one.

    Args:
        first: start of the first window.
        end: end of the newest window (excluded), with which the next one starts.
        num_windows: number of windows up to there; a rule may divide a longer log into more.
        window: rule of the windows.
        time_unit: unit of the times.

    Returns:
        start and end. Windows of equal counts of rows have no end in time. Windows that divide the whole log into parts
        of equal length end as much later as these are long, although new rows would move them.
    """
    if window.rule == "equal_count":
        return Horizon(end, None)
    if window.count is not None:
        return Horizon(end, end + round((end - first) / num_windows))
    untrimmed = Window(rule=window.rule, length=window.length, time_zone=window.time_zone)
    bounds = split_windows(np.array([first, end], dtype=np.int64), untrimmed, time_unit)
    return Horizon(end, int(bounds.end_time_T[-1]))
