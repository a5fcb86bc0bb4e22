import numpy as np
import polars as pl
import pytest
from graph_cases import NAMED, dense_union, named_union, random_graphs
from numpy.testing import assert_array_equal
from scipy.sparse.csgraph import shortest_path
from toy_graphs import toy_graph

from dyformer import distances
from dyformer.distances import distance_block, distance_table
from dyformer.union_graph import build_union_graph


def exact_codes(union, max_distance: int) -> np.ndarray:
    return np.minimum(shortest_path(dense_union(union), unweighted=True), max_distance)


def test_blocks_equal_scipy_on_a_thousand_random_graphs():
    for graph, generator in random_graphs(1_000, seed=3):
        union = build_union_graph(graph, until=graph.num_steps)
        max_distance = int(generator.integers(1, 7))
        rows, columns = (generator.integers(union.num_nodes, size=generator.integers(0, 30)) for _ in range(2))
        found = distance_block(union, rows, columns, max_distance=max_distance)
        assert found.dtype == np.uint8
        assert_array_equal(found, exact_codes(union, max_distance)[np.ix_(rows, columns)])


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("max_distance", [1, 2, 5, 255])
def test_awkward_graphs_have_exact_distances(name, max_distance):
    union = named_union(name)
    everyone = np.arange(union.num_nodes)
    assert_array_equal(
        distance_block(union, everyone, everyone, max_distance=max_distance), exact_codes(union, max_distance)
    )


@pytest.mark.parametrize("gathered_words", [1, 1_000, 4_000_000])
def test_more_rows_than_a_word_has_bits(gathered_words, monkeypatch):
    monkeypatch.setattr(distances, "GATHERED_WORDS", gathered_words)
    graph = toy_graph([(node, node + 1) for node in range(199)] + [(0, 120)])
    union = build_union_graph(graph, until=1)
    rows, columns = np.arange(3, 140), np.arange(199, 20, -1)
    expected = exact_codes(union, 40)[np.ix_(rows, columns)]
    assert_array_equal(distance_block(union, rows, columns, max_distance=40), expected)
    assert_array_equal(distance_block(union, columns, rows, max_distance=40), expected.T)


def test_codes_by_hand():
    union = build_union_graph(toy_graph([(0, 1), (1, 2), (2, 3), (5, 6)]), until=1)
    code = distance_block(union, np.array([0]), np.arange(7), max_distance=3)
    assert code.tolist() == [[0, 1, 2, 3, 3, 3, 3]]  # 3 is as far as the cap; 4 to 6 are out of reach


def test_a_cap_that_does_not_fit_is_refused():
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
