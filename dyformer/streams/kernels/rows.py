"""The state and a source -> its past partners, the best new ones, and the rows of features of both.

K = 3H lists of popular targets, H half-lives    C candidates of the query    F features    Q queries    D targets
R rows of a block    E events    W width of a vector    M nearest targets
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dyformer.streams.kernels.borrowed import borrowed, hold
from dyformer.streams.kernels.features import (
    copy_row,
    dot_product,
    fill_common,
    fill_partner,
    fill_ranks,
    fill_stranger,
    is_set,
    partners_of,
    recency_of,
    start_query,
)
from dyformer.streams.kernels.inner import inner_njit
from dyformer.streams.kernels.tables import NUM_HALF_LIVES, PairTable, find, other_and_older
from dyformer.streams.kernels.updates import absorb_both

KERNELS = "2b59d2de667e"  # digest of the imported ones: numba makes machine code anew only where this file changes
LIST_LENGTH = 48  # newest moves and shared partners of the last partner that become candidates
LATER_LIST_LENGTH = 16  # the same for the partners before the last
NUM_LATER = 3
MAX_NEAR_TARGETS = 50_000  # up to so many, a query compares the vectors of all


class Search(NamedTuple):
    """The targets found so far that are new to a source."""

    target_C: NDArray[np.int64]
    num_found_1: NDArray[np.int64]
    stamp_D: NDArray[np.int64]  # as in `Scratch`
    partners: PairTable  # of `partners_of`
    source: int
    two_sides: bool


class Scratch(NamedTuple):
    """Arrays that queries share."""

    common_F: NDArray[np.float32]
    ranked_F: NDArray[np.int64]  # columns of the features with ranks
    stamp_D: NDArray[np.int64]  # number of the query that last met each target; one more at the end counts the queries


@inner_njit
def _add(search, target):
    # A target is stamped when it is first met, so that it enters once.
    stamp, num_found = search.stamp_D[-1], search.num_found_1[0]
    if num_found == len(search.target_C) or search.stamp_D[target] == stamp:
        return
    search.stamp_D[target] = stamp
    is_self = not search.two_sides and target == search.source
    if not is_self and find(search.partners, search.source, target) < 0:
        search.target_C[num_found] = target
        search.num_found_1[0] += 1


@inner_njit
def _add_list(search, table, row, length):
    slot = table.newest_R[row]
    while slot >= 0 and length > 0:
        _add(search, table.slot_S[slot].column)
        slot = table.slot_S[slot].older
        length -= 1


@inner_njit
def _add_unordered(search, table, node, length):
    slot = np.int64(table.newest_R[node])
    while slot >= 0 and length > 0:
        other, slot = other_and_older(table, slot, node)
        _add(search, other)
        length -= 1


@inner_njit
def _add_popular(search, popular):
    # Place after position instead of list after list, so that the best of every list come before a limit is met.
    for position in range(popular.target_KM.shape[1]):
        for k in range(len(popular.size_K)):
            if position < popular.size_K[k]:
                _add(search, popular.target_KM[k, position])


@inner_njit
def _add_near(search, target_DW, wanted_W, num_near):
    # The targets with the greatest products, the greatest first; equal ones in the order of their numbers.
    if len(target_DW) > MAX_NEAR_TARGETS or num_near == 0 or not is_set(wanted_W):
        return
    product_M, target_M = np.empty(num_near, dtype=np.float32), np.empty(num_near, dtype=np.int64)
    size = 0
    for target in range(len(target_DW)):
        product = dot_product(wanted_W, target_DW[target])
        if product == 0 or (size == num_near and product <= product_M[-1]):
            continue
        size = min(size + 1, num_near)
        position = size - 1
        while position > 0 and product_M[position - 1] < product:
            product_M[position], target_M[position] = product_M[position - 1], target_M[position - 1]
            position -= 1
        product_M[position], target_M[position] = product, target
    for position in range(size):
        _add(search, target_M[position])


@inner_njit
def _find_new(search, state, query):
    # In this order: moves from the newest partners, targets that share sources with them, popular targets.
    for position in range(min(1 + NUM_LATER, len(query.joined_J))):
        length = LIST_LENGTH if position == 0 else LATER_LIST_LENGTH
        _add_list(search, state.moves, query.joined_J[position], length)
        _add_unordered(search, state.shared, query.joined_J[position], length)
    _add_popular(search, state.popular)


@inner_njit
def _past_rows(row_RF, target_R, state, query, limits, scratch):
    partners = partners_of(state, limits.has_replies)
    slot, recency, count = np.int64(partners.newest_R[query.source]), 0, 0
    while slot >= 0 and count < limits.max_past:
        target = np.int64(partners.slot_S[slot].column)
        if limits.two_sides or target != query.source:
            target_R[count] = target
            copy_row(row_RF[count], scratch.common_F)
            fill_partner(row_RF[count], state, query, target, slot, recency, limits.has_replies)
            count += 1
        slot = np.int64(partners.slot_S[slot].older)
        recency += 1
    fill_ranks(row_RF[:count], scratch.ranked_F)
    return count


@inner_njit
def _new_rows(row_RF, target_R, state, query, limits, scratch):
    scratch.stamp_D[-1] += 1
    num_found_1 = np.zeros(1, dtype=np.int64)
    target_C, partners = target_R[: limits.max_new], partners_of(state, limits.has_replies)
    search = Search(target_C, num_found_1, scratch.stamp_D, partners, query.source, limits.two_sides)
    _find_new(search, state, query)
    nearest_C = target_R[: num_found_1[0] + limits.max_near]  # beside the others, so that they take no place of these
    search = Search(nearest_C, num_found_1, scratch.stamp_D, partners, query.source, limits.two_sides)
    _add_near(search, state.vectors.target_DW, query.vector_W + query.mean_W, limits.max_near)
    count = num_found_1[0]
    for position in range(count):
        copy_row(row_RF[position], scratch.common_F)
        fill_stranger(row_RF[position], state, query, target_R[position], limits.has_replies)
    fill_ranks(row_RF[:count], scratch.ranked_F)
    return count


@inner_njit
def _fill_rest(rest_C, target_D, time, candidate_C, rate):
    # A logarithm, because the popularity of long ago would else be 0 and its order lost.
    for position in range(len(rest_C)):
        record = target_D[candidate_C[position]] if len(candidate_C) else target_D[position]
        decayed = record.decayed[2 * NUM_HALF_LIVES - 1]
        rest_C[position] = math.log(decayed) - (time - record.latest) * rate if decayed > 0 else -math.inf


@njit(nogil=True, cache=True)
def collect_rows(state, events, num_absorbed, queries, limits, scratch, out):
    """Go through queries in order of time: absorb the events that they may read, then write their candidates' rows.

    `events` are the columns of a log and `queries` columns (source, time, visible events, target or -1). Without a
    target the query gets its past partners and new ones; with a target it gets new ones only where that is new to the
    source. Ends before the first query that may not fit into `out`. Gives the number of events absorbed so far.

    Where `out` has room for them, the logarithm of the events with new partners, decayed with the longest half-life,
    is written for each candidate [Q, C] of `queries`, or for all targets where these have no candidates.
    """
    state, scratch, out = borrowed(state), borrowed(scratch), borrowed(out)
    source_E, target_E, time_E, weight_E = events
    source_Q, time_Q, num_visible_Q, target_Q, candidate_QC = queries
    row_RF, target_R, num_past_Q, num_new_Q, rest_QC, num_done_1 = out
    used = 0
    for index in range(len(source_Q)):
        if used + limits.max_past + limits.max_new + limits.max_near > len(row_RF):
            break
        for event in range(num_absorbed, num_visible_Q[index]):
            absorb_both(state, source_E[event], target_E[event], time_E[event], weight_E[event], limits)
        num_absorbed = max(num_absorbed, num_visible_Q[index])
        owned = start_query(state, source_Q[index], time_Q[index], limits)
        query = borrowed(owned)
        fill_common(scratch.common_F, state, query, limits)
        num_past = _past_rows(row_RF[used:], target_R[used:], state, query, limits, scratch)
        used += num_past
        num_new = 0
        partners = partners_of(state, limits.has_replies)
        if target_Q[index] < 0 or find(partners, source_Q[index], target_Q[index]) < 0:
            num_new = _new_rows(row_RF[used:], target_R[used:], state, query, limits, scratch)
        used += num_new
        num_past_Q[index], num_new_Q[index] = num_past, num_new
        _fill_rest(rest_QC[index], state.target_D, time_Q[index], candidate_QC[index], state.rate_H[-1])
        hold(owned)
        num_done_1[0] = index + 1
    return num_absorbed


@njit(nogil=True, cache=True)
def pair_rows(row_PF, state, source, time, limits, target_P):
    """Write the features of any targets of one source, without the ranks."""
    state = borrowed(state)
    common_F = np.empty(row_PF.shape[1], dtype=row_PF.dtype)
    owned = start_query(state, source, time, limits)
    query = borrowed(owned)
    fill_common(common_F, state, query, limits)
    partners = partners_of(state, limits.has_replies)
    for position in range(len(target_P)):
        slot = find(partners, source, target_P[position])
        copy_row(row_PF[position], common_F)
        if slot >= 0:
            recency = recency_of(partners, slot)
            fill_partner(row_PF[position], state, query, target_P[position], slot, recency, limits.has_replies)
        else:
            fill_stranger(row_PF[position], state, query, target_P[position], limits.has_replies)
    hold(owned)
