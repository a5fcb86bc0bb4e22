import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score

from dyformer.scoring.metrics import auc, average_precision


def scored(seed: int, num_pairs: int, num_levels: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    positive_P = generator.random(num_pairs) < 0.4
    positive_P[:2] = [True, False]
    return positive_P, generator.integers(num_levels, size=num_pairs) / 7


def pairwise_auc(positive_P: np.ndarray, score_P: np.ndarray) -> float:
    won = [
        1.0 if true > false else 0.5 if true == false else 0.0
        for true in score_P[positive_P]
        for false in score_P[~positive_P]
    ]
    return sum(won) / len(won)


def threshold_precision(positive_P: np.ndarray, score_P: np.ndarray) -> float:
    total, recall = 0.0, 0.0
    for threshold in sorted(set(score_P), reverse=True):
        chosen = score_P >= threshold
        gained = (positive_P & chosen).sum() / positive_P.sum()
        total += (gained - recall) * (positive_P & chosen).sum() / chosen.sum()
        recall = gained
    return total


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 10**6), num_pairs=st.integers(2, 40), num_levels=st.integers(1, 30))
def test_auc_and_precision_equal_their_definitions_and_scikit_learn(seed: int, num_pairs: int, num_levels: int):
    positive_P, score_P = scored(seed, num_pairs, num_levels)
    assert auc(positive_P, score_P) == pytest.approx(pairwise_auc(positive_P, score_P), abs=1e-12)
    assert auc(positive_P, score_P) == pytest.approx(roc_auc_score(positive_P, score_P), abs=1e-12)
    expected = threshold_precision(positive_P, score_P)
    assert average_precision(positive_P, score_P) == pytest.approx(expected, abs=1e-12)
    assert expected == pytest.approx(average_precision_score(positive_P, score_P), abs=1e-12)


def test_constant_scores_are_chance_an_oracle_is_one_and_its_reverse_zero():
    positive_P = np.array([True, False, False, True, False])
    assert auc(positive_P, np.full(5, 0.3)) == 0.5
    assert average_precision(positive_P, np.full(5, 0.3)) == pytest.approx(0.4)
    assert auc(positive_P, positive_P.astype(float)) == 1
    assert average_precision(positive_P, positive_P.astype(float)) == 1
    assert auc(positive_P, -positive_P.astype(float)) == 0


def test_only_the_order_of_scores_counts():
    positive_P, score_P = scored(3, 30, 9)
    assert auc(positive_P, np.exp(3 * score_P)) == auc(positive_P, score_P)
    assert average_precision(positive_P, np.exp(3 * score_P)) == average_precision(positive_P, score_P)


@pytest.mark.parametrize("metric", [auc, average_precision])
def test_pairs_without_a_metric_are_refused(metric):
    with pytest.raises(ValueError, match="all 3 pairs are of one kind"):
        metric(np.ones(3, dtype=bool), np.arange(3.0))
    with pytest.raises(ValueError, match="1 of 2 are not"):
        metric(np.array([True, False]), np.array([np.nan, 0.1]))
    with pytest.raises(ValueError, match="one score per pair"):
        metric(np.array([True, False]), np.zeros(3))
