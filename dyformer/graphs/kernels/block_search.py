"""Bit-parallel breadth-first search between two sets of nodes (after Then et al. 2014, the multi-source search).

N nodes    N1 = N + 1    M slots of both directions    T targets, one bit each    C nodes that they are sought at
R nodes with rows    X nodes in question    K components    S components with targets    W = 8 words of a row
U = 64 words of 8 codes    P parts of 512 targets
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import repeat
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dyformer.graphs.kernels.bfs import (
    NUM_WORDS,
    Complete,
    Lists,
    Nodes,
    Rows,
    Span,
    Words,
    complete_rows,
    components,
    lessen,
    met,
    neighborhood,
    pulled,
    pushed,
    renumbered,
    rows_at,
)
from dyformer.graphs.union_graph import TemporalUnionGraph

MAX_TARGETS = 64 * NUM_WORDS
NUM_HUBS = 4_096  # their rows fit a core's own cache, and nearly every short path has one in its middle
SMALL_GRAPH = 32_768  # nodes up to which all are hubs
MIN_STRETCH = 8_192  # nodes
SLOTS_PER_STOP = 16  # that a list should have in a stretch, so that coming back to the list pays
BITS = np.packbits(np.eye(MAX_TARGETS, dtype=np.bool_), axis=1, bitorder="little").view(np.uint64)
SWEPT_FROM = 6  # max_distance from which the whole graph is swept level by level

_making = Lock()


@dataclass(frozen=True, kw_only=True)
class HubFirstGraph:
    """A union graph with its nodes numbered anew, those of many neighbours first, and its components."""

    number_N: Nodes  # new number of each node
    lists: Lists
    num_components: int
    num_hubs: int

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.number_N)

    def num_slots(self, node_X: Nodes) -> int:
        """Neighbours of the nodes in all."""
        indptr_N1 = self.lists[0]
        return int((indptr_N1[node_X.astype(np.int64) + 1] - indptr_N1[node_X]).sum())


def hub_first_graph(union: TemporalUnionGraph) -> HubFirstGraph:
    """Number a union graph's nodes anew, once; the result is kept with the union graph."""
    with _making:
        kept = vars(union)
        if "hub_first_graph" not in kept:
            kept["hub_first_graph"] = _hubs_first(union)
        return kept["hub_first_graph"]


def _hubs_first(union: TemporalUnionGraph) -> HubFirstGraph:
    # The kernels are compiled for one kind of array each, so that a union graph's own is copied into it.
    indptr_N1 = union.indptr_N1.astype(np.int64)
    node_N = np.argsort(-np.diff(indptr_N1), kind="stable").astype(np.uint32)
    number_N = np.empty_like(node_N)
    number_N[node_N] = np.arange(len(node_N), dtype=np.uint32)
    new_N1, new_M = renumbered(indptr_N1, union.neighbor_M.astype(np.uint32), node_N, number_N)
    component_N, num_components = components(new_N1, new_M)
    return HubFirstGraph(
        number_N=number_N,
        lists=(new_N1, new_M, component_N),
        num_components=num_components,
        num_hubs=NUM_HUBS if len(node_N) > SMALL_GRAPH else len(node_N),
    )


def searched_block(
    union: TemporalUnionGraph, rows_G: NDArray[np.int64], columns_C: NDArray[np.int64], *, max_distance: int
) -> NDArray[np.uint8]:
    """Give the distances [G, C], with the bits on the side that has fewer neighbours; see `distance_block`."""
    graph = hub_first_graph(union)
    row_G, column_C = graph.number_N[rows_G], graph.number_N[columns_C]
    if _effort(graph, row_G) < _effort(graph, column_C):
        return np.ascontiguousarray(_codes(graph, row_G, column_C, max_distance).T)
    return np.ascontiguousarray(_codes(graph, column_C, row_G, max_distance))


def _effort(graph: HubFirstGraph, target_T: Nodes) -> tuple[int, int]:
    """What bits for these nodes cost: passes, then, where that is more than turning the result, their neighbours."""
    return _num_parts(target_T), graph.num_slots(target_T) if graph.num_hubs < graph.num_nodes else 0


def _num_parts(target_T: Nodes) -> int:
    return -(-len(target_T) // MAX_TARGETS)


def _codes(graph: HubFirstGraph, target_T: Nodes, node_C: Nodes, max_distance: int) -> NDArray[np.uint8]:
    code_PCU = np.empty((_num_parts(target_T), len(node_C), MAX_TARGETS // 8), dtype=np.uint64)
    code_PCT = code_PCU.view(np.uint8)
    code_PCT[:] = max_distance
    for part, code_CU in enumerate(code_PCU):
        part_T = target_T[part * MAX_TARGETS : (part + 1) * MAX_TARGETS]
        # A node at distance d is reached at the levels d .. max_distance - 1: one less than the cap for each.
        for row_CW in _levels(_search_of(graph, part_T), node_C, max_distance):
            lessen(code_CU, row_CW)
    return code_PCT.transpose(1, 0, 2).reshape(len(node_C), code_PCT.shape[0] * MAX_TARGETS)[:, : len(target_T)]


@dataclass(frozen=True, kw_only=True)
class _Search:
    graph: HubFirstGraph
    target_T: Nodes
    bit_TW: Words
    complete: Complete  # each component's targets

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
    """Yield the rows after 2, 3 and, up to `max_distance` - 1, 4 hops: by way of the hubs, then what still lacks."""
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
    """Ask `hop` for the rows that lack targets of their component, of a search for none but these targets."""
    which_K, complete_SW = search.complete
    lack_CW = complete_SW[which_K[search.graph.lists[2][node_C]]] & ~row_CW
    lacks_C = lack_CW.any(axis=1)
    if not lacks_C.any():
        return row_CW
    lack_W = np.bitwise_or.reduce(lack_CW, axis=0)
    lacks_T = (search.bit_TW & lack_W).any(axis=1)
    part = replace(
        search,
        target_T=search.target_T[lacks_T],
        bit_TW=search.bit_TW[lacks_T],
        complete=(which_K, complete_SW & lack_W),
    )
    new_CW = row_CW.copy()
    new_CW[lacks_C] = hop(part, node_C[lacks_C], row_CW[lacks_C], *given)
    return new_CW


def _by_other_neighbors(search: _Search, node_X: Nodes, row_XW: Words, near: Rows) -> Words:
    """Add what lies three hops away, the first of them to a node that is no hub."""
    lists = search.graph.lists
    known_B, place_N, neighbor_R = neighborhood(lists, node_X, search.others)
    near_part, holder_R = pushed(lists, search.target_T, search.bit_TW, search.everywhere)
    if search.graph.num_slots(neighbor_R) > search.graph.num_slots(holder_R):
        return _met(search, holder_R, near_part[2], node_X, row_XW)
    row_RW = rows_at(neighbor_R, near)
    row_RW = pulled(lists, neighbor_R, row_RW, near, search.everywhere, search.complete)
    return pulled(lists, node_X, row_XW, (known_B, place_N, row_RW), search.others, search.complete)


def _by_hubs(search: _Search, node_X: Nodes, row_XW: Words, hubs: Rows, first: Span) -> Words:
    """Add what lies four hops away, the first to a node of the span `first` and the second to a hub."""
    lists = search.graph.lists
    known_B, place_N, neighbor_R = neighborhood(lists, node_X, first)
    no_RW = np.zeros((len(neighbor_R), NUM_WORDS), dtype=np.uint64)
    row_RW = pulled(lists, neighbor_R, no_RW, hubs, search.hubs, search.complete)
    return pulled(lists, node_X, row_XW, (known_B, place_N, row_RW), first, search.complete)


def _by_others(search: _Search, node_X: Nodes, row_XW: Words) -> Words:
    """Add what lies four hops away, the second of them to a node that is no hub."""
    lists = search.graph.lists
    known_B, place_N, neighbor_R = neighborhood(lists, node_X, search.everywhere)
    near, holder_R = pushed(lists, search.target_T, search.bit_TW, search.everywhere)
    no_RW = np.zeros((len(neighbor_R), NUM_WORDS), dtype=np.uint64)
    row_RW = _met(search, holder_R, near[2], neighbor_R, no_RW)
    return pulled(lists, node_X, row_XW, (known_B, place_N, row_RW), search.everywhere, search.complete)


def _met(search: _Search, holder_R: Nodes, row_RW: Words, node_X: Nodes, row_XW: Words) -> Words:
    first, end = search.others
    num_slots = search.graph.num_slots(holder_R) + search.graph.num_slots(node_X)
    num_stretches = max(1, num_slots // (SLOTS_PER_STOP * (len(holder_R) + len(node_X))))
    length = max(MIN_STRETCH, -(-(end - first) // num_stretches))
    return met(search.graph.lists, holder_R, row_RW, node_X, row_XW, search.others, length)


def _swept_levels(search: _Search, node_C: Nodes, near: Rows, max_distance: int) -> Iterator[Words]:
    """Yield the rows after 2 .. `max_distance` - 1 hops: all nodes pull, level by level, until nothing changes."""
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
