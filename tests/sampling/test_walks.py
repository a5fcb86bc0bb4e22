"""Random walks against exact transition probabilities, and the pairs on them against plain loops."""

from collections import Counter

import numpy as np
import pytest
from scipy import sparse

from dyformer.sampling.walks import random_walks, walk_pairs

# A triangle 0, 1, 2 with a tail 2 - 3 - 4, and the isolated node 5.
EDGES = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4)]
DENSE = np.zeros((6, 6))
for a, b in EDGES:
    DENSE[a, b] = DENSE[b, a] = 1
ADJACENCY = sparse.csr_array(DENSE)


def exact(before: int, node: int, p: float, q: float) -> np.ndarray:
    """Transition probabilities of the article's equation: 1/p back, 1 to common neighbours, 1/q away."""
    weight_N = np.where(np.arange(6) == before, 1 / p, np.where(DENSE[before] == 1, 1.0, 1 / q)) * DENSE[node]
    return weight_N / weight_N.sum()


@pytest.mark.parametrize(("p", "q"), [(1.0, 1.0), (0.25, 4.0), (5.0, 0.5)])
def test_walks_follow_the_exact_transition_probabilities_of_p_and_q(p: float, q: float):
    walk_SL = random_walks(
        ADJACENCY, np.random.default_rng(0), num_walks=2000, length=12, return_parameter=p, in_out_parameter=q
    )
    triples = Counter(
        zip(
            walk_SL[:, :-2].ravel().tolist(),
            walk_SL[:, 1:-1].ravel().tolist(),
            walk_SL[:, 2:].ravel().tolist(),
            strict=True,
        )
    )
    for before, node in [*EDGES, *[(b, a) for a, b in EDGES]]:
        count_N = np.array([triples[before, node, following] for following in range(6)])
        np.testing.assert_allclose(count_N / count_N.sum(), exact(before, node, p, q), atol=0.02)
    first = Counter(zip(walk_SL[:, 0].tolist(), walk_SL[:, 1].tolist(), strict=True))
    assert first[2, 3] / 2000 == pytest.approx(1 / 3, abs=0.05)


def test_as_many_walks_start_at_every_node_with_an_edge():
    walk_SL = random_walks(ADJACENCY, np.random.default_rng(0), num_walks=7, length=3)
    assert np.bincount(walk_SL[:, 0], minlength=6).tolist() == [7, 7, 7, 7, 7, 0]
    assert (np.diff(walk_SL[:, 0]) < 0).any()  # in no order
    assert random_walks(sparse.csr_array((4, 4)), np.random.default_rng(0), num_walks=7, length=3).shape == (0, 3)


def test_pairs_of_a_walk_are_those_within_the_window():
    walks = random_walks(ADJACENCY, np.random.default_rng(0), num_walks=2, length=6)
    for window in (1, 3, 9):
        expected = Counter(
            (int(walk[i]), int(walk[j]))
            for walk in walks
            for i in range(6)
            for j in range(6)
            if 0 < abs(i - j) <= window and walk[i] != walk[j]
        )
        assert Counter(zip(*(end.tolist() for end in walk_pairs(walks, window)), strict=True)) == expected
