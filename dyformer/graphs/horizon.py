"""Snapshots of a log -> the window that follows the newest one: for which times a forecast holds."""

from typing import NamedTuple

import numpy as np

from dyformer.graphs.windows import split_windows
from dyformer.logs.time_windows import TimeUnit, Window


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
