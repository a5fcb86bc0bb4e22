"""Adjacency -> random walks, and the pairs of nodes near each other on them.

N nodes    S walks    L nodes of a walk    P pairs
"""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dyformer.graphs.kernels.walks import second_order_walks
from dyformer.sampling.pairs import Pairs


def random_walks(
    adjacency: sparse.csr_array,
    generator: np.random.Generator,
    *,
    num_walks: int,
    length: int,
    return_parameter: float = 1.0,
    in_out_parameter: float = 1.0,
) -> NDArray[np.int32]:
    """Give `num_walks` walks of `length` nodes from every node with an edge, in random order, [S, L].

    A step back has the weight 1 / `return_parameter` (p), one to a neighbour of the node before 1, and any other one
    1 / `in_out_parameter` (q). The rows of the adjacency are sorted; its values are not read.
    """
    start_S = np.repeat(np.flatnonzero(np.diff(adjacency.indptr)), num_walks)
    biases = (1 / return_parameter, 1.0, 1 / in_out_parameter)
    start_S = generator.permutation(start_S)
    return second_order_walks(adjacency.indptr, adjacency.indices, start_S, length, biases, generator)


def walk_pairs(walk_SL: NDArray[np.int32], window: int) -> Pairs:
    """Give every ordered pair of different nodes at most `window` nodes apart on a walk, as often as it occurs."""
    firsts, seconds = [], []
    for distance in range(1, min(window, walk_SL.shape[1] - 1) + 1):
        near, far = walk_SL[:, :-distance].ravel(), walk_SL[:, distance:].ravel()
        firsts += [near, far]
        seconds += [far, near]
    source_P, target_P = (np.concatenate([np.empty(0, np.int32), *ends]) for ends in (firsts, seconds))
    differs_P = source_P != target_P
    return source_P[differs_P].astype(np.int64), target_P[differs_P].astype(np.int64)
