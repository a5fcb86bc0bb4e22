"""Paired differences and tests: the two-way bootstrap, pairs repeated one by one, DeLong, all signs, Holm by hand."""

import itertools
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from scipy import stats
from sklearn.metrics import average_precision_score, roc_auc_score

from dyformer.evaluation.bootstrap import NodeResamples, interval, node_resamples, resampled_metrics
from dyformer.evaluation.protocols.paper import TESTS_SCHEMA, holm, wilcoxon_tests
from dyformer.evaluation.rows import METRICS_SCHEMA
from dyformer.evaluation.scored_pairs import ScoredPairs
from dyformer.scoring.metrics import auc

STEPS = range(3, 10)
NUM_SOURCES, NUM_TARGETS, NUM_PAIRS = 150, 30, 400


def signed_rank(first_T: np.ndarray, second_T: np.ndarray) -> float:
    """Count, among all signs of the ranks, those with as extreme a sum of positive ranks (Wilcoxon, 1945)."""
    difference_T = first_T - second_T
    rank_T = stats.rankdata(np.abs(difference_T))
    signs = itertools.product([0, 1], repeat=len(rank_T))
    sums = np.array([np.dot(sign, rank_T) for sign in signs])
    found, mean = rank_T[difference_T > 0].sum(), rank_T.sum() / 2
    return float((np.abs(sums - mean) >= abs(found - mean) - 1e-9).mean())


def metric_rows(values: dict[str, np.ndarray], *, seed: int = 0, part: str = "all") -> pl.DataFrame:
    """AUC of methods at the steps 3, 4, ..., and a macro value that no test may read; baselines are in capitals."""
    rows = [
        {"method": method, "step": step, "value": value}
        for method, own in values.items()
        for step, value in [*zip(map(str, STEPS), own.tolist(), strict=False), ("macro", 0.5), ("micro", 0.5)]
    ]
    about = {"dataset": "uci", "protocol": "paper", "metric": "auc", "family": "random", "slice": part}
    frame = pl.DataFrame(rows).with_columns(
        *(pl.lit(text).alias(name) for name, text in about.items()),
        seed=pl.lit(seed, pl.Int64),
        is_baseline=pl.col("method").str.to_uppercase() == pl.col("method"),
    )
    return pl.concat([pl.DataFrame(schema=METRICS_SCHEMA), frame], how="diagonal")


def test_a_method_is_tested_against_each_baseline_over_its_steps():
    generator = np.random.default_rng(0)
    low_T, high_T = generator.random(7), 2 + generator.random(7)
    mine_T = np.append(high_T[:2] + 0.1, high_T[2:] - 0.3)
    tests = wilcoxon_tests(metric_rows({"LOW": low_T, "mine": mine_T, "HIGH": high_T}))
    assert tests.schema == TESTS_SCHEMA
    assert tests["method"].to_list() == ["mine", "mine"]
    low, high = tests.to_dicts()
    assert (low["baseline"], low["num_differences"], low["num_above"], low["num_below"]) == ("LOW", 7, 7, 0)
    assert (high["baseline"], high["num_above"], high["num_below"]) == ("HIGH", 2, 5)
    for row, other_T in ((low, low_T), (high, high_T)):
        assert row["p"] == pytest.approx(signed_rank(mine_T, other_T))
    assert low["p"] == pytest.approx(2 / 2**7)  # exact: all of seven signs are equal
    assert low["p_holm"] == pytest.approx(min(1, 2 * low["p"]))
    assert high["p_holm"] == pytest.approx(max(low["p_holm"], high["p"]))


def test_steps_and_seeds_are_paired_and_fewer_than_six_are_not_tested():
    generator = np.random.default_rng(1)
    seeds = [
        metric_rows({"mine": generator.random(3), "BASE": generator.random(3)}, seed=seed).sample(
            fraction=1, shuffle=True
        )
        for seed in (0, 1)
    ]
    assert wilcoxon_tests(seeds[0]).is_empty()
    both = pl.concat(seeds)
    test = wilcoxon_tests(both).row(0, named=True)
    per_step = both.filter(pl.col("step").str.contains(r"^\d+$")).sort("seed", "step")
    mine_T, base_T = (per_step.filter(method=method)["value"].to_numpy() for method in ("mine", "BASE"))
    assert test["num_differences"] == 6
    assert test["num_above"] == (mine_T > base_T).sum()
    assert test["p"] == pytest.approx(signed_rank(mine_T, base_T))
    without_a_step = both.filter((pl.col("method") == "mine") | (pl.col("step") != "3"))
    assert wilcoxon_tests(without_a_step).is_empty()
    assert wilcoxon_tests(pl.DataFrame(schema=METRICS_SCHEMA)).schema == TESTS_SCHEMA


def test_equal_methods_do_not_differ_and_a_slice_has_tests_of_its_own():
    value_T = np.linspace(0.1, 0.7, 7)
    equal = metric_rows({"mine": value_T, "BASE": value_T})
    new = metric_rows({"mine": value_T + 0.1, "BASE": value_T}, part="new")
    rows = pl.concat([equal, new])
    assert wilcoxon_tests(rows)["p_holm"].to_list() == [1.0]
    assert wilcoxon_tests(rows, slice_name="new")["p_holm"].to_list() == [2 / 2**7]


def test_equal_values_have_no_rank_in_the_side_of_a_test():
    """The ranks above are 5 and 3, those below 1, 2 and 4; with ranks of the two equal values below would be more."""
    difference_T = np.array([0.5, 0.3, -0.1, -0.2, -0.4, 0.0, 0.0])
    rows = {"mine": 0.5 + difference_T, "BASE": np.full(7, 0.5)}
    assert wilcoxon_tests(metric_rows(rows))["is_above"].to_list() == [True]
    assert wilcoxon_tests(metric_rows({**rows, "mine": 0.5 - difference_T}))["is_above"].to_list() == [False]


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def scored(
    score_P: np.ndarray, positive_P: np.ndarray, source_P: np.ndarray | None = None, method: str = "one"
) -> ScoredPairs:
    source_P = np.arange(len(score_P)) if source_P is None else source_P
    return ScoredPairs(
        method=method,
        seed=0,
        step=4,
        family="random",
        source_P=source_P,
        target_P=np.arange(len(score_P)) + 1000,
        positive_P=positive_P,
        new_P=np.arange(len(score_P)) % 2 == 0,
        score_P=score_P.astype(np.float64),
    )


def two_methods(
    seed: int, num_pairs: int = 300, num_sources: int = 60, gap: float = 0.0
) -> tuple[ScoredPairs, ScoredPairs]:
    """Scores of two methods that separate positive pairs from negative ones, the second better by `gap`, with ties."""
    generator = np.random.default_rng(seed)
    positive_P = generator.random(num_pairs) < 0.5
    source_P = generator.integers(num_sources, size=num_pairs)
    shared_P = generator.normal(size=num_pairs)

    def scores(edge: float) -> ScoredPairs:
        score_P = np.round(shared_P + generator.normal(size=num_pairs) + (1 + edge) * positive_P, 1)
        return scored(score_P, positive_P, source_P)

    return scores(0.0), scores(gap)


def difference(challenger: ScoredPairs, champion: ScoredPairs, seed: int = 0, num_resamples: int = 300):
    """Low end, mean and high end of the interval of the difference in AUC, on the same resamples of the nodes."""
    ends = challenger.source_P, challenger.target_P
    resamples = node_resamples(ends, num_resamples=num_resamples, generator=np.random.default_rng(seed))
    first_B, second_B = (
        resampled_metrics(resamples, each.source_P, each.target_P, each.positive_P, each.score_P)[0]
        for each in (challenger, champion)
    )
    difference_B = (first_B - second_B)[np.isfinite(first_B)]
    low, high = interval(difference_B)
    return low, float(difference_B.mean()), high


def test_the_interval_is_that_of_resampling_both_ends_pair_by_pair():
    first, second = two_methods(1, num_pairs=80, num_sources=15)
    nodes = np.union1d(first.source_P, first.target_P).tolist()
    generator = np.random.default_rng(7)
    expected = []
    for _ in range(200):
        times = dict(zip(nodes, generator.poisson(size=len(nodes)).tolist(), strict=True))
        ends = zip(first.source_P.tolist(), first.target_P.tolist(), strict=True)
        pairs = np.repeat(np.arange(80), [times[source] * times[target] for source, target in ends])
        positive = first.positive_P[pairs]
        expected.append(roc_auc_score(positive, first.score_P[pairs]) - roc_auc_score(positive, second.score_P[pairs]))
    low, mean, high = difference(first, second, seed=7, num_resamples=200)
    assert mean == pytest.approx(np.mean(expected), abs=1e-12)
    assert (low, high) == pytest.approx(tuple(np.percentile(expected, [2.5, 97.5])), abs=1e-12)


def test_the_interval_is_root_three_times_as_wide_as_delongs_where_every_pair_has_ends_of_its_own():
    """The product of two numbers of variance 1 has the variance 3: the price of allowing for both ends."""
    positive_P = np.arange(2000) % 2 == 0
    generator = np.random.default_rng(3)
    shared_P = generator.normal(size=2000) + positive_P
    scores = [shared_P + generator.normal(size=2000) for _ in range(2)]
    # DeLong, DeLong and Clarke-Pearson (1988): each pair's contribution to the difference in AUC.
    parts = [(score_P[positive_P][:, None] > score_P[~positive_P]).astype(float) for score_P in scores]
    part_LU = parts[0] - parts[1]
    deviation = np.sqrt(part_LU.mean(axis=1).var(ddof=1) / 1000 + part_LU.mean(axis=0).var(ddof=1) / 1000)
    first, second = (scored(score_P, positive_P) for score_P in scores)
    low, mean, high = difference(first, second, num_resamples=2000)
    assert mean == pytest.approx(part_LU.mean(), abs=deviation / 10)
    assert (high - low) / 2 == pytest.approx(3**0.5 * stats.norm.ppf(0.975) * deviation, rel=0.08)


def test_a_method_does_not_differ_from_itself():
    first, second = two_methods(2)
    assert difference(first, replace(first, method="other name")) == (0, 0, 0)
    assert difference(first, replace(first, score_P=np.exp(first.score_P))) == (0, 0, 0)  # has the same order
    assert difference(first, second) != (0, 0, 0)


def test_the_interval_of_an_oracle_over_chance_lies_above_0():
    positive_P = np.arange(200) % 2 == 0
    chance = scored(np.random.default_rng(0).random(200), positive_P)
    low, mean, high = difference(scored(positive_P, positive_P), chance)
    assert 0.3 < low < mean < high < 0.7
    assert mean == pytest.approx(1 - auc(positive_P, chance.score_P), abs=0.01)


def test_exchanging_the_methods_negates_the_interval():
    first, second = two_methods(3, gap=0.5)
    low, mean, high = difference(first, second)
    assert difference(second, first) == pytest.approx((-high, -mean, -low), abs=1e-12)


def test_a_seed_decides_the_interval_and_pairs_may_come_in_any_order():
    first, second = two_methods(4)
    assert difference(first, second, seed=5) == difference(first, second, seed=5) != difference(first, second, seed=6)
    order = np.random.default_rng(0).permutation(len(first.score_P))
    names = ("source_P", "target_P", "positive_P", "new_P", "score_P")
    mixed = [replace(pairs, **{name: getattr(pairs, name)[order] for name in names}) for pairs in (first, second)]
    assert difference(mixed[0], mixed[1], seed=5) == pytest.approx(difference(first, second, seed=5), abs=1e-12)


def test_the_interval_holds_the_true_difference_at_least_nineteen_times_in_twenty():
    inside = 0
    for seed in range(200):
        low, _, high = difference(*two_methods(seed), num_resamples=200)
        inside += low <= 0 <= high
    assert inside >= 186


def test_pairs_of_one_source_count_as_one_observation():
    """Ten copies of every pair under its own source do not narrow the interval."""
    first, second = two_methods(5, num_pairs=100, num_sources=30, gap=0.3)
    tenfold = [
        replace(pairs, **{
            name: np.tile(getattr(pairs, name), 10)
            for name in ("source_P", "target_P", "positive_P", "new_P", "score_P")
        })
        for pairs in (first, second)
    ]  # fmt: skip
    assert difference(tenfold[0], tenfold[1]) == pytest.approx(difference(first, second), abs=1e-12)


def test_a_resampled_metric_is_that_of_pairs_repeated_as_often_as_both_ends_were_drawn():
    generator = np.random.default_rng(0)
    for num_pairs in (8, 40, 200):
        source_P, target_P = generator.integers(100, 130, size=(2, num_pairs))
        positive_P = np.arange(num_pairs) % 3 == 0
        score_P = generator.integers(num_pairs // 2, size=num_pairs).astype(np.float64)  # many ties
        resamples = node_resamples([source_P, target_P], num_resamples=20, generator=generator)
        found = resampled_metrics(resamples, source_P, target_P, positive_P, score_P)
        for weight_S, area, precision in zip(resamples.weight_BS, *found, strict=True):
            times = dict(zip(resamples.node_S.tolist(), weight_S.tolist(), strict=True))
            repeats_P = [times[s] * times[t] for s, t in zip(source_P.tolist(), target_P.tolist(), strict=True)]
            labels, scores = np.repeat(positive_P, repeats_P), np.repeat(score_P, repeats_P)
            if labels.any() and not labels.all():
                assert area == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
                assert precision == pytest.approx(average_precision_score(labels, scores), abs=1e-12)
            else:
                assert np.isnan(area)
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
