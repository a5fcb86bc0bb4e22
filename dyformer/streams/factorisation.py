"""A sparse matrix of contacts -> its best factors of low rank; a symmetric one -> its largest eigenvalues.

A matrix is decomposed part by part: two entries of one row or one column are in one part, so that singular vectors of
different parts have no row in common, and the equal singular values of equal parts are not mixed.

N nodes    K rank    E entries    P parts    R, C rows, columns of a part    V vectors of a part
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import ArpackError, eigsh, svds

from dyformer.streams.blas import one_blas_thread

RANK = 32
SHORTEST = 1e-6
SMALLEST = 1e-11
TOLERANCE = 1e-6  # of eigenvalues; with NUM_VECTORS vectors a million edges take 60 % of the time of scipy's defaults
# A part of more rows gets its own tolerance, in single precision. The larger a graph is, the closer together are those
# of the RANK values that no community makes: ever more products would separate them, while values that stand out need
# few.
LARGE_NODES, LARGE_TOLERANCE = 50_000, 1e-2
NUM_VECTORS = 3 * RANK  # of the iteration, at once
NUM_ROUNDS = 30  # of the iteration that takes over where that of ARPACK fails
DENSE_NODES = 2 * RANK  # up to this size the exact decomposition of the dense matrix is as fast
# Digits of a value by the largest one: those of equal parts differ in later ones, and come in the order of the parts.
DIGITS = 9

Values = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Factors:
    """Truncated singular value decomposition: `left_NK @ right_NK.T` is the nearest matrix of rank K.

    Singular values are divided evenly between both sides. The signs and the order of the columns mean nothing alone,
    but products and cosines of a left row and a right row do not depend on them. A row shorter than SHORTEST of the
    longest one is 0: it holds rounding errors, of which cosines would be noise. So is a number below SMALLEST of it:
    the errors of an iteration differ from run to run, and trees would split the products of nodes that no path joins.
    Where singular values equal the K-th one, parts of earlier nodes come first, and inside a part any basis
    of their vectors is as good.
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
@one_blas_thread
def spectrum(matrix: sparse.csr_array) -> Spectrum:
    """Give the RANK largest eigenvalues of a symmetric matrix [N, N], or as many as its parts have."""
    part_N = connected_components(matrix, directed=False)[1]
    value_K, vector_NK, _ = _largest(matrix, part_N, _eigen, RANK)
    return Spectrum(vector_NK=vector_NK.astype(np.float32), value_K=value_K)


@one_blas_thread
def factorise(matrix: sparse.csr_array, rank: int = RANK) -> Factors:
    """Factorise a matrix [N, N] to a rank, or less on a graph of few nodes; equal matrices give equal factors."""
    value_K, left_NK, right_NK = _largest(matrix, _parts_of_rows(matrix), partial(_singular, rank=rank), rank)
    root_K = np.sqrt(value_K)
    return Factors(left_NK=_without_noise(left_NK * root_K), right_NK=_without_noise(right_NK * root_K))


def _parts_of_rows(matrix: sparse.csr_array) -> NDArray[np.int32]:
    both = sparse.block_array([[None, matrix], [matrix.T, None]], format="csr")  # rows, then columns
    return connected_components(both, directed=False)[1][: len(matrix.indptr) - 1]


def _largest(
    matrix: sparse.csr_array,
    part_N: NDArray[np.int32],
    decompose: Callable[[sparse.csr_array], tuple[Values, ...]],
    rank: int,
) -> tuple[Values, Values, Values]:
    """Give the `rank` values [K] that are largest in magnitude, and their left and right vectors [N, K]."""
    num_nodes = len(matrix.indptr) - 1
    value_K, columns = np.zeros(0), []
    for bound, row_R, column_C, part in _parts(matrix, part_N):
        if len(value_K) == rank and bound <= np.abs(value_K[-1]) * (1 + 10.0**-DIGITS):
            break
        value_V, left_RV, right_CV = decompose(part)
        columns += [(row_R, left_RV[:, v], column_C, right_CV[:, v]) for v in range(len(value_V))]
        value_K = np.concatenate([value_K, value_V])
        size_K = np.abs(value_K)
        order = np.argsort(-np.round(size_K / size_K.max(), DIGITS), kind="stable")[:rank]
        value_K, columns = value_K[order], [columns[index] for index in order]
    left_NK, right_NK = np.zeros((2, num_nodes, max(len(columns), 1)))
    for k, (row_R, left_R, column_C, right_C) in enumerate(columns):
        left_NK[row_R, k], right_NK[column_C, k] = left_R, right_C
    return value_K if len(value_K) else np.zeros(1), left_NK, right_NK


def _parts(
    matrix: sparse.csr_array, part_N: NDArray[np.int32]
) -> Iterator[tuple[float, NDArray[np.integer], NDArray[np.integer], sparse.csr_array]]:
    """Yield a bound of its values, the rows, the columns and the entries of each part that has any, the largest first.

    The bound is the least of two norms: Frobenius', and the root of the largest sum of a row times that of a column,
    which of a single pair is its value itself.
    """
    entries = matrix.tocoo(copy=False)
    row_E, column_E = entries.coords
    part_E = part_N[row_E]
    square_P = np.bincount(part_E, weights=entries.data**2)
    largest_2P = np.zeros((2, len(square_P)))
    for largest_P, node_E in zip(largest_2P, (row_E, column_E), strict=True):
        np.maximum.at(largest_P, part_E, np.bincount(node_E, weights=np.abs(entries.data))[node_E])
    bound_P = np.sqrt(np.minimum(square_P, largest_2P.prod(axis=0)))
    order_E = np.argsort(part_E, kind="stable")
    first_P = np.searchsorted(part_E[order_E], np.arange(len(square_P) + 1))
    del part_E  # a part that is decomposed has most of the entries, and much of the memory
    for part in np.argsort(-bound_P, kind="stable"):
        if bound_P[part] == 0:
            return
        yield float(bound_P[part]), *_part(entries, order_E[first_P[part] : first_P[part + 1]], len(part_N))


def _part(
    entries: sparse.coo_array, at_E: NDArray[np.integer], num_nodes: int
) -> tuple[NDArray[np.integer], NDArray[np.integer], sparse.csr_array]:
    """Give the rows and the columns of some entries, and a matrix of these alone."""
    (row_R, in_row_E), (column_C, in_column_E) = (_numbered(node_E[at_E], num_nodes) for node_E in entries.coords)
    shape = (len(row_R), len(column_C))
    return row_R, column_C, sparse.csr_array((entries.data[at_E], (in_row_E, in_column_E)), shape=shape)


def _numbered(node_E: NDArray[np.integer], num_nodes: int) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
    """Give the distinct nodes in ascending order, and the position of each among them; of many without a sort."""
    if len(node_E) < num_nodes:
        return np.unique(node_E, return_inverse=True)
    is_node_N = np.zeros(num_nodes, dtype=np.bool_)
    is_node_N[node_E] = True
    return np.flatnonzero(is_node_N), (np.cumsum(is_node_N) - 1)[node_E]


def _eigen(part: sparse.csr_array) -> tuple[Values, Values, Values]:
    num_rows = len(part.indptr) - 1
    if num_rows <= DENSE_NODES:
        value_V, vector_RV = np.linalg.eigh(part.toarray())
        return value_V, vector_RV, vector_RV
    start_R, num_vectors = np.random.default_rng(0).random(num_rows), min(NUM_VECTORS, num_rows)
    matrix, tolerance = _iterated(part, TOLERANCE)
    try:
        eigen = eigsh(
            matrix,
            k=RANK,
            v0=start_R.astype(matrix.dtype),
            ncv=num_vectors,
            tol=tolerance,  # pyright: ignore[reportArgumentType]  # scipy takes a float
        )
        value_V, vector_RV = map(np.asarray, eigen)
    except ArpackError:
        basis_RV = _basis(part)
        value_V, within_VV = np.linalg.eigh(basis_RV.T @ (part @ basis_RV))
        vector_RV = basis_RV @ within_VV
    return value_V, vector_RV, vector_RV


def _singular(part: sparse.csr_array, rank: int) -> tuple[Values, Values, Values]:
    num_vectors = min(len(part.indptr) - 1, len(np.unique(part.indices)))  # each row and column has an entry
    if num_vectors <= DENSE_NODES:
        left_RV, value_V, right_VC = np.linalg.svd(part.toarray(), full_matrices=False)
        return value_V, left_RV, right_VC.T
    matrix, tolerance = _iterated(part, 0)
    start_V = np.random.default_rng(0).random(num_vectors).astype(matrix.dtype)
    try:
        singular = svds(matrix, k=rank, v0=start_V, tol=tolerance)  # pyright: ignore[reportArgumentType]  # as above
        left_RV, value_V, right_VC = map(np.asarray, singular)
    except ArpackError:
        basis_RV = _basis(part)
        within_VV, value_V, right_VC = np.linalg.svd((part.T @ basis_RV).T, full_matrices=False)
        left_RV = basis_RV @ within_VV
    return value_V, left_RV, right_VC.T


def _iterated(part: sparse.csr_array, tolerance: float) -> tuple[sparse.csr_array, float]:
    """Give the values to iterate with, and the tolerance: a large part's take half the memory, and half the time."""
    num_rows, num_columns = len(part.indptr) - 1, int(part.indices.max()) + 1  # each column of a part has an entry
    is_large = max(num_rows, num_columns) > LARGE_NODES
    return (sparse.csr_array(part, dtype=np.float32), LARGE_TOLERANCE) if is_large else (part, tolerance)


def _basis(part: sparse.csr_array) -> Values:
    """Give a basis of the largest singular vectors by the power iteration of a random block (Halko et al., 2011).

    ARPACK has none where values are so equal that one of its vectors leads to no new one (its error 3).
    """
    from sklearn.utils.extmath import randomized_range_finder  # late, because scikit-learn takes a second to import

    return np.asarray(randomized_range_finder(part, size=DENSE_NODES, n_iter=NUM_ROUNDS, random_state=0))


def _without_noise(factor_NK: NDArray[np.float64]) -> NDArray[np.float32]:
    length_N = np.linalg.norm(factor_NK, axis=1)
    longest = length_N.max(initial=0)
    is_sound_NK = (length_N > SHORTEST * longest)[:, None] & (np.abs(factor_NK) > SMALLEST * longest)
    return np.where(is_sound_NK, factor_NK, 0).astype(np.float32)
