from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from threadpoolctl import threadpool_limits

from dyformer.streams import factorisation
from dyformer.streams.factorisation import RANK, factorise, spectrum


def matrix_of(num_nodes: int, num_values: int, *, seed: int = 0) -> sparse.csr_array:
    generator = np.random.default_rng(seed)
    ends = generator.integers(num_nodes, size=(2, num_values))
    return sparse.csr_array((generator.random(num_values), (ends[0], ends[1])), shape=(num_nodes, num_nodes))


def nearest(matrix: sparse.csr_array, rank: int) -> np.ndarray:
    """The best approximation by numpy's dense decomposition (Eckart and Young)."""
    left, value, right = np.linalg.svd(matrix.toarray())
    return (left[:, :rank] * value[:rank]) @ right[:rank]


@pytest.mark.parametrize("num_nodes", [5, 33, 64, 65, 150])
def test_products_are_the_nearest_matrix_of_the_rank(num_nodes: int):
    matrix = matrix_of(num_nodes, 6 * num_nodes)
    factors = factorise(matrix)
    assert factors.left_NK.shape == (num_nodes, min(RANK, num_nodes))
    np.testing.assert_allclose(factors.left_NK @ factors.right_NK.T, nearest(matrix, RANK), atol=1e-5)
    # Both sides have an even part of the singular values.
    np.testing.assert_allclose(np.sum(factors.left_NK**2, axis=0), np.sum(factors.right_NK**2, axis=0), rtol=1e-4)


@pytest.mark.parametrize("num_nodes", [40, 200])
def test_a_matrix_of_lower_rank_is_met_exactly(num_nodes: int):
    matrix = sparse.csr_array(([2.0, 1.0, 3.0], ([0, 0, 7], [1, 2, 30])), shape=(num_nodes, num_nodes))
    factors = factorise(matrix)
    assert np.isfinite(factors.left_NK).all()
    np.testing.assert_allclose(factors.left_NK @ factors.right_NK.T, matrix.toarray(), atol=1e-5)


@pytest.mark.parametrize("num_nodes", [0, 1, 3, 100])
def test_a_matrix_of_zeros_has_zero_factors(num_nodes: int):
    factors = factorise(sparse.csr_array((num_nodes, num_nodes)))
    assert not factors.left_NK.any()
    assert len(factors.right_NK) == num_nodes


def test_equal_matrices_have_equal_factors():
    one, other = factorise(matrix_of(150, 900)), factorise(matrix_of(150, 900))
    np.testing.assert_array_equal(one.left_NK, other.left_NK)
    np.testing.assert_array_equal(one.right_NK, other.right_NK)


@pytest.mark.parametrize("num_nodes", [50, 70, 300])
def test_products_of_nodes_that_no_path_joins_are_zero_and_no_rounding_errors(num_nodes: int):
    ends = np.random.default_rng(0).integers(num_nodes, size=(2, 6 * num_nodes))
    source, target = ends[:, ends[0] % 3 == ends[1] % 3]  # three parts
    weight = np.random.default_rng(1).random(len(source))
    factors = factorise(sparse.csr_array((weight, (source, target)), shape=(num_nodes, num_nodes)))
    product_NN = factors.left_NK @ factors.right_NK.T
    part_N = np.arange(num_nodes) % 3
    assert not product_NN[part_N[:, None] != part_N].any()


def equal_parts(num_parts: int, size: int) -> sparse.csr_array:
    part = sparse.random(size, size, density=0.4, rng=np.random.default_rng(1))
    return sparse.csr_array(sparse.block_diag([part] * num_parts))


@pytest.mark.parametrize(("num_parts", "size"), [(100, 4), (40, 10), (10, 30), (3, 70)])
def test_parts_of_equal_structure_are_not_mixed(num_parts: int, size: int):
    matrix = equal_parts(num_parts, size)
    part_N = np.repeat(np.arange(num_parts), size)
    factors, found = factorise(matrix), spectrum(sparse.csr_array(matrix + matrix.T))
    smooth_NN = (found.vector_NK * found.value_K) @ found.vector_NK.T
    for product_NN in (factors.left_NK @ factors.right_NK.T, smooth_NN):
        assert product_NN.any()
        assert not product_NN[part_N[:, None] != part_N].any()


@pytest.mark.parametrize("seed", [2, 4, 5])
def test_no_copy_of_an_equal_singular_value_is_missed(seed: int):
    ends = np.random.default_rng(seed).integers(1000, size=(2, 400))
    matrix = sparse.csr_array((np.ones(400), (ends[0], ends[1])), shape=(1000, 1000))
    matrix.data[:] = 1.0
    value_K = np.sum(factorise(matrix).left_NK ** 2, axis=0)  # of the square roots of the values
    square_RR = (matrix[np.unique(ends[0])] @ matrix[np.unique(ends[0])].T).toarray()
    expected_K = np.sqrt(np.linalg.eigvalsh(square_RR)[: -RANK - 1 : -1])
    np.testing.assert_allclose(np.sort(value_K)[::-1], expected_K, rtol=1e-5)


def test_where_the_iteration_fails_another_one_takes_over(monkeypatch: pytest.MonkeyPatch):
    def fails(*arguments: object, **options: object) -> None:
        raise factorisation.ArpackError(3)

    matrix = matrix_of(300, 1800)
    symmetric = sparse.csr_array(matrix + matrix.T)
    monkeypatch.setattr(factorisation, "svds", fails)
    monkeypatch.setattr(factorisation, "eigsh", fails)
    factors, found = factorise(matrix), spectrum(symmetric)
    product_NN = (found.vector_NK * found.value_K) @ found.vector_NK.T
    np.testing.assert_allclose(factors.left_NK @ factors.right_NK.T, nearest(matrix, RANK), atol=2e-2)
    np.testing.assert_allclose(product_NN, nearest(symmetric, RANK), atol=2e-2)
    np.testing.assert_array_equal(factors.left_NK, factorise(matrix).left_NK)


def test_small_parts_whose_values_are_too_small_are_not_decomposed(monkeypatch: pytest.MonkeyPatch):
    decompose, sizes = factorisation._eigen, []

    def counting(part: sparse.csr_array):
        sizes.append(len(part.indptr) - 1)
        return decompose(part)

    monkeypatch.setattr(factorisation, "_eigen", counting)
    weight, first = np.random.default_rng(0).uniform(0.7, 1, 3_000), np.arange(0, 6_000, 2)
    ends = np.concatenate([first, first + 1]), np.concatenate([first + 1, first])
    found = spectrum(sparse.csr_array((np.concatenate([weight, weight]), ends), shape=(6_000, 6_000)))
    np.testing.assert_allclose(np.sort(np.abs(found.value_K)), np.repeat(np.sort(weight)[-RANK // 2 :], 2))
    assert len(sizes) <= RANK // 2 + 1


@pytest.mark.parametrize("num_nodes", [50, 300])
def test_rows_outside_the_factors_are_zero_and_no_rounding_errors(num_nodes: int):
    #  40 strong pairs; weaker ones are outside the 32 factors, and other nodes have no value at all
    ends = np.arange(0, 40)
    matrix = sparse.csr_array((100.0 - ends, (ends, (ends + 1) % 40)), shape=(num_nodes, num_nodes))
    factors = factorise(matrix)
    has_left_N, has_right_N = factors.left_NK.any(axis=1), factors.right_NK.any(axis=1)
    assert np.flatnonzero(has_left_N).tolist() == list(range(32))
    assert np.flatnonzero(has_right_N).tolist() == list(range(1, 33))


@pytest.mark.parametrize("num_nodes", [1, 5, 33, 64, 65, 150])
def test_the_spectrum_is_the_nearest_symmetric_matrix_of_the_rank(num_nodes: int):
    matrix = matrix_of(num_nodes, 6 * num_nodes)
    matrix = sparse.csr_array(matrix + matrix.T)
    found = spectrum(matrix)
    assert found.vector_NK.shape == (num_nodes, min(RANK, num_nodes))
    assert (np.diff(np.abs(found.value_K)) <= 1e-9).all()
    product_NN = (found.vector_NK * found.value_K) @ found.vector_NK.T
    np.testing.assert_allclose(product_NN, nearest(matrix, RANK), atol=1e-4)
    again = spectrum(matrix)
    np.testing.assert_array_equal(found.vector_NK, again.vector_NK)


def test_the_spectrum_of_zeros_is_zero():
    found = spectrum(sparse.csr_array((100, 100)))
    assert not found.value_K.any()
    assert len(found.vector_NK) == 100


def test_the_bytes_do_not_depend_on_the_threads_of_blas():
    generator = np.random.default_rng(0)
    num_nodes = 10_500  # below 10,000 values BLAS multiplies two vectors by one thread
    ends = (num_nodes * generator.random((2, 12_000)) ** 4).astype(np.int64)
    matrix = sparse.csr_array((generator.random(12_000), (ends[0], ends[1])), shape=(num_nodes, num_nodes))
    symmetric = sparse.csr_array(matrix + matrix.T)
    found = []
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            found.append((*vars(factorise(matrix)).values(), *vars(spectrum(symmetric)).values()))
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)


def communities(num_nodes: int, num_communities: int) -> sparse.csr_array:
    """The normalised matrix of a random graph, two thirds of whose links are inside communities."""
    generator = np.random.default_rng(0)
    one, other = generator.integers(num_nodes, size=(2, 8 * num_nodes))
    size = num_nodes // num_communities
    other = np.where(generator.random(len(one)) < 2 / 3, one // size * size + other % size, other)
    matrix = sparse.csr_array((np.ones(2 * len(one)), (np.append(one, other), np.append(other, one))))
    root_N = np.sqrt(matrix.sum(axis=1))
    return sparse.csr_array(matrix / root_N[:, None] / root_N)


def test_a_large_part_takes_few_products_and_finds_what_stands_out(monkeypatch: pytest.MonkeyPatch):
    solve, num_products = factorisation.eigsh, []

    def counting(part: sparse.csr_array, **options: Any):
        num_products.append(0)

        def product(vector_N: np.ndarray) -> np.ndarray:
            num_products[-1] += 1
            return part @ vector_N

        return solve(SimpleNamespace(shape=part.shape, dtype=part.dtype, matvec=product), **options)

    monkeypatch.setattr(factorisation, "eigsh", counting)
    matrix = communities(4_000, 8)
    exact = spectrum(matrix)
    monkeypatch.setattr(factorisation, "LARGE_NODES", 3_999)
    large = spectrum(matrix)
    assert num_products[1] < 0.7 * num_products[0]  # on larger graphs the difference is larger
    np.testing.assert_allclose(large.value_K[:8], exact.value_K[:8], rtol=1e-5)  # single precision
    smooth_NN, expected_NN = (
        (found.vector_NK[:, :8] * found.value_K[:8]) @ found.vector_NK[:, :8].T for found in (large, exact)
    )
    np.testing.assert_allclose(smooth_NN, expected_NN, atol=1e-2 * np.abs(expected_NN).max())
    np.testing.assert_allclose(np.abs(large.value_K), np.abs(exact.value_K), rtol=factorisation.LARGE_TOLERANCE)
    np.testing.assert_array_equal(large.vector_NK, spectrum(matrix).vector_NK)


def test_a_large_matrix_is_factorised_in_single_precision(monkeypatch: pytest.MonkeyPatch):
    solve, types = factorisation.svds, []

    def noting(part: sparse.csr_array, **options: Any):
        types.append(part.dtype)
        return solve(part, **options)

    monkeypatch.setattr(factorisation, "svds", noting)
    matrix = communities(4_000, 8)
    exact = factorise(matrix)
    monkeypatch.setattr(factorisation, "LARGE_NODES", 3_999)
    large = factorise(matrix)
    assert types == [np.float64, np.float32]
    product_NN, expected_NN = (found.left_NK[:, :8] @ found.right_NK[:, :8].T for found in (large, exact))
    np.testing.assert_allclose(product_NN, expected_NN, atol=1e-2 * np.abs(expected_NN).max())
    np.testing.assert_array_equal(large.left_NK, factorise(matrix).left_NK)
