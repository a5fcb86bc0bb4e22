"""Windows of a log, and the one after the newest against windows cut from a log that has a row in it."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from dyformer.graphs import windows
from dyformer.graphs.windows import (
    FarRows,
    TooFewRows,
    Windows,
    WindowsMove,
    complete_ends,
    emptiness,
    far_rows,
    next_window,
    split_windows,
    time_order,
)
from dyformer.logs.time_windows import TimeUnit, Window, WindowError

SECOND = 1_000_000
DAY = 86_400 * SECOND
HOUR = 3_600_000_000
YEAR_START = 1_704_067_200_000_000  # 2024-01-01, UTC


def micros(text: str, zone: str = "UTC", fold: int = 0) -> int:
    moment = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return int(moment.timestamp()) * SECOND


def step_of_rows(found: Windows) -> list[int]:
    """Step of each row within the trims, from the rows of each window."""
    sizes = found.end_row_T - found.first_row_T
    assert (sizes >= 0).all()
    assert_array_equal(found.first_row_T[1:], found.end_row_T[:-1])
    return np.repeat(np.arange(1, len(sizes) + 1), sizes).tolist()


times = st.lists(st.integers(-500, 2_000), min_size=1, max_size=40).map(lambda values: np.array(sorted(values)))


@settings(max_examples=300, deadline=None)
@given(times, st.integers(1, 300), st.integers(0, 200), st.integers(0, 200))
def test_equal_lengths_follow_the_rule_as_it_is_written(time_R, length, trim_start, trim_end):
    window = Window(rule="equal_time", length=str(length), trim_start=str(trim_start), trim_end=str(trim_end))
    first, last = time_R.min() + trim_start, time_R.max() - trim_end
    inside = [t for t in time_R.tolist() if first <= t <= last]
    if not inside:
        with pytest.raises(WindowError, match="leave no interaction"):
            split_windows(time_R, window, "step")
        return
    found = split_windows(time_R, window, "step")
    assert step_of_rows(found) == [(t - first) // length + 1 for t in inside]
    assert time_R[found.first_row_T[0]] == inside[0]
    assert found.start_time_T[0] == first
    assert found.end_time_T[-1] > last >= found.start_time_T[-1]
    assert (found.end_time_T - found.start_time_T == length).all()


@settings(max_examples=300, deadline=None)
@given(times, st.integers(1, 120))
def test_equal_widths_follow_the_rule_as_it_is_written(time_R, count):
    window = Window(rule="equal_time", count=count)
    low, high = int(time_R.min()), int(time_R.max())
    if low == high:
        with pytest.raises(WindowError, match="all interactions have the same time"):
            split_windows(time_R, window, "step")
        return
    found = split_windows(time_R, window, "step")
    assert len(found.first_row_T) == count
    assert step_of_rows(found) == [min(count - 1, count * (t - low) // (high - low)) + 1 for t in time_R.tolist()]
    assert (found.start_time_T[0], found.end_time_T[-1]) == (low, high + 1)


@settings(max_examples=200, deadline=None)
@given(times, st.integers(1, 40))
def test_equal_counts_differ_by_one_at_most_and_the_longer_come_first(time_R, count):
    window = Window(rule="equal_count", count=count)
    if count > len(time_R):
        with pytest.raises(WindowError, match=f"cannot fill {count} windows"):
            split_windows(time_R, window, "step")
        return
    found = split_windows(time_R, window, "step")
    sizes = np.diff([found.first_row_T[0], *found.end_row_T])
    assert len(sizes) == count
    assert sizes.sum() == len(time_R)
    assert sizes.max() - sizes.min() <= 1
    assert (np.diff(sizes) <= 0).all()
    assert_array_equal(found.start_time_T, time_R[found.first_row_T])
    assert_array_equal(found.end_time_T, time_R[found.end_row_T - 1] + 1)


def test_trims_include_their_own_moments_and_windows_by_count_divide_the_rest():
    time_R = np.array([0, 4, 5, 6, 90, 91, 100]) * DAY
    by_time = split_windows(time_R, Window(rule="equal_time", length="60d", trim_start="5d", trim_end="10d"), "us")
    assert (by_time.first_row_T.tolist(), by_time.end_row_T.tolist()) == ([2, 4], [4, 5])
    by_count = split_windows(time_R, Window(rule="equal_count", count=3, trim_start="5d", trim_end="9d"), "us")
    assert (by_count.first_row_T.tolist(), by_count.end_row_T.tolist()) == ([2, 4, 5], [4, 5, 6])


def test_a_calendar_window_has_none_of_the_rows_that_a_trim_removes():
    days = ("2024-01-10", "2024-01-12", "2024-01-20", "2024-02-03", "2024-03-01")
    time_R = np.array([micros(f"{day}T00:00", "UTC") for day in days])
    found = split_windows(time_R, Window(rule="calendar", length="1mo", trim_start="5d"), "us")
    assert (found.first_row_T.tolist(), found.end_row_T.tolist()) == ([2, 3, 4], [3, 4, 5])
    assert found.start_time_T.tolist() == [
        micros("2024-01-15T00:00", "UTC"),  # of the trim: January begins before
        micros("2024-02-01T00:00", "UTC"),
        micros("2024-03-01T00:00", "UTC"),
    ]


def test_days_of_a_zone_have_23_hours_when_the_clocks_go_forward():
    time_R = np.array([micros("2024-03-30T13:00", "Europe/Berlin"), micros("2024-04-01T13:00", "Europe/Berlin")])
    found = split_windows(time_R, Window(rule="calendar", length="1d", time_zone="Europe/Berlin"), "us")
    assert found.start_time_T.tolist() == [
        micros("2024-03-29T23:00"),
        micros("2024-03-30T23:00"),
        micros("2024-03-31T22:00"),
    ]
    assert ((found.end_time_T - found.start_time_T) // 3_600 // SECOND).tolist() == [24, 23, 24]


def test_daylight_saving_goes_on_after_2100():
    time_R = np.array([micros("2150-07-01T12:00", "Europe/Berlin")])
    found = split_windows(time_R, Window(rule="calendar", length="1d", time_zone="Europe/Berlin"), "us")
    assert found.start_time_T.tolist() == [micros("2150-06-30T22:00")]


def test_a_day_that_a_zone_skipped_is_an_empty_window():
    zone = "Pacific/Apia"  # 29 December 2011 was followed by the 31st
    time_R = np.array([micros("2011-12-29T12:00", zone), micros("2011-12-31T12:00", zone)])
    found = split_windows(time_R, Window(rule="calendar", length="1d", time_zone=zone), "us")
    assert step_of_rows(found) == [1, 3]
    assert ((found.end_time_T - found.start_time_T) // 3_600 // SECOND).tolist() == [24, 0, 24]


def test_weeks_start_on_monday():
    time_R = np.array([micros("2024-05-15T00:00"), micros("2024-05-27T00:00")])  # a Wednesday; a Monday
    found = split_windows(time_R, Window(rule="calendar", length="1w"), "us")
    assert found.start_time_T.tolist() == [micros(f"2024-05-{day}") for day in (13, 20, 27)]
    assert step_of_rows(found) == [1, 3]


@pytest.mark.parametrize(
    ("length", "starts"),
    [
        ("1mo", ["2023-11-01", "2023-12-01", "2024-01-01", "2024-02-01", "2024-03-01"]),
        ("2mo", ["2023-11-01", "2024-01-01", "2024-03-01"]),
        ("1y", ["2023-01-01", "2024-01-01"]),
        ("30d", ["2023-11-30", "2023-12-30", "2024-01-29", "2024-02-28"]),
    ],
)
@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_calendar_periods_start_at_their_midnights(length, starts, zone):
    time_R = np.array([micros("2023-11-30T12:00", zone), micros("2024-03-01T00:00", zone)])
    found = split_windows(time_R, Window(rule="calendar", length=length, time_zone=zone), "us")
    assert found.start_time_T.tolist() == [micros(start, zone) for start in starts]
    assert found.end_time_T[-1] > time_R[-1]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 400 * 24 * 3_600), min_size=2, max_size=20), st.integers(1, 40), st.integers(1, 23))
def test_wall_clock_lengths_follow_the_rule_as_it_is_written(seconds, days, hours):
    zone = ZoneInfo("America/Chicago")
    start = micros("2007-01-05T03:20")
    time_R = np.array(sorted(start + second * SECOND for second in seconds))
    walls = [datetime.fromtimestamp(t // SECOND, UTC).astimezone(zone) for t in time_R.tolist()]
    if any(wall.fold for wall in walls) or any(wall.hour == 1 and (wall.month, wall.day) == (11, 4) for wall in walls):
        return  # the rule alone does not determine the pass of the repeated hour
    length = days * 24 + hours
    found = split_windows(time_R, Window(rule="equal_time", length=f"{length}h", time_zone="America/Chicago"), "us")
    naive = [wall.replace(tzinfo=None) for wall in walls]
    expected = [int((wall - naive[0]).total_seconds()) // 3_600 // length + 1 for wall in naive]
    assert step_of_rows(found) == expected


def test_a_bound_that_the_clocks_jump_over_falls_on_the_jump():
    zone = "America/Chicago"  # 02:00 -> 03:00 on 2024-03-10
    first = micros("2024-03-09T02:30", zone)
    inside = [micros("2024-03-10T01:59:59", zone), micros("2024-03-10T03:00", zone)]
    found = split_windows(np.array([first, *inside]), Window(rule="equal_time", length="24h", time_zone=zone), "us")
    assert found.start_time_T[1] == micros("2024-03-10T08:00")
    assert step_of_rows(found) == [1, 1, 2]


def test_a_bound_in_the_repeated_hour_falls_on_its_first_pass():
    zone = "America/Chicago"  # 02:00 -> 01:00 on 2024-11-03
    first = micros("2024-11-02T01:30", zone)
    passes = [micros("2024-11-03T01:30", zone), micros("2024-11-03T01:10", zone, fold=1)]
    assert passes == sorted(passes)
    found = split_windows(np.array([first, *passes]), Window(rule="equal_time", length="1d", time_zone=zone), "us")
    assert step_of_rows(found) == [1, 2, 2]


def test_the_last_row_is_always_inside():
    zone = "America/Chicago"
    first = micros("2024-11-02T01:30", zone)
    second_pass = micros("2024-11-03T01:10", zone, fold=1)
    found = split_windows(np.array([first, second_pass]), Window(rule="equal_time", length="1d", time_zone=zone), "us")
    assert step_of_rows(found) == [1, 2]
    assert found.end_time_T[-1] > second_pass


@pytest.mark.parametrize(
    ("window", "time_R", "time_unit", "message"),
    [
        (Window(rule="equal_time", length="1"), [], "step", "the log is empty"),
        (
            Window(rule="equal_time", length="1d", trim_start="2d"),
            [0, DAY],
            "us",
            "trims 2d and 0 leave no interaction",
        ),
        (Window(rule="equal_time", length="1s"), [0, 10 * DAY], "us", "864,001 windows"),
        (Window(rule="calendar", length="1d"), [0, 400_000 * DAY], "us", "windows"),
        (Window(rule="calendar", length="1d"), [0, 5], "step", "needs clock times"),
        (Window(rule="equal_time", length="1", time_zone="Asia/Tokyo"), [0, 5], "step", "needs clock times"),
        (Window(rule="equal_time", length="1d"), [0, 5], "step", "does not fit a log with integer steps"),
        (Window(rule="equal_time", length="1"), [0, 5], "us", "does not fit a log with clock times"),
        (Window(rule="calendar", length="1y"), [-80_000 * 400 * DAY, 0], "us", "check the unit of the times"),
    ],
)
def test_a_window_that_does_not_fit_is_named(window, time_R, time_unit, message):
    with pytest.raises(WindowError, match=message):
        split_windows(np.array(time_R, dtype=np.int64), window, time_unit)


@settings(max_examples=300, deadline=None)
@given(
    first=st.integers(-50, 50),
    span=st.integers(0, 60),
    length=st.integers(1, 20),
    trims=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    late=st.integers(0, 20),
    wait=st.none() | st.integers(0, 40),
)
@example(first=0, span=0, length=3, trims=(0, 0), late=0, wait=4)  # one moment is the first row and the newest
def test_complete_windows_follow_the_rule_as_it_is_written(first, span, length, trims, late, wait):
    newest, (trim_start, trim_end) = first + span, trims
    begin, last = first + trim_start, newest - trim_end
    until = (newest if wait is None else newest + wait) - late
    expected = [
        start + length
        for start in range(begin, last + 1, length)
        if start + length <= until and not (trim_end and start + length - 1 > last)
    ]
    texts = [str(trim) if trim else None for trim in trims]
    window = Window(rule="equal_time", length=str(length), trim_start=texts[0], trim_end=texts[1])
    now = None if wait is None else newest + wait
    assert complete_ends(first, newest, window, "step", now=now, lateness=str(late)).tolist() == expected


def test_a_number_of_windows_has_no_complete_ones():
    with pytest.raises(WindowsMove, match=r"^the window '3 equal' divides the whole log"):
        complete_ends(0, 9, Window(rule="equal_count", count=3), "step")
    with pytest.raises(WindowError, match="does not fit a log with clock times"):
        complete_ends(0, 9, Window(rule="equal_time", length="1"), "us")


def test_fewer_windows_are_recommended_if_they_can_be_evaluated():
    window = Window(rule="equal_count", count=100)
    with pytest.raises(TooFewRows, match=r'there are 100, or choose fewer windows, as in `window="3 equal"`$'):
        split_windows(np.arange(6), window, "step")
    with pytest.raises(TooFewRows, match=r"^5 interactions cannot fill 100 windows .* until there are 100$"):
        split_windows(np.arange(5), window, "step")
    with pytest.raises(TooFewRows, match=r"^1 interaction cannot fill"):
        split_windows(np.arange(1), window, "step")


def test_clocks_have_the_years_2_to_9900():
    for year, direction in ((2, -1), (9900, 1)):
        first = (datetime(year, 1, 1, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        calendar = Window(rule="calendar", length="1d")
        assert len(split_windows(np.array([first]), calendar, "us").first_row_T) == 1
        with pytest.raises(WindowError, match="years 2 to 9900"):
            split_windows(np.array([first + direction]), calendar, "us")


def test_as_many_windows_as_allowed_are_made(monkeypatch):
    monkeypatch.setattr(windows, "MAX_WINDOWS", 3)
    assert len(split_windows(np.array([0, 2]), Window(rule="equal_time", length="1"), "step").first_row_T) == 3
    with pytest.raises(WindowError, match="4 windows"):
        split_windows(np.array([0, 3]), Window(rule="equal_time", length="1"), "step")


@settings(deadline=None)
@given(
    times=st.lists(st.integers(-(2**62), 2**62), max_size=30),
    unit=st.sampled_from([1, 1_000_000]),
    span=st.sampled_from([3, 2**20, 2**61, 2**63]),
)
def test_rows_are_ordered_by_time_and_then_as_they_stand(times, unit, span):
    time_R = np.array([(time % span) // unit * unit for time in times], dtype=np.int64)
    assert time_order(time_R).tolist() == sorted(range(len(times)), key=lambda row: time_R[row])


def test_few_rows_far_after_all_others_are_found():
    """Of 24 rows a day, one three weeks later is an error sooner than the log going on."""
    hour, window = DAY // 24, Window(rule="equal_time", length="1d")
    start = micros("2020-01-01")
    time_R = start + np.arange(240) * hour

    def found(*hours: int, newest: int = 200, of: np.ndarray = time_R) -> FarRows | None:
        all_R = np.array([*of, *(start + each * hour for each in hours)])
        return far_rows(split_windows(all_R, window, "s"), all_R, int(of[newest]))

    assert found() is None
    assert found(240 + 22) is None  # a gap of less than a window
    assert found(740) == FarRows(1, start + 239 * hour, start + 740 * hour, 21)
    assert found(740, 741) is None  # two of them are more than a hundredth of a day's rows
    assert found(740, newest=239) == found(740)
    dense_R = start + np.arange(240 * 60) * (hour // 60)
    assert found(740, 741, of=dense_R) == FarRows(2, int(dense_R[-1]), start + 740 * hour, 21)
    years = 24 * 365 * 13
    several = [years + each for each in range(7)]  # more than a hundredth, and less than half, of the rows of a day
    assert found(*several) == FarRows(7, start + 239 * hour, start + years * hour, 13 * 365 - 9)
    weeks = [24 * 41 + each for each in range(7)]  # 31 days after a log of ten, which may go on a little
    assert found(*weeks) is None
    assert found(*range(years, years + 24)) is None  # a whole day of a log that was quiet and goes on
    quiet_R = np.array([*time_R[:120], *(time_R[120:] + 13 * DAY)])
    assert found(740 + 24 * 13, of=quiet_R) is None  # the log was as quiet before
    assert found(740 + 24 * 13, 3000, of=quiet_R) is not None
    stored_R = np.array([*time_R, start + 740 * hour])
    assert far_rows(split_windows(stored_R, window, "s"), stored_R, int(stored_R[-1])) is None  # it is stored already


def test_few_rows_far_after_all_others_of_a_first_ingest_are_found():
    """The gap has to be longer than three times the log and than a hundred windows, because a log may pause."""
    hour, window = DAY // 24, Window(rule="equal_time", length="1d")
    time_R = micros("2020-01-01") + np.arange(2400) * hour

    def found(*days: float, of: np.ndarray = time_R) -> FarRows | None:
        all_R = np.sort([*of, *(int(of[-1] + each * DAY) for each in days)])
        return far_rows(split_windows(all_R, window, "s"), all_R, None)

    assert found() is None
    assert found(5_000, 5_001) == FarRows(2, int(time_R[-1]), int(time_R[-1]) + 5_000 * DAY, 5_000)
    assert found(301) is not None
    assert found(299) is None  # not three times the log of a hundred days
    assert found(99, of=time_R[:240]) is None  # not a hundred windows
    assert found(101, of=time_R[:240]) is not None
    assert found(5_000, of=time_R[:90]) is None  # one row of so few is no small fraction
    assert found(*(5_000 + row / 24 for row in range(13))) is None  # more than half the rows of a day: the log goes on
    half_day = [5_000 + row / 24 for row in range(8)]
    assert found(*half_day) is not None
    assert found(*half_day, of=time_R[:480]) is None  # more than a hundredth of the rows
    assert found(*(-5_000 - row for row in range(2))) is None  # they are not after the others, and end no window


def test_windows_without_rows_are_named_where_they_are_most():
    window = Window(rule="equal_time", length="7d")
    in_2020 = [micros("2020-01-01") + row * DAY for row in range(300)]
    assert emptiness(split_windows(np.array(in_2020), window, "s"), np.array(in_2020), "s") is None
    time_R = np.array([*in_2020, micros("2045-01-01")])
    sentence = emptiness(split_windows(time_R, window, "s"), time_R, "s")
    assert sentence is not None
    assert sentence.startswith(
        "1,261 of 1,305 windows have no row: the first row is of 2020-01-01 and the last of 2045"
    )
    assert "the longest time without one is from 2020-10-26 to 2045-01-01" in sentence
    quiet_R = np.array([*in_2020[:20], *(time + 300 * DAY for time in in_2020[:20])])  # no row is far from all others
    sentence = emptiness(split_windows(quiet_R, window, "s"), quiet_R, "s")
    assert sentence is not None
    assert "the longest time without one is from 2020-01-20 to 2020-10-27" in sentence
    few_R = np.array([*in_2020[:3], in_2020[0] + 100 * DAY])
    assert emptiness(split_windows(few_R, window, "s"), few_R, "s") is None


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
