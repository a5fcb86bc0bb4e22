"""Matrices of snapshots against dense algebra and networkx; sampled columns against the loss over all columns."""

import networkx as nx
import numpy as np
import pytest
import torch
from toy_graphs import random_graph, toy_graph

from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.sampling.adjacency import (
    adjacency,
    gcn_matrix,
    input_tensor,
    reconstruction_losses,
    row_targets,
    window_snapshots,
)

MATRIX = adjacency(random_graph(np.random.default_rng(0), num_nodes=40, num_steps=1, num_edges=30).snapshots[0])
ROWS = MATRIX[np.array([3, 0, 7, 11])]


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


def whole_losses(output_UN: np.ndarray, beta: float) -> np.ndarray:
    """SDNE's equation 3, row by row."""
    target_UN = ROWS.toarray()
    return np.array(
        [
            sum(((x_hat - x) * (beta if x > 0 else 1)) ** 2 for x_hat, x in zip(found, row, strict=True))
            for found, row in zip(output_UN, target_UN, strict=True)
        ]
    )


def sampled_losses(output_UN: np.ndarray, num_empty: int, seed: int) -> np.ndarray:
    targets = row_targets(ROWS, num_empty, np.random.default_rng(seed))
    return reconstruction_losses(torch.tensor(output_UN)[:, targets.column_C].float(), targets, 3.0).numpy()


def test_loss_of_all_columns_is_that_of_the_article():
    output_UN = np.random.default_rng(1).normal(size=ROWS.shape)
    np.testing.assert_allclose(sampled_losses(output_UN, 40, 0), whole_losses(output_UN, 3.0), rtol=1e-4)


def test_loss_of_sampled_empty_columns_is_that_of_all_on_average_and_exact_on_edges():
    output_UN = np.random.default_rng(1).normal(size=ROWS.shape)
    losses = np.array([sampled_losses(output_UN, 5, seed) for seed in range(3000)])
    assert losses.std(axis=0).min() > 0.1
    np.testing.assert_allclose(losses.mean(axis=0), whole_losses(output_UN, 3.0), rtol=0.02)
    used = ROWS.toarray().any(axis=0)
    targets = row_targets(ROWS, 5, np.random.default_rng(0))
    assert len(targets.column_C) == used.sum() + 5
    assert set(np.flatnonzero(used)) <= set(targets.column_C.tolist())
    assert targets.weight_C.sum().item() == pytest.approx(40)
    np.testing.assert_array_equal(targets.target_UC, ROWS.toarray()[:, targets.column_C])


def test_input_is_the_rows():
    np.testing.assert_array_equal(input_tensor(ROWS).to_dense(), ROWS.toarray())
