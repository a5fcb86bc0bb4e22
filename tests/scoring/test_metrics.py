import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata
from sklearn.metrics import average_precision_score, ndcg_score, roc_auc_score

from dyformer.scoring.metrics import (
    TOGETHER,
    auc,
    average_precision,
    expected_calibration_error,
    hits,
    mean_ranks,
    ndcg,
    reciprocal_rank,
    weighted_metrics,
)

ALL = np.ones((3, 7), dtype=bool)


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


def metrics_of_one(weight_P: np.ndarray, positive_P: np.ndarray, is_last_P: np.ndarray) -> tuple[float, float]:
    """Give AUC and average precision of one resample, pair by pair."""
    positives, negatives, above, precision, group = 0.0, 0.0, 0.0, 0.0, [0.0, 0.0]
    for weight, is_positive, is_last in zip(weight_P.tolist(), positive_P.tolist(), is_last_P.tolist(), strict=True):
        group[is_positive] += weight
        if is_last:
            above += group[0] * (positives + group[1] / 2)
            positives, negatives = positives + group[1], negatives + group[0]
            precision += group[1] * positives / (positives + negatives) if group[1] else 0.0
            group = [0.0, 0.0]
    if not positives or not negatives:
        return float("nan"), float("nan")
    return above / (positives * negatives), precision / positives


@pytest.mark.parametrize("num_resamples", [1, TOGETHER, 2 * TOGETHER + 3])
def test_metrics_of_resamples_together_have_the_bytes_of_each_alone(num_resamples: int):
    generator = np.random.default_rng(num_resamples)
    for num_pairs in (2, 30, 3000):
        weight_BS = generator.poisson(size=(num_resamples, 12)).astype(np.uint8)
        source_P, target_P = generator.integers(12, size=(2, num_pairs))
        positive_P, is_last_P = generator.random((2, num_pairs)) < [[0.2], [0.7]]
        is_last_P[-1] = True
        found = weighted_metrics(weight_BS, source_P, target_P, positive_P, is_last_P)
        weight_BP = weight_BS[:, source_P].astype(float) * weight_BS[:, target_P]
        expected = [metrics_of_one(weight_P, positive_P, is_last_P) for weight_P in weight_BP]
        np.testing.assert_array_equal(np.column_stack(found), expected)


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


def test_constant_scorer_has_the_analytic_mean_rank():
    rank_Q = mean_ranks(np.zeros(3), np.zeros((3, 7)), ALL)
    np.testing.assert_array_equal(rank_Q, 4.5)  # the mean of 1 .. 8
    np.testing.assert_allclose(reciprocal_rank(rank_Q), 1 / 4.5)


def test_oracle_comes_first_and_reversed_oracle_last():
    negative_QC = np.random.default_rng(0).random((3, 7))
    np.testing.assert_array_equal(mean_ranks(np.full(3, 2.0), negative_QC, ALL), 1)
    np.testing.assert_array_equal(mean_ranks(np.full(3, -2.0), negative_QC, ALL), 8)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_ranks_are_those_of_the_definition(seed: int):
    generator = np.random.default_rng(seed)
    score_Q, score_QC = generator.integers(4, size=5) / 2, generator.integers(4, size=(5, 9)) / 2
    valid_QC = generator.random((5, 9)) < 0.7
    ranks = [
        rankdata(-np.concatenate([[score], scores[valid]]))[0]
        for score, scores, valid in zip(score_Q, score_QC, valid_QC, strict=True)
    ]
    np.testing.assert_allclose(mean_ranks(score_Q, score_QC, valid_QC), ranks)


def test_padding_is_not_ranked_whatever_its_score():
    valid_QC = np.array([[True, False, False]])
    for padded in (np.inf, np.nan, 5.0):
        assert mean_ranks(np.array([1.0]), np.array([[0.0, padded, padded]]), valid_QC) == 1


def test_hits_and_ndcg_of_one_true_target():
    rank_Q = np.array([1, 1.5, 2, 10, 10.5, 11])
    np.testing.assert_array_equal(hits(rank_Q, 1), [1, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(hits(rank_Q, 10), [1, 1, 1, 1, 0, 0])
    generator = np.random.default_rng(1)
    score_Q, score_QC = generator.random(20), generator.random((20, 30))
    ours = ndcg(mean_ranks(score_Q, score_QC, np.ones((20, 30), dtype=bool)), 10)
    label = np.eye(1, 31)
    theirs = [ndcg_score(label, [[score, *scores]], k=10) for score, scores in zip(score_Q, score_QC, strict=True)]
    np.testing.assert_allclose(ours, theirs)
    assert 0 < ours.mean() < 1


def test_score_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="1 of 24 are not"):
        mean_ranks(np.array([0.0, np.nan, 0.0]), np.zeros((3, 7)), ALL)
    with pytest.raises(ValueError, match="21 of 24 are not"):
        mean_ranks(np.zeros(3), np.full((3, 7), np.inf), ALL)


def test_calibration_error_is_that_of_the_definition():
    generator = np.random.default_rng(3)
    probability_P = np.append(generator.random(500), [0.0, 1.0])
    positive_P = generator.random(502) < probability_P**2
    expected = 0.0
    for low in range(15):
        inside = (probability_P >= low / 15) & ((probability_P < (low + 1) / 15) | (low == 14))
        if inside.any():
            expected += inside.mean() * abs(probability_P[inside].mean() - positive_P[inside].mean())
    assert expected > 0.05
    assert expected_calibration_error(positive_P, probability_P) == pytest.approx(expected)


def test_calibrated_probabilities_have_a_small_error_and_overstated_ones_a_large():
    generator = np.random.default_rng(4)
    probability_P = generator.random(100_000) ** 3
    positive_P = generator.random(100_000) < probability_P
    assert expected_calibration_error(positive_P, probability_P) < 0.01
    assert expected_calibration_error(positive_P, probability_P ** (1 / 3)) > 0.2


@pytest.mark.parametrize("wrong", [[0.5, 1.5], [np.nan, 0.5], [0.5]])
def test_values_that_are_no_probabilities_are_refused(wrong: list[float]):
    with pytest.raises(ValueError, match="expected"):
        expected_calibration_error(np.array([True, False]), np.array(wrong))
