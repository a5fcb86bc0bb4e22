"""Positive pairs -> negative ones and the loss on both, as in word2vec (Mikolov et al., 2013).

N nodes    D width    P pairs (the positive ones where both are there)    M negative pairs    K keys of pairs
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from dyformer.sampling.pairs import Pairs, is_among, pair_keys

NOISE_POWER = 0.75


def noise(degree_N: NDArray[np.integer]) -> NDArray[np.float64]:
    """Give the cumulative noise distribution [N]: a node is drawn in proportion to its degree to the power 3/4."""
    total_N = np.cumsum(degree_N.astype(np.float64) ** NOISE_POWER)
    return total_N / total_N[-1]


def drawn(cumulative_N: NDArray[np.float64], size: int | tuple[int, ...], generator: np.random.Generator) -> NDArray:
    """Draw nodes with repeats from a cumulative distribution."""
    return np.searchsorted(cumulative_N, generator.random(size), side="right")


def uniform_negatives(
    num_nodes: int, positive_key_K: NDArray[np.int64], num: int, generator: np.random.Generator
) -> Pairs:
    """Draw `num` pairs of nodes with repeats, all equally likely; drop equal ends and those among the sorted keys."""
    source_M, target_M = generator.integers(num_nodes, size=(2, num))
    is_negative_M = source_M != target_M
    is_negative_M &= ~is_among(pair_keys(num_nodes, source_M, target_M), positive_key_K)
    return source_M[is_negative_M], target_M[is_negative_M]


def negative_sampling_loss(positive_P: Tensor, negative_M: Tensor, negative_weight: float = 1.0) -> Tensor:
    """Mean of -log sigmoid(s) over positives + `negative_weight` x mean of -log sigmoid(-s) over negatives.

    Scores of any shape; a mean over no pairs is 0.
    """
    positive = functional.softplus(-positive_P).sum() / max(positive_P.numel(), 1)
    return positive + negative_weight * functional.softplus(negative_M).sum() / max(negative_M.numel(), 1)


def inner_products(vector_ND: Tensor, source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> Tensor:
    """Give the inner product of the vectors of each pair, [P]."""
    # Rows are copied by index_select, because the gradient of plain indexing is several times as slow.
    source_PD, target_PD = (vector_ND.index_select(0, torch.from_numpy(end_P)) for end_P in (source_P, target_P))
    return (source_PD * target_PD).sum(dim=1)
