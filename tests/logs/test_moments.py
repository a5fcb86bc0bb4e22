"""Claims about times as users write them: exact, in the unit of the log, and refused by name where they do not fit."""

import numpy as np
import polars as pl
import pytest

from dyformer.logs.moments import UnreadableMoment, read_moment, written_moment
from dyformer.logs.validation import read_times

SECOND = 1_700_000_000


@pytest.mark.parametrize(
    ("written", "unit", "time"),
    [
        ("2023-11-14T22:13:20Z", "s", SECOND * 1_000_000),
        ("2023-11-14T23:13:20.000001+01:00", "iso", SECOND * 1_000_000 + 1),
        ("2023-11-14T22:13:20", "day-first", SECOND * 1_000_000),
        (SECOND, "s", SECOND * 1_000_000),
        (str(SECOND), "s", SECOND * 1_000_000),
        (f"{SECOND}.000007", "s", SECOND * 1_000_000 + 7),
        (SECOND * 1_000 + 1, "ms", SECOND * 1_000_000 + 1_000),
        (SECOND * 1_000_000 + 1, "us", SECOND * 1_000_000 + 1),
        (SECOND * 1_000_000_000 + 1_999, "ns", SECOND * 1_000_000 + 1),
        (-3, "step", -3),
        ("12", "step", 12),
    ],
)
def test_times_are_read_exactly(written, unit, time):
    assert read_moment(written, unit) == time


DATES = """
2024-03-01|2024-03-01T10|2024-03-01 10|2024-03-01T10Z|2024-03-01T10:00|2024-03-01 9:05|2024-3-1|2024-02-30|2024-02-29
2024-03-01T10:00:60|2024-06-30T23:59:60Z|2024-03-01T24:00:00|2024-03-01T10:61|2024-03-01T10:00:00.|2024-03-01x10:00:00
2024-03-01T10:00:00.1234567|2024-03-01T10:00:00.123456789Z|2024-03-01T10:00:00,5|2024-03-01t10:00:00z
2024-03-01T10:00:00.000001|2024-03-01T10:00:00.1+05:30|1969-12-31T23:59:59.999999Z|2024-03-01T10:00:00-00:30
2024-03-01T10:00:00+01|2024-03-01T10:00:00+0100|2024-03-01T10:00:00 +01:00|2024-03-01T10:00:00+25:00
2024-03-01T10:00:00+24:00|2024-03-01T10:00:00-23:59|2024-03-01T10:00:00+01:60|2024-03-01T10:00:00+01:00:30
2024-03-01T10:00:00 UTC|2024-03-01  10:00:00|2024-W09-5|2024-061|2024-03|2024|12024-03-01|+2024-03-01|2024-03-01 10:00
20231114|202311142213|20231114221320|20231114T221320Z|20240301T10|20240301T1000|18991231|20241301
1677-09-21T00:12:43|1500-01-01|0001-01-01|0000-12-31T23:59:59Z|2262-04-12|9999-12-31T23:59:59.999999
0001-01-01T00:00:00+12:00|9999-12-31T23:59:59-12:00
2024/03/01|2024/03/01 10:00:00|2024/3/1|2024/05/31T10:00:00Z|2024/31/05|31/05/2024|05/31/2024 10:00|5/6/24
"""


def test_a_date_is_read_as_in_a_log_of_dates():
    def moment(date: str) -> int | None:
        try:
            return read_moment(date, "iso")
        except UnreadableMoment:
            return None

    dates = DATES.replace("\n", "|").strip("|").split("|")
    assert dict(zip(dates, map(moment, dates), strict=True)) == dict(
        zip(dates, read_times(pl.Series(dates), "iso")["time"], strict=True)
    )
    assert read_moment("2024/05/31 10:00", "day-first") == read_moment("2024-05-31T10:00:00Z", "s")
    assert read_moment(20231114, "iso") == read_moment("2023-11-14", "iso")
    assert read_moment("20231114", "s") == 20_231_114_000_000
    assert read_moment("20231114", "step") == 20_231_114


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_a_count_is_read_as_in_a_log(unit):
    whole = SECOND * {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[unit]
    generator = np.random.default_rng(3)
    fractions = [0.5, 0.1234567, 0.1234565, 0.9999999, *generator.random(200)]
    counts = [str(whole), *(str(whole + fraction) for fraction in fractions), *(f"{n}.5" for n in range(4)), "1e3"]
    assert [read_moment(count, unit) for count in counts] == read_times(pl.Series(counts), unit)["time"].to_list()


@pytest.mark.parametrize(
    ("written", "unit", "words"),
    [
        ("yesterday", "s", "expected a date such as 2024-03-01T10:00:00Z, or a number in the unit 's'"),
        ("2024-03-01", "step", "expected an integer"),
        ("31/05/2024 10:00", "iso", "expected a date such as 2024-03-01T10:00:00Z"),
        ("05/31/2024", "day-first", "expected a date such as 2024-03-01T10:00:00Z"),
        (1.5, "step", "expected an integer"),
        ("nan", "s", "finite"),
        ("inf", "step", "expected an integer"),
        (SECOND, "iso", "expected a date such as"),
        (SECOND * 1_000, "s", "years 1 to 9999"),
        ("0001-01-01T00:00:00+12:00", "s", "years 1 to 9999"),
        ("9999-12-31 23:59 -12:00", "s", "years 1 to 9999"),
        (10**400, "us", "finite"),
        ("1e999999999", "s", "finite"),
        ("-1e999999999", "ns", "finite"),
        ("1e999999", "step", "expected an integer"),  # an integer of it would be made for hours
        ("1e999999999", "step", "expected an integer"),
        ("sNaN", "step", "expected an integer"),
        ("1e-999999999", "step", "expected an integer"),
    ],
)
def test_other_times_are_refused_by_name(written, unit, words):
    with pytest.raises(UnreadableMoment, match=words.replace("+", r"\+")):
        read_moment(written, unit)


def test_a_written_time_is_read_back():
    for time in (0, SECOND * 1_000_000 + 3, -5):
        assert read_moment(written_moment(time, "us"), "us") == time
    assert written_moment(12, "step") == 12
    assert written_moment(3, "s") == "1970-01-01T00:00:00.000003Z"
