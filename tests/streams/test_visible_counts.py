"""Counts of visible events against plain loops over the log."""

from collections.abc import Callable
from itertools import pairwise
from math import sqrt

import numpy as np
import pytest
from event_logs import random_log

from dyformer.streams import visible_counts
from dyformer.streams.event_log import EventLog, EventQueries
from dyformer.streams.visible_counts import decayed_popularity, last_contacts, move_fractions, shared_cosines

LOG = random_log(num_events=150, num_times=60)
HOUR = 3_600.0
BEFORE_E = np.searchsorted(LOG.time_E, LOG.time_E, side="left")
SAMPLED_QC = np.random.default_rng(4).integers(LOG.num_targets, size=(len(LOG), 5))


def queries_of(candidate_QC: np.ndarray | None = None, visible_Q: np.ndarray = BEFORE_E) -> EventQueries:
    return EventQueries(source_Q=LOG.source_E, time_Q=LOG.time_E, num_visible_Q=visible_Q, candidate_QC=candidate_QC)


def targets_by(log: EventLog, source: int, num_visible: int) -> list[int]:
    return log.target_E[:num_visible][log.source_E[:num_visible] == source].tolist()


def plain_contact(source: int, target: int, time: int, num_visible: int) -> float:
    rows = [e for e in range(num_visible) if (LOG.source_E[e], LOG.target_E[e]) == (source, target)]
    return rows[-1] if rows else -1


def plain_move_fraction(source: int, target: int, time: int, num_visible: int) -> float:
    moves = []
    for other in range(LOG.num_sources):
        chosen = targets_by(LOG, other, num_visible)
        moves += [(a, b) for a, b in pairwise(chosen) if a != b]
    own = targets_by(LOG, source, num_visible)
    left = [b for a, b in moves if own and a == own[-1]]
    return left.count(target) / len(left) if left else 0


def plain_cosine(source: int, target: int, time: int, num_visible: int) -> float:
    own = targets_by(LOG, source, num_visible)
    if not own or own[-1] == target:
        return 0
    sources = {node: set(LOG.source_E[:num_visible][LOG.target_E[:num_visible] == node]) for node in (own[-1], target)}
    first, second = sources.values()
    return len(first & second) / sqrt(len(first) * len(second)) if first & second else 0


def plain_popularity(source: int, target: int, time: int, num_visible: int) -> float:
    age_E = (time - LOG.time_E[:num_visible][LOG.target_E[:num_visible] == target]) * LOG.seconds
    return float((0.5 ** (age_E / HOUR)).sum())


def popularity(log: EventLog, queries: EventQueries):
    return decayed_popularity(log, queries, HOUR)


COUNTS: list[tuple[Callable, Callable]] = [
    (last_contacts, plain_contact),
    (move_fractions, plain_move_fraction),
    (shared_cosines, plain_cosine),
    (popularity, plain_popularity),
]


@pytest.mark.parametrize(("count", "plain"), COUNTS)
def test_counts_are_those_of_plain_loops(count: Callable, plain: Callable, monkeypatch: pytest.MonkeyPatch):
    found = np.concatenate(list(count(LOG, queries_of())))
    about = list(zip(LOG.source_E.tolist(), LOG.time_E.tolist(), BEFORE_E.tolist(), strict=True))
    expected = [[plain(s, target, t, n) for target in range(LOG.num_targets)] for s, t, n in about]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    assert len({*np.round(found.ravel(), 6)}) > 5
    # The same for some candidates, and in blocks of a few queries.
    monkeypatch.setattr(visible_counts, "MAX_CELLS", 20)
    blocks = list(count(LOG, queries_of(SAMPLED_QC)))
    assert len(blocks) > 30
    np.testing.assert_array_equal(np.concatenate(blocks), np.take_along_axis(found, SAMPLED_QC, axis=1))


@pytest.mark.parametrize(("count", "plain"), COUNTS)
def test_only_visible_events_count(count: Callable, plain: Callable):
    visible_Q = np.minimum(BEFORE_E, 80)
    known = np.concatenate(list(count(LOG, queries_of(visible_Q=visible_Q))))
    garbage = EventLog(**{**vars(LOG), "target_E": LOG.target_E.copy(), "source_E": LOG.source_E.copy()})
    garbage.target_E[80:], garbage.source_E[80:] = LOG.target_E[80:][::-1], 0
    again = np.concatenate(list(count(garbage, queries_of(visible_Q=visible_Q))))
    assert known.tobytes() == again.tobytes()


def test_a_new_partner_is_paired_with_the_newest_ones_before_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(visible_counts, "MAX_SHARED", 1)
    log = EventLog(
        source_E=np.zeros(3, dtype=np.int64),
        target_E=np.arange(3),
        time_E=np.arange(3),
        weight_E=np.ones(3),
        num_sources=1,
        num_targets=3,
        two_sides=True,
        seconds=1.0,
    )
    query = EventQueries(source_Q=np.zeros(1, dtype=np.int64), time_Q=np.array([9]), num_visible_Q=np.array([3]))
    [cosine] = shared_cosines(log, query)
    np.testing.assert_array_equal(cosine, [[0, 1, 0]])
