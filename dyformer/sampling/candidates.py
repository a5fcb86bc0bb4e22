"""Pools and lists of nodes -> the candidates of each source, drawn without replacement.

Q sources    C candidates    N nodes    R rows to draw from, with repeats    D candidates drawn already
U nodes to choose from    X entries of lists, or of rows    K pair keys
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dyformer.sampling.pairs import Pairs, is_among

BLOCK_ENTRIES = 4_000_000
"""Entries of lists and of tables that are held at once."""

Lists = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Start of each node's list `[N + 1]`, and the lists' entries `[X]`."""


@dataclass(frozen=True, kw_only=True)
class Positives:
    """Ordered pairs that are no negatives."""

    num_nodes: int
    key_K: NDArray[np.int64]  # source * num_nodes + target, sorted


def lists_of(key_K: NDArray[np.int64], num_nodes: int) -> Lists:
    """Read sorted keys source * num_nodes + target as the list of targets of each source."""
    return np.searchsorted(key_K, np.arange(num_nodes + 1) * num_nodes), key_K % num_nodes


def choose_of_pool(
    source_Q: NDArray[np.int64],
    pool_R: NDArray[np.int64],
    num: int,
    drawn_QD: NDArray[np.int64],
    positives: Positives,
    generator: np.random.Generator,
) -> NDArray[np.int64]:
    """Draw `num` different nodes of the pool for each source [Q, num], one after the other.

    A node is drawn in proportion to its rows in the pool. Left out are the source, its positive targets, and the nodes
    of `drawn_QD`. A source with fewer nodes left has -1 at the end.
    """
    candidate_QC = np.full((len(source_Q), num), -1)
    if not len(source_Q) or not len(pool_R):
        return candidate_QC
    draw_QR = pool_R[generator.integers(len(pool_R), size=(len(source_Q), 2 * num + 10))]
    wanted_QR = _first_of_row(np.hstack([drawn_QD, draw_QR]))[:, drawn_QD.shape[1] :]
    key_QR = source_Q[:, None] * positives.num_nodes + draw_QR
    wanted_QR &= ~is_among(key_QR.ravel(), positives.key_K).reshape(key_QR.shape) & (draw_QR != source_Q[:, None])
    number_QR = np.cumsum(wanted_QR, axis=1) - 1
    row_X, column_X = np.nonzero(wanted_QR & (number_QR < num))
    candidate_QC[row_X, number_QR[row_X, column_X]] = draw_QR[row_X, column_X]
    # Few sources are still short: all nodes that are left get a key, whose order is that of drawing on.
    rest_Q = np.flatnonzero(candidate_QC[:, -1] < 0)
    node_U, count_U = np.unique(pool_R, return_counts=True)
    for short_Q in _blocks(rest_Q, np.full(len(rest_Q), positives.num_nodes)):
        left_QN = _left_over(source_Q[short_Q], np.hstack([drawn_QD[short_Q], candidate_QC[short_Q]]), positives)
        key_QU = generator.exponential(size=(len(short_Q), len(node_U))) / count_U
        key_QU[~left_QN[:, node_U]] = np.inf
        candidate_QC[short_Q] = _filled(candidate_QC[short_Q], node_U, key_QU)
    return candidate_QC


def _first_of_row(node_QX: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark the first of equal nodes in each row."""
    order_QX = np.argsort(node_QX, axis=1, kind="stable")
    sorted_QX = np.take_along_axis(node_QX, order_QX, axis=1)
    first_QX = np.ones(node_QX.shape, dtype=np.bool_)
    first_QX[:, 1:] = sorted_QX[:, 1:] != sorted_QX[:, :-1]
    marked_QX = np.empty_like(first_QX)
    np.put_along_axis(marked_QX, order_QX, first_QX, axis=1)
    return marked_QX


def _left_over(source_Q: NDArray[np.int64], drawn_QD: NDArray[np.int64], positives: Positives) -> NDArray[np.bool_]:
    """Mark the nodes [Q, N] that a source may still draw."""
    left_QN = np.ones((len(source_Q), positives.num_nodes + 1), dtype=np.bool_)  # padding, -1, marks the last column
    np.put_along_axis(left_QN, drawn_QD, values=False, axis=1)
    left_QN[np.arange(len(source_Q)), source_Q] = False
    row_X, target_X = _expanded(source_Q, lists_of(positives.key_K, positives.num_nodes))
    left_QN[row_X, target_X] = False
    return left_QN[:, :-1]


def _filled(
    candidate_QC: NDArray[np.int64], node_U: NDArray[np.int64], key_QU: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Put the nodes of the smallest finite keys behind the candidates of each query."""
    num = min(candidate_QC.shape[1], len(node_U))
    best_QC = np.argpartition(key_QU, num - 1, axis=1)[:, :num]
    best_QC = np.take_along_axis(best_QC, np.argsort(np.take_along_axis(key_QU, best_QC, axis=1), axis=1), axis=1)
    more_QC = np.where(np.isfinite(np.take_along_axis(key_QU, best_QC, axis=1)), node_U[best_QC], -1)
    both_QX = np.hstack([candidate_QC, more_QC])
    order_QX = np.argsort(both_QX < 0, axis=1, kind="stable")  # padding goes to the end
    return np.take_along_axis(both_QX, order_QX, axis=1)[:, : candidate_QC.shape[1]]


def choose_of_lists(
    source_Q: NDArray[np.int64], lists: Lists, num: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Draw `num` different nodes of each source's list [Q, num], all equally likely; -1 where it is shorter."""
    candidate_QC = np.full((len(source_Q), num), -1)
    for block_Q in _blocks(np.arange(len(source_Q)), lists[0][source_Q + 1] - lists[0][source_Q]):
        row_X, node_X = _expanded(source_Q[block_Q], lists)
        node_X = node_X[np.lexsort((generator.random(len(row_X)), row_X))]
        number_X = np.arange(len(row_X)) - np.searchsorted(row_X, row_X)
        chosen_X = number_X < num
        candidate_QC[block_Q[row_X[chosen_X]], number_X[chosen_X]] = node_X[chosen_X]
    return candidate_QC


def _expanded(source_Q: NDArray[np.int64], lists: Lists) -> Pairs:
    """Give the entries of the lists of these sources: the position of the source, and the entry."""
    start_N, entry_X = lists
    size_Q = start_N[source_Q + 1] - start_N[source_Q]
    row_X = np.repeat(np.arange(len(source_Q)), size_Q)
    offset_X = np.arange(len(row_X)) - np.repeat(np.cumsum(size_Q) - size_Q, size_Q)
    return row_X, entry_X[start_N[source_Q][row_X] + offset_X]


def _blocks(row_Q: NDArray[np.int64], size_Q: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Split rows into blocks of about BLOCK_ENTRIES entries."""
    block_Q = np.cumsum(size_Q) // BLOCK_ENTRIES
    return iter(np.split(row_Q, np.flatnonzero(np.diff(block_Q)) + 1)) if len(row_Q) else iter(())
