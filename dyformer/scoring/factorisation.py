"""A sparse matrix of contacts -> its best factors of low rank; a symmetric one -> its largest eigenvalues.

N nodes    K rank
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import eigsh, svds
from threadpoolctl import threadpool_limits

RANK = 32
SHORTEST = 1e-6
SMALLEST = 1e-11
TOLERANCE = 1e-6  # of eigenvalues; with NUM_VECTORS vectors a million edges take 60 % of the time of scipy's defaults
NUM_VECTORS = 3 * RANK  # of the iteration, at once
DENSE_NODES = 2 * RANK  # up to this size the exact decomposition of the dense matrix is as fast


@dataclass(frozen=True, kw_only=True)
class Factors:
    """Truncated singular value decomposition: `left_NK @ right_NK.T` is the nearest matrix of rank K.

    Singular values are divided evenly between both sides. The signs and the order of the columns mean nothing alone,
    but products and cosines of a left row and a right row do not depend on them. A row shorter than SHORTEST of the
    longest one is 0: it holds rounding errors, of which cosines would be noise. So is a number below SMALLEST of it:
    the errors of an iteration differ from run to run, and trees would split the products of nodes that no path joins.
    Where singular values at the RANK-th one are equal, as of parts of equal structure, any basis of their vectors is as
    good, and products across the parts need not be 0.
    """

    left_NK: NDArray[np.float32]
    right_NK: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """The eigenvalues of a symmetric matrix that are largest in magnitude, in that order, with their eigenvectors.

    The signs of the columns mean nothing alone, but products of two rows do not depend on them.
    """

    vector_NK: NDArray[np.float32]
    value_K: NDArray[np.float64]


# With two threads BLAS rounds otherwise than with one, and a worker may have one where this machine has two.
@threadpool_limits.wrap(limits=1, user_api="blas")
def spectrum(matrix: sparse.csr_array) -> Spectrum:
    """Give the RANK largest eigenvalues of a symmetric matrix [N, N]; all of them on a graph of few nodes."""
    num_nodes = len(matrix.indptr) - 1
    if not matrix.data.any():  # the iteration below cannot start from zeros
        return Spectrum(vector_NK=np.zeros((num_nodes, 1), dtype=np.float32), value_K=np.zeros(1))
    if num_nodes <= DENSE_NODES:
        value_K, vector_NK = np.linalg.eigh(matrix.toarray())
    else:
        start_N = np.random.default_rng(0).random(num_nodes)
        num_vectors = min(NUM_VECTORS, num_nodes)
        found = eigsh(
            matrix,
            k=RANK,
            v0=start_N,
            ncv=num_vectors,
            tol=TOLERANCE,  # pyright: ignore[reportArgumentType]  # scipy takes a float
        )
        value_K, vector_NK = map(np.asarray, found)
    largest = np.argsort(-np.abs(value_K), kind="stable")[:RANK]
    return Spectrum(vector_NK=vector_NK[:, largest].astype(np.float32), value_K=value_K[largest])


@threadpool_limits.wrap(limits=1, user_api="blas")
def factorise(matrix: sparse.csr_array) -> Factors:
    """Factorise a matrix [N, N] to rank RANK, or less on a graph of few nodes; equal matrices give equal factors."""
    num_nodes = len(matrix.indptr) - 1
    if not matrix.data.any():  # the iteration below cannot start from zeros
        nothing_NK = np.zeros((num_nodes, 1), dtype=np.float32)
        return Factors(left_NK=nothing_NK, right_NK=nothing_NK)
    if num_nodes <= DENSE_NODES:
        left_NK, value_K, right_KN = np.linalg.svd(matrix.toarray())
    else:
        start_N = np.random.default_rng(0).random(num_nodes)
        left_NK, value_K, right_KN = map(np.asarray, svds(matrix, k=RANK, v0=start_N))
    largest = np.argsort(-value_K)[:RANK]
    root_K = np.sqrt(value_K[largest])
    return Factors(
        left_NK=_without_noise(left_NK[:, largest] * root_K), right_NK=_without_noise(right_KN[largest].T * root_K)
    )


def _without_noise(factor_NK: NDArray[np.float64]) -> NDArray[np.float32]:
    length_N = np.linalg.norm(factor_NK, axis=1)
    is_sound_NK = (length_N > SHORTEST * length_N.max())[:, None] & (np.abs(factor_NK) > SMALLEST * length_N.max())
    return np.where(is_sound_NK, factor_NK, 0).astype(np.float32)
