"""Stored rows as an EventLog: order, numbers of nodes, sides."""

import numpy as np
import polars as pl
import pytest

from dyformer.streams.log_rows import event_log_of

ROWS = pl.DataFrame(
    {
        "source": [0, 2, 0, 5],
        "target": [1, 3, 3, 1],
        "source_side": [0, 0, 0, 0],
        "target_side": [1, 1, 1, 1],
        "time": [7, 3, 7, 9],
        "weight": [1.0, None, 3.0, 4.0],
    }
)


def test_events_are_in_order_of_time_and_then_of_the_log():
    log = event_log_of(ROWS, has_steps=False).log
    np.testing.assert_array_equal(log.time_E, [3, 7, 7, 9])
    np.testing.assert_array_equal(log.weight_E, [1, 1, 3, 4])
    np.testing.assert_array_equal(log.source_E, [1, 0, 0, 2])
    np.testing.assert_array_equal(log.target_E, [1, 0, 1, 0])
    assert log.seconds == 1e-6


def test_each_side_has_its_own_numbers():
    two, (_, sources, targets) = event_log_of(ROWS, has_steps=True).log, event_log_of(ROWS, has_steps=True)
    assert (two.num_sources, two.num_targets, two.two_sides, two.seconds) == (3, 2, True, 1)
    assert (sources.tolist(), targets.tolist()) == ([0, 2, 5], [1, 3])
    one, sources, targets = event_log_of(ROWS.with_columns(target_side=0), has_steps=True)
    assert (one.num_sources, one.num_targets, one.two_sides) == (5, 5, False)
    assert sources.tolist() == targets.tolist() == [0, 1, 2, 3, 5]
    np.testing.assert_array_equal(one.target_E, [3, 1, 3, 1])


@pytest.mark.parametrize("side", [0, 1])
def test_a_log_that_grows_keeps_its_numbers(side: int):
    rows = ROWS.with_columns(target_side=pl.lit(side)).sort("time")
    more = pl.concat(
        [rows, rows.with_columns(source=pl.col("source") + 10, target=pl.col("target") + 10, time=pl.lit(20, pl.Int64))]
    )
    before, after = event_log_of(rows, has_steps=True).log, event_log_of(more, has_steps=True).log
    np.testing.assert_array_equal(after.source_E[:4], before.source_E)
    np.testing.assert_array_equal(after.target_E[:4], before.target_E)
