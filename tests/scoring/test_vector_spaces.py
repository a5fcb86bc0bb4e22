"""A rotation of vectors changes no score, finds its way back, and agrees only where there is something to agree on."""

import numpy as np
import pytest
from scipy.linalg import orthogonal_procrustes
from toy_graphs import random_graph

from dyformer.scoring.vector_scores import prepare_vectors, signs
from dyformer.scoring.vector_spaces import agreement, blocks, rotated, rotation_onto

WIDTH = 16


def vectors(seed: int, num: int = 60, width: int = WIDTH) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(num, width)).astype(np.float32)


def random_rotation(seed: int, width: int = WIDTH) -> np.ndarray:
    """A rotation that changes no score: an orthogonal matrix for each block."""
    rotation_DD = np.zeros((width, width))
    for column_B in blocks(width):
        square_BB = np.random.default_rng([seed, *column_B]).normal(size=(len(column_B), len(column_B)))
        rotation_DD[np.ix_(column_B, column_B)] = np.linalg.qr(square_BB)[0]
    return rotation_DD


def test_a_rotated_space_is_found_again() -> None:
    vector_ND, rotation_DD = vectors(0), random_rotation(1)
    found = rotation_onto(vector_ND, rotated(vector_ND, rotation_DD))
    np.testing.assert_allclose(found.rotation_DD, rotation_DD, atol=1e-6)
    np.testing.assert_allclose(found.rotation_DD @ found.rotation_DD.T, np.eye(WIDTH), atol=1e-12)
    assert found.after.itself == pytest.approx(1, abs=1e-6)
    assert found.after.lift == pytest.approx(1, abs=1e-6)
    assert found.before.itself < 0.5


def test_each_block_is_rotated_as_scipy_does() -> None:
    first_ND, second_ND = vectors(0), vectors(1)
    found = rotation_onto(first_ND, second_ND).rotation_DD
    for column_B in blocks(WIDTH):
        expected = orthogonal_procrustes(first_ND[:, column_B].astype(float), second_ND[:, column_B].astype(float))[0]
        np.testing.assert_allclose(found[np.ix_(column_B, column_B)], expected)
        found[np.ix_(column_B, column_B)] = 0
    assert not found.any()


@pytest.mark.parametrize("directed", [True, False])
def test_no_score_of_a_pair_changes(directed: bool) -> None:
    graph = random_graph(np.random.default_rng(0), num_nodes=9, num_steps=3, num_edges=12)
    num_nodes = len(graph.node_N)
    vector_ND = vectors(2, num_nodes, 8)
    first_P, second_P = (ends.ravel() for ends in np.meshgrid(*[np.arange(num_nodes)] * 2))
    before, after, mixed = (
        prepare_vectors(each, graph).table(first_P, second_P, directed=directed)
        for each in (
            vector_ND,
            rotated(vector_ND, random_rotation(3, 8)),
            rotated(vector_ND, np.linalg.qr(vectors(4, 8, 8).astype(float))[0]),
        )
    )
    np.testing.assert_allclose(after, before, atol=2e-6)
    assert np.abs(mixed - before).max() > 0.1  # a rotation over all columns changes scores


def test_the_forms_behind_the_scores_stay_to_the_last_digits() -> None:
    """Signed and plain products of the two parts, written as matrices, in double precision."""
    rotation_DD = rotation_onto(vectors(0), vectors(1)).rotation_DD
    is_id_D = np.arange(WIDTH) >= WIDTH - WIDTH // 4
    for form_D in (signs(WIDTH) * is_id_D, signs(WIDTH) * ~is_id_D, 1.0 * is_id_D, 1.0 * ~is_id_D):
        np.testing.assert_allclose(rotation_DD @ np.diag(form_D) @ rotation_DD.T, np.diag(form_D), atol=1e-12)


def test_unrelated_vectors_agree_on_nothing_though_a_rotation_fits_the_few_that_it_knows() -> None:
    first_ND, second_ND = vectors(0, 12), vectors(1, 12)
    found = rotation_onto(first_ND, second_ND)
    assert agreement(first_ND @ found.rotation_DD, second_ND).itself > 0.4
    assert found.after.itself < 0.1


def test_one_direction_of_all_nodes_is_no_agreement() -> None:
    first_ND, second_ND = vectors(0) + np.float32(2), vectors(1) + np.float32(2)
    found = rotation_onto(first_ND, second_ND)
    assert found.after.itself > 0.5
    assert abs(found.after.lift) < 0.1
    cosine_NN = (first_ND @ second_ND.T) / np.outer(*(np.linalg.norm(each, axis=1) for each in (first_ND, second_ND)))
    is_other_NN = ~np.eye(len(first_ND), dtype=bool)
    expected = cosine_NN.diagonal().mean(), cosine_NN[is_other_NN].mean()
    np.testing.assert_allclose(agreement(first_ND, second_ND), expected, atol=1e-6)


def test_vectors_of_length_zero_have_no_part() -> None:
    first_ND, second_ND = vectors(0), rotated(vectors(0), random_rotation(1))
    expected = rotation_onto(first_ND[3:], second_ND[3:])
    first_ND[:2], second_ND[2] = 0, 0
    found = rotation_onto(first_ND, second_ND)
    np.testing.assert_allclose(found.rotation_DD, expected.rotation_DD)
    assert found.after == pytest.approx(expected.after)
    few = rotation_onto(first_ND[:5], second_ND[:5])
    np.testing.assert_array_equal(few.rotation_DD, np.eye(WIDTH))
    assert few.after.lift == 0
