"""Promotion: the interval against queries repeated one by one, the rule case by case, and equally good challengers."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from scipy import stats

from dyformer.evaluation.config import SLICES, PromotionConfig
from dyformer.evaluation.promotion import (
    FORECASTER_WITHOUT,
    MIN_QUERIES,
    MOST_LOST,
    NO_CHALLENGER,
    NO_CHAMPION,
    decide,
    level_of_test,
)
from dyformer.evaluation.scored_queries import ScoredQueries, query_resamples
from dyformer.graphs.snapshots import DynamicGraph, build_snapshots
from dyformer.logs.time_windows import Window
from dyformer.sampling.ranking_queries import FAMILIES, RankingQueries

NUM_SOURCES, NUM_TARGETS, NUM_CANDIDATES = 120, 80, 12
NUM_NODES = NUM_SOURCES + NUM_TARGETS + 40  # the last ones are only candidates
RULE = PromotionConfig()


def ring() -> DynamicGraph:
    """Three steps in which every node has an interaction, so that all are known before step 4."""
    node = np.arange(NUM_NODES)
    events = {
        "source": np.tile(node, 3),
        "target": np.tile((node + 1) % NUM_NODES, 3),
        "time": np.repeat([0, 1, 2], NUM_NODES),
    }
    return build_snapshots(pl.DataFrame(events), Window(rule="equal_time", length="1"), "step")


GRAPH = ring()


def queries_of(source_Q: np.ndarray, target_Q: np.ndarray, generator: np.random.Generator) -> RankingQueries:
    order_Q = np.lexsort((target_Q, source_Q))
    candidate_QC = NUM_SOURCES + NUM_TARGETS + np.argsort(generator.random((len(source_Q), 40)))[:, :NUM_CANDIDATES]
    return RankingQueries(
        step=4,
        source_Q=source_Q[order_Q],
        target_Q=target_Q[order_Q],
        new_Q=np.arange(len(source_Q)) % 2 == 0,
        candidate_QC=candidate_QC,
        family_QC=np.full(candidate_QC.shape, FAMILIES.index("typed"), dtype=np.int8),
        num_links_3=(len(source_Q), 0, 0),
    )


def popular_queries(
    generator: np.random.Generator, *, num_targets: int = NUM_TARGETS, power: float = 0.7, num: int = 200
) -> RankingQueries:
    """Queries of distinct pairs, a few of whose targets are popular."""
    popularity_T = np.arange(1, num_targets + 1) ** -power
    source_P = generator.integers(NUM_SOURCES, size=3 * num)
    target_P = generator.choice(num_targets, size=3 * num, p=popularity_T / popularity_T.sum())
    pair_P = generator.permutation(np.unique(source_P * 1000 + target_P))[:num]
    return queries_of(pair_P // 1000, NUM_SOURCES + pair_P % 1000, generator)


QUERIES = popular_queries(np.random.default_rng(0))


def scored(method: str, queries: RankingQueries, skill_Q: np.ndarray | float, seed: int = 0) -> ScoredQueries:
    """Scores of true pairs that are normal around `skill_Q`; those of candidates are normal around 0."""
    score_S = np.random.default_rng([seed, len(method), *map(ord, method)]).normal(size=len(queries.pairs.source_S))
    score_S[queries.pairs.position_Q] += skill_Q
    return ScoredQueries(method=method, seed=seed, queries=queries, score_S=score_S)


def equally_good(method: str, queries: RankingQueries, seed: int) -> ScoredQueries:
    """A method that is better on some targets and on some sources, the same on average as any other."""
    generator = np.random.default_rng([seed, 7, *map(ord, method)])
    skill_N = 1 + generator.normal(size=NUM_NODES) * np.where(np.arange(NUM_NODES) < NUM_SOURCES, 0.5, 1)
    return scored(method, queries, skill_N[queries.source_Q] - 1 + skill_N[queries.target_Q], seed)


def reciprocal_ranks(method: ScoredQueries) -> np.ndarray:
    ranks = [stats.rankdata([-own, *-others])[0] for own, others in zip(method.score_Q, method.score_QC, strict=True)]
    return 1 / np.array(ranks)


def test_the_interval_is_students_around_the_difference_with_the_spread_of_queries_repeated_one_by_one():
    first, second = scored("first", QUERIES, 1.0), scored("second", QUERIES, 0.7)
    own, other = reciprocal_ranks(first), reciprocal_ranks(second)
    resamples, values = query_resamples([QUERIES], seed=0), []
    for weight_S in resamples.weight_BS:
        times = dict(zip(resamples.node_S.tolist(), weight_S.tolist(), strict=True))
        ends = zip(QUERIES.source_Q.tolist(), QUERIES.target_Q.tolist(), strict=True)
        repeated = np.repeat(np.arange(200), [times[source] * times[target] for source, target in ends])
        values.append(own[repeated].mean() - other[repeated].mean())
    error = np.std(values, ddof=1)
    effective = min(
        1 / ((np.unique(end, return_counts=True)[1] / 200) ** 2).sum() for end in (QUERIES.source_Q, QUERIES.target_Q)
    )
    found = decide(first, second, [], GRAPH, RULE).difference
    assert found is not None
    assert found.mean == pytest.approx(own.mean() - other.mean(), abs=1e-12)
    assert (found.level, found.num_queries) == (pytest.approx(0.975), 200)
    reach = stats.t.ppf(0.9875, effective - 1) * error
    assert (found.low, found.high) == pytest.approx((found.mean - reach, found.mean + reach), rel=1e-4)


def test_without_a_champion_the_challenger_becomes_it():
    decision = decide(scored("mine", QUERIES, 1.0), None, [scored("L3", QUERIES, 0.5)], GRAPH, RULE)
    assert (decision.winner, decision.compared, decision.num_tests) == ("mine", ("mine", "L3"), 1)
    assert decision.value == pytest.approx(reciprocal_ranks(scored("mine", QUERIES, 1.0)).mean())
    assert decision.difference is not None
    assert decision.difference.low < decision.difference.mean < decision.difference.high
    assert decision.difference.mean > 0
    assert decision.reason.startswith(NO_CHAMPION)
    alone = decide(scored("mine", QUERIES, 1.0), None, [], GRAPH, RULE)
    assert (alone.winner, alone.difference) == ("mine", None)


@pytest.mark.parametrize(
    ("skill", "wins"),
    [(3.0, True), (1.0, False), (1.05, False), (0.2, False)],
    ids=["better", "as good", "hardly", "worse"],
)
def test_only_a_significant_win_promotes(skill: float, wins: bool):
    decision = decide(scored("mine", QUERIES, skill), scored("champion", QUERIES, 1.0), [], GRAPH, RULE, num_tests=2)
    assert decision.winner == ("mine" if wins else "champion")
    assert decision.num_tests == (1 if wins else 3)  # of the winner
    assert decision.compared == ("mine", "champion")
    assert decision.difference is not None
    assert (decision.difference.low > 0) is wins
    assert decision.difference.level == pytest.approx(1 - 0.05 / 12)  # the third test


@pytest.mark.parametrize("slices", ["new,repeat", "new", "repeat", None])
def test_a_win_does_not_make_up_for_a_slice_that_is_lost(slices: str | None):
    champion = scored("champion", QUERIES, np.where(QUERIES.new_Q, 1.0, -1.0))
    challenger = scored("mine", QUERIES, np.where(QUERIES.new_Q, -0.2, 6.0))
    decision = decide(challenger, champion, [], GRAPH, PromotionConfig(slices=slices))
    assert decision.difference is not None
    assert decision.difference.low > 0
    assert decision.winner == ("mine" if slices in ("repeat", None) else "champion")
    assert ("slice new" in decision.reason) is (decision.winner == "champion")


def test_a_slice_is_lost_at_the_level_of_the_rule_however_many_tests_there_were():
    champion = scored("champion", QUERIES, np.where(QUERIES.new_Q, 1.0, -1.0))
    challenger = scored("mine", QUERIES, np.where(QUERIES.new_Q, 0.4, 9.0))
    rule = PromotionConfig(level=0.6)
    assert "slice new" in decide(challenger, champion, [], GRAPH, rule, num_tests=20).reason
    strict = PromotionConfig(level=level_of_test(0.6, 21))
    assert decide(challenger, champion, [], GRAPH, strict).winner == "mine"


def test_the_best_baseline_replaces_the_winner_where_it_is_significantly_better():
    mine, champion = scored("mine", QUERIES, 1.0), scored("champion", QUERIES, 0.9)
    baselines = [scored(name, QUERIES, skill) for name, skill in (("L3", 1.5), ("Recency", 4.0), ("Paths", 3.5))]
    decision = decide(mine, champion, baselines, GRAPH, RULE, num_tests=1)
    assert (decision.winner, decision.compared, decision.num_tests) == ("Recency", ("Recency", "champion"), 0)
    assert decision.difference is not None
    assert decision.difference.low > 0
    assert decision.difference.level == pytest.approx(1 - 0.05 / 6 / 3)  # the second test, one of three baselines
    for first in (None, champion):
        equal = [replace(mine, method=name) for name in ("Paths", "Recency")]
        decision = decide(mine, first, equal, GRAPH, RULE)
        assert decision.winner == ("mine" if first is None else "champion")


def test_a_baseline_is_compared_with_the_challenger_that_has_just_won_by_a_first_test():
    mine, champion = scored("mine", QUERIES, 2.0), scored("champion", QUERIES, -1.0)
    decision = decide(mine, champion, [scored("L3", QUERIES, 9.0)], GRAPH, RULE, num_tests=7)
    assert (decision.winner, decision.compared) == ("L3", ("L3", "mine"))
    assert decision.difference is not None
    assert decision.difference.level == pytest.approx(1 - 0.05 / 2)


def test_a_baseline_may_not_lose_a_slice_either():
    champion = scored("champion", QUERIES, np.where(QUERIES.new_Q, 1.0, -1.0))
    baseline = scored("L3", QUERIES, np.where(QUERIES.new_Q, -0.5, 9.0))
    assert decide(replace(champion, method="mine"), champion, [baseline], GRAPH, RULE).winner == "champion"
    assert (
        decide(replace(champion, method="mine"), champion, [baseline], GRAPH, PromotionConfig(slices=None)).winner
        == "L3"
    )


def test_a_champion_that_is_a_baseline_is_not_compared_with_itself():
    champion, other = scored("L3", QUERIES, 1.0), scored("Paths", QUERIES, 0.5)
    decision = decide(scored("mine", QUERIES, 0.9), champion, [champion, other], GRAPH, RULE, num_tests=1)
    assert (decision.winner, decision.num_tests) == ("L3", 2)
    best = scored("Paths", QUERIES, 4.0)
    lost = decide(scored("mine", QUERIES, 0.9), champion, [champion, best], GRAPH, RULE, num_tests=1)
    assert lost.compared == ("Paths", "L3")
    assert lost.difference is not None
    assert lost.difference.level == pytest.approx(1 - 0.05 / 6)  # one other baseline
    better = decide(scored("mine", QUERIES, 4.0), champion, [champion, other], GRAPH, RULE, num_tests=1)
    assert (better.winner, better.num_tests) == ("mine", 1)


def test_queries_without_candidates_do_not_count():
    queries = popular_queries(np.random.default_rng(3), power=2.0)
    popular_Q = queries.target_Q == np.bincount(queries.target_Q).argmax()
    candidate_QC = np.where(popular_Q[:, None], -1, queries.candidate_QC)
    padded = replace(queries, candidate_QC=candidate_QC, family_QC=np.where(candidate_QC < 0, -1, queries.family_QC))
    names = ("source_Q", "target_Q", "new_Q", "candidate_QC", "family_QC")
    fewer = replace(queries, **{name: getattr(queries, name)[~popular_Q] for name in names})
    found = []
    for each, used_Q in ((padded, np.ones(len(popular_Q), dtype=bool)), (fewer, ~popular_Q)):
        methods = [scored(name, each, 0.0) for name in ("mine", "champion")]
        for shift, method in enumerate(methods):  # a pair has the same score in both cases
            skill_Q = np.random.default_rng(shift).normal(size=len(used_Q))[used_Q]
            method.score_S[:] = np.sin(7.0 * each.pairs.source_S + each.pairs.target_S + shift)
            method.score_S[each.pairs.position_Q] += skill_Q
        found.append(decide(methods[0], methods[1], [], GRAPH, RULE).difference)
    first, second = found
    assert first is not None
    assert second is not None
    assert first.num_queries == second.num_queries == (~popular_Q).sum()
    assert first.mean == pytest.approx(second.mean, abs=1e-12)
    assert first.high - first.low == pytest.approx(second.high - second.low, rel=0.15)  # other resamples


@pytest.mark.parametrize("metric", ["mrr", "hits_at_10", "ndcg_at_10"])
def test_the_rule_names_the_metric(metric: str):
    generator = np.random.default_rng(1)
    challenger, champion = scored("mine", QUERIES, generator.normal(size=200)), scored("champion", QUERIES, 0.0)
    found = decide(challenger, champion, [], GRAPH, RULE.__class__(metric=metric)).difference  # pyright: ignore
    ranks = [1 / reciprocal_ranks(each) for each in (challenger, champion)]
    values = {
        "mrr": lambda rank: 1 / rank,
        "hits_at_10": lambda rank: rank <= 10,
        "ndcg_at_10": lambda rank: np.where(rank <= 10, 1 / np.log2(1 + rank), 0),
    }[metric]
    assert found is not None
    assert found.mean == pytest.approx(values(ranks[0]).mean() - values(ranks[1]).mean(), abs=1e-12)


def test_few_queries_are_no_test_and_one_target_of_all_queries_is_no_win():
    source_Q, generator = np.arange(MIN_QUERIES), np.random.default_rng(0)
    few = queries_of(source_Q[1:], NUM_SOURCES + source_Q[1:], generator)
    enough, one = (
        queries_of(source_Q, NUM_SOURCES + source_Q, generator),
        queries_of(source_Q, 0 * source_Q + 150, generator),
    )
    for queries, winner, num_tests in ((few, "champion", 3), (enough, "mine", 1), (one, "champion", 4)):
        decision = decide(scored("mine", queries, 9.0), scored("champion", queries, -3.0), [], GRAPH, RULE, num_tests=3)
        assert (decision.winner, decision.num_tests) == (winner, num_tests)
        assert (decision.difference is None) is (queries is few)
    assert decide(scored("mine", few, 9.0), None, [scored("L3", few, 20.0)], GRAPH, RULE).winner == "mine"


def test_scores_of_other_queries_are_refused():
    other = popular_queries(np.random.default_rng(1))
    with pytest.raises(ValueError, match="other queries"):
        decide(scored("mine", QUERIES, 1.0), scored("champion", other, 1.0), [], GRAPH, RULE)


def test_the_errors_of_all_tests_of_a_champion_sum_to_that_of_the_rule():
    errors = [1 - level_of_test(0.95, number) for number in range(1, 2000)]
    assert errors[0] == pytest.approx(0.025)
    assert all(later < earlier for earlier, later in pairwise(errors))
    assert sum(errors) == pytest.approx(0.05, rel=1e-3)
    assert sum(errors) < 0.05


def test_a_champion_is_rarely_replaced_by_one_of_many_challengers_that_are_no_better():
    """With the level 0.8 at most 10 % by the challengers; the same level in every test replaces far more champions."""
    rule = PromotionConfig(level=0.8, slices=None)
    replaced = {"spent": 0, "same": 0}
    for seed in range(40):
        wins = {"spent": False, "same": False}
        for number in range(6):
            queries = popular_queries(np.random.default_rng([seed, number]), num=120)
            pair = [equally_good(name, queries, 10 * seed + number) for name in ("mine", "champion")]
            for kind, num_tests in (("spent", number), ("same", 0)):
                wins[kind] |= decide(pair[0], pair[1], [], GRAPH, rule, num_tests).winner == "mine"
        for kind, is_replaced in wins.items():
            replaced[kind] += is_replaced
    assert replaced["spent"] <= 0.1 * 40
    assert replaced["same"] > replaced["spent"]


@pytest.mark.parametrize(("num_targets", "power"), [(NUM_TARGETS, 0.0), (3, 0.7), (40, 2.0)])
def test_an_equally_good_challenger_rarely_wins_where_many_queries_have_one_popular_target(
    num_targets: int, power: float
):
    """One test at the level 0.9 wins by chance in at most 5 %; by the normal quantile, more often."""
    rule, wins = PromotionConfig(level=0.8, slices=None), 0
    for seed in range(150):
        generator = np.random.default_rng(seed)
        queries = popular_queries(generator, num_targets=num_targets, power=power, num=120)
        pair = [equally_good(name, queries, seed) for name in ("mine", "champion")]
        decision = decide(pair[0], pair[1], [], GRAPH, rule)
        wins += decision.winner == "mine"
    assert wins <= 0.05 * 150


def test_every_slice_that_queries_have_may_be_named_and_no_other():
    assert PromotionConfig(slices=" new , age=5+").slice_names == ("new", "age=5+")
    assert PromotionConfig(slices=",".join(SLICES)).slice_names == SLICES
    for wrong in ("nwe", "known", "new,", ""):
        with pytest.raises(ValueError, match="no slice"):
            PromotionConfig(slices=wrong)


# Ties, by planted scores: a method that is as good as a more expensive one publishes.

WITH, WITHOUT, TREES, RECENCY = (
    "Forecaster with DyFormer",
    FORECASTER_WITHOUT,
    "Boosted trees on pair features",
    "Contact recency",
)


def same_as(method: ScoredQueries, name: str, shift_Q: np.ndarray | float = 0.0) -> ScoredQueries:
    """The scores of a method under another name, those of the true pairs shifted."""
    score_S = method.score_S.copy()
    score_S[method.queries.pairs.position_Q] += shift_Q
    return replace(method, method=name, score_S=score_S)


FORECASTER = scored(WITH, QUERIES, 1.0)
WORSE = same_as(FORECASTER, RECENCY, -1.0)


def test_a_tie_goes_to_the_cheaper_method():
    decision = decide(FORECASTER, None, [same_as(FORECASTER, WITHOUT), WORSE], GRAPH, RULE)
    assert (decision.winner, decision.tied, decision.num_tests) == (WITHOUT, WITH, 0)
    assert decision.compared == (WITHOUT, WITH)
    assert decision.difference is not None
    assert decision.difference[:3] == (0, 0, 0)
    assert f"{WITHOUT} costs less than {WITH}" in decision.reason


def test_the_reason_of_a_tie_names_the_difference_as_it_is():
    """A cheaper method may have the higher metric, too: the reason once called every one lower."""
    few_Q = np.arange(len(FORECASTER.queries.pairs.position_Q)) < 5
    for shift, word in ((-100.0, "lower"), (100.0, "higher")):
        decision = decide(
            FORECASTER, None, [same_as(FORECASTER, WITHOUT, shift * few_Q)], GRAPH, PromotionConfig(tie=0.05)
        )
        assert decision.winner == WITHOUT
        assert decision.difference is not None
        assert (decision.difference.mean > 0) == (word == "higher")
        assert f"its MRR is {abs(decision.difference.mean):.3f} {word} (a tie allows up to 0.05" in decision.reason


def test_the_cheapest_of_several_ties_publishes():
    equal = [same_as(FORECASTER, title) for title in (TREES, WITHOUT, RECENCY)]
    assert decide(FORECASTER, None, equal, GRAPH, RULE).winner == RECENCY
    assert decide(FORECASTER, None, equal[:2], GRAPH, RULE).winner == TREES


def test_of_two_ties_that_cost_as_much_the_better_one_publishes():
    first_Q = np.arange(len(FORECASTER.queries.source_Q)) < 5
    better, worse = (same_as(FORECASTER, title, shift * first_Q) for title, shift in (("L3", 100.0), (RECENCY, -100.0)))
    assert reciprocal_ranks(better).mean() > reciprocal_ranks(worse).mean()
    for title, other in (("Adamic-Adar", "L3"), ("L3", "Adamic-Adar")):
        equally_cheap = [replace(better, method=title), replace(worse, method=other)]
        for baselines in (equally_cheap, equally_cheap[::-1]):
            decision = decide(FORECASTER, None, baselines, GRAPH, PromotionConfig(tie=0.05))
            assert (decision.winner, decision.tied) == (title, WITH)
            alone = decide(FORECASTER, None, [replace(worse, method=title)], GRAPH, PromotionConfig(tie=0.05))
            assert (alone.winner, alone.tied) == (title, WITH)  # the worse one ties as well


def test_a_more_expensive_method_that_is_better_publishes():
    """Better than the tie allows, whether significantly or not; or by less, but significantly."""
    decision = decide(FORECASTER, None, [same_as(FORECASTER, WITHOUT, -1.0)], GRAPH, RULE)
    assert (decision.winner, decision.tied) == (WITH, None)
    hardly = scored(WITHOUT, QUERIES, 0.9)
    gain = decide(FORECASTER, None, [hardly], GRAPH, RULE).vectors
    assert gain is not None
    assert gain.difference.low < 0 < gain.difference.mean
    just_allowed = PromotionConfig(tie=gain.difference.mean + 1e-9)
    assert decide(FORECASTER, None, [hardly], GRAPH, just_allowed).winner == WITHOUT
    just_too_much = PromotionConfig(tie=gain.difference.mean - 1e-9)
    assert decide(FORECASTER, None, [hardly], GRAPH, just_too_much).winner == WITH
    clearly = same_as(FORECASTER, WITHOUT, -0.3)
    assert decide(FORECASTER, None, [clearly], GRAPH, PromotionConfig(tie=1.0)).winner == WITH


@pytest.mark.parametrize("strength", [0.7, 0.8, 0.85, 0.9, 0.96, 0.98])
def test_within_one_standard_error_the_cheaper_method_publishes(strength):
    """A 95 % interval reaches at least 1.96 standard errors to each side, and with these queries less than 2.5."""
    strict, cheaper = PromotionConfig(tie=0, slices=None), scored(WITHOUT, QUERIES, strength)
    decision = decide(FORECASTER, None, [cheaper], GRAPH, strict)
    gain = decision.vectors
    assert gain is not None
    errors = gain.difference.mean / (gain.difference.high - gain.difference.mean)  # in half widths of the interval
    assert not 1 / 2.5 < errors <= 1 / 1.96, "choose another strength: this one is undecided"
    assert decision.winner == (WITHOUT if errors <= 1 / 2.5 else WITH)


def test_a_tie_is_none_where_a_slice_is_clearly_worse():
    uneven = same_as(FORECASTER, WITHOUT, np.where(QUERIES.new_Q, -1.5, 3.0))
    all_slices = PromotionConfig(slices=None, tie=1.0)
    assert decide(FORECASTER, None, [uneven], GRAPH, all_slices).winner == WITHOUT
    assert decide(FORECASTER, None, [uneven], GRAPH, PromotionConfig(slices="new", tie=1.0)).winner == WITH


def test_a_cheaper_method_ties_with_the_best_one_too_and_not_only_with_a_champion_that_is_worse():
    champion, few_Q = scored(TREES, QUERIES, 0.6), np.arange(len(QUERIES.source_Q)) < 3
    cheaper = same_as(champion, RECENCY, -100.0 * few_Q)  # a little worse than the champion
    rule = PromotionConfig(slices=None)
    decision = decide(FORECASTER, champion, [cheaper], GRAPH, rule)
    assert (decision.winner, decision.tied) == (TREES, None)  # the challenger is better, and not significantly
    alone = decide(None, champion, [cheaper], GRAPH, rule)
    assert (alone.winner, alone.tied) == (RECENCY, TREES)


def test_a_champion_that_ties_with_a_cheaper_method_is_replaced():
    champion = same_as(FORECASTER, "champion")
    decision = decide(scored(WITH, QUERIES, 0.2), champion, [same_as(champion, WITHOUT)], GRAPH, RULE, num_tests=3)
    assert (decision.winner, decision.tied, decision.num_tests) == (WITHOUT, "champion", 0)


def test_a_champion_gives_way_to_a_tie_only_where_the_queries_show_it():
    """A worse method ties in some window of few queries, and no test of so few would bring the champion back."""
    cheaper = scored(WITHOUT, QUERIES, 0.95)
    first = decide(FORECASTER, None, [cheaper], GRAPH, RULE)
    assert (first.winner, first.tied) == (WITHOUT, WITH)  # within one standard error, where there was no champion
    assert first.difference is not None
    lost = -first.difference.low
    assert lost > MOST_LOST * RULE.tie
    stays = decide(None, FORECASTER, [cheaper], GRAPH, RULE, num_tests=2)
    assert (stays.winner, stays.tied, stays.num_tests) == (WITH, None, 3)
    assert f"{WITHOUT} costs less, but {first.difference.num_queries} queries do not show that" in stays.reason
    assert "its MRR is at most 0.03 lower" in stays.reason
    sure, unsure = (PromotionConfig(tie=lost / MOST_LOST + much) for much in (1e-9, -1e-9))
    assert decide(None, FORECASTER, [cheaper], GRAPH, sure).winner == WITHOUT
    assert decide(None, FORECASTER, [cheaper], GRAPH, unsure).winner == WITH


def test_the_gain_over_the_best_simple_method_and_of_the_vectors_is_described():
    without = same_as(FORECASTER, WITHOUT, -1.0)
    decision = decide(FORECASTER, None, [without, WORSE, scored("L3", QUERIES, 0.5)], GRAPH, RULE)
    assert decision.gain is not None
    assert decision.vectors is not None
    assert (decision.winner, decision.gain.method, decision.gain.other) == (WITH, WITH, "L3")
    mean = {name: reciprocal_ranks(own).mean() for name, own in (("with", FORECASTER), ("without", without))}
    assert (decision.vectors.method, decision.vectors.other) == (WITH, WITHOUT)
    assert decision.vectors.value == pytest.approx(mean["with"])
    assert decision.vectors.difference.mean == pytest.approx(mean["with"] - mean["without"])
    assert decision.vectors.difference.level == RULE.level  # that of a description, not of a test
    simple = decide(scored("L3", QUERIES, 1.0), None, [scored("L3", QUERIES, 1.0), WORSE], GRAPH, RULE)
    assert (simple.winner, simple.gain, simple.vectors) == ("L3", None, None)


def test_without_a_challenger_the_champion_is_compared_with_the_baselines_alone():
    champion, close = scored("L3", QUERIES, 1.0), scored(WITHOUT, QUERIES, 1.05)
    stays = decide(None, champion, [champion, close, WORSE], GRAPH, RULE, num_tests=3)
    assert (stays.winner, stays.num_tests, stays.compared) == ("L3", 4, ("L3", WITHOUT))
    assert stays.reason == f"{NO_CHALLENGER}, and no baseline is significantly better"
    assert stays.difference is not None
    assert stays.difference.level == pytest.approx(1 - (1 - level_of_test(RULE.level, 4)) / 2)
    assert stays.vectors is None
    better = decide(None, champion, [champion, scored(WITHOUT, QUERIES, 3.0)], GRAPH, RULE, num_tests=3)
    assert (better.winner, better.num_tests) == (WITHOUT, 0)
    cheaper = decide(None, close, [close, same_as(close, "L3")], GRAPH, RULE, num_tests=3)
    assert (cheaper.winner, cheaper.tied) == ("L3", WITHOUT)
    few = replace(
        QUERIES,
        **{name: getattr(QUERIES, name)[:5] for name in ("source_Q", "target_Q", "new_Q", "candidate_QC", "family_QC")},
    )
    untested = decide(None, scored("L3", few, 1.0), [scored(WITHOUT, few, 3.0)], GRAPH, RULE, num_tests=3)
    assert (untested.winner, untested.num_tests, untested.difference) == ("L3", 3, None)
