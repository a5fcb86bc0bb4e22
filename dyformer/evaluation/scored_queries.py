"""A method and the ranking queries of a step -> their scores, as arrays and as tables, and their metrics.

Q queries    C candidates of a query    S distinct pairs of the queries    P pairs    M methods    B resamples
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.evaluation.bootstrap import NodeResamples, node_resamples
from dyformer.evaluation.fitting import checked_scores
from dyformer.evaluation.labelled_steps import fitted_scores, sampled_steps, with_retrieved
from dyformer.evaluation.query_slices import KNOWN, query_slices
from dyformer.evaluation.rows import (
    PAIR_METRICS,
    Cell,
    Measured,
    Run,
    fractions,
    log_rows,
    means,
    pair_metrics,
    pair_weights,
)
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.sampling.ranking_queries import FAMILIES, RankingQueries
from dyformer.scoring.interfaces import Embedder, LabelledStep, Score, Scorer
from dyformer.scoring.metrics import HITS, hits, mean_ranks, ndcg, reciprocal_rank

MIXED = "mixed"
"""All families but `inductive`, whose candidates become links later and do not exist at the last step."""

MAIN_SLICES = (KNOWN, "new", "repeat")
ALL = "all"  # the known queries, and the links with an unknown end as misses
NUM_PAIR_RESAMPLES = 200  # of AUC and average precision, whose pairs are many

SCORES_SCHEMA = pl.Schema(
    {"method": pl.String(), "seed": pl.Int64(), "step": pl.Int64(), "score": pl.List(pl.Float64())}
)


@dataclass(frozen=True, kw_only=True)
class RankingTrial:
    """One step to forecast, with its queries: all methods get the same past and labels, and score the same pairs.

    `graph` may hold later steps: only `past` and `labelled` reach a method.
    """

    graph: DynamicGraph
    queries: RankingQueries
    seed: int
    config: GraphConfig = field(default_factory=GraphConfig)

    @cached_property
    def past(self) -> PreparedGraph:
        """The steps before the forecast one."""
        return prepare_graph(self.graph, until=self.queries.step - 1, config=self.config)

    @cached_property
    def sampled(self) -> tuple[LabelledStep, ...]:
        """The labelled pairs of `sampled_steps`, on which the first stage is fitted. Raises TooFewLinks."""
        return sampled_steps(self.past, seed=self.seed)

    @cached_property
    def labelled(self) -> tuple[LabelledStep, ...]:
        """The labelled pairs of up to three steps before the forecast one, the newest first. Raises TooFewLinks."""
        return with_retrieved(self.past, self.sampled, seed=self.seed)


@dataclass(frozen=True, kw_only=True)
class ScoredQueries:
    """The queries of one step with the scores of one method: a score for each of their distinct pairs."""

    method: str
    seed: int
    queries: RankingQueries
    score_S: NDArray[np.float64]

    @property
    def score_Q(self) -> NDArray[np.float64]:
        """Scores of the true pairs."""
        return self.score_S[self.queries.pairs.position_Q]

    @property
    def score_QC(self) -> NDArray[np.float64]:
        """Scores of the candidates; padding has that of the true pair."""
        return self.score_S[self.queries.pairs.position_QC]


def evaluate_queries(name: str, method: Embedder | Scorer, trial: RankingTrial) -> list[ScoredQueries]:
    """Fit a method on the past and score each distinct pair of the queries once, source before target.

    A Scorer gets the labelled steps. Vectors give two rows, as in the paper's protocol: one with the paper's decoder,
    and one, named with FORECASTER_WITH, of the forecaster that reads them. Raises TooFewLinks without labelled pairs,
    and ValueError for scores or vectors of another shape, or that are not finite.
    """
    fitted = fitted_scores(name, method, trial.past, trial.labelled, trial.seed)
    return [scored_queries(title, trial, score_pairs) for title, score_pairs in fitted.items()]


def scored_queries(name: str, trial: RankingTrial, score_pairs: Score) -> ScoredQueries:
    """Score the distinct pairs of a trial's queries. Raises ValueError for a wrong number, and numbers not finite."""
    pairs = trial.queries.pairs
    scores = score_pairs(pairs.source_S, pairs.target_S)
    score_S = checked_scores(name, scores, len(pairs.source_S), trial.queries.step)
    return ScoredQueries(method=name, seed=trial.seed, queries=trial.queries, score_S=score_S)


def to_table(scored: Sequence[ScoredQueries]) -> pl.DataFrame:
    """Put scored queries in one table with the columns of SCORES_SCHEMA, without the queries."""
    rows = [
        (method_scores.method, method_scores.seed, method_scores.queries.step, method_scores.score_S.tolist())
        for method_scores in scored
    ]
    return pl.DataFrame(rows, schema=SCORES_SCHEMA, orient="row")


def from_table(table: pl.DataFrame, queries: RankingQueries) -> list[ScoredQueries]:
    """Give the scored queries of a table of to_table. Raises ValueError where the scores are of other queries."""
    num_pairs, rows = len(queries.pairs.source_S), []
    for method, seed, step, values in table.iter_rows():
        if (step, len(values)) != (queries.step, num_pairs):
            raise InvalidInput(
                f"{method}: {len(values)} scores of step {step}, expected {num_pairs} of step {queries.step}: they are "
                f"of other queries; evaluate again"
            )
        rows.append(ScoredQueries(method=method, seed=seed, queries=queries, score_S=np.array(values)))
    return rows


def query_resamples(
    queries: Sequence[RankingQueries], *, seed: int, others: Sequence[NDArray[np.int64]] = ()
) -> NodeResamples:
    """Draw resamples of the nodes of all steps' queries and candidates, and of `others`.

    Candidates of the family `inductive` come of later steps: those of their nodes that are no other ends are drawn
    last, so that no later row changes an interval of another family.
    """
    ends, later = list(others), []
    for step_queries in queries:
        is_later_QC = step_queries.family_QC == FAMILIES.index("inductive")
        targets = step_queries.target_Q, step_queries.candidate_QC[(step_queries.candidate_QC >= 0) & ~is_later_QC]
        ends += [step_queries.source_Q, *targets]
        later.append(step_queries.candidate_QC[is_later_QC])
    return node_resamples(ends, num_resamples=1000, generator=np.random.default_rng(seed), later=later)


def step_metrics(
    scored: Sequence[ScoredQueries], graph: DynamicGraph, resamples: NodeResamples, ks: Sequence[int] = HITS
) -> dict[Run, dict[Cell, Measured]]:
    """Give the metrics of the methods that scored one step's queries, all with the same seed and queries.

    Mean reciprocal ranks are given for every family and every slice, hits at `ks` and NDCG@10 among the mixed
    candidates. AUC and average precision compare the true pairs with the candidates of a family. Raises ValueError for
    other queries.
    """
    queries = _same_queries(scored)
    metrics: dict[Run, dict[Cell, Measured]] = {
        (method_scores.method, method_scores.seed): {} for method_scores in scored
    }
    if not len(queries.source_Q):
        return metrics
    slices = query_slices(graph, queries)
    for method_scores in scored:
        cells = metrics[method_scores.method, method_scores.seed]
        for family in FAMILIES:
            cells.update(_family_metrics(method_scores, family, slices, resamples))
    _add_means(metrics, scored, slices, resamples, ks)
    return metrics


def query_means(
    scored: Sequence[ScoredQueries], metric: str, slices: Mapping[str, NDArray[np.bool_]], resamples: NodeResamples
) -> dict[str, list[Measured]]:
    """Give a mean over the queries of each slice, among the mixed candidates, of all methods in their order.

    A slice without a query that has candidates is left out. Raises ValueError for other queries.
    """
    queries = _same_queries(scored)
    value_QM = np.column_stack([_values(method_scores)[metric, MIXED] for method_scores in scored])
    return _means_by_slice(value_QM, pair_weights(resamples, queries.source_Q, queries.target_Q), slices)


def query_log_rows(
    queries: Iterable[RankingQueries],
    dataset: str,
    *,
    retrieved: Mapping[int, tuple[int, int]] | None = None,
) -> pl.DataFrame:
    """Give properties of the log as rows of METRICS_SCHEMA, under the method `-` without a seed.

    `coverage`: fraction of a step's links that can be scored, because both ends are known. `unseen_ends_1` and
    `unseen_ends_2`: fractions with one and two unknown ends. `repeat_rate`: fraction of the queries whose pair was
    linked before. `retrieved`, given as counts by step: fraction of the evaluated nodes' links that stage 1 retrieved.
    """
    posed = {step_queries.step: step_queries for step_queries in queries}
    counts = {
        name: {
            step: (step_queries.num_links_3[number], sum(step_queries.num_links_3))
            for step, step_queries in posed.items()
        }
        for number, name in enumerate(("coverage", "unseen_ends_1", "unseen_ends_2"))
    }
    counts["repeat_rate"] = {
        step: (int((~step_queries.new_Q).sum()), len(step_queries.new_Q)) for step, step_queries in posed.items()
    }
    counts["retrieved"] = dict(retrieved or {})
    return pl.concat(log_rows(dataset, "prequential", name, fractions(numbers)) for name, numbers in counts.items())


def ranks_of(scored: ScoredQueries, family: str) -> NDArray[np.float64]:
    """Rank the true targets among the candidates of a family or the mixed ones, [Q]; NaN without a candidate."""
    family_QC = scored.queries.family_QC
    inductive = FAMILIES.index("inductive")
    among_QC = family_QC == FAMILIES.index(family) if family != MIXED else (family_QC >= 0) & (family_QC != inductive)
    rank_Q = mean_ranks(scored.score_Q, scored.score_QC, among_QC)
    return np.where(among_QC.any(axis=1), rank_Q, np.nan)


def _same_queries(scored: Sequence[ScoredQueries]) -> RankingQueries:
    queries = scored[0].queries
    if any(method_scores.queries is not queries for method_scores in scored):
        raise InvalidInput(
            f"step {queries.step}: methods were evaluated on other queries; evaluate all on the same ones"
        )
    return queries


def _values(scored: ScoredQueries, ks: Sequence[int] = HITS) -> dict[tuple[str, str], NDArray[np.float64]]:
    """Give the values [Q] of metrics that are means over queries, by metric and family."""
    rank_Q = ranks_of(scored, MIXED)
    values = {("mrr", MIXED): reciprocal_rank(rank_Q), ("ndcg_at_10", MIXED): ndcg(rank_Q, 10)}
    values |= {(f"hits_at_{k}", MIXED): hits(rank_Q, k) for k in ks}
    values |= {("mrr", family): reciprocal_rank(ranks_of(scored, family)) for family in FAMILIES}
    has_candidates_Q = np.isfinite(rank_Q)
    return {
        key: np.where(has_candidates_Q, value_Q, np.nan) if key[1] == MIXED else value_Q
        for key, value_Q in values.items()
    }


def _add_means(
    found: dict[Run, dict[Cell, Measured]],
    scored: Sequence[ScoredQueries],
    slices: Mapping[str, NDArray[np.bool_]],
    resamples: NodeResamples,
    ks: Sequence[int],
) -> None:
    queries = scored[0].queries
    weight_BQ = pair_weights(resamples, queries.source_Q, queries.target_Q)
    values = [_values(method_scores, ks) for method_scores in scored]
    for metric, family in values[0]:
        value_QM = np.column_stack([method_values[metric, family] for method_values in values])
        parts = slices if (metric, family) == ("mrr", MIXED) else [part for part in MAIN_SLICES if part in slices]
        for part, measured in _means_by_slice(value_QM, weight_BQ, {part: slices[part] for part in parts}).items():
            for method_scores, cells in zip(scored, measured, strict=True):
                found[method_scores.method, method_scores.seed][metric, family, part] = cells
                if family == MIXED and part == KNOWN:
                    found[method_scores.method, method_scores.seed][metric, family, ALL] = _with_misses(cells, queries)


def _means_by_slice(
    value_QM: NDArray[np.float64], weight_BQ: NDArray[np.float32], slices: Mapping[str, NDArray[np.bool_]]
) -> dict[str, list[Measured]]:
    used_Q = np.isfinite(value_QM[:, 0])  # the same queries for all methods
    masks = {part: mask_Q & used_Q for part, mask_Q in slices.items()}
    return {part: means(value_QM[mask_Q], weight_BQ[:, mask_Q]) for part, mask_Q in masks.items() if mask_Q.any()}


def _with_misses(known: Measured, queries: RankingQueries) -> Measured:
    """Count the links with an unknown end as misses."""
    # A step with many links has a sample of them as queries, so its misses are scaled down as well.
    count, coverage = known.num / queries.coverage, queries.coverage
    assert known.count_B is not None
    return known._replace(
        value=known.value * coverage,
        num=round(count),
        value_B=known.value_B * coverage,
        count_B=known.count_B / coverage,
    )


def _family_metrics(
    scored: ScoredQueries, family: str, slices: Mapping[str, NDArray[np.bool_]], resamples: NodeResamples
) -> dict[Cell, Measured]:
    """Give AUC and average precision of the true pairs against the candidates of a family; the interval for `known`."""
    queries, cells = scored.queries, {}
    among_QC = queries.family_QC == FAMILIES.index(family)
    few = NodeResamples(node_S=resamples.node_S, weight_BS=resamples.weight_BS[:NUM_PAIR_RESAMPLES])
    for part in (name for name in MAIN_SLICES if name in slices):
        used_Q = slices[part] & among_QC.any(axis=1)
        row_P, column_P = np.nonzero(among_QC & used_Q[:, None])
        if not used_Q.any():
            continue
        source_P = np.concatenate([queries.source_Q[used_Q], queries.source_Q[row_P]])
        target_P = np.concatenate([queries.target_Q[used_Q], queries.candidate_QC[row_P, column_P]])
        score_P = np.concatenate([scored.score_Q[used_Q], scored.score_QC[row_P, column_P]])
        positive_P = np.arange(len(score_P)) < used_Q.sum()
        if part == KNOWN:
            measured = pair_metrics(few, source_P, target_P, positive_P, score_P)
        else:
            measured = {
                name: Measured(metric(positive_P, score_P), len(score_P), np.empty(0))
                for name, metric in PAIR_METRICS.items()
            }
        cells |= {(name, family, part): value for name, value in measured.items()}
    return cells
