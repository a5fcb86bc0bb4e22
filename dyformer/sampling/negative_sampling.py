"""Degrees of nodes, or positive pairs -> negative ones, as in word2vec (Mikolov et al., 2013).

N nodes    M negative pairs    K keys of pairs
"""

import numpy as np
from numpy.typing import NDArray

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
