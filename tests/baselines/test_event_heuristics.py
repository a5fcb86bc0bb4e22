"""One-line rules for events against their definitions, on small logs."""

from dataclasses import replace

import numpy as np
import pytest
from event_logs import log_of

from dyformer.baselines.event_heuristics import LastPartner, PairMemory, PairRecency, Popularity
from dyformer.scoring.interfaces import Ranker
from dyformer.streams.event_log import EventLog, EventQueries

LOG = log_of([(0, 0, 0), (0, 1, 4), (1, 2, 4), (0, 0, 6), (1, 3, 8), (1, 2, 10), (0, 3, 10), (2, 1, 20)])
NO_QUERY = EventQueries(**{name: np.empty(0, dtype=np.int64) for name in ("source_Q", "time_Q", "num_visible_Q")})


def scores(method: Ranker, source: int, time: int, log: EventLog = LOG, *, num_training: int = 0) -> list[float]:
    """Score all targets of one source as of a time."""
    training = EventQueries(
        source_Q=log.source_E[:num_training],
        time_Q=log.time_E[:num_training],
        num_visible_Q=np.searchsorted(log.time_E, log.time_E[:num_training]),
    )
    rank_events = method.fit_events(log, training, NO_QUERY, seed=0)
    query = EventQueries(
        source_Q=np.array([source]),
        time_Q=np.array([time]),
        num_visible_Q=np.array([np.searchsorted(log.time_E, time)]),
    )
    [score_1C] = rank_events(log, query)
    return score_1C[0].tolist()


@pytest.mark.parametrize(("source", "time", "expected"), [(0, 7, [1, 0, 0, 0]), (0, 6, [0, 1, 0, 0]), (2, 9, [0] * 4)])
def test_the_last_partner_has_one(source: int, time: int, expected: list[float]):
    assert scores(LastPartner(), source, time) == expected


@pytest.mark.parametrize(("candidates", "expected"), [([0, 2, 3], [0, 0, 0]), ([1, 2, 3], [1, 0, 0]), ([2, 3], [0, 0])])
def test_an_older_partner_is_not_the_last_one_where_that_is_no_candidate(candidates: list[int], expected: list[int]):
    query = EventQueries(
        source_Q=np.array([0]),
        time_Q=np.array([6]),
        num_visible_Q=np.array([3]),
        candidate_QC=np.array([candidates]),
    )
    [score_1C] = LastPartner().fit_events(LOG, NO_QUERY, NO_QUERY, seed=0)(LOG, query)
    assert score_1C.tolist() == [expected]


def test_a_source_without_a_visible_event_has_no_last_partner():
    assert scores(LastPartner(), 1, 4) == [0] * 4


def test_partners_of_one_time_are_tied():
    log = log_of([(0, 0, 1), (0, 1, 5), (0, 2, 5), (0, 1, 7)])
    assert scores(LastPartner(), 0, 6, log) == [0, 1, 1]
    assert scores(PairRecency(), 0, 6, log) == [1, 5, 5]
    _, first, second = scores(PairRecency(fallback=True), 0, 6, log)
    assert first == second


def test_recency_is_the_time_of_the_newest_contact():
    assert scores(PairRecency(), 0, 10) == [6, 4, -np.inf, -np.inf]


def test_an_event_counts_for_both_ends_where_each_may_be_a_source():
    log = log_of([(0, 1, 1), (2, 0, 3), (0, 3, 5), (1, 0, 7), (3, 2, 9)], two_sides=False)
    assert scores(PairRecency(), 0, 8, log) == [-np.inf, 1, -np.inf, 5]
    assert scores(PairRecency(both_ways=True), 0, 8, log) == [-np.inf, 7, 3, 5]
    assert scores(PairRecency(both_ways=True), 0, 7, log) == [-np.inf, 1, 3, 5]
    itself, first, second, third = scores(PairRecency(both_ways=True, fallback=True), 0, 8, log)
    assert first > third > second >= 1 > itself
    assert scores(PairRecency(both_ways=True), 0, 10) == scores(PairRecency(), 0, 10)  # of two sides


def test_the_fallback_orders_new_targets_below_all_partners():
    old, older, moved_to, popular = scores(PairRecency(fallback=True), 0, 9)
    assert old > older >= 1 > max(moved_to, popular) >= 0
    log = log_of([(0, 0, 0), (0, 1, 1), (1, 0, 2), (1, 1, 3), (2, 3, 4), (2, 3, 5), (3, 0, 6)])
    expected = (
        20 * 1.0
        + 5 * 2 / np.sqrt(3 * 2)
        + 0.3
        * (np.log1p(np.sum(0.5 ** (np.array([6, 4]) / 3_600))) + np.log1p(np.sum(0.5 ** (np.array([6, 4]) / 86_400))))
    )
    assert scores(PairRecency(fallback=True), 3, 7, log)[1] == pytest.approx(expected / (1 + expected))


def test_a_memory_keeps_all_pairs_or_those_of_a_window():
    assert scores(PairMemory(), 0, 10) == [1, 1, 0, 0]
    # Six training events last from 0 to 10, so that the window is 1.5 long and ends with the newest visible event.
    assert scores(PairMemory(memory="window"), 1, 20, num_training=6) == [0, 0, 1, 0]
    assert scores(PairMemory(memory="window"), 1, 10, num_training=6) == [0, 0, 0, 1]
    assert scores(PairMemory(memory="window", window_fraction=0.4), 1, 10, num_training=6) == [0, 0, 1, 1]


def test_the_origin_of_times_changes_no_popularity():
    times = LOG.time_E - 10**15
    before_the_epoch = replace(LOG, time_E=times, seconds=1e-6)
    method = Popularity(half_life=2e-6)
    assert scores(method, 1, 8 - 10**15, before_the_epoch) == scores(method, 1, 8, replace(LOG, seconds=1e-6))


def test_popularity_halves_with_the_half_life():
    assert scores(Popularity(half_life=2), 1, 8) == pytest.approx([0.5**4 + 0.5, 0.5**2, 0.5**2, 0])
