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


def test_a_date_of_digits_alone_is_read_as_in_a_log_of_dates():
    dates = ["20231114", "202311142213", "20231114221320", "20231114T221320Z"]
    assert [read_moment(date, "iso") for date in dates] == read_times(pl.Series(dates), "iso")["time"].to_list()
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
        (1.5, "step", "expected an integer"),
        ("nan", "s", "finite"),
        ("inf", "step", "expected an integer"),
        (SECOND, "iso", "expected a date such as"),
        (SECOND * 1_000, "s", "years 1678 to 2261"),
        ("0001-01-01T00:00:00+12:00", "s", "years 1678 to 2261"),
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
