import itertools
import math

import networkx as nx
import numpy as np
import pytest
from toy_graphs import random_graph, toy_graph

from dyformer.graphs.snapshots import DynamicGraph
from dyformer.scoring import pair_features
from dyformer.scoring.pair_features import (
    FEATURE_NAMES,
    busier_end_first,
    find_edges,
    grouped_by_busier_end,
    path_scores,
    prepare_pair_features,
    union_edges,
)

#  0-1-2-3-4 and 5 alone; 0-1 recurs, 3-4 is only in the first snapshot
HISTORY = toy_graph([(0, 1), (3, 4), (2, 5)], [(1, 2)], [(0, 1), (2, 3)])


def all_pairs(num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    return np.triu_indices(num_nodes, k=1)


def plain_features(history: DynamicGraph, i: int, j: int) -> list[float]:
    """The definitions, computed from sets of neighbours."""
    steps = [
        {frozenset(edge) for edge in zip(s.source_E.tolist(), s.target_E.tolist(), strict=True)}
        for s in history.snapshots
    ]
    union = set().union(*steps)
    near = {
        node: {next(iter(edge - {node})) for edge in union if node in edge}
        for node in range(history.snapshots[-1].num_nodes)
    }

    def degree(node, edges):
        return sum(node in edge for edge in edges)

    def since_active(node):
        active = [step for step, edges in enumerate(steps, start=1) if degree(node, edges)]
        return len(steps) - max(active)

    linked = [step for step, edges in enumerate(steps, start=1) if {i, j} in edges]
    common = near[i] & near[j]
    paths = [(a, b) for a in near[i] for b in near[j] if b in near[a]]
    root = [
        math.sqrt(len(near[i]) * len(near[a]) * len(near[a]) * len(near[b]) * len(near[b]) * len(near[j]))
        for a, b in paths
    ]
    d_i, d_j = math.log1p(len(near[i])), math.log1p(len(near[j]))
    last_i, last_j = math.log1p(degree(i, steps[-1])), math.log1p(degree(j, steps[-1]))
    return [
        float(bool(linked)),
        len(linked),
        1 / (len(steps) + 1 - linked[-1]) if linked else 0,
        math.log1p(len(common)),
        sum(1 / math.log(len(near[node])) for node in common),
        math.log1p(1e4 * sum(1 / value for value in root)),
        d_i + d_j,
        d_i * d_j,
        abs(d_i - d_j),
        last_i + last_j,
        last_i * last_j,
        math.exp(-since_active(i)) + math.exp(-since_active(j)),
        math.exp(-since_active(i) - since_active(j)),
        math.log1p(sum(degree(i, edges) for edges in steps)) + math.log1p(sum(degree(j, edges) for edges in steps)),
    ]


def test_features_equal_their_definitions():
    source_P, target_P = all_pairs(6)
    expected = [plain_features(HISTORY, i, j) for i, j in zip(source_P.tolist(), target_P.tolist(), strict=True)]
    table = prepare_pair_features(HISTORY).table(source_P, target_P)
    assert table.shape == (15, len(FEATURE_NAMES)) == (15, 14)
    np.testing.assert_allclose(table, expected, rtol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_features_equal_their_definitions_on_random_graphs(seed: int):
    history = random_graph(np.random.default_rng(seed), num_nodes=12, num_steps=4, num_edges=9)
    linked = {node for s in history.snapshots for node in (*s.source_E.tolist(), *s.target_E.tolist())}
    pairs = [pair for pair in itertools.combinations(range(12), 2) if linked.issuperset(pair)]
    expected = [plain_features(history, i, j) for i, j in pairs]
    table = prepare_pair_features(history).table(*np.array(pairs).T)
    np.testing.assert_allclose(table, expected, rtol=1e-12)


def test_features_of_a_pair_at_distance_three_by_hand():
    features = dict(
        zip(FEATURE_NAMES, prepare_pair_features(HISTORY).table(np.array([0]), np.array([3]))[0], strict=True)
    )
    assert features["seen"] == features["num_steps_linked"] == features["inverse_steps_since_link"] == 0
    assert features["log_common_neighbors"] == features["adamic_adar"] == 0
    # the one path 0-1-2-3 over degrees 1, 2, 3, 2
    assert features["log_l3"] == pytest.approx(math.log1p(1e4 / math.sqrt(1 * 2 * 2 * 3 * 3 * 2)))
    # 0 and 3 are both active in the newest of the three snapshots
    assert features["sum_activity"] == 2
    assert features["product_activity"] == 1


def test_paths_equal_networkx_and_the_dense_cube():
    history = random_graph(np.random.default_rng(7), num_nodes=40, num_steps=3, num_edges=50)
    union = nx.Graph()
    union.add_nodes_from(range(40))
    for snapshot in history.snapshots:
        union.add_edges_from(zip(snapshot.source_E.tolist(), snapshot.target_E.tolist(), strict=True))
    pairs = list(itertools.combinations(range(40), 2))
    common_P, adamic_P, l3_P = path_scores(prepare_pair_features(history), *np.array(pairs).T)
    np.testing.assert_array_equal(common_P, [len(list(nx.common_neighbors(union, *pair))) for pair in pairs])
    np.testing.assert_allclose(adamic_P, [value for *_, value in nx.adamic_adar_index(union, pairs)])
    degree = np.maximum([union.degree[node] for node in range(40)], 1)
    walk = nx.to_numpy_array(union, nodelist=range(40)) / np.sqrt(np.outer(degree, degree))
    np.testing.assert_allclose(l3_P, np.linalg.matrix_power(walk, 3)[tuple(np.array(pairs).T)], atol=1e-12)


def test_direction_of_a_pair_does_not_matter():
    history = random_graph(np.random.default_rng(1), num_nodes=15, num_steps=3, num_edges=20)
    source_P, target_P = all_pairs(15)
    features = prepare_pair_features(history)
    np.testing.assert_array_equal(features.table(source_P, target_P), features.table(target_P, source_P))


def test_a_pair_that_was_never_linked_has_no_edge():
    whole = toy_graph([(0, 1), (1, 2)], [])
    empty = DynamicGraph(snapshots=whole.snapshots[1:], node_N=whole.node_N, side_N=whole.side_N)
    pairs = np.array([0, 0]), np.array([1, 2])
    assert find_edges(union_edges(whole), *pairs).tolist() == [0, -1]
    assert find_edges(union_edges(empty), *pairs).tolist() == [-1, -1]


def test_the_end_with_more_neighbours_comes_first_and_of_equal_ends_the_lower_number():
    source_P, target_P = np.array([0, 1, 2, 1, 0]), np.array([1, 0, 1, 2, 2])
    busy_P, other_P = busier_end_first(np.array([2.0, 2.0, 3.0]), source_P, target_P)
    assert (busy_P.tolist(), other_P.tolist()) == ([0, 0, 2, 2, 2], [1, 1, 1, 1, 0])


def test_features_of_a_pair_do_not_depend_on_the_other_pairs():
    history = random_graph(np.random.default_rng(2), num_nodes=30, num_steps=3, num_edges=60)
    source_P, target_P = all_pairs(30)
    features = prepare_pair_features(history)
    together = features.table(source_P, target_P)
    order_P = np.random.default_rng(0).permutation(len(source_P))
    np.testing.assert_array_equal(features.table(source_P[order_P], target_P[order_P]), together[order_P])
    np.testing.assert_array_equal(features.table(source_P[5:6], target_P[5:6]), together[5:6])


def test_a_block_equals_the_table_of_its_pairs():
    history = random_graph(np.random.default_rng(3), num_nodes=20, num_steps=3, num_edges=30)
    features = prepare_pair_features(history)
    row_S, column_C = np.array([3, 0, 7]), np.array([1, 19, 12, 4, 8])
    expected = features.table(np.repeat(row_S, 5), np.tile(column_C, 3)).T.reshape(-1, 3, 5)
    np.testing.assert_allclose(features.block(row_S, column_C), expected, rtol=1e-12, atol=1e-12)


def test_relabelling_nodes_changes_nothing():
    generator = np.random.default_rng(4)
    history = random_graph(generator, num_nodes=15, num_steps=3, num_edges=20)
    name_N = generator.permutation(15)
    renamed = toy_graph(
        *(list(zip(name_N[s.source_E].tolist(), name_N[s.target_E].tolist(), strict=True)) for s in history.snapshots),
        sides=[0] * 15,
    )
    source_P, target_P = all_pairs(15)
    np.testing.assert_allclose(
        prepare_pair_features(renamed).table(name_N[source_P], name_N[target_P]),
        prepare_pair_features(history).table(source_P, target_P),
        rtol=1e-12,
    )


def test_empty_windows_and_no_pairs_have_features():
    history = toy_graph([(0, 1), (1, 2)], [], [])
    table = prepare_pair_features(history).table(np.array([0, 0]), np.array([1, 2]))
    assert table[0, FEATURE_NAMES.index("inverse_steps_since_link")] == pytest.approx(1 / 3)
    assert table[1, FEATURE_NAMES.index("sum_log_last_degree")] == 0
    assert table[1, FEATURE_NAMES.index("sum_activity")] == pytest.approx(2 * math.exp(-2))
    assert prepare_pair_features(history).table(np.empty(0, dtype=int), np.empty(0, dtype=int)).shape == (0, 14)


def test_a_history_without_any_edge_has_features():
    nothing = toy_graph([(0, 1)], [])
    empty = DynamicGraph(snapshots=nothing.snapshots[1:], node_N=nothing.node_N, side_N=nothing.side_N)
    assert np.isfinite(prepare_pair_features(empty).table(np.array([0]), np.array([1]))).all()


@pytest.mark.parametrize("pair", [(0, 6), (-1, 2)])
def test_a_node_outside_the_history_is_refused(pair: tuple[int, int]):
    with pytest.raises(ValueError, match="expected nodes of the history, 0 to 5"):
        prepare_pair_features(HISTORY).table(np.array([pair[0]]), np.array([pair[1]]))


@pytest.mark.parametrize("block_pairs", [1 << 20, 7])
def test_pairs_of_one_busier_end_follow_each_other_in_their_order(block_pairs: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pair_features, "BLOCK_PAIRS", block_pairs)
    source_P, target_P = np.random.default_rng(1).integers(20, size=(2, 90))
    degree_N = np.random.default_rng(2).integers(5, size=20).astype(np.float64)
    order_P = grouped_by_busier_end(degree_N, source_P, target_P)
    ends = zip(source_P.tolist(), target_P.tolist(), strict=True)
    busier = [min(pair, key=lambda node: (-degree_N[node], node)) for pair in ends]
    assert order_P.tolist() == sorted(range(90), key=lambda pair: busier[pair])
