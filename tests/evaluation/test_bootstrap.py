"""The two-way bootstrap: against pairs repeated one by one, and on pairs that share popular targets, as in a log."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from dyformer.evaluation.bootstrap import NodeResamples, interval, node_resamples, resampled_metrics

NUM_SOURCES, NUM_TARGETS, NUM_PAIRS = 150, 30, 400


def test_a_resampled_metric_is_that_of_pairs_repeated_as_often_as_both_ends_were_drawn():
    generator = np.random.default_rng(0)
    for num_pairs in (8, 40, 200):
        source_P, target_P = generator.integers(100, 130, size=(2, num_pairs))
        positive_P = np.arange(num_pairs) % 3 == 0
        score_P = generator.integers(num_pairs // 2, size=num_pairs).astype(np.float64)  # many ties
        resamples = node_resamples([source_P, target_P], num_resamples=20, generator=generator)
        found = resampled_metrics(resamples, source_P, target_P, positive_P, score_P)
        for weight_S, auc, precision in zip(resamples.weight_BS, *found, strict=True):
            times = dict(zip(resamples.node_S.tolist(), weight_S.tolist(), strict=True))
            repeats_P = [times[s] * times[t] for s, t in zip(source_P.tolist(), target_P.tolist(), strict=True)]
            labels, scores = np.repeat(positive_P, repeats_P), np.repeat(score_P, repeats_P)
            if labels.any() and not labels.all():
                assert auc == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
                assert precision == pytest.approx(average_precision_score(labels, scores), abs=1e-12)
            else:
                assert np.isnan(auc)
                assert np.isnan(precision)


def test_one_node_has_one_number_as_source_and_as_target():
    source_P, target_P = np.array([0, 1, 7, 7]), np.array([1, 2, 0, 2])
    resamples = node_resamples([source_P, target_P], num_resamples=4000, generator=np.random.default_rng(0))
    assert resamples.node_S.tolist() == [0, 1, 2, 7]
    weight_BS = resamples.weight_BS.astype(float)
    np.testing.assert_allclose(weight_BS.mean(axis=0), 1, atol=0.06)  # a node is drawn once on average,
    np.testing.assert_allclose(np.cov(weight_BS.T), np.eye(4), atol=0.1)  # independently of the others


def test_many_pairs_get_fewer_resamples_and_a_seed_decides_them():
    def drawn(num_pairs: int, seed: int = 0) -> NodeResamples:
        ends = [np.arange(num_pairs) % 50, np.arange(num_pairs) % 7]
        return node_resamples(ends, generator=np.random.default_rng(seed))

    assert [len(drawn(num_pairs).weight_BS) for num_pairs in (0, 10, 50_000, 100_000, 10**6)] == [1000] * 3 + [500, 200]
    np.testing.assert_array_equal(drawn(10).weight_BS, drawn(10).weight_BS)
    assert (drawn(10).weight_BS != drawn(10, seed=1).weight_BS).any()


def test_an_interval_holds_the_middle_95_of_100_and_leaves_resamples_without_a_value_out():
    value_B = np.append(np.arange(1001.0), [np.nan] * 50)
    assert interval(value_B) == pytest.approx((25, 975))
    assert np.isnan(interval(np.full(3, np.nan))).all()


def equal_methods(seed: int) -> tuple[np.ndarray, ...]:
    """Two equally good methods; each ranks the pairs of some targets better, and a few targets have most pairs."""
    generator = np.random.default_rng(seed)
    popularity_T = 1 / np.arange(1, NUM_TARGETS + 1) ** 0.7
    source_P = generator.integers(NUM_SOURCES, size=NUM_PAIRS)
    index_P = generator.choice(NUM_TARGETS, size=NUM_PAIRS, p=popularity_T / popularity_T.sum())
    positive_P = generator.random(NUM_PAIRS) < 0.5

    def scores() -> np.ndarray:
        skill_P = 1 + generator.normal(size=NUM_TARGETS)[index_P] + 0.5 * generator.normal(size=NUM_SOURCES)[source_P]
        return generator.normal(size=NUM_PAIRS) + skill_P * positive_P

    return source_P, NUM_SOURCES + index_P, positive_P, scores(), scores()


def test_the_interval_covers_no_difference_where_pairs_have_common_targets_and_resampling_sources_alone_does_not():
    covered = {"both ends": 0, "sources alone": 0}
    for seed in range(120):
        source_P, target_P, positive_P, first_P, second_P = equal_methods(seed)
        both = node_resamples([source_P, target_P], num_resamples=200, generator=np.random.default_rng(seed))
        sources = np.where(both.node_S < NUM_SOURCES, both.weight_BS, 1).astype(np.uint8)
        for name, resamples in (("both ends", both), ("sources alone", replace(both, weight_BS=sources))):
            first_B, second_B = (
                resampled_metrics(resamples, source_P, target_P, positive_P, score_P)[0]
                for score_P in (first_P, second_P)
            )
            low, high = interval(first_B - second_B)
            covered[name] += low <= 0 <= high
    assert covered["both ends"] >= 0.92 * 120
    assert covered["sources alone"] <= 0.8 * 120
