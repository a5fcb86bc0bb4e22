"""Adjacency and seeds -> Personalized PageRank: Chebyshev iteration, power iteration and forward push, in scipy.

N nodes    B rows of a block, one seed each    E entries of sparse rows
"""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Float64s = NDArray[np.float64]

POWER_TOLERANCE = 1e-14  # of the whole mass of 1, below which a step is taken for rounding error


def chebyshev(adjacency_NN: sparse.csr_array, seed_NB: Float64s, teleport: float, num_iterations: int) -> Float64s:
    """Solve pi = teleport * seed + (1 - teleport) * A D^-1 pi for one seed [N] or for each column [N, B].

    A is symmetric, weighted or not, and D its row sums. With x = D^-1/2 pi the matrix of the system is symmetric with
    eigenvalues within 1 -+ (1 - teleport), and the Chebyshev semi-iterative method of Golub and Varga (1961) applies:
    every iteration reads the graph once. Of a seed without neighbours the restart mass stays, the rest is lost.
    """
    degree_N = np.asarray(adjacency_NN.sum(axis=1), dtype=np.float64)
    root_N = np.sqrt(np.where(degree_N > 0, degree_N, 1)).reshape(-1, *[1] * (seed_NB.ndim - 1))
    walk_N = (1 - teleport) / root_N
    start_NB = teleport * seed_NB / root_N
    before_NB, now_NB = np.zeros_like(start_NB), start_NB
    weight = 2.0
    for _ in range(num_iterations):
        weight = 1 / (1 - (1 - teleport) ** 2 * weight / 4)
        step_NB = walk_N * (adjacency_NN @ (now_NB / root_N))
        step_NB += start_NB
        step_NB -= before_NB
        step_NB *= weight
        step_NB += before_NB
        before_NB, now_NB = now_NB, step_NB
    return now_NB * root_N


def power_iteration(adjacency_NN: sparse.csr_array, seed_N: Float64s, teleport: float) -> Float64s:
    """Solve pi = teleport * seed + (1 - teleport) * A' D^-1 pi to rounding error for a directed A, from row to column.

    D are the out-degrees, or sums of weights. A walk that reaches a node without out-edges ends there, so that the
    scores then sum to less than 1; sending it back to the seed instead only divides all scores by their sum.
    """
    degree_N = np.asarray(adjacency_NN.sum(axis=1), dtype=np.float64)
    share_N = (1 - teleport) / np.where(degree_N > 0, degree_N, 1)
    backward_NN = adjacency_NN.T.tocsr()
    now_N, change_N = np.zeros(len(seed_N)), teleport * seed_N
    while change_N.sum() > POWER_TOLERANCE:
        now_N = now_N + change_N
        change_N = backward_NN @ (share_N * change_N)
    return now_N


def pushed_rows(
    adjacency_NN: sparse.csr_array, node_B: NDArray[np.int64], teleport: float, epsilon: float
) -> sparse.csr_array:
    """Give the PageRank rows [B, N] of single nodes by forward push (Andersen, Chung and Lang 2006).

    All residuals of at least `epsilon` times the degree are pushed at once until none is left; what stays counts with
    its restart share, which brings the error at a node to at most `epsilon` times its degree. A is symmetric and 0/1.
    """
    shape = (len(node_B), len(adjacency_NN.indptr) - 1)
    residual = sparse.csr_array((np.ones(len(node_B)), node_B, np.arange(len(node_B) + 1)), shape=shape)
    degree_N = np.maximum(np.diff(adjacency_NN.indptr), 1.0)
    parts = []
    while True:
        large_E = residual.data >= epsilon * degree_N[residual.indices]
        if not large_E.any():
            return _summed([*parts, teleport * residual], shape)
        pushed = _entries(residual, large_E)
        parts.append(teleport * pushed)
        spread = pushed.copy()
        spread.data *= (1 - teleport) / degree_N[pushed.indices]
        received = spread @ adjacency_NN
        received.sort_indices()  # so that the sum of a row does not depend on the rows beside it
        residual = _entries(residual, ~large_E) + received


def _summed(parts: list[sparse.csr_array], shape: tuple[int, int]) -> sparse.csr_array:
    # All at once: adding each round to a growing sum took most of the time.
    entries = [part.tocoo().coords for part in parts]
    row_E, column_E = (np.concatenate([coords[axis] for coords in entries]) for axis in (0, 1))
    value_E = np.concatenate([part.data for part in parts])
    return sparse.coo_array((value_E, (row_E, column_E)), shape=shape).tocsr()


def _entries(rows: sparse.csr_array, kept_E: NDArray[np.bool_]) -> sparse.csr_array:
    indptr = np.concatenate([[0], np.cumsum(kept_E)])[rows.indptr]
    return sparse.csr_array((rows.data[kept_E], rows.indices[kept_E], indptr), shape=rows.shape)
