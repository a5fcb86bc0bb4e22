"""The union graph; its compiled loops run by the interpreter, which raises on an index beyond the end of an array."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from graph_cases import NAMED, dense_adjacency, dense_union, named_union, random_graphs
from numpy.testing import assert_array_equal
from toy_graphs import toy_graph

from dyformer.graphs.kernels.union import _field_of
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.graphs.union_graph import (
    TemporalUnionGraph,
    build_union_graph,
    connections,
    part_of_union,
)


def assert_equal_unions(one: TemporalUnionGraph, other: TemporalUnionGraph) -> None:
    for name in (*(field.name for field in fields(one)), "source_E", "target_E"):
        found, expected = np.asarray(getattr(one, name)), np.asarray(getattr(other, name))
        assert found.dtype == expected.dtype, name
        assert_array_equal(found, expected, err_msg=name)


def emptied(graph: DynamicGraph, step: int) -> DynamicGraph:
    """The graph without the edges of a step."""
    none = np.empty(0, dtype=np.int64)
    return replace(
        graph,
        snapshots=tuple(
            replace(snapshot, source_E=none, target_E=none) if snapshot.step == step else snapshot
            for snapshot in graph.snapshots
        ),
    )


def long_history(num_steps: int) -> DynamicGraph:
    """More steps than a word has bits; pairs appear, recur and disappear, and new nodes get the highest numbers."""
    generator = np.random.default_rng(5)
    steps = [[(0, 1)]] + [
        [(int(a), int(b)) for a, b in generator.integers(2 + step // 10, size=(2, 2)) if a != b]
        for step in range(1, num_steps)
    ]
    return toy_graph(*steps)


def lags_of(union, edge: int) -> set[int]:
    words = union.presence_EW[edge].tolist()
    return {64 * index + bit for index, word in enumerate(words) for bit in range(64) if word >> bit & 1}


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
        assert [lags_of(union, edge) for edge in range(len(pairs))] == [{until - s for s in steps[p]} for p in pairs]
        assert (union.num_nodes, union.first_step) == (graph.snapshots[until - 1].num_nodes, first_step)
        assert_array_equal(union.adjacency.toarray(), dense_adjacency(graph, first_step, until))


def test_rows_hold_neighbours_in_order_and_edges_last():
    for graph, _ in random_graphs(100, seed=1):
        union = build_union_graph(graph, until=graph.num_steps)
        for node in range(union.num_nodes):
            neighbors = union.neighbor_M[union.indptr_N1[node] : union.indptr_N1[node + 1]].tolist()
            edges = slice(union.edge_indptr_N1[node], union.edge_indptr_N1[node + 1])
            assert neighbors == sorted(set(neighbors))
            assert set(union.source_E[edges].tolist()) <= {node}
            assert union.target_E[edges].tolist() == [other for other in neighbors if other > node]
            assert union.degree[node] == len(neighbors)


def test_more_lags_than_a_word_holds():
    graph = toy_graph(*([[(0, 1)]] + [[]] * 63 + [[(0, 1), (1, 2)]] + [[]] * 65))
    union = build_union_graph(graph, until=130)
    assert union.presence_EW.shape == (2, 3)
    assert lags_of(union, 0) == {129, 65}
    assert lags_of(union, 1) == {65}
    assert union.presence_EW.dtype == np.uint64


def test_a_hidden_step_adds_no_edge():
    for graph, generator in random_graphs(150, seed=4):
        until = int(generator.integers(1, graph.num_steps + 1))
        hidden_step = int(generator.integers(1, graph.num_steps + 1))
        for window in (None, 2):
            found = build_union_graph(graph, until=until, window=window, hidden_step=hidden_step)
            assert_equal_unions(found, build_union_graph(emptied(graph, hidden_step), until=until, window=window))


def test_a_part_of_a_union_equals_uniting_its_steps():
    for graph, generator in random_graphs(300, seed=7):
        whole = int(generator.integers(1, graph.num_steps + 1))
        union = build_union_graph(graph, until=whole, window=int(generator.integers(1, whole + 1)))
        for until in range(union.first_step, whole + 1):
            num_nodes, window = graph.snapshots[until - 1].num_nodes, until - union.first_step + 1
            for hidden_step in (None, int(generator.integers(1, whole + 1))):
                part = part_of_union(union, until=until, num_nodes=num_nodes, hidden_step=hidden_step)
                united = build_union_graph(graph, until=until, window=window, hidden_step=hidden_step)
                assert_equal_unions(part, united)


@pytest.mark.parametrize("until", [1, 63, 64, 65, 127, 128, 129, 139, 140])
def test_a_part_of_a_long_union_has_the_bits_of_its_words(until):
    graph = long_history(140)
    union = build_union_graph(graph, until=140)
    for hidden_step in (None, 1, 64, until, until - 1):
        part = part_of_union(
            union, until=until, num_nodes=graph.snapshots[until - 1].num_nodes, hidden_step=hidden_step
        )
        assert_equal_unions(part, build_union_graph(graph, until=until, hidden_step=hidden_step))


def test_a_part_leaves_its_union_as_it_is_and_references_none_of_its_arrays():
    graph = long_history(70)
    union = build_union_graph(graph, until=70)
    before = [np.copy(getattr(union, field.name)) for field in fields(union)]
    part = part_of_union(union, until=3, num_nodes=graph.snapshots[2].num_nodes)
    part.neighbor_M[:], part.presence_EW[:] = 0, 0
    for field, expected in zip(fields(union), before, strict=True):
        assert_array_equal(getattr(union, field.name), expected)


@pytest.mark.parametrize("until", [1, 4])
def test_a_step_outside_of_a_union_has_no_part(until):
    union = build_union_graph(toy_graph([(0, 1)], [(1, 2)], [(0, 2)]), until=3, window=2)
    with pytest.raises(ValueError, match=f"until = {until}: expected one of the union's steps 2 to 3"):
        part_of_union(union, until=until, num_nodes=3)


def test_connections_equal_all_pairs_looked_up_one_by_one():
    for graph, generator in random_graphs(300, seed=2):
        union = build_union_graph(graph, until=graph.num_steps)
        rows, columns = (
            generator.permutation(union.num_nodes)[: generator.integers(0, union.num_nodes + 1)] for _ in range(2)
        )
        row_P, column_P, edge_P = connections(union, rows, columns)
        found = list(zip(row_P.tolist(), column_P.tolist(), strict=True))
        assert len(set(found)) == len(found)
        is_edge = dense_union(union)[np.ix_(rows, columns)]
        assert set(found) == set(zip(*(axis.tolist() for axis in np.nonzero(is_edge)), strict=True))
        assert_array_equal(np.minimum(rows[row_P], columns[column_P]), union.source_E[edge_P])
        assert_array_equal(np.maximum(rows[row_P], columns[column_P]), union.target_E[edge_P])


def test_connections_of_a_busy_row_come_in_order_of_the_columns_nodes():
    hub = toy_graph([(5, node) for node in range(300) if node != 5], [(7, 299)])
    union = build_union_graph(hub, until=2)
    columns = np.array([299, 0, 128, 7, 64, 4, 292])
    row_P, column_P, edge_P = connections(union, np.array([5, 7]), columns)
    assert row_P.tolist() == [0] * 7 + [1]
    assert columns[column_P].tolist() == [0, 4, 7, 64, 128, 292, 299, 299]
    assert union.target_E[edge_P].tolist() == [5, 5, 7, 64, 128, 292, 299, 299]


def test_connections_to_more_columns_than_the_least_hash_table_has_fields():
    path = build_union_graph(toy_graph([(node, node + 1) for node in range(999)]), until=1)
    columns = np.arange(0, 1000, 2)[::-1].copy()
    row_P, column_P, edge_P = connections(path, np.array([0, 1, 500, 999]), columns)
    found = list(zip(row_P.tolist(), columns[column_P].tolist(), edge_P.tolist(), strict=True))
    assert found == [(1, 0, 0), (1, 2, 1), (3, 998, 998)]


def test_a_union_of_recurring_edges_references_no_array_of_all_of_them():
    presence_EW = build_union_graph(toy_graph(*[[(0, 1), (1, 2)]] * 50), until=50).presence_EW
    held: Any = presence_EW if presence_EW.base is None else presence_EW.base
    assert memoryview(held).nbytes == 2 * 8


@pytest.mark.parametrize("name", NAMED)
def test_special_cases_have_a_union(name):
    union = named_union(name)
    assert len(union.neighbor_M) == 2 * len(union.source_E) == union.indptr_N1[-1]
    everyone = np.arange(union.num_nodes)
    assert len(connections(union, everyone, everyone)[0]) == 2 * len(union.source_E)


def test_later_steps_leave_no_trace():
    early = [[(0, 1), (1, 2)], [(0, 2)]]
    one = build_union_graph(toy_graph(*early, [(0, 3), (1, 2)]), until=2)
    other = build_union_graph(toy_graph(*early, [(5, 6)] * 3, [(2, 9)]), until=2)
    assert_equal_unions(one, other)
    changed = build_union_graph(toy_graph([(0, 1), (0, 2)], [(0, 2)]), until=2)
    assert changed.source_E.tolist() != one.source_E.tolist()


@pytest.mark.parametrize("until", [0, 3, -1])
def test_a_missing_step_is_named(until):
    with pytest.raises(ValueError, match=f"until = {until}: expected one of the graph's steps 1 to 2"):
        build_union_graph(toy_graph([(0, 1)], [(1, 2)]), until=until)


def test_more_nodes_than_keys_can_number_are_refused():
    graph = toy_graph([(0, 1)], [(0, 1)])
    large = replace(graph.snapshots[1], num_nodes=2**31)
    with pytest.raises(ValueError, match="2147483648 nodes at 2 steps are too many to unite"):
        build_union_graph(replace(graph, snapshots=(graph.snapshots[0], large)), until=2)


def test_a_window_without_steps_is_refused():
    with pytest.raises(ValueError, match="expected at least 1"):
        build_union_graph(toy_graph([(0, 1)]), until=1, window=0)


def test_a_full_field_is_skipped_and_the_first_field_follows_the_last():
    node_F = np.full(64, -1, dtype=np.int64)
    last = [node for node in range(1_000) if _field_of.py_func(node, node_F) == 63][:3]
    for node, field in zip(last, (63, 0, 1), strict=True):
        assert _field_of.py_func(node, node_F) == field
        node_F[field] = node
    assert [_field_of.py_func(node, node_F) for node in last] == [63, 0, 1]
