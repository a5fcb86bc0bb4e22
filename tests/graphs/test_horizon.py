"""The window after the newest one, against windows cut from a log that has a row in it."""

import numpy as np
import pytest

from dyformer.graphs.horizon import next_window
from dyformer.graphs.windows import complete_ends, split_windows
from dyformer.logs.time_windows import TimeUnit, Window

HOUR = 3_600_000_000
YEAR_START = 1_704_067_200_000_000  # 2024-01-01, UTC


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("7d", "us"),
        ("36h", "us"),
        ("7d in Europe/Berlin", "us"),
        ("calendar 1mo", "us"),
        ("calendar 1mo in America/Chicago", "us"),
        ("calendar 1w", "us"),
        ("7d trim 3d 0", "us"),
        ("3", "step"),
    ],
)
def test_the_next_window_is_the_one_that_the_grown_log_has(text: str, unit: TimeUnit):
    step = 1 if unit == "step" else HOUR
    start = 5 if unit == "step" else YEAR_START + 17 * HOUR
    time_R = start + step * np.arange(24 * 300)
    window = Window.parse(text)
    grown = split_windows(time_R, window, unit)
    for newest in (2, 5):
        end = int(grown.end_time_T[newest - 1])
        before = split_windows(time_R[time_R < end], window, unit)
        ends = complete_ends(int(time_R[0]), int(time_R[-1]), window, unit)
        horizon = next_window(int(before.start_time_T[0]), end, newest, window, unit)
        assert horizon == (grown.start_time_T[newest], grown.end_time_T[newest])
        assert horizon.end == ends[newest]


def test_a_month_with_a_change_of_the_clock_is_an_hour_shorter():
    """The wall clock of Berlin, not a number of days, ends March 2024."""
    window = Window.parse("calendar 1mo in Europe/Berlin")
    march, april = 1_709_247_600_000_000, 1_711_922_400_000_000  # 2024-02-29T23:00Z, 2024-03-31T22:00Z
    assert next_window(march - 29 * 24 * HOUR, march, 1, window, "us") == (march, april)
    assert april - march == (31 * 24 - 1) * HOUR


def test_windows_of_equal_counts_have_no_end_in_time():
    assert next_window(0, 120, 12, Window.parse("12 equal"), "us") == (120, None)
    assert next_window(0, 120, 12, Window.parse("12 equal time"), "us") == (120, 130)
    assert next_window(0, 50, 5, Window.parse("12 equal time"), "us") == (50, 60)  # as of an earlier one of the windows
