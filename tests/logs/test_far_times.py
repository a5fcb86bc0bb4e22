"""A row whose time is far from nearly all others is a bad row, because it would make thousands of empty windows."""

import dataclasses

import pytest
from raw_logs import EPOCH, raw, read

from dyformer.logs.events import read_events
from dyformer.logs.limits import ReadLimits
from dyformer.logs.plan import Declared
from dyformer.logs.sniffing import sniff_plan

ROWS = [f"u{row % 9},v{row % 7},2020-{row % 12 + 1:02}-{row % 28 + 1:02}T00:00:00Z" for row in range(200)]
FAR = "u1,v1,{time}"


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
    assert '"source":"u1","target":"v1"' in row["raw"]


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
