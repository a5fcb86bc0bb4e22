"""Draws of negative pairs against their definition, and the loss written plainly."""

import numpy as np
import pytest
import torch

from dyformer.sampling.negative_sampling import (
    drawn,
    inner_products,
    negative_sampling_loss,
    noise,
    uniform_negatives,
)
from dyformer.sampling.pairs import pair_keys


def test_noise_is_drawn_in_proportion_to_the_degree_to_the_power_three_quarters():
    degree_N = np.array([1, 0, 16, 81])
    count_N = np.bincount(drawn(noise(degree_N), (300, 300), np.random.default_rng(0)).ravel(), minlength=4)
    np.testing.assert_allclose(count_N / count_N.sum(), np.array([1, 0, 8, 27]) / 36, atol=0.005)


def test_uniform_negatives_are_all_other_pairs_alike():
    positives = np.array([0, 0, 2]), np.array([1, 3, 3])
    keys = np.sort(pair_keys(5, *positives))
    source_M, target_M = uniform_negatives(5, keys, 50_000, np.random.default_rng(0))
    pairs, counts = np.unique(np.sort([source_M, target_M], axis=0), axis=1, return_counts=True)
    found = set(map(tuple, pairs.T.tolist()))
    assert found == {(a, b) for a in range(5) for b in range(a + 1, 5)} - {(0, 1), (0, 3), (2, 3)}
    np.testing.assert_allclose(counts / counts.sum(), 1 / 7, atol=0.01)


def test_loss_is_the_mean_log_likelihood_of_each_kind():
    positive, negative = np.array([0.5, -2.0]), np.array([[1.0, 0.0], [3.0, -1.0]])
    expected = -np.mean(np.log(1 / (1 + np.exp(-positive))))
    expected -= 0.1 * np.mean(np.log(1 - 1 / (1 + np.exp(-negative))))
    loss = negative_sampling_loss(torch.tensor(positive), torch.tensor(negative), 0.1)
    assert loss.item() == pytest.approx(expected)
    assert negative_sampling_loss(torch.empty(0), torch.empty(0)).item() == 0


def test_inner_products_are_those_of_the_ends():
    vector_ND = torch.arange(6.0).reshape(3, 2)
    found = inner_products(vector_ND, np.array([0, 2]), np.array([1, 2]))
    assert found.tolist() == [3.0, 41.0]
