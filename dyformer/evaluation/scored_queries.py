"""A method and the ranking queries of a step -> their scores, as arrays and as tables.

Q queries    C candidates of a query    S distinct pairs of the queries
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.embedder import Embedder, LabelledStep, Score, Scorer
from dyformer.evaluation.labelled_steps import fitted_scores, sampled_steps, with_retrieved
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.sampling.ranking_queries import RankingQueries

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
        """The labelled pairs of up to four steps before the forecast one, the newest step first. Raises TooFewLinks."""
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
    score_S = np.asarray(score_pairs(pairs.source_S, pairs.target_S), dtype=np.float64)
    if score_S.shape != pairs.source_S.shape:
        raise ValueError(f"{name}: found scores of shape {score_S.shape}: expected {len(pairs.source_S)} scores")
    if not np.isfinite(score_S).all():
        num_broken = int((~np.isfinite(score_S)).sum())
        raise ValueError(f"{name}: {num_broken} of {len(score_S)} scores of step {trial.queries.step} are not finite")
    return ScoredQueries(method=name, seed=trial.seed, queries=trial.queries, score_S=score_S)


def to_table(scored: Sequence[ScoredQueries]) -> pl.DataFrame:
    """Put scored queries in one table with the columns of SCORES_SCHEMA, without the queries."""
    rows = [(each.method, each.seed, each.queries.step, each.score_S.tolist()) for each in scored]
    return pl.DataFrame(rows, schema=SCORES_SCHEMA, orient="row")


def from_table(table: pl.DataFrame, queries: RankingQueries) -> list[ScoredQueries]:
    """Give the scored queries of a table of to_table. Raises ValueError where the scores are of other queries."""
    num_pairs, rows = len(queries.pairs.source_S), []
    for method, seed, step, values in table.iter_rows():
        if (step, len(values)) != (queries.step, num_pairs):
            raise ValueError(
                f"{method}: {len(values)} scores of step {step}, expected {num_pairs} of step {queries.step}: they are "
                f"of other queries; evaluate again"
            )
        rows.append(ScoredQueries(method=method, seed=seed, queries=queries, score_S=np.array(values)))
    return rows
