"""Scores of a source's candidates and the target that was chosen -> its rank, by the Temporal Graph Benchmark's rule.

Q queries, n of a block    C candidates    A other targets at the same time
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.streams.event_log import EventLog, EventQueries


@dataclass(frozen=True, kw_only=True, eq=False)
class ChosenTargets:
    """The targets that the sources of queries chose; a ranker never sees them.

    The other targets that a source chose at the same moment are no candidates of the query: they are not wrong
    (the filtered setting of TGB 2.3.0, Huang et al., 2023).
    """

    target_Q: NDArray[np.int64]
    group_Q: NDArray[np.int64]  # queries of one source at one time have the same group
    order_Q: NDArray[np.int64]  # queries by group
    first_G1: NDArray[np.int64]  # of group g the places first_G1[g] to first_G1[g + 1] of the order

    @property
    def keys(self) -> list[tuple[int, int]]:
        """Group and target of each query."""
        return list(zip(self.group_Q.tolist(), self.target_Q.tolist(), strict=True))


def chosen_targets(
    source_Q: NDArray[np.int64], time_Q: NDArray[np.int64], target_Q: NDArray[np.int64]
) -> ChosenTargets:
    """Group the chosen targets of the queries of one split by source and time."""
    order_Q = np.lexsort((time_Q, source_Q))
    is_new_Q = np.ones(len(order_Q), dtype=np.bool_)
    is_new_Q[1:] = (np.diff(source_Q[order_Q]) != 0) | (np.diff(time_Q[order_Q]) != 0)
    group_Q = np.empty(len(order_Q), dtype=np.int64)
    group_Q[order_Q] = np.cumsum(is_new_Q) - 1
    first_G1 = np.append(np.flatnonzero(is_new_Q), len(order_Q))
    return ChosenTargets(target_Q=target_Q, group_Q=group_Q, order_Q=order_Q, first_G1=first_G1)


def event_ranks(
    scores: Iterable[NDArray[np.floating]], log: EventLog, queries: EventQueries, chosen: ChosenTargets
) -> NDArray[np.float64]:
    """Rank the chosen target of each query among its candidates, [Q]; 1 is the best.

    rank = (number of greater scores + number of greater or equal scores) / 2 + 1, the chosen target's own not counted:
    the mean of the optimistic and the pessimistic rank. The source itself is no candidate in a log with one side, and
    a candidate that stands in a row twice counts once. `queries` are all those of `chosen`, in the same order.

    Raises:
        ValueError: blocks that are not `[n, C]` and together Q rows, or a score that is NaN.
    """
    rank_Q, first = np.empty(len(queries)), 0
    for score_nC in scores:
        block = slice(first, first + len(score_nC))
        rank_Q[block] = _block_ranks(_checked(score_nC, log, queries, block), log, queries, chosen, block)
        first = block.stop
    if first != len(queries):
        raise InvalidInput(f"found scores of {first} queries: expected those of all {len(queries)}")
    return rank_Q


def _checked(
    score_nC: NDArray[np.floating], log: EventLog, queries: EventQueries, block: slice
) -> NDArray[np.floating]:
    num_candidates = log.num_targets if queries.candidate_QC is None else queries.candidate_QC.shape[1]
    if np.ndim(score_nC) != 2 or score_nC.shape[1] != num_candidates or block.stop > len(queries):
        raise InvalidInput(
            f"found scores of shape {np.shape(score_nC)} from query {block.start} on: expected rows of "
            f"{num_candidates} scores, for {len(queries)} queries in all"
        )
    if np.isnan(score_nC).any():
        raise InvalidInput(f"found scores that are no numbers (NaN) from query {block.start} on: expected numbers")
    return score_nC


def _block_ranks(
    score_nC: NDArray[np.floating], log: EventLog, queries: EventQueries, chosen: ChosenTargets, block: slice
) -> NDArray[np.float64]:
    row_n, target_n = np.arange(len(score_nC)), chosen.target_Q[block]
    if queries.candidate_QC is None:
        position_n = target_n
        counts_nC = np.ones(score_nC.shape, dtype=np.bool_)
        row_A, target_A = _others(chosen, block)
        counts_nC[row_A, target_A] = False
        if not log.two_sides:
            counts_nC[row_n, queries.source_Q[block]] = False
    else:
        candidate_nC = queries.candidate_QC[block]
        position_n = (candidate_nC == target_n[:, None]).argmax(axis=1)
        counts_nC = np.diff(candidate_nC, axis=1, prepend=-1) != 0
        if not log.two_sides:
            counts_nC &= candidate_nC != queries.source_Q[block, None]
    own_n1 = score_nC[row_n, position_n][:, None]
    counts_nC[row_n, position_n] = False
    num_greater_n = ((score_nC > own_n1) & counts_nC).sum(axis=1)
    num_greater_or_equal_n = ((score_nC >= own_n1) & counts_nC).sum(axis=1)
    return (num_greater_n + num_greater_or_equal_n) / 2 + 1


class Others(NamedTuple):
    """Rows of a block, and targets that are not counted in them."""

    row_A: NDArray[np.int64]
    target_A: NDArray[np.int64]


def _others(chosen: ChosenTargets, block: slice) -> Others:
    """List the targets of the same source and time for each query of a block, the chosen one included."""
    first_n = chosen.first_G1[chosen.group_Q[block]]
    size_n = chosen.first_G1[chosen.group_Q[block] + 1] - first_n
    row_A = np.repeat(np.arange(len(size_n)), size_n)
    position_A = np.arange(len(row_A)) - np.repeat(np.cumsum(size_n) - size_n, size_n) + first_n[row_A]
    return Others(row_A, chosen.target_Q[chosen.order_Q[position_A]])


def with_targets(negative_QN: NDArray[np.int32], target_Q: NDArray[np.int64]) -> NDArray[np.int64]:
    """Put the chosen targets among sampled negatives, [Q, N + 1]: rows in order of number, whatever was chosen.

    A negative of -1 is none; the row's last candidate then stands there once more.
    """
    candidate_QC = np.concatenate([negative_QN, target_Q[:, None]], axis=1)
    last_Q = candidate_QC.max(axis=1)
    return np.sort(np.where(candidate_QC < 0, last_Q[:, None], candidate_QC), axis=1)


def mean_reciprocal_rank(rank_Q: NDArray[np.float64]) -> float:
    """Give the mean of 1 / rank."""
    return float((1 / rank_Q).mean())
