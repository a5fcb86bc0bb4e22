"""Distances against slow searches, and each compiled loop by itself: rows are sets of targets, merged along edges.

N nodes    X nodes whose rows are updated    R rows    W words of a row    K components
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import polars as pl
import pytest
from graph_cases import NAMED, dense_union, named_union, random_graphs
from numpy.testing import assert_array_equal
from scipy.sparse.csgraph import shortest_path
from toy_graphs import Edges, toy_graph

from dyformer.graphs import distances
from dyformer.graphs import hub_first_graph as hub_first
from dyformer.graphs.distances import distance_block, distance_table
from dyformer.graphs.hub_first_graph import hub_first_graph
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
from dyformer.graphs.union_graph import TemporalUnionGraph, build_union_graph

# Numbered hubs first: node 0 has five neighbours; 10 and 11 form a component, and 12 is isolated.
EDGES = [(0, 1), (0, 2), (0, 3), (0, 6), (0, 9), (1, 2), (1, 3), (1, 7), (2, 4), (2, 8), (3, 5), (10, 11)]
NUM_NODES = 13
SPANS = [(0, NUM_NODES), (0, 0), (0, 3), (3, NUM_NODES), (2, 9), (4, 5)]
Sets = dict[int, set[int]]

NEIGHBORS: Sets = {node: {a + b - node for a, b in EDGES if node in (a, b)} for node in range(NUM_NODES)}


@pytest.fixture(params=["all nodes are hubs", "three hubs", "no hubs"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., np.ndarray]:
    """The search with the sizes of small graphs, and of large ones: few hubs, blocks of two nodes."""
    if request.param != "all nodes are hubs":
        monkeypatch.setattr(hub_first, "SMALL_GRAPH", 0)
        monkeypatch.setattr(hub_first, "NUM_HUBS", 3 if request.param == "three hubs" else 0)
        monkeypatch.setattr(distances, "MIN_BLOCK", 2)
        monkeypatch.setattr(distances, "SLOTS_PER_BLOCK", 1)
    return distance_block


def exact_codes(union: TemporalUnionGraph, max_distance: int) -> np.ndarray:
    return np.minimum(shortest_path(dense_union(union), unweighted=True), max_distance)


def test_blocks_equal_scipy_on_random_graphs(engine):
    for graph, generator in random_graphs(400, seed=3):
        union = build_union_graph(graph, until=graph.num_steps)
        max_distance = int(generator.integers(1, 8))
        rows, columns = (generator.integers(union.num_nodes, size=generator.integers(0, 30)) for _ in range(2))
        found = engine(union, rows, columns, max_distance=max_distance)
        assert found.dtype == np.uint8
        assert found.flags.c_contiguous
        assert_array_equal(found, exact_codes(union, max_distance)[np.ix_(rows, columns)])


@pytest.mark.parametrize("are_leaves_rows", [True, False])
def test_a_search_of_a_large_graph_begins_where_there_are_few_neighbours(are_leaves_rows, monkeypatch):
    """Even where that takes two searches: from 600 leaves, and not from the three hubs that have 3,000."""
    monkeypatch.setattr(hub_first, "SMALL_GRAPH", 0)
    monkeypatch.setattr(hub_first, "NUM_HUBS", 3)
    union = build_union_graph(toy_graph([(leaf % 3, leaf) for leaf in range(3, 3_003)]), until=1)
    hubs, leaves, begun = np.arange(3), np.arange(3, 603), list[int]()

    def noted(graph, target_T):
        begun.append(len(target_T))
        return search_of(graph, target_T)

    search_of = distances._search_of
    monkeypatch.setattr(distances, "_search_of", noted)
    rows, columns = (leaves, hubs) if are_leaves_rows else (hubs, leaves)
    found = distance_block(union, rows, columns, max_distance=3)
    assert begun == [512, 88]
    assert_array_equal(found, np.where(rows[:, None] % 3 == columns % 3, 1, 3))


def sparse_edges(num_nodes: int, num_edges: int, seed: int) -> Edges:
    """Ends drawn by a power law: hubs, long paths and isolated nodes."""
    end_E2 = (num_nodes * np.random.default_rng(seed).random((num_edges, 2)) ** [1, 2]).astype(int)
    return [(int(a), int(b)) for a, b in end_E2 if a != b]


@pytest.mark.parametrize("max_distance", [2, 3, 4, 5, 6, 9])
def test_sparse_graphs_with_hubs_and_long_paths_have_exact_distances(engine, max_distance):
    for seed, num_edges in enumerate([150, 250, 350, 500, 900]):
        union = build_union_graph(toy_graph(sparse_edges(300, num_edges, seed)), until=1)
        expected = exact_codes(union, max_distance)
        generator = np.random.default_rng(seed)
        for num_rows, num_columns in [(3, 200), (200, 3), (60, 60)]:
            rows, columns = (generator.permutation(union.num_nodes)[:size] for size in (num_rows, num_columns))
            found = engine(union, rows, columns, max_distance=max_distance)
            assert_array_equal(found, expected[np.ix_(rows, columns)])


@pytest.mark.parametrize("word", range(8))
def test_no_word_of_a_row_is_taken_for_complete(engine, word):
    union = build_union_graph(toy_graph([(node, node + 1) for node in range(9)] + [(10, 11)]), until=1)
    rows, columns = np.array([11] * 64 * word + list(range(10))), np.tile(np.arange(10), 60)
    found = engine(union, rows, columns, max_distance=5)
    assert_array_equal(found, exact_codes(union, 5)[np.ix_(rows, columns)])


@pytest.mark.parametrize("num_nodes", range(4, 14))
def test_distances_around_a_ring_are_exact(engine, num_nodes):
    union = build_union_graph(toy_graph([(node, (node + 1) % num_nodes) for node in range(num_nodes)]), until=1)
    everyone = np.arange(num_nodes)
    expected = exact_codes(union, 5)
    for start in range(num_nodes):
        rows, columns = everyone[start:], everyone[: start + 1]
        assert_array_equal(engine(union, rows, columns, max_distance=5), expected[np.ix_(rows, columns)])


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("max_distance", [1, 2, 5, 255])
def test_awkward_graphs_have_exact_distances(engine, name, max_distance):
    union = named_union(name)
    everyone = np.arange(union.num_nodes)
    assert_array_equal(engine(union, everyone, everyone, max_distance=max_distance), exact_codes(union, max_distance))


def test_lists_of_more_nodes_than_a_row_has_bits(engine):
    graph = toy_graph([(node, node + 1) for node in range(1_199)] + [(0, 620)])
    union = build_union_graph(graph, until=1)
    rows, columns = np.arange(3, 640), np.arange(1_199, 20, -1)
    expected = exact_codes(union, 40)[np.ix_(rows, columns)]
    assert_array_equal(engine(union, rows, columns, max_distance=40), expected)
    assert_array_equal(engine(union, columns, rows, max_distance=40), expected.T)


def test_distance_codes_equal_those_computed_by_hand(engine):
    union = build_union_graph(toy_graph([(0, 1), (1, 2), (2, 3), (5, 6)]), until=1)
    code = engine(union, np.array([0]), np.arange(7), max_distance=3)
    assert code.tolist() == [[0, 1, 2, 3, 3, 3, 3]]  # node 3 is as far as the cap; nodes 4 to 6 are unreachable


def test_read_only_arrays_are_accepted():
    union = build_union_graph(toy_graph(sparse_edges(300, 500, 1)), until=1)
    rows, columns = np.arange(40), np.arange(100, 160)
    for array in (rows, columns, union.indptr_N1, union.neighbor_M):
        array.flags.writeable = False
    found = distance_block(union, rows, columns, max_distance=5)
    assert_array_equal(found, exact_codes(union, 5)[np.ix_(rows, columns)])


def test_concurrent_threads_find_the_same():
    blocks = []
    for seed in range(40):
        union = build_union_graph(toy_graph(sparse_edges(300, 300 + 10 * seed, seed)), until=1)
        rows, columns = np.split(np.random.default_rng(seed).permutation(union.num_nodes)[:200], 2)
        blocks += [(union, rows, columns, max_distance) for max_distance in (3, 5, 7)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda block: distance_block(*block[:3], max_distance=block[3]), blocks))
    for (union, rows, columns, max_distance), code in zip(blocks, found, strict=True):
        assert_array_equal(code, exact_codes(union, max_distance)[np.ix_(rows, columns)])


def test_a_graph_is_renumbered_hubs_first_once():
    union = build_union_graph(toy_graph([(0, 4), (1, 4), (2, 4), (2, 3), (5, 6)]), until=1)
    graph = hub_first_graph(union)
    assert hub_first_graph(union) is graph
    assert graph.number_N.tolist() == [2, 3, 1, 4, 0, 5, 6]
    indptr_N1, neighbor_M, component_N = graph.lists
    assert indptr_N1.tolist() == [0, 3, 5, 6, 7, 8, 9, 10]
    assert neighbor_M.tolist() == [1, 2, 3, 0, 4, 0, 0, 1, 6, 5]
    assert component_N.tolist() == [0, 0, 0, 0, 0, 1, 1]


def test_a_cap_out_of_range_is_refused():
    union = build_union_graph(toy_graph([(0, 1)]), until=1)
    for max_distance in (0, 256):
        with pytest.raises(ValueError, match=f"max_distance = {max_distance}: expected 1 to 255"):
            distance_block(union, np.array([0]), np.array([1]), max_distance=max_distance)


def test_the_table_holds_exactly_the_near_pairs(monkeypatch):
    monkeypatch.setattr(distances, "TABLE_ROWS", 5)
    for graph, _ in random_graphs(100, seed=4):
        union = build_union_graph(graph, until=graph.num_steps)
        codes = exact_codes(union, 3)
        expected = [
            (a, b, int(codes[a, b]))
            for a in range(union.num_nodes)
            for b in range(a + 1, union.num_nodes)
            if codes[a, b] < 3
        ]
        table = distance_table(union, max_distance=3)
        assert table.rows() == expected
        assert table.schema == {"source": pl.Int64, "target": pl.Int64, "distance": pl.UInt8}


def test_a_graph_too_large_for_a_table_is_refused(monkeypatch):
    monkeypatch.setattr(distances, "MAX_TABLE_NODES", 1)
    with pytest.raises(ValueError, match="too many for a distance table"):
        distance_table(named_union("two nodes"), max_distance=3)


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
