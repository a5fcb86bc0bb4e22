"""Columns to reconstruct and their loss against the loss over all columns."""

import numpy as np
import pytest
import torch
from toy_graphs import random_graph

from dyformer.sampling.adjacency import adjacency, input_tensor, reconstruction_losses, row_targets

MATRIX = adjacency(random_graph(np.random.default_rng(0), num_nodes=40, num_steps=1, num_edges=30).snapshots[0])
ROWS = MATRIX[np.array([3, 0, 7, 11])]


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
