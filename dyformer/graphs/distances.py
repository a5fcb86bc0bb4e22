"""Shortest-path distances on the temporal-union graph, capped (paper, section 3.3: spatial distance encoding).

N nodes    G rows asked for    C columns asked for    X nodes    A slots of nodes    W words of 64 rows    P pairs
"""

from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.graphs.union_graph import TemporalUnionGraph

ROWS_PER_WORD = 64
GATHERED_WORDS = 4_000_000  # of neighbours at a time: bounds the memory of a sweep
TABLE_ROWS = 1_024
MAX_TABLE_NODES = 20_000
"""A table's size grows with the square of the nodes; beyond, distances are asked for block by block."""

Words = NDArray[np.uint64]


def distance_block(
    union: TemporalUnionGraph, rows_G: NDArray[np.int64], columns_C: NDArray[np.int64], *, max_distance: int
) -> NDArray[np.uint8]:
    """Give the distances [G, C] between two lists of nodes.

    Codes: 0 the node itself, the exact distance below `max_distance`, and `max_distance` for that far, farther or
    unreachable. Breadth-first search from up to 512 nodes at once, one bit each (Then et al. 2014); threads may call
    it side by side. Without numba it takes some 20 times as long. Raises ValueError for a `max_distance` that is not
    1 to 255.
    """
    if not 1 <= max_distance <= 255:
        raise ValueError(f"max_distance = {max_distance}: expected 1 to 255")
    return _block_engine()(union, rows_G, columns_C, max_distance=max_distance)


@cache
def _block_engine() -> Callable[..., NDArray[np.uint8]]:
    if find_spec("numba") is None:
        return swept_block
    from dyformer.graphs.kernels.block_search import searched_block

    return searched_block


def swept_block(
    union: TemporalUnionGraph, rows_G: NDArray[np.int64], columns_C: NDArray[np.int64], *, max_distance: int
) -> NDArray[np.uint8]:
    """Give the distances [G, C] without numba: the whole graph is swept level by level; see `distance_block`."""
    if len(rows_G) > len(columns_C):  # distances are symmetric: the bits go to the shorter list
        return np.ascontiguousarray(swept_block(union, columns_C, rows_G, max_distance=max_distance).T)
    code_CG = np.full((len(columns_C), len(rows_G)), max_distance, dtype=np.uint8)
    # A node at distance d is reached at the levels d .. max_distance - 1: one less than the cap for each.
    for reached_CW in _levels(union, rows_G, columns_C, max_distance):
        code_CG -= np.unpackbits(reached_CW.view(np.uint8), axis=1, count=len(rows_G), bitorder="little")
    return np.ascontiguousarray(code_CG.T)


def _levels(
    union: TemporalUnionGraph, rows_G: NDArray[np.int64], columns_C: NDArray[np.int64], max_distance: int
) -> Iterator[Words]:
    """Yield which rows have reached the columns [C, W] after 0, 1 .. `max_distance` - 1 hops."""
    reached_NW = np.zeros((union.num_nodes, -(-len(rows_G) // ROWS_PER_WORD)), dtype=np.uint64)
    place_G = np.arange(len(rows_G))
    _set_bits(reached_NW, rows_G, place_G)
    yield reached_NW[columns_C]
    if max_distance == 1:
        return
    slot_A, degree_G = _slots(union, rows_G)
    _set_bits(reached_NW, union.neighbor_M[slot_A], np.repeat(place_G, degree_G))
    yield reached_NW[columns_C]
    for _ in range(2, max_distance - 1):
        reached_NW = _one_hop_more(union, reached_NW, np.arange(union.num_nodes))
        yield reached_NW[columns_C]
    if max_distance > 2:
        yield _one_hop_more(union, reached_NW, columns_C)


def _set_bits(reached_NW: Words, node_A: NDArray[np.integer], place_A: NDArray[np.int64]) -> None:
    bit_A = np.left_shift(np.uint64(1), (place_A % ROWS_PER_WORD).astype(np.uint64))
    np.bitwise_or.at(reached_NW, (node_A, place_A // ROWS_PER_WORD), bit_A)


def _slots(union: TemporalUnionGraph, node_X: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Give the slots of the nodes, one node after the other, and how many each has."""
    start_X = union.indptr_N1[node_X]
    degree_X = union.indptr_N1[node_X + 1] - start_X
    before_X = np.cumsum(degree_X) - degree_X
    return np.arange(degree_X.sum()) + np.repeat(start_X - before_X, degree_X), degree_X


def _one_hop_more(union: TemporalUnionGraph, reached_NW: Words, node_X: NDArray[np.int64]) -> Words:
    """Give the rows of some nodes [X, W]: a node is reached when it or a neighbour was."""
    next_XW = reached_NW[node_X]
    slot_A, degree_X = _slots(union, node_X)
    if not len(slot_A):
        return next_XW
    with_edges_X = degree_X > 0
    starts = (np.cumsum(degree_X) - degree_X)[with_edges_X]
    neighbor_A = union.neighbor_M[slot_A]
    num_words = max(1, GATHERED_WORDS // len(neighbor_A))
    for first in range(0, reached_NW.shape[1], num_words):
        words = slice(first, first + num_words)
        gathered_AW = np.ascontiguousarray(reached_NW[:, words])[neighbor_A]
        next_XW[with_edges_X, words] |= np.bitwise_or.reduceat(gathered_AW, starts, axis=0)
    return next_XW


def distance_table(union: TemporalUnionGraph, *, max_distance: int) -> pl.DataFrame:
    """Give the pairs nearer than `max_distance`: source, target (source < target), distance.

    Raises ValueError for graphs of more than MAX_TABLE_NODES nodes.
    """
    if union.num_nodes > MAX_TABLE_NODES:
        raise ValueError(f"{union.num_nodes} nodes are too many for a distance table (up to {MAX_TABLE_NODES})")
    node_N = np.arange(union.num_nodes)
    blocks = []
    for start in range(0, union.num_nodes, TABLE_ROWS):
        rows = node_N[start : start + TABLE_ROWS]
        code_GC = distance_block(union, rows, node_N, max_distance=max_distance)
        near_GC = (code_GC < max_distance) & (rows[:, None] < node_N)
        row_P, target_P = np.nonzero(near_GC)
        blocks.append(pl.DataFrame({"source": rows[row_P], "target": target_P, "distance": code_GC[near_GC]}))
    schema = {"source": pl.Int64, "target": pl.Int64, "distance": pl.UInt8}
    return pl.concat([pl.DataFrame(schema=schema), *blocks])
