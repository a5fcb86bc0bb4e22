"""Rows are valid or rejected with a reason, such as a time far from nearly all others: it would make empty windows."""

import dataclasses
from datetime import UTC, datetime

import polars as pl
import pytest
from raw_logs import EPOCH, SECOND, parquet, raw, read, reasons

from dyformer.logs.events import read_events
from dyformer.logs.plan import Declared, describe
from dyformer.logs.raw_file import AmbiguousLog, ReadLimits
from dyformer.logs.sniffing import sniff_plan

ROWS = [f"u{row % 9},v{row % 7},2020-{row % 12 + 1:02}-{row % 28 + 1:02}T00:00:00Z" for row in range(200)]
FAR = "u1,v1,{time}"


def test_a_declared_unit_overrides_the_magnitude():
    text = f"a,b,{EPOCH}\n"
    assert read(text, time_unit="ms").events["time"].to_list() == [EPOCH * 1000]
    assert read(text, time_unit="step").events["time"].to_list() == [EPOCH]
    assert read("a,b,3\na,b,4\n").events["time"].to_list() == [3, 4]
    assert read("a,b,3\na,b,4\n", time_unit="s").events["time"].to_list() == [3 * SECOND, 4 * SECOND]


def test_iso_times_with_and_without_zone_mean_the_same_moment():
    moment = datetime(2024, 3, 1, 12, 30, tzinfo=UTC)
    spellings = [
        "2024-03-01T12:30:00Z",
        "2024-03-01T12:30:00",
        "2024-03-01 12:30:00",
        "2024-03-01T12:30",
        "2024-03-01 12:30:00.000000",
        "2024-03-01T14:30:00+02:00",
        "2024-03-01T14:30:00+0200",
        "2024-03-01 14:30:00 +02:00",
        "2024-03-01T07:30:00.000-05",
        "2024-03-01 12:30:00 UTC",
        "20240301T123000Z",
        "20240301T1230",
        "2024/03/01 12:30:00",
        "2024/03/01 12:30",
        "2024/3/1 12:30",
        "2024-3-1T12:30",
        "2024/03/01T14:30:00+02:00",
    ]
    result = read("".join(f"a;b;{text}\n" for text in spellings))
    assert result.events["time"].to_list() == [int(moment.timestamp()) * SECOND] * len(spellings)
    assert read("a,b,2024-03-01\na,b,1969-12-31\n").events["time"].to_list() == [
        int(datetime(2024, 3, 1, tzinfo=UTC).timestamp()) * SECOND,
        -86_400 * SECOND,
    ]
    hours = read("a,b,2024-03-01T12\na,b,2024/3/1 9\na,b,20240301T12Z\na,b,2024/3/1\n").events["time"]
    assert [(int(moment.timestamp()) * SECOND - time) // (60 * SECOND) for time in hours] == [30, 210, 30, 750]


def test_a_log_of_dates_with_slashes_and_the_year_first_is_one_of_dates():
    text = "".join(f"{row},{row + 1},2024/{row % 12 + 1:02}/{row % 28 + 1:02} 10:00:00\n" for row in range(40))
    plan = sniff_plan(raw(f"user,item,when\n{text}"))
    assert (plan.time_unit, plan.columns.time, plan.has_header) == ("iso", "when", True)
    assert read(text).num_accepted == 40


def test_fractions_of_seconds_are_exact_to_the_microsecond():
    fractions = [123_457, 900_000, *range(1, 400)]
    text = "".join(f"a,b,{EPOCH}.{fraction:06d}\n" for fraction in fractions)
    assert read(text).events["time"].to_list() == [EPOCH * SECOND + fraction for fraction in fractions]
    thousandths = range(1, 20_000)  # some times 1e6 fall just below the whole number
    text = "".join(f"a,b,{number / 1000}\n" for number in thousandths)
    assert read(text, time_unit="s").events["time"].to_list() == [number * 1000 for number in thousandths]


@pytest.mark.parametrize(
    ("unit", "spellings"),
    [
        (
            "day-first",
            [
                "13/02/2024 16:05",
                "13.02.2024 16:05",
                "13-2-2024T16:05:00",
                "13/02/2024, 4:05 PM",
                "13/2/2024 04:05:00.0 pm",
            ],
        ),
        ("month-first", ["02/13/2024 16:05", "2/13/2024 16:05:00", "2/13/2024 4:05 PM", "02-13-2024 04:05:00 pm"]),
    ],
)
def test_dates_with_the_day_or_the_month_first(unit, spellings):
    text = "".join(f"a;b;{spelling}\n" for spelling in spellings)
    moment = int(datetime(2024, 2, 13, 16, 5, tzinfo=UTC).timestamp()) * SECOND
    assert read(text).events["time"].to_list() == [moment] * len(spellings)
    assert read(text, time_unit=unit).events["time"].to_list() == [moment] * len(spellings)
    assert unit in describe(sniff_plan(raw(text)))


def test_a_date_without_a_time_of_day_is_its_midnight():
    midnight = int(datetime(2024, 2, 13, tzinfo=UTC).timestamp()) * SECOND
    assert read("a,b,13/02/2024\na,b,13/02/2024 00:00\n").events["time"].to_list() == [midnight] * 2


def test_dates_that_leave_the_day_or_the_month_open_are_refused():
    text = "a,b,03/04/2024 11:00\nb,c,04/05/2024 11:00\n"
    with pytest.raises(AmbiguousLog, match=r"line 1: dates like '03/04/2024 11:00'.*day-first.* or .*month-first"):
        read(text)
    april, march = (int(datetime(2024, *day, 11, tzinfo=UTC).timestamp()) * SECOND for day in ((4, 3), (3, 4)))
    assert read(text, time_unit="day-first").events["time"][0] == april
    assert read(text, time_unit="month-first").events["time"][0] == march


def test_days_that_do_not_exist_and_years_of_two_digits_are_refused():
    text = "a,b,13/02/2024\na,b,30/02/2024\na,b,13/13/2024\na,b,13/02/24\na,b,2024-02-13\na,b,13/02/2024 25:00\n"
    assert reasons(read(text, time_unit="day-first")) == dict.fromkeys(range(2, 7), "unreadable time")


def of(*times: str) -> str:
    return "\n".join([*ROWS, *(FAR.format(time=time) for time in times)])


@pytest.mark.parametrize(
    "time", ["2999-12-31T00:00:00Z", "1970-01-01", "0001-01-01T00:00:00Z", "9999-12-31", "1985-01-01"]
)
def test_a_row_of_another_time_goes_to_the_quarantine(time: str):
    result = read(of(time))
    assert (result.num_accepted, result.num_quarantined, result.num_read) == (200, 1, 201)
    (row,) = result.quarantine.rows(named=True)
    assert row["line"] == 201
    assert row["reason"] == "time more than 30 years from the others"
    assert f'"source":"u1","target":"v1","time":"{time[:10]}T00:00:00Z"' in row["raw"]


def test_the_text_of_a_bad_row_of_parquet_has_its_time_as_a_date():
    days = [(2024, 5, 1, 10, 0, 0, 250_000), (1815, 12, 10), None, (2024, 5, 1)]
    times = [day and datetime(*day, tzinfo=UTC) for day in days]
    result = read(parquet(pl.DataFrame({"source": ["a", None, "c", "d"], "target": ["b", "x", "", "e"], "t": times})))
    assert reasons(result) == {2: "empty source id", 3: "empty target id"}
    texts = ['{"source":null,"target":"x","time":"1815-12-10T00:00:00Z"}', '{"source":"c","target":"","time":null}']
    assert result.quarantine["raw"].to_list() == texts


@pytest.mark.parametrize("time", ["1995-01-01", "2049-01-01", "2000-01-01T00:00:00Z"])
def test_a_row_within_the_limit_is_an_event(time: str):
    assert read(of(time)).num_quarantined == 0


@pytest.mark.parametrize(("years", "num_bad"), [(10, 1), (24, 1), (26, 0)])
def test_the_limit_is_a_setting(years: int, num_bad: int):
    (file,) = raw(of("1995-01-01"))
    files = [dataclasses.replace(file, limits=ReadLimits(max_years_apart=years))]
    result = read_events(files, sniff_plan(files))
    assert result.num_quarantined == num_bad
    assert all(f"more than {years} years" in reason for reason in result.quarantine["reason"])


def test_a_long_log_has_no_far_rows():
    """Most rows are of one year, but two in a hundred are older: three times the duration of nearly all is allowed."""
    old = [f"a,b,{1900 + row}-01-01" for row in range(10)]
    assert read("\n".join([*ROWS, *old])).num_quarantined == 0
    every_decade = "\n".join(f"a,b,{1020 + 10 * row}-01-01" for row in range(100))
    assert read(every_decade).num_quarantined == 0


def test_few_rows_and_steps_are_not_compared():
    for num_rows, num_bad in ((5, 0), (98, 0), (99, 1)):
        assert read("\n".join([*ROWS[:num_rows], FAR.format(time="1970-01-01")])).num_quarantined == num_bad
    steps = "".join(f"a,b,{row}\n" for row in [*range(100), 10**12])
    files = raw(steps)
    assert read_events(files, sniff_plan(files, Declared(time_unit="step"))).num_quarantined == 0


def test_counts_of_clock_units_are_compared_too():
    rows = [f"a,b,{EPOCH + row}" for row in range(100)]
    result = read("\n".join([*rows, f"a,b,{EPOCH + 40 * 31_556_952}", f"a,b,{EPOCH - 40 * 31_556_952}"]))
    assert result.quarantine["line"].to_list() == [101, 102]
