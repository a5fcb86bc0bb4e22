import networkx as nx
import numpy as np
import pytest
from ranked_logs import growing_log

from dyformer.baselines import proximity
from dyformer.baselines.proximity import PersonalizedPageRank, ShortestPath
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import prepare_graph

GRAPH = prepare_graph(growing_log(num_rows=30), until=3, config=GraphConfig())
NUM_NODES = len(GRAPH.history.node_N)
SOURCE_P, TARGET_P = (end_P.ravel() for end_P in np.meshgrid(np.arange(NUM_NODES), np.arange(NUM_NODES)))


def union() -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from(range(NUM_NODES))
    for snapshot in GRAPH.history.snapshots:
        graph.add_edges_from(zip(snapshot.source_E.tolist(), snapshot.target_E.tolist(), strict=True))
    return graph


def test_pagerank_is_the_sum_of_both_exact_ranks():
    adjacency = nx.to_numpy_array(union(), nodelist=range(NUM_NODES))
    walk = adjacency / np.maximum(adjacency.sum(axis=0), 1)
    exact = 0.15 * np.linalg.inv(np.eye(NUM_NODES) - 0.85 * walk)  # column s: ranks from s
    differ = SOURCE_P != TARGET_P
    found = PersonalizedPageRank().fit_pairs(GRAPH, ())(SOURCE_P[differ], TARGET_P[differ])
    expected = exact[TARGET_P, SOURCE_P] + exact[SOURCE_P, TARGET_P]
    np.testing.assert_allclose(found, expected[differ], atol=2e-4)
    assert found.std() > 0.01


def test_shortest_path_is_minus_the_distance_up_to_its_limit():
    distance = dict(nx.all_pairs_shortest_path_length(union()))
    expected = [-min(distance[s].get(t, 6), 6) for s, t in zip(SOURCE_P.tolist(), TARGET_P.tolist(), strict=True)]
    found = ShortestPath().fit_pairs(GRAPH, ())(SOURCE_P, TARGET_P)
    np.testing.assert_array_equal(found, expected)
    assert len(set(expected)) >= 4
    near = ShortestPath(max_distance=2).fit_pairs(GRAPH, ())(SOURCE_P, TARGET_P)
    np.testing.assert_array_equal(near, np.maximum(expected, -2))


@pytest.mark.parametrize("method", [PersonalizedPageRank(), ShortestPath()])
def test_blocks_and_the_order_of_pairs_change_nothing(method, monkeypatch: pytest.MonkeyPatch):
    order_P = np.random.default_rng(0).permutation(len(SOURCE_P))
    whole = method.fit_pairs(GRAPH, ())(SOURCE_P, TARGET_P)
    monkeypatch.setattr(proximity, "BLOCK_NUMBERS", 100)
    blocks = method.fit_pairs(GRAPH, ())(SOURCE_P[order_P], TARGET_P[order_P])
    np.testing.assert_allclose(blocks, whole[order_P], rtol=1e-12)
