"""Matrices of snapshots against dense algebra and networkx."""

import networkx as nx
import numpy as np
import pytest
from toy_graphs import random_graph, toy_graph

from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.sampling.adjacency import adjacency, gcn_matrix, window_snapshots


def test_adjacency_is_that_of_networkx_without_weights_and_has_rows_for_later_nodes():
    snapshot = toy_graph([(0, 1), (0, 1), (1, 2), (3, 0)]).snapshots[0]
    expected = nx.to_numpy_array(nx.Graph([(0, 1), (1, 2), (0, 3)]), nodelist=range(4))
    np.testing.assert_array_equal(adjacency(snapshot).toarray(), expected)
    assert adjacency(snapshot, 6).shape == (6, 6)
    np.testing.assert_array_equal(adjacency(snapshot, 6).toarray()[:4, :4], expected)


def test_gcn_matrix_is_the_symmetrically_normalised_adjacency_with_loops():
    snapshot = random_graph(np.random.default_rng(0), num_nodes=12, num_steps=1, num_edges=15).snapshots[0]
    looped_NN = adjacency(snapshot).toarray() + np.eye(12)
    scale_NN = np.diag(np.linalg.inv(np.diag(looped_NN.sum(axis=1))).diagonal() ** 0.5)
    np.testing.assert_allclose(
        gcn_matrix(adjacency(snapshot)).to_dense(), scale_NN @ looped_NN @ scale_NN, rtol=1e-6, atol=1e-7
    )


@pytest.mark.parametrize(
    ("window", "until", "steps"), [(2, None, [4, 5]), (2, 3, [2, 3]), (9, 2, [1, 2]), (None, 3, [1, 2, 3])]
)
def test_window_is_that_of_the_union_graph(window: int | None, until: int | None, steps: list[int]):
    log = random_graph(np.random.default_rng(0), num_nodes=8, num_steps=7, num_edges=9)
    graph = prepare_graph(log, until=5, config=GraphConfig(history_window=window))
    assert [snapshot.step for snapshot in window_snapshots(graph, until=until)] == steps
    whole = window_snapshots(graph)
    assert whole[0].step == graph.union.first_step
    assert whole[-1].step == graph.union.until
