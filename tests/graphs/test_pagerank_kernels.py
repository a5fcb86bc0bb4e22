"""The compiled push and its selection of the best, on numbers that floats represent exactly."""

import numpy as np
import pytest
from graph_cases import pushed_rows
from toy_graphs import toy_graph

from dyformer.graphs import pagerank
from dyformer.graphs.kernels.pagerank import _take_best
from dyformer.graphs.union_graph import build_union_graph

TIE = 2.0**-40


def test_a_residual_that_just_reaches_its_threshold_is_pushed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pagerank, "EPSILON", 0.25)
    # Node 1 receives 0.5, which is 0.25 times its degree of 2; node 2 receives less than its threshold.
    path = build_union_graph(toy_graph([(0, 1), (1, 2)]), until=1)
    best, scores, num_best = pagerank._pushed(path, np.array([0]), 3, 0.5)
    assert num_best.tolist() == [2]
    assert best[0, :2].tolist() == [1, 2]
    assert scores[0, :2].tolist() == [0.25, 0.0625]
    assert pushed_rows(path.adjacency, np.array([0]), 0.5, 0.25).tolist() == [[0.5625, 0.25, 0.0625]]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0.5, 0.25, 0.25], [9, 3]),
        ([0.5, 0.25, 0.25 - TIE / 4], [9, 3]),  # equal to the last of the best, with a lower number
        ([0.5, 0.25, 0.25 - 1.5 * TIE], [9, 5]),
        ([0.5, 0.25, 0.25 - 4 * TIE], [9, 5]),
        ([0.25, 0.25 + TIE / 4, 0.25], [3, 5]),
        ([0.25, 0.5, 0.75], [3, 5]),
    ],
)
def test_of_scores_that_round_alike_the_lower_numbers_are_taken(scores: list[float], expected: list[int]):
    best_K, score_K = np.empty(2, dtype=np.int64), np.empty(2)
    node_N, entries = np.array([9, 5, 3]), (np.arange(3, dtype=np.uint32), np.array(scores))
    assert _take_best(node_N, entries, best_K, score_K, TIE) == 2
    assert best_K.tolist() == expected
    assert score_K.tolist() == [scores[[9, 5, 3].index(node)] for node in expected]
