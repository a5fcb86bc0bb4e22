"""Scores of pairs of vectors, against each formula written plainly."""

import numpy as np
import pytest
from toy_graphs import random_graph, toy_graph

from dyformer.scoring import vector_scores
from dyformer.scoring.vector_scores import (
    HALF_LIVES,
    NUM_VECTOR_SCORES,
    OWN,
    names,
    partner_fractions,
    prepare_vectors,
    signs,
)

GRAPH = random_graph(np.random.default_rng(0), num_nodes=20, num_steps=4, num_edges=30)
VECTORS = np.random.default_rng(1).normal(size=(20, 16)).astype(np.float32)
SIGNS = np.array([1, 1, 1, -1] * 4)
SOURCE_P, TARGET_P = (np.array(ends) for ends in zip(*[(0, 1), (3, 2), (5, 9), (7, 7)], strict=True))


def fractions(half_life: float) -> np.ndarray:
    contacts = np.zeros((20, 20))
    for snapshot in GRAPH.snapshots:
        for i, j, weight in zip(snapshot.source_E, snapshot.target_E, snapshot.weight_E, strict=True):
            contacts[i, j] += weight * 0.5 ** ((4 - snapshot.step) / half_life)
            contacts[j, i] = contacts[i, j]
    contacts = np.log(1 + contacts)
    total = contacts.sum(axis=1, keepdims=True)
    return np.divide(contacts, total, out=np.zeros_like(contacts), where=total > 0)


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    lengths = np.linalg.norm(first) * np.linalg.norm(second)
    return float(first @ second / lengths) if lengths > 0 else 0.0


def plain_scores(i: int, j: int) -> list[float]:
    own = (SIGNS * VECTORS[i])[:12] @ VECTORS[j, :12], (SIGNS * VECTORS[i])[12:] @ VECTORS[j, 12:]
    scores = [*own, VECTORS[i] @ VECTORS[j], cosine(VECTORS[i], VECTORS[j])]
    for half_life in HALF_LIVES:
        mean = fractions(half_life) @ VECTORS
        scores += [cosine(mean[i], VECTORS[j]), cosine(VECTORS[i], mean[j])]
        scores += [cosine(mean[i, 12:], VECTORS[j, 12:]), cosine(VECTORS[i, 12:], mean[j, 12:])]
        scores += [(SIGNS * mean[i]) @ mean[j], cosine(mean[i, 12:], mean[j, 12:])]
    return scores


@pytest.mark.parametrize("half_life", HALF_LIVES)
def test_partners_weigh_their_fraction_of_the_decayed_contacts(half_life: float):
    np.testing.assert_allclose(partner_fractions(GRAPH, half_life).toarray(), fractions(half_life), rtol=1e-6)


def test_contacts_so_old_that_they_are_zero_weigh_nothing():
    history = toy_graph([(0, 1)], *([(2, 3)] for _ in range(1100)), sides=[0] * 4)
    expected = np.zeros((4, 4))
    expected[[2, 3], [3, 2]] = 1
    np.testing.assert_array_equal(partner_fractions(history, 1.0).toarray(), expected)


@pytest.mark.parametrize("block_size", [1, 3, 100])
def test_each_score_of_an_ordered_pair_is_its_formula(block_size: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(vector_scores, "BLOCK_PAIRS", block_size)
    monkeypatch.setattr(vector_scores, "BLOCK_NODES", block_size)
    found = prepare_vectors(VECTORS, GRAPH).table(SOURCE_P, TARGET_P, directed=True)
    for row, i, j in zip(found, SOURCE_P, TARGET_P, strict=True):
        np.testing.assert_allclose(row, plain_scores(i, j), rtol=1e-4, atol=1e-5)
    assert found.shape == (len(SOURCE_P), NUM_VECTOR_SCORES)


def test_an_unordered_pair_has_the_mean_and_the_difference_of_both_orders():
    prepared = prepare_vectors(VECTORS, GRAPH)
    ordered, found = (prepared.table(SOURCE_P, TARGET_P, directed=directed) for directed in (True, False))
    expected = ordered.copy()
    for first in (len(OWN), len(OWN) + 2, len(OWN) + 6, len(OWN) + 8):
        pair = ordered[:, first : first + 2]
        expected[:, first], expected[:, first + 1] = pair.mean(axis=1), np.abs(pair[:, 0] - pair[:, 1])
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_allclose(found, prepared.table(TARGET_P, SOURCE_P, directed=False), rtol=1e-4, atol=1e-5)


def test_vectors_of_zeros_or_of_one_column_have_finite_scores():
    for vectors in (np.zeros((20, 16)), np.ones((20, 1))):
        assert np.isfinite(prepare_vectors(vectors, GRAPH).table(SOURCE_P, TARGET_P, directed=True)).all()


@pytest.mark.parametrize("width", [16, 52, 256])
@pytest.mark.parametrize("directed", [True, False])
def test_scores_of_a_pair_have_the_same_bytes_beside_other_pairs(width: int, directed: bool):
    generator = np.random.default_rng(width)
    scores = prepare_vectors(generator.normal(size=(20, width)), GRAPH)
    source_P, target_P = generator.integers(20, size=(2, 300))
    together = scores.table(source_P, target_P, directed=directed)
    for index in ([0], [299, 4], np.arange(150), np.arange(299)):
        alone = scores.table(source_P[index], target_P[index], directed=directed)
        np.testing.assert_array_equal(alone, together[index])


def test_every_column_has_a_name_and_the_unordered_ones_have_no_direction():
    assert len(names(directed=True)) == len(names(directed=False)) == NUM_VECTOR_SCORES
    assert len(set(names(directed=False))) == NUM_VECTOR_SCORES
    assert not any(name.startswith(("source", "target")) for name in names(directed=False))
    assert names(directed=True)[4:6] == ("target_cosine_1", "source_cosine_1")


@pytest.mark.parametrize("width", [1, 4, 16, 30])
def test_signs_are_those_of_the_models_link_score(width: int):
    from dyformer.model import transformer

    np.testing.assert_array_equal(signs(width), transformer.signs(width).numpy())
