"""Each loop of the search by itself, on spans of nodes: rows are sets of targets, merged along edges.

N nodes    X nodes whose rows are updated    R rows    W words of a row    K components
"""

import numpy as np
import pytest

from dyformer.graphs.kernels.bfs import (
    NUM_WORDS,
    complete_rows,
    components,
    met,
    neighborhood,
    pulled,
    pushed,
    renumbered,
    rows_at,
)

# Numbered hubs first: node 0 has five neighbours; 10 and 11 form a component, and 12 is isolated.
EDGES = [(0, 1), (0, 2), (0, 3), (0, 6), (0, 9), (1, 2), (1, 3), (1, 7), (2, 4), (2, 8), (3, 5), (10, 11)]
NUM_NODES = 13
SPANS = [(0, NUM_NODES), (0, 0), (0, 3), (3, NUM_NODES), (2, 9), (4, 5)]
Sets = dict[int, set[int]]

NEIGHBORS: Sets = {node: {a + b - node for a, b in EDGES if node in (a, b)} for node in range(NUM_NODES)}


def lists() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    indptr = np.cumsum([0, *(len(NEIGHBORS[node]) for node in range(NUM_NODES))])
    neighbors = np.array([other for node in range(NUM_NODES) for other in sorted(NEIGHBORS[node])], dtype=np.uint32)
    return indptr, neighbors, components(indptr, neighbors)[0]


def bits_of(targets: set[int]) -> list[int]:
    return [sum(1 << target % 64 for target in targets if target // 64 == word) for word in range(NUM_WORDS)]


def targets_of(row_W: np.ndarray) -> set[int]:
    return {64 * index + bit for index, word in enumerate(row_W.tolist()) for bit in range(64) if word >> bit & 1}


def some_rows(seed: int) -> tuple[np.ndarray, np.ndarray, Sets]:
    """Nodes, some of them twice, and a set of targets for each, both as rows and merged by node."""
    generator = np.random.default_rng(seed)
    node_X = generator.integers(NUM_NODES, size=5).astype(np.uint32)
    targets = [set(generator.integers(64 * NUM_WORDS, size=3).tolist()) for _ in node_X]
    united: Sets = {}
    for node, own in zip(node_X.tolist(), targets, strict=True):
        united[node] = united.get(node, set()) | own
    return node_X, np.array([bits_of(own) for own in targets], dtype=np.uint64), united


def around(rows: Sets, span: tuple[int, int]) -> Sets:
    """The targets that each node of the span receives from its neighbours' rows."""
    return {node: set().union(*(rows.get(other, set()) for other in NEIGHBORS[node])) for node in range(*span)}


def all_of(rows) -> Sets:
    row_NW = rows_at(np.arange(NUM_NODES, dtype=np.uint32), rows)
    return {node: targets_of(row_W) for node, row_W in enumerate(row_NW) if row_W.any()}


def never_complete() -> tuple[np.ndarray, np.ndarray]:
    """Components and targets with which no row is complete, because none here has all bits."""
    return np.zeros(3, dtype=np.uint32), np.full((1, NUM_WORDS), 2**64 - 1, dtype=np.uint64)


@pytest.mark.parametrize("span", SPANS)
def test_a_push_reaches_each_node_itself_and_its_neighbours_in_the_span(span: tuple[int, int]):
    for seed in range(20):
        node_X, row_XW, own = some_rows(seed)
        rows, holder_R = pushed(lists(), node_X, row_XW, span)
        near = around(own, span)
        expected = {node: own.get(node, set()) | near.get(node, set()) for node in range(NUM_NODES)}
        assert all_of(rows) == {node: targets for node, targets in expected.items() if targets}
        assert sorted(holder_R.tolist()) == sorted(node for node, targets in expected.items() if targets)


@pytest.mark.parametrize("span", SPANS)
def test_a_pull_adds_the_rows_of_neighbours_in_the_span_to_the_nodes_row(span: tuple[int, int]):
    everyone = np.arange(NUM_NODES, dtype=np.uint32)
    for seed in range(20):
        rows, _ = pushed(lists(), *some_rows(seed)[:2], (0, 0))
        node_X, row_XW, _ = some_rows(seed + 100)
        inside = {node: targets for node, targets in all_of(rows).items() if span[0] <= node < span[1]}
        near = around(inside, (0, NUM_NODES))
        found_XW = pulled(lists(), node_X, row_XW, rows, span, never_complete())
        expected = [targets_of(own_W) | near[node] for node, own_W in zip(node_X.tolist(), row_XW, strict=True)]
        assert [targets_of(row_W) for row_W in found_XW] == expected
        assert {node for node in everyone.tolist() if rows[0][node >> 3] >> (node & 7) & 1} == set(all_of(rows))


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("length", [1, 2, 4, 100])
def test_two_hops_through_the_span_are_the_same_in_blocks_of_any_length(span: tuple[int, int], length: int):
    for seed in range(10):
        rows, holder_R = pushed(lists(), *some_rows(seed)[:2], (0, 0))
        node_X, row_XW, _ = some_rows(seed + 100)
        two_hops = around(around(all_of(rows), span), (0, NUM_NODES))
        found_XW = met(lists(), holder_R, rows[2], node_X, row_XW, span, length)
        expected = [targets_of(own_W) | two_hops[node] for node, own_W in zip(node_X.tolist(), row_XW, strict=True)]
        assert [targets_of(row_W) for row_W in found_XW] == expected


@pytest.mark.parametrize("span", SPANS)
def test_a_neighborhood_lists_each_node_of_the_span_once_in_order(span: tuple[int, int]):
    for seed in range(20):
        node_X = some_rows(seed)[0]
        known_B, index_N, holder_R = neighborhood(lists(), node_X, span)
        expected = sorted(set().union(*(NEIGHBORS[node] for node in node_X.tolist())) & set(range(*span)))
        assert holder_R.tolist() == expected
        assert index_N[holder_R].tolist() == list(range(len(expected)))
        assert [node for node in range(NUM_NODES) if known_B[node >> 3] >> (node & 7) & 1] == expected


def test_a_component_is_complete_with_all_of_its_targets():
    _, _, component_N = lists()
    assert components(*lists()[:2])[1] == 3
    assert component_N.tolist() == [0] * 10 + [1, 1, 2]
    target_T = np.array([4, 10, 9], dtype=np.uint32)
    bit_TW = np.array([bits_of({target}) for target in range(3)], dtype=np.uint64)
    which_K, complete_SW = complete_rows(component_N, 3, target_T, bit_TW)
    assert [targets_of(complete_SW[which]) for which in which_K] == [{0, 2}, {1}, set()]


def test_neighbours_of_renumbered_nodes_are_in_ascending_order():
    node_N = np.random.default_rng(0).permutation(NUM_NODES).astype(np.uint32)
    number_N = np.argsort(node_N).astype(np.uint32)
    new_N1, new_M = renumbered(*lists()[:2], node_N, number_N)
    for number, node in enumerate(node_N.tolist()):
        expected = sorted(number_N[sorted(NEIGHBORS[node])].tolist())
        assert new_M[new_N1[number] : new_N1[number + 1]].tolist() == expected
