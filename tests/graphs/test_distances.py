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
from dyformer.graphs.union_graph import TemporalUnionGraph, build_union_graph


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
