"""Random walks against exact transition probabilities, and the nodes near each other on them."""

from collections import Counter

import numpy as np
import pytest
from scipy import sparse

from dyformer.sampling.walks import random_walks, walk_contexts

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


def test_nodes_near_a_given_one_are_drawn_from_its_positions_alike():
    walk_SL = np.array([[0, 1, 2, 1, 4], [1, 0, 3, 0, 1], [2, 3, 2, 3, 2]], dtype=np.int32)
    contexts, window = walk_contexts(walk_SL, 6), 2
    first_P, second_P = contexts.draw(np.array([1, 5, 0]), 20_000, window, np.random.default_rng(0))
    assert set(first_P.tolist()) == {0, 1}  # node 5 is on no walk
    for node in (0, 1):
        expected_N = np.zeros(6)
        positions = np.argwhere(walk_SL == node)
        for row, slot in positions:
            near = [other for other in range(5) if 0 < abs(other - slot) <= window]
            for other in near:
                expected_N[walk_SL[row, other]] += 1 / len(near) / len(positions)
        expected_N[node] = 0  # pairs of a node with itself are dropped
        count_N = np.bincount(second_P[first_P == node], minlength=6)
        np.testing.assert_allclose(count_N / count_N.sum(), expected_N / expected_N.sum(), atol=0.015)
