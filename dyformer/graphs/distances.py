"""TemporalUnionGraph -> shortest-path distances, capped (paper, section 3.3: spatial distance encoding).

The method is bit-parallel breadth-first search from many nodes at once (Then et al. 2014, multi-source BFS). A node's
row is a bitset with a bit for each target; `kernels/bfs.py` defines rows, complete rows and spans. A node is near a
target if their distance is at most 1. A hop is one level of the search.

N nodes    G rows and C columns of the distances    T targets of the search, one bit each    R nodes that have a row
X nodes whose rows are updated    K components    S components with targets    W = 8 words of a row
U = 64 words of 8 distances    B parts of 512 targets    P pairs
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.graphs.hub_first_graph import HubFirstGraph, hub_first_graph
from dyformer.graphs.kernels.bfs import (
    NUM_WORDS,
    Complete,
    Nodes,
    Rows,
    Span,
    Words,
    complete_rows,
    decrement,
    met,
    neighborhood,
    pulled,
    pushed,
    rows_at,
)
from dyformer.graphs.union_graph import TemporalUnionGraph

MAX_TARGETS = 64 * NUM_WORDS
MIN_BLOCK = 8_192  # nodes
SLOTS_PER_BLOCK = 16  # neighbours of a node in one block, on average: with fewer, finding its list again costs more
BITS = np.packbits(np.eye(MAX_TARGETS, dtype=np.bool_), axis=1, bitorder="little").view(np.uint64)
SWEPT_FROM = 6  # from this max_distance on, each level of the search updates all nodes of the graph
TABLE_ROWS = 1_024
MAX_TABLE_NODES = 20_000
"""A table's size grows with the square of the number of nodes; larger graphs are searched block by block."""


def distance_block(
    union: TemporalUnionGraph, rows_G: NDArray[np.int64], columns_C: NDArray[np.int64], *, max_distance: int
) -> NDArray[np.uint8]:
    """Give the distances [G, C] between two lists of nodes.

    Distances from `max_distance` on, and of nodes that no path connects, are given as `max_distance`. The search starts
    from up to 512 nodes at once, on the side where it costs less. Threads may call the function at the same time.
    Raises ValueError for a `max_distance` outside 1 to 255.
    """
    if not 1 <= max_distance <= 255:
        raise InvalidInput(f"max_distance = {max_distance}: expected 1 to 255")
    graph = hub_first_graph(union)
    row_G, column_C = graph.number_N[rows_G], graph.number_N[columns_C]
    if _effort(graph, row_G) < _effort(graph, column_C):
        return np.ascontiguousarray(_codes(graph, row_G, column_C, max_distance).T)
    return np.ascontiguousarray(_codes(graph, column_C, row_G, max_distance))


def _effort(graph: HubFirstGraph, target_T: Nodes) -> int:
    """Estimate the cost of a search from these nodes: the number of searches, times that of neighbours.

    A neighbour of a node where the search begins gets a row, which takes some ten times as long as looking up whether
    one at the other end has a row. In a small graph the number of neighbours does not matter and is left out.
    """
    num_slots = graph.num_slots(target_T) if graph.num_hubs < graph.num_nodes else 1
    return _num_parts(target_T) * num_slots


def _num_parts(target_T: Nodes) -> int:
    return -(-len(target_T) // MAX_TARGETS)


def _codes(graph: HubFirstGraph, target_T: Nodes, node_C: Nodes, max_distance: int) -> NDArray[np.uint8]:
    code_BCU = np.empty((_num_parts(target_T), len(node_C), MAX_TARGETS // 8), dtype=np.uint64)
    code_BCT = code_BCU.view(np.uint8)
    code_BCT[:] = max_distance
    for part, code_CU in enumerate(code_BCU):
        part_T = target_T[part * MAX_TARGETS : (part + 1) * MAX_TARGETS]
        # A distance starts at max_distance. A node at distance d is in the levels d .. max_distance - 1, and each of
        # these levels subtracts one.
        for row_CW in _levels(_search_of(graph, part_T), node_C, max_distance):
            decrement(code_CU, row_CW)
    return code_BCT.transpose(1, 0, 2).reshape(len(node_C), code_BCT.shape[0] * MAX_TARGETS)[:, : len(target_T)]


@dataclass(frozen=True, kw_only=True)
class _Search:
    graph: HubFirstGraph
    target_T: Nodes
    bit_TW: Words
    complete: Complete  # for each component, the row with all of its targets

    @property
    def everywhere(self) -> Span:
        return 0, self.graph.num_nodes

    @property
    def hubs(self) -> Span:
        return 0, self.graph.num_hubs

    @property
    def others(self) -> Span:
        return self.graph.num_hubs, self.graph.num_nodes


def _search_of(graph: HubFirstGraph, target_T: Nodes) -> _Search:
    bit_TW = BITS[: len(target_T)]
    complete = complete_rows(graph.lists[2], graph.num_components, target_T, bit_TW)
    return _Search(graph=graph, target_T=target_T, bit_TW=bit_TW, complete=complete)


def _levels(search: _Search, node_C: Nodes, max_distance: int) -> Iterator[Words]:
    """Yield the rows of the nodes [C, W] after 0, 1 .. `max_distance` - 1 hops."""
    lists = search.graph.lists
    yield rows_at(node_C, pushed(lists, search.target_T, search.bit_TW, (0, 0))[0])
    if max_distance == 1:
        return
    near, near_R = pushed(lists, search.target_T, search.bit_TW, search.everywhere)
    yield rows_at(node_C, near)
    if max_distance == 2:
        return
    if max_distance == 3:
        yield pulled(lists, node_C, rows_at(node_C, near), near, search.everywhere, search.complete)
    elif max_distance < SWEPT_FROM:
        yield from _far_levels(search, node_C, near, near_R, max_distance)
    else:
        yield from _swept_levels(search, node_C, near, max_distance)


def _far_levels(search: _Search, node_C: Nodes, near: Rows, near_R: Nodes, max_distance: int) -> Iterator[Words]:
    """Yield the rows after 2, 3 and, for `max_distance` above 4, 4 hops; paths through hubs are searched first."""
    lists = search.graph.lists
    hubs, _ = pushed(lists, near_R, near[2], search.hubs)
    row_CW = rows_at(node_C, hubs)
    is_other_C = node_C >= search.graph.num_hubs
    other_XW = row_CW[is_other_C]
    row_CW[is_other_C] = pulled(lists, node_C[is_other_C], other_XW, near, search.everywhere, search.complete)
    yield row_CW
    row_CW = pulled(lists, node_C, row_CW, hubs, search.hubs, search.complete)
    if search.graph.num_hubs == search.graph.num_nodes:
        yield row_CW
        if max_distance > 4:
            yield _by_hubs(search, node_C, row_CW, hubs, search.hubs)
        return
    row_CW = _completed(search, node_C, row_CW, _by_other_neighbors, near)
    yield row_CW
    if max_distance > 4:
        row_CW = _completed(search, node_C, row_CW, _by_hubs, hubs, search.hubs)
        row_CW = _completed(search, node_C, row_CW, _by_hubs, hubs, search.others)
        yield _completed(search, node_C, row_CW, _by_others)


def _completed(search: _Search, node_C: Nodes, row_CW: Words, hop: Callable[..., Words], *given: Any) -> Words:
    """Apply `hop` only to incomplete rows, and search only for the targets that one of them lacks."""
    which_K, complete_SW = search.complete
    missing_CW = complete_SW[which_K[search.graph.lists[2][node_C]]] & ~row_CW
    is_short_C = missing_CW.any(axis=1)
    if not is_short_C.any():
        return row_CW
    missing_W = np.bitwise_or.reduce(missing_CW, axis=0)
    is_missing_T = (search.bit_TW & missing_W).any(axis=1)
    part = replace(
        search,
        target_T=search.target_T[is_missing_T],
        bit_TW=search.bit_TW[is_missing_T],
        complete=(which_K, complete_SW & missing_W),
    )
    new_CW = row_CW.copy()
    new_CW[is_short_C] = hop(part, node_C[is_short_C], row_CW[is_short_C], *given)
    return new_CW


def _by_other_neighbors(search: _Search, node_X: Nodes, row_XW: Words, near: Rows) -> Words:
    """Add the targets three hops away whose first hop leads to a node that is not a hub."""
    lists = search.graph.lists
    known_B, index_N, neighbor_R = neighborhood(lists, node_X, search.others)
    near_part, near_R = pushed(lists, search.target_T, search.bit_TW, search.everywhere)
    if search.graph.num_slots(neighbor_R) > search.graph.num_slots(near_R):
        return _met(search, near_R, near_part[2], node_X, row_XW)
    row_RW = rows_at(neighbor_R, near)
    row_RW = pulled(lists, neighbor_R, row_RW, near, search.everywhere, search.complete)
    return pulled(lists, node_X, row_XW, (known_B, index_N, row_RW), search.others, search.complete)


def _by_hubs(search: _Search, node_X: Nodes, row_XW: Words, hubs: Rows, first: Span) -> Words:
    """Add the targets four hops away: the first hop leads to a node of the span `first`, the second to a hub."""
    lists = search.graph.lists
    known_B, index_N, neighbor_R = neighborhood(lists, node_X, first)
    no_RW = np.zeros((len(neighbor_R), NUM_WORDS), dtype=np.uint64)
    row_RW = pulled(lists, neighbor_R, no_RW, hubs, search.hubs, search.complete)
    return pulled(lists, node_X, row_XW, (known_B, index_N, row_RW), first, search.complete)


def _by_others(search: _Search, node_X: Nodes, row_XW: Words) -> Words:
    """Add the targets four hops away whose second hop leads to a node that is not a hub."""
    lists = search.graph.lists
    known_B, index_N, neighbor_R = neighborhood(lists, node_X, search.everywhere)
    near, near_R = pushed(lists, search.target_T, search.bit_TW, search.everywhere)
    no_RW = np.zeros((len(neighbor_R), NUM_WORDS), dtype=np.uint64)
    row_RW = _met(search, near_R, near[2], neighbor_R, no_RW)
    return pulled(lists, node_X, row_XW, (known_B, index_N, row_RW), search.everywhere, search.complete)


def _met(search: _Search, node_R: Nodes, row_RW: Words, node_X: Nodes, row_XW: Words) -> Words:
    first, end = search.others
    num_slots = search.graph.num_slots(node_R) + search.graph.num_slots(node_X)
    num_blocks = max(1, num_slots // (SLOTS_PER_BLOCK * (len(node_R) + len(node_X))))
    length = max(MIN_BLOCK, -(-(end - first) // num_blocks))
    return met(search.graph.lists, node_R, row_RW, node_X, row_XW, search.others, length)


def _swept_levels(search: _Search, node_C: Nodes, near: Rows, max_distance: int) -> Iterator[Words]:
    """Yield the rows after 2 .. `max_distance` - 1 hops; every hop updates all nodes, until no row changes."""
    lists = search.graph.lists
    node_N = np.arange(search.graph.num_nodes, dtype=np.uint32)
    known_B = np.full((len(node_N) >> 3) + 1, 255, dtype=np.uint8)
    row_NW = rows_at(node_N, near)
    for hops in range(2, max_distance):
        new_NW = pulled(lists, node_N, row_NW, (known_B, node_N, row_NW), search.everywhere, search.complete)
        if np.array_equal(new_NW, row_NW):
            yield from repeat(row_NW[node_C], max_distance - hops)
            return
        row_NW = new_NW
        yield row_NW[node_C]


def distance_table(union: TemporalUnionGraph, *, max_distance: int) -> pl.DataFrame:
    """Give the pairs whose distance is below `max_distance`: source, target (source < target), distance.

    Raises ValueError for graphs of more than MAX_TABLE_NODES nodes.
    """
    if union.num_nodes > MAX_TABLE_NODES:
        raise InvalidInput(f"{union.num_nodes} nodes are too many for a distance table (up to {MAX_TABLE_NODES})")
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
