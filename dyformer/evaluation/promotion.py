"""Scored queries of the newest step by a challenger, the champion and the baselines -> the champion from now on.

Q queries    B resamples    E nodes
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from dyformer.evaluation.config import METRIC_TITLES, PromotionConfig
from dyformer.evaluation.fitting import FORECASTER_WITH
from dyformer.evaluation.query_slices import KNOWN, query_slices
from dyformer.evaluation.rows import Measured
from dyformer.evaluation.scored_queries import MIXED, ScoredQueries, query_means, query_resamples, ranks_of
from dyformer.graphs.snapshots import DynamicGraph

MIN_QUERIES = 20
TOO_FEW_QUERIES = f"fewer than {MIN_QUERIES} queries are no test"
"""With fewer queries nothing is tested, because few differences may be equal by chance: a standard error of 0."""

MOST_LOST = 3
"""A champion gives way to a tie where its interval shows that at most so many times `promotion.tie` are lost."""

NO_CHAMPION = "there was no champion to compare with"
NO_CHALLENGER = "no model was trained"

FORECASTER_WITHOUT = "Forecaster without vectors"

ORDER: tuple[tuple[str, ...], ...] = (
    # counts of past interactions
    ("EdgeBank (ever)", "EdgeBank (last)", "EdgeBank (decayed)", "Last contact", "Recency rank", "Contact recency"),
    ("Preferential attachment", "Preferential attachment (last)", "Popularity (decayed)"),
    # the neighbourhood of a pair
    ("Common neighbours", "Adamic-Adar", "Adamic-Adar x recent activity", "L3", "Shortest path"),
    ("Adamic-Adar x root of recent degree", "L3 x root of recent degree"),
    # an iteration over the whole graph
    ("Personalized PageRank",),
    # a fit on fourteen features of pairs
    ("Logistic regression on pair features",),
    ("Boosted trees on pair features",),
    # several fits on all features
    (FORECASTER_WITHOUT,),
    # a pass over all events, and fits on its features twice: of events, then of pairs
    ("Event forecaster by pair",),
)
"""Methods without vectors, the cheapest first; those with vectors, and unknown ones, cost more than all of these.

A class of methods costs more than the one before it, because it computes all of that or takes a fit more. By this order
a tie is decided.
"""

_CLASS = {title: number for number, titles in enumerate(ORDER) for title in titles}


def cost(title: str) -> int:
    """Give the class of a method in ORDER, or the one after it: vectors take a training."""
    return _CLASS.get(title, len(ORDER))


def is_simple(title: str) -> bool:
    """Whether a method is one of those that a forecaster has to be better than."""
    return cost(title) < cost(FORECASTER_WITHOUT)


def has_vectors(title: str) -> bool:
    """Whether a method is the forecaster with the vectors of another one."""
    return title.startswith(FORECASTER_WITH)


class Difference(NamedTuple):
    """The metric of one method less that of another over the same queries, with its interval."""

    low: float
    mean: float
    high: float
    level: float
    num_queries: int


class Gain(NamedTuple):
    """How much better one method is than another one over the same queries, with an interval of the rule's level."""

    method: str
    value: float  # of the rule's metric
    other: str
    other_value: float
    difference: Difference


class Decision(NamedTuple):
    """The method that is champion from now on, and why."""

    winner: str
    value: float | None  # of the rule's metric
    difference: Difference | None  # of the two methods in `compared`
    compared: tuple[str, str] | None
    num_tests: int  # of the winner so far, those of this step among them
    reason: str
    tied: str | None = None  # a more expensive method that the winner is as good as
    gain: Gain | None = None  # of the winner over the best simple method, None if it is that one
    vectors: Gain | None = None  # of the challenger over the forecaster without vectors


class _Verdict(NamedTuple):
    is_better: bool
    difference: Difference
    reason: str


@dataclass(frozen=True, kw_only=True)
class _Paired:
    """Means of the rule's metric over the same queries, with the same resamples of nodes, by slice and method."""

    rule: PromotionConfig
    means: Mapping[str, Mapping[str, Measured]]
    freedom: Mapping[str, float]  # degrees of freedom of a slice

    def value(self, method: str) -> float:
        return self.means[KNOWN][method].value

    def difference(self, first: str, second: str, level: float, part: str = KNOWN) -> Difference:
        """Give the difference, with the bootstrap's standard error times a quantile of Student's t on both sides.

        The quantiles of the resamples themselves would need far more than 1,000 of them at the levels of later tests.
        The normal quantile is too small where a few targets have most queries: an equally good challenger then won 7 %
        of the tests instead of 2.5 %. With hundreds of sources and targets the two quantiles are the same.
        """
        first_mean, other = self.means[part][first], self.means[part][second]
        difference = first_mean.value - other.value
        reach = float(stdtrit(self.freedom[part], (1 + level) / 2) * self._standard_error(first, second, part))
        return Difference(difference - reach, difference, difference + reach, level, first_mean.num)

    def _standard_error(self, first: str, second: str, part: str) -> float:
        return float(np.nanstd(self.means[part][first].value_B - self.means[part][second].value_B, ddof=1))

    def verdict(self, first: str, second: str, level: float) -> _Verdict:
        """Decide whether the first method is better: its interval lies above 0, and that of no slice below 0.

        Slices have intervals of the rule's own level, because those of a higher one are wider and protect less.
        """
        difference = self.difference(first, second, level)
        interval = f"the {100 * level:.6g} % interval of the difference in {METRIC_TITLES[self.rule.metric]}"
        if not difference.low > 0:  # also where a single source or target has all queries, and the interval is NaN
            return _Verdict(False, difference, f"{interval} does not lie above 0")
        parts = [part for part in self.rule.slice_names if part in self.means]
        lost = [part for part in parts if self.difference(first, second, self.rule.level, part).high < 0]
        if lost:
            return _Verdict(False, difference, f"{interval} lies above 0, but that of the slice {lost[0]} below 0")
        return _Verdict(True, difference, f"{interval} lies above 0")

    def gain(self, first: str, second: str) -> Gain:
        """Compare two methods by an interval of the rule's own level, which is a description and no test."""
        difference = self.difference(first, second, self.rule.level)
        return Gain(first, self.value(first), second, self.value(second), difference)

    def allowed(self, first: str, second: str) -> float:
        """Give the difference of a tie: `tie`, or one standard error of the difference where this is more.

        The rule of one standard error (Breiman, Friedman, Olshen and Stone 1984, Classification and Regression Trees,
        section 3.4.3): of methods that hardly differ for so many queries, the cheaper one.
        """
        return float(np.fmax(self.rule.tie, self._standard_error(first, second, KNOWN)))

    def is_tie(self, first: str, second: str) -> bool:
        """Whether the second method is as good as the first one: no worse by more than allowed, and nowhere clearly.

        The interval alone would not do: with few queries it holds 0 for nearly all methods.
        """
        if not self.difference(first, second, self.rule.level).mean <= self.allowed(first, second):
            return False
        parts = [KNOWN, *(part for part in self.rule.slice_names if part in self.means)]
        return not any(self.difference(first, second, self.rule.level, part).low > 0 for part in parts)

    @property
    def most_lost(self) -> float:
        """The largest loss in the metric that a champion's tie may leave possible."""
        return MOST_LOST * self.rule.tie

    def is_sure_tie(self, first: str, second: str) -> bool:
        """Whether the interval of a tie shows that hardly anything is lost: with few queries, it shows nothing."""
        return self.difference(first, second, self.rule.level).high <= self.most_lost


def level_of_test(level: float, number: int) -> float:
    """Give the level of the interval in the `number`-th test of one champion, from 1.

    The errors (1 - level) / (k (k + 1)) of the tests k = 1, 2, ... sum to 1 - level, however many follow. An interval
    errs upwards with half of its error, so that a test has one half for the challenger and one for the baselines.
    """
    return 1 - (1 - level) / (number * (number + 1))


def decide(
    challenger: ScoredQueries | None,
    champion: ScoredQueries | None,
    baselines: Sequence[ScoredQueries],
    graph: DynamicGraph,
    rule: PromotionConfig,
    num_tests: int = 0,
) -> Decision:
    """Decide which method is champion after the step of the queries.

    The challenger replaces the champion where it is better by `rule`; without one it becomes champion. The best
    of the baselines replaces the winner by the same rule. Because it is the best of several, the level of its interval
    has Bonferroni's correction for their number. At last the cheapest of the methods that tie with the winner, and with
    the best of all, takes its position (ORDER). Each method has a title of its own; the champion
    may be one of `baselines`. `graph` holds the steps before that of the queries, `num_tests` is the number of earlier
    tests of the champion. Without a challenger, the champion is compared with the baselines alone. Raises ValueError
    for scores of other queries.
    """
    methods = [method for method in (champion, challenger) if method is not None]
    assert methods, "there is a champion or a challenger"
    paired = _paired([*methods, *baselines], graph, rule)
    if paired is None:
        reason = NO_CHAMPION if champion is None else "the champion stays"
        return Decision(methods[0].method, None, None, None, num_tests, f"{reason}; {TOO_FEW_QUERIES}")
    decision = _first(challenger, champion, paired, num_tests)
    titles = [baseline.method for baseline in baselines]
    decision = _cheapest(_with_baselines(decision, titles, paired), champion, titles, paired)
    return _compared(decision, challenger, paired)


def _first(
    challenger: ScoredQueries | None, champion: ScoredQueries | None, paired: _Paired, num_tests: int
) -> Decision:
    """Decide between challenger and champion, before the baselines."""
    if challenger is None or champion is None:
        only, number, reason = (
            (champion, num_tests, NO_CHALLENGER) if challenger is None else (challenger, 0, NO_CHAMPION)
        )
        assert only is not None
        return Decision(only.method, paired.value(only.method), None, None, number, reason)
    verdict = paired.verdict(challenger.method, champion.method, level_of_test(paired.rule.level, num_tests + 1))
    winner, number = (challenger.method, 0) if verdict.is_better else (champion.method, num_tests)
    compared = challenger.method, champion.method
    return Decision(winner, paired.value(winner), verdict.difference, compared, number, verdict.reason)


def _cheapest(decision: Decision, champion: ScoredQueries | None, titles: Sequence[str], paired: _Paired) -> Decision:
    """Replace the winner by the cheapest baseline that ties with it, the better one of two that cost as much.

    It ties with the best method, too, which may be no champion yet: else a champion that is worse, though not clearly,
    would be replaced by one that is worse still. A champion gives way only where the tie is sure: with few queries one
    standard error is large, so that a worse method ties at some step, and stays because no test of few queries brings
    the champion back.
    """
    winner, best = decision.winner, max(paired.means[KNOWN], key=paired.value)
    cheaper = [title for title in titles if cost(title) < cost(winner)]
    ties = [title for title in cheaper if paired.is_tie(winner, title) and paired.is_tie(best, title)]
    is_champion = champion is not None and winner == champion.method
    sure = [title for title in ties if not is_champion or paired.is_sure_tie(winner, title)]
    if ties and not sure:
        cheapest = min(ties, key=cost)
        num_queries = paired.means[KNOWN][cheapest].num
        return decision._replace(
            reason=f"{decision.reason}; {cheapest} costs less, but {num_queries} queries do not show that its"
            f" {METRIC_TITLES[paired.rule.metric]} is at most {paired.most_lost:.2g} lower"
        )
    if not sure:
        return decision
    cheapest = min(sure, key=lambda title: (cost(title), -paired.value(title)))
    difference = paired.difference(cheapest, winner, paired.rule.level)
    reason = (
        f"{cheapest} costs less than {winner} and is as good: its {METRIC_TITLES[paired.rule.metric]} is"
        f" {abs(difference.mean):.3f} {'lower' if difference.mean < 0 else 'higher'} (a tie allows up to"
        f" {paired.allowed(winner, cheapest):.2g} lower, if not significantly)"
    )
    return Decision(cheapest, paired.value(cheapest), difference, (cheapest, winner), 0, reason, tied=winner)


def _compared(decision: Decision, challenger: ScoredQueries | None, paired: _Paired) -> Decision:
    """Describe how much better the winner is than the best simple method, and the challenger for its vectors."""
    methods = paired.means[KNOWN]
    simple = max(filter(is_simple, methods), key=paired.value, default=None)
    if simple is not None and simple != decision.winner:
        decision = decision._replace(gain=paired.gain(decision.winner, simple))
    if challenger is not None and has_vectors(challenger.method) and FORECASTER_WITHOUT in methods:
        decision = decision._replace(vectors=paired.gain(challenger.method, FORECASTER_WITHOUT))
    return decision


def _with_baselines(decision: Decision, titles: Sequence[str], paired: _Paired) -> Decision:
    """Compare the winner with the best of the other baselines; the test counts for the winner that stays."""
    number, others = decision.num_tests + 1, [title for title in titles if title != decision.winner]
    if not others:
        return decision._replace(num_tests=number)
    best = max(others, key=paired.value)
    level = 1 - (1 - level_of_test(paired.rule.level, number)) / len(others)
    verdict = paired.verdict(best, decision.winner, level)
    if verdict.is_better:
        reason = f"{best} is better than {decision.winner}: {verdict.reason}"
        return Decision(best, paired.value(best), verdict.difference, (best, decision.winner), 0, reason)
    if decision.difference is None:
        low, mean, high, level, num = verdict.difference
        opposite = Difference(-high, -mean, -low, level, num)
        reason = f"{decision.reason}, and no baseline is significantly better"
        decision = decision._replace(difference=opposite, compared=(decision.winner, best), reason=reason)
    return decision._replace(num_tests=number)


def _paired(scored: Sequence[ScoredQueries], graph: DynamicGraph, rule: PromotionConfig) -> _Paired | None:
    """Measure all methods on the same queries and resamples; None where the queries are too few for a test."""
    distinct = {ranked.method: ranked for ranked in scored}  # the champion may be a baseline
    queries, used_Q = scored[0].queries, np.isfinite(ranks_of(scored[0], MIXED))
    if used_Q.sum() < MIN_QUERIES:
        return None
    slices = query_slices(graph, queries)
    parts = {part: slices[part] for part in (KNOWN, *rule.slice_names) if part in slices}
    resamples = query_resamples([queries], seed=scored[0].seed)
    means = query_means(list(distinct.values()), rule.metric, parts, resamples)
    ends = queries.source_Q, queries.target_Q
    return _Paired(
        rule=rule,
        means={part: dict(zip(distinct, values, strict=True)) for part, values in means.items()},
        freedom={part: min(_effective(end_Q[parts[part] & used_Q]) for end_Q in ends) - 1 for part in means},
    )


def _effective(node_E: NDArray[np.int64]) -> float:
    """Give the number of equally frequent nodes whose numbers of queries would vary as little (Kish, 1965)."""
    count_E = np.unique(node_E, return_counts=True)[1]
    return float(count_E.sum() ** 2 / (count_E**2).sum())
