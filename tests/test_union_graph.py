import numpy as np
import pytest
from graph_cases import NAMED, dense_adjacency, dense_union, named_union, random_graphs
from numpy.testing import assert_array_equal
from toy_graphs import toy_graph

from dyformer.union_graph import adjacency, build_union_graph, connections


def lags_of(union, edge: int) -> set[int]:
    words = union.presence_EW[edge].tolist()
    return {64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1}


def test_union_equals_a_plain_count_of_the_snapshots():
    for graph, generator in random_graphs(300, seed=0):
        until = int(generator.integers(1, graph.num_steps + 1))
        window = None if generator.random() < 0.3 else int(generator.integers(1, 5))
        union = build_union_graph(graph, until=until, window=window)
        first_step = 1 if window is None else max(1, until - window + 1)
        steps: dict[tuple[int, int], list[int]] = {}
        for snapshot in graph.snapshots[first_step - 1 : until]:
            for pair in zip(snapshot.source_E.tolist(), snapshot.target_E.tolist(), strict=True):
                steps.setdefault(pair, []).append(snapshot.step)
        pairs = sorted(steps)
        assert list(zip(union.source_E.tolist(), union.target_E.tolist(), strict=True)) == pairs
        assert union.edge_first_step_E.tolist() == [steps[pair][0] for pair in pairs]
        assert union.count_E.tolist() == [len(steps[pair]) for pair in pairs]
        assert [lags_of(union, edge) for edge in range(len(pairs))] == [{until - s for s in steps[p]} for p in pairs]
        assert (union.num_nodes, union.first_step) == (graph.snapshots[until - 1].num_nodes, first_step)
        assert_array_equal(adjacency(union).toarray(), dense_adjacency(graph, first_step, until))


def test_neighbours_ascend_and_name_their_edge():
    for graph, _ in random_graphs(100, seed=1):
        union = build_union_graph(graph, until=graph.num_steps)
        for node in range(union.num_nodes):
            slots = slice(union.indptr_N1[node], union.indptr_N1[node + 1])
            neighbors, edges = union.neighbor_M[slots], union.edge_M[slots]
            assert neighbors.tolist() == sorted(set(neighbors.tolist()))
            assert_array_equal(np.minimum(neighbors, node), union.source_E[edges])
            assert_array_equal(np.maximum(neighbors, node), union.target_E[edges])
            assert union.degree[node] == len(neighbors)


def test_more_lags_than_a_word_holds():
    graph = toy_graph(*([[(0, 1)]] + [[]] * 63 + [[(0, 1), (1, 2)]] + [[]] * 65))
    union = build_union_graph(graph, until=130)
    assert union.presence_EW.shape == (2, 3)
    assert lags_of(union, 0) == {129, 65}
    assert lags_of(union, 1) == {65}
    assert union.presence_EW.dtype == np.uint64


def test_connections_equal_all_pairs_asked_one_by_one():
    for graph, generator in random_graphs(300, seed=2):
        union = build_union_graph(graph, until=graph.num_steps)
        rows, columns = (
            generator.permutation(union.num_nodes)[: generator.integers(0, union.num_nodes + 1)] for _ in range(2)
        )
        row_P, column_P, edge_P = connections(union, rows, columns)
        found = list(zip(row_P.tolist(), column_P.tolist(), strict=True))
        assert len(set(found)) == len(found)
        linked = dense_union(union)[np.ix_(rows, columns)]
        assert set(found) == set(zip(*(axis.tolist() for axis in np.nonzero(linked)), strict=True))
        assert_array_equal(np.minimum(rows[row_P], columns[column_P]), union.source_E[edge_P])
        assert_array_equal(np.maximum(rows[row_P], columns[column_P]), union.target_E[edge_P])


@pytest.mark.parametrize("name", NAMED)
def test_awkward_graphs_have_a_union(name):
    union = named_union(name)
    assert len(union.neighbor_M) == 2 * len(union.source_E) == union.indptr_N1[-1]
    everyone = np.arange(union.num_nodes)
    assert len(connections(union, everyone, everyone)[0]) == 2 * len(union.source_E)


def test_later_steps_leave_no_trace():
    early = [[(0, 1), (1, 2)], [(0, 2)]]
    one = build_union_graph(toy_graph(*early, [(0, 3), (1, 2)]), until=2)
    other = build_union_graph(toy_graph(*early, [(5, 6)] * 3, [(2, 9)]), until=2)
    for name, value in vars(one).items():
        assert_array_equal(value, vars(other)[name], err_msg=name)
    changed = build_union_graph(toy_graph([(0, 1), (0, 2)], [(0, 2)]), until=2)
    assert changed.source_E.tolist() != one.source_E.tolist()


@pytest.mark.parametrize("until", [0, 3, -1])
def test_a_step_that_is_not_there_is_named(until):
    with pytest.raises(ValueError, match=f"until = {until}: expected one of the graph's steps 1 to 2"):
        build_union_graph(toy_graph([(0, 1)], [(1, 2)]), until=until)


def test_a_window_without_steps_is_refused():
    with pytest.raises(ValueError, match="expected at least 1"):
        build_union_graph(toy_graph([(0, 1)]), until=1, window=0)
