"""A log and queries -> plain counts of the events that each query may read, block by block, for simple rankers.

E events    Q queries, n of a block    C candidates    P distinct pairs    M distinct moves    S sources    T targets

The numbers of pairs and moves come from the whole log, the counts from visible events alone: a pair that occurs later
has the count of one that never occurs. One query costs its candidates and the entries of its row.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dyformer.streams.event_log import EventLog, EventQueries

MAX_CELLS = 1 << 20  # of the scores of one block
MAX_SHARED = 16  # newest partners of a source that a new one is paired with


class Rows(NamedTuple):
    """Keys with their targets: those of key k have the numbers `first_K1[k]` to `first_K1[k + 1]`."""

    first_K1: NDArray[np.int64]
    target_P: NDArray[np.int64]


def query_blocks(log: EventLog, queries: EventQueries) -> Iterator[slice]:
    """Divide queries into consecutive blocks of about a million scores."""
    num_candidates = log.num_targets if queries.candidate_QC is None else queries.candidate_QC.shape[1]
    size = max(1, MAX_CELLS // max(num_candidates, 1))
    return (slice(first, min(first + size, len(queries))) for first in range(0, len(queries), size))


class Block(NamedTuple):
    """Consecutive queries with their candidates."""

    source_n: NDArray[np.int64]
    time_n: NDArray[np.int64]
    num_visible_n: NDArray[np.int64]
    candidate_nC: NDArray[np.int64]  # one row for all queries where every target is a candidate


def _blocks(log: EventLog, queries: EventQueries) -> Iterator[Block]:
    every_1T = np.arange(log.num_targets)[None]
    for block in query_blocks(log, queries):
        candidate_nC = every_1T if queries.candidate_QC is None else queries.candidate_QC[block]
        yield Block(
            queries.source_Q[block], queries.time_Q[block], queries.num_visible_Q[block], candidate_nC.astype(np.int64)
        )


def _shape(block: Block) -> tuple[int, int]:
    return len(block.source_n), block.candidate_nC.shape[1]


def last_contacts(log: EventLog, queries: EventQueries, *, both_ways: bool = False) -> Iterator[NDArray[np.int64]]:
    """Give, per block, the number [n, C] of the newest visible event of the source with each candidate, or -1.

    With `both_ways` an event from candidate to source counts too, where both can be either.
    """
    if both_ways and not log.two_sides:
        reverse = replace(log, source_E=log.target_E, target_E=log.source_E)
        pairs = zip(last_contacts(log, queries), last_contacts(reverse, queries), strict=True)
        yield from (np.maximum(*pair) for pair in pairs)  # events are in the order of their times
        return
    rows, pair_E = _numbered(log.source_E, log.target_E, log.num_sources, log.num_targets)
    newest_P, scratch_T = np.full(len(rows.target_P), -1), np.full(log.num_targets, -1)
    num_read = 0
    for block in _blocks(log, queries):
        event_nC = np.empty(_shape(block), dtype=np.int64)
        num_read = _fill_contacts(event_nC, num_read, block, newest_P, pair_E, rows, scratch_T)
        yield event_nC


def move_fractions(log: EventLog, queries: EventQueries) -> Iterator[NDArray[np.float64]]:
    """Give, per block, the fraction [n, C] of the moves from the source's last partner that went to each candidate.

    A move is an event of any source with another target than its event before. Without a last partner it is 0.
    """
    before_E = _target_before(log)
    is_move_E = (before_E >= 0) & (before_E != log.target_E)
    move_E = np.full(len(log), -1)
    rows, move_E[is_move_E] = _numbered(before_E[is_move_E], log.target_E[is_move_E], log.num_targets, log.num_targets)
    state = np.zeros(len(rows.target_P)), np.zeros(log.num_targets), np.full(log.num_sources, -1)
    events, scratch_T, num_read = (log.source_E, log.target_E, before_E, move_E), np.zeros(log.num_targets), 0
    for block in _blocks(log, queries):
        fraction_nC = np.zeros(_shape(block))
        num_read = _fill_moves(fraction_nC, num_read, block, state, events, rows, scratch_T)
        yield fraction_nC


def shared_cosines(log: EventLog, queries: EventQueries) -> Iterator[NDArray[np.float64]]:
    """Give, per block, the cosine [n, C] of the sources of each candidate and of the source's last partner.

    It is n(a, b) / sqrt(n(a) n(b)), where n(a) counts the sources of a, and n(a, b) those that a and b share. A new
    partner of a source is paired with the 16 newest ones before it, so that the work of an event is bounded.
    """
    joined = _joined_partners(log)
    rows, entry_J = _numbered(joined.older_J, joined.newer_J, log.num_targets, log.num_targets)
    state = np.zeros(len(rows.target_P)), np.zeros(log.num_targets), np.full(log.num_sources, -1)
    events = log.source_E, log.target_E, joined.is_first_E, joined.first_E1, entry_J
    scratch_T, num_read = np.zeros(log.num_targets), 0
    for block in _blocks(log, queries):
        cosine_nC = np.zeros(_shape(block))
        num_read = _fill_cosines(cosine_nC, num_read, block, state, events, rows, scratch_T)
        yield cosine_nC


def decayed_popularity(log: EventLog, queries: EventQueries, half_life: float) -> Iterator[NDArray[np.float64]]:
    """Give, per block, the number [n, C] of visible events at each candidate, each worth 0.5^(age / half-life).

    The half-life is in seconds, the age that at the query's time.
    """
    rate = np.log(2) * log.seconds / half_life
    state = np.zeros(log.num_targets), np.zeros(log.num_targets, dtype=np.int64)
    events, num_read = (log.target_E, log.time_E), 0
    for block in _blocks(log, queries):
        popularity_nC = np.empty(_shape(block))
        num_read = _fill_popularity(popularity_nC, num_read, block, state, events, rate)
        yield popularity_nC


def _numbered(
    key_R: NDArray[np.int64], target_R: NDArray[np.int64], num_keys: int, num_targets: int
) -> tuple[Rows, NDArray[np.int64]]:
    """Number the distinct pairs of key and target; also give the number of each row's pair."""
    pair_P, number_R = np.unique(key_R * num_targets + target_R, return_inverse=True)
    first_K1 = np.searchsorted(pair_P, np.arange(num_keys + 1) * num_targets)
    return Rows(first_K1, pair_P % num_targets), number_R


def _target_before(log: EventLog) -> NDArray[np.int64]:
    """Give the target of the event before of the same source, or -1."""
    order_E = np.argsort(log.source_E, kind="stable")
    is_first_E = np.diff(log.source_E[order_E], prepend=-1) != 0
    before_E = np.empty(len(log), dtype=np.int64)
    before_E[order_E] = np.where(is_first_E, -1, np.roll(log.target_E[order_E], 1))
    return before_E


class Joined(NamedTuple):
    """Pairs of partners that a source got one after the other, in both orders, by the event of the newer partner."""

    older_J: NDArray[np.int64]
    newer_J: NDArray[np.int64]
    first_E1: NDArray[np.int64]  # of event e the entries first_E1[e] to first_E1[e + 1]
    is_first_E: NDArray[np.bool_]  # whether the event is the first of its pair


def _joined_partners(log: EventLog) -> Joined:
    _, first_P = np.unique(log.source_E * log.num_targets + log.target_E, return_index=True)
    first_P = first_P[np.lexsort((first_P, log.source_E[first_P]))]
    source_P, target_P = log.source_E[first_P], log.target_E[first_P]
    parts = []
    for back in range(1, min(MAX_SHARED, len(first_P) - 1) + 1):
        same = np.flatnonzero(source_P[back:] == source_P[:-back])
        parts.append(np.stack([first_P[same + back], target_P[same], target_P[same + back]]))
    event_J, older_J, newer_J = np.concatenate([np.empty((3, 0), dtype=np.int64), *parts], axis=1)
    order_J = np.argsort(np.tile(event_J, 2), kind="stable")
    is_first_E = np.zeros(len(log), dtype=np.bool_)
    is_first_E[first_P] = True
    return Joined(
        older_J=np.concatenate([older_J, newer_J])[order_J],
        newer_J=np.concatenate([newer_J, older_J])[order_J],
        first_E1=np.searchsorted(np.tile(event_J, 2)[order_J], np.arange(len(log) + 1)),
        is_first_E=is_first_E,
    )


@njit(nogil=True, cache=True)
def _fill_row(out_C, candidate_C, target_K, value_K, scratch_T, missing):
    # The scratch array holds the row's values only for as long as they are looked up.
    for entry in range(len(target_K)):
        scratch_T[target_K[entry]] = value_K[entry]
    for position in range(len(out_C)):
        out_C[position] = scratch_T[candidate_C[position]]
    for entry in range(len(target_K)):
        scratch_T[target_K[entry]] = missing


@njit(nogil=True, cache=True)
def _fill_contacts(event_nC, num_read, block, newest_P, pair_E, rows, scratch_T):
    for query in range(len(block.source_n)):
        while num_read < block.num_visible_n[query]:
            newest_P[pair_E[num_read]] = num_read
            num_read += 1
        first, end = rows.first_K1[block.source_n[query]], rows.first_K1[block.source_n[query] + 1]
        candidate_C = block.candidate_nC[min(query, len(block.candidate_nC) - 1)]
        _fill_row(event_nC[query], candidate_C, rows.target_P[first:end], newest_P[first:end], scratch_T, -1)
    return num_read


@njit(nogil=True, cache=True)
def _fill_moves(fraction_nC, num_read, block, state, events, rows, scratch_T):
    count_M, left_T, last_S = state
    source_E, target_E, before_E, move_E = events
    for query in range(len(block.source_n)):
        while num_read < block.num_visible_n[query]:
            if move_E[num_read] >= 0:
                count_M[move_E[num_read]] += 1
                left_T[before_E[num_read]] += 1
            last_S[source_E[num_read]] = target_E[num_read]
            num_read += 1
        last = last_S[block.source_n[query]]
        if last >= 0 and left_T[last] > 0:
            first, end = rows.first_K1[last], rows.first_K1[last + 1]
            candidate_C = block.candidate_nC[min(query, len(block.candidate_nC) - 1)]
            fraction_K = count_M[first:end] / left_T[last]
            _fill_row(fraction_nC[query], candidate_C, rows.target_P[first:end], fraction_K, scratch_T, 0.0)
    return num_read


@njit(nogil=True, cache=True)
def _fill_cosines(cosine_nC, num_read, block, state, events, rows, scratch_T):
    count_P, sources_T, last_S = state
    source_E, target_E, is_first_E, first_E1, entry_J = events
    for query in range(len(block.source_n)):
        while num_read < block.num_visible_n[query]:
            for joined in range(first_E1[num_read], first_E1[num_read + 1]):
                count_P[entry_J[joined]] += 1
            sources_T[target_E[num_read]] += is_first_E[num_read]
            last_S[source_E[num_read]] = target_E[num_read]
            num_read += 1
        last = last_S[block.source_n[query]]
        if last >= 0:
            first, end = rows.first_K1[last], rows.first_K1[last + 1]
            target_K = rows.target_P[first:end]
            # A target without a visible source has no shared one either: its 0 is divided by 1.
            cosine_K = count_P[first:end] / np.sqrt(sources_T[last] * np.maximum(sources_T[target_K], 1.0))
            candidate_C = block.candidate_nC[min(query, len(block.candidate_nC) - 1)]
            _fill_row(cosine_nC[query], candidate_C, target_K, cosine_K, scratch_T, 0.0)
    return num_read


@njit(nogil=True, cache=True)
def _fill_popularity(popularity_nC, num_read, block, state, events, rate):
    value_T, newest_T = state
    target_E, time_E = events
    for query in range(len(block.time_n)):
        while num_read < block.num_visible_n[query]:
            target = target_E[num_read]
            if value_T[target] > 0:  # otherwise it has no newest time
                value_T[target] *= np.exp(-rate * (time_E[num_read] - newest_T[target]))
            value_T[target] += 1
            newest_T[target] = time_E[num_read]
            num_read += 1
        candidate_C = block.candidate_nC[min(query, len(block.candidate_nC) - 1)]
        for position in range(len(candidate_C)):
            target = candidate_C[position]
            value = value_T[target]
            if value > 0:
                value *= np.exp(-rate * (block.time_n[query] - newest_T[target]))
            popularity_nC[query, position] = value
    return num_read
