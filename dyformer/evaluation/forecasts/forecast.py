"""A method and the newest steps -> the forecast of the next step: each node's best partners, with probabilities.

Stage 1 retrieves some hundreds of partners of each node by a linear score of pair features. Stage 2 ranks them by the
method, exactly as the prequential protocol evaluates it: fitted on the labelled pairs of the newest steps.

P pairs    R retrieved pairs    A query nodes
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.evaluation.first_stage import CandidatesOf, fit_retrieval, linked_in, ordered, retrieved_pairs
from dyformer.evaluation.fitting import checked_scores
from dyformer.evaluation.labelled_steps import has_labelled_steps, published_score, sampled_steps, with_retrieved
from dyformer.evaluation.query_slices import evidence, num_partners
from dyformer.evaluation.seasons import NO_SEASON, alike_steps, have_links, period_before
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.graphs.snapshots import FIRST_EVALUATED_STEP
from dyformer.sampling.pairs import TooFewLinks
from dyformer.scoring.calibration import Calibration, fit_calibration
from dyformer.scoring.decoder import LinkDecoder
from dyformer.scoring.forecaster import ForecasterScore
from dyformer.scoring.interfaces import Embedder, LabelledStep, NoVectors, Score, Scorer
from dyformer.scoring.retrieval import MAX_NODES, Retrieved, best_of_nodes

Links = Literal["all", "new", "repeat"]
NUM_CALIBRATED = 2_000  # nodes whose retrieved pairs calibrate the probabilities

FORECAST_SCHEMA = pl.Schema(
    {
        "node": pl.Int64(),
        "rank": pl.Int64(),
        "partner": pl.Int64(),
        "probability": pl.Float64(),
        "score": pl.Float64(),
        "linked_before": pl.Boolean(),
        "evidence": pl.String(),
        "reasons": pl.List(pl.String()),
    }
)
FORECAST_COLUMNS = ("probability", "score", "linked_before", "evidence", "reasons")
"""What is forecast of a pair; the other columns say which pair it is."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """A fitted method as of `past.until`: probabilities and best partners for the step after it.

    All functions raise ValueError where the method gives another number of scores than pairs, or one not finite.
    `calibration_step` is the step whose links calibrate the probabilities: `past.until`, or an earlier one. The method
    has learnt from steps that lie a `period` apart.
    """

    title: str  # of the method, for errors
    past: PreparedGraph
    score: Score
    retrieval: LinkDecoder
    calibration: Calibration
    calibration_step: int
    period: int = NO_SEASON
    candidates_of: CandidatesOf | None = None

    def probability(self, source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.float64]:
        """Give the probability [P] that each pair is linked in the next step, calibrated on retrieved pairs."""
        return self.calibration.probability(self._checked(self.score(source_P, target_P), source_P))

    def top(self, k: int, *, links: Links = "all", query_A: NDArray[np.int64] | None = None) -> pl.DataFrame:
        """Rank the `k` best partners of every node, or of `query_A`, with the columns of FORECAST_SCHEMA.

        In a log with two sides the partner is of the other side. A pair counts as source -> target; the node is the
        source, except for the nodes of the second side, which are targets. `links` leaves only pairs that were never
        linked before ("new") or only past ones ("repeat"). The ranks follow `score`, which orders pairs of one
        probability, too; equal scores are ranked by node number. `evidence` is the level of the node's past partners. A
        node without an admissible partner has no row. Raises ValueError for k < 1,
        for other `links`, and for unknown nodes.
        """
        return self.tables(k, (links,), query_A=query_A)[links]

    def tables(
        self, k: int, kinds: Sequence[Links], *, query_A: NDArray[np.int64] | None = None
    ) -> dict[Links, pl.DataFrame]:
        """Give the table of `top` for each kind of links; a pair is scored once for all of them."""
        if k < 1:
            raise InvalidInput(f"k = {k}: expected at least one partner per node")
        if unknown := [kind for kind in kinds if kind not in get_args(Links)]:
            raise InvalidInput(f"links = {unknown[0]!r}: expected one of {', '.join(get_args(Links))}")
        retrieved = self.retrieved(query_A, at_least=k)
        retrieved = retrieved.rows(np.logical_or.reduce([_of_kind(retrieved, kind) for kind in kinds]))
        score_R, reasons_of = self._scored(retrieved)
        best_of: dict[Links, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        for kind in kinds:
            own_R = np.flatnonzero(_of_kind(retrieved, kind))
            best_R, rank_R = best_of_nodes(retrieved.node_R[own_R], retrieved.partner_R[own_R], score_R[own_R], k)
            best_of[kind] = own_R[best_R], rank_R
        listed_R = np.unique(np.concatenate([best_R for best_R, _ in best_of.values()]))  # a pair may be in two tables
        reasons = reasons_of(listed_R)
        return {
            kind: self._table(retrieved, score_R, *best, reasons.gather(np.searchsorted(listed_R, best[0])))
            for kind, best in best_of.items()
        }

    def _table(
        self,
        retrieved: Retrieved,
        score_R: NDArray[np.float64],
        best_R: NDArray[np.int64],
        rank_R: NDArray[np.int64],
        reasons: pl.Series,
    ) -> pl.DataFrame:
        best = retrieved.rows(best_R)
        columns = {
            "node": best.node_R,
            "rank": rank_R,
            "partner": best.partner_R,
            "probability": self.calibration.probability(score_R[best_R]),
            "score": score_R[best_R],
            "linked_before": best.linked_R,
            "evidence": evidence(num_partners(self.past.history.snapshots)[best.node_R]),
            "reasons": reasons,
        }
        return pl.DataFrame(columns, schema=FORECAST_SCHEMA)

    def retrieved(self, query_A: NDArray[np.int64] | None = None, *, at_least: int = 0) -> Retrieved:
        """Give the pairs of stage 1, `at_least` so many new partners of a node where it has them."""
        walks_of = self.score.walks if isinstance(self.score, ForecasterScore) else None
        return retrieved_pairs(
            self.past, self.retrieval, query_A, self.candidates_of, at_least=at_least, walks_of=walks_of
        )

    def _scored(self, retrieved: Retrieved) -> tuple[NDArray[np.float64], Callable[[NDArray[np.int64]], pl.Series]]:
        """Give the scores [R] of pairs, and the function that writes the reasons of some of them."""
        score, none = self.score, pl.Series([[]], dtype=FORECAST_SCHEMA["reasons"])
        source_R, target_R = ordered(self.past.history, retrieved)
        if not isinstance(score, ForecasterScore):
            score_R = self._checked(score(source_R, target_R), source_R)
            return score_R, lambda listed_L: none.new_from_index(0, len(listed_L))
        walks = retrieved.walks or score.walks(source_R, target_R)  # made once for stage 1, the scores and the reasons

        def reasons(listed_L: NDArray[np.int64]) -> pl.Series:
            return score.reasons(source_R[listed_L], target_R[listed_L], walks.rows(listed_L))

        return self._checked(score.scores(source_R, target_R, walks), source_R), reasons

    def _checked(self, given: Any, source_P: NDArray[np.int64]) -> NDArray[np.float64]:
        return checked_scores(self.title, given, len(source_P), self.past.until + 1)


def check_distinct(ids: Sequence[object] | pl.Series, source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> None:
    """Raise ValueError, with the node's own id, for a pair of a node with itself, of which there are no forecasts."""
    same_P = np.flatnonzero(source_P == target_P)
    if len(same_P):
        raise InvalidInput(
            f"expected pairs of two nodes, because links of a node with itself are not forecast; found"
            f" {len(same_P)} of a node with itself, such as {ids[int(source_P[same_P[0]])]!r}"
        )


def _of_kind(retrieved: Retrieved, kind: Links) -> NDArray[np.bool_]:
    if kind == "all":
        return np.full(len(retrieved.node_R), fill_value=True)
    return retrieved.linked_R == (kind == "repeat")


def fit_forecast(
    name: str, method: Embedder | Scorer, past: PreparedGraph, *, seed: int, candidates_of: CandidatesOf | None = None
) -> Forecast:
    """Fit a method on the steps up to `past.until`, for the step after it.

    Vectors are read by the forecaster. The probabilities are calibrated on the first of the `calibration_steps` with
    links among the pairs retrieved there, usually the one a period before the forecast step: the method is fitted on
    the steps before it, and its scores of these pairs are compared with its links.
    `candidates_of` is needed for more than MAX_NODES nodes. Raises TooFewLinks for too short a history, and ValueError
    for vectors or scores of another shape, or that are not finite.
    """
    period = period_before(past.history, past.until + 1)
    sampled = sampled_steps(past, seed=seed, period=period)
    labelled = with_retrieved(past, sampled, seed=seed)
    score = published_score(name, method, past, labelled, seed)
    calibration, calibration_step = _calibration(name, method, past, sampled, period, seed, candidates_of)
    return Forecast(
        title=name,
        past=past,
        score=score,
        retrieval=fit_retrieval(sampled),
        calibration=calibration,
        calibration_step=calibration_step,
        period=period,
        candidates_of=candidates_of,
    )


def calibration_steps(step: int, period: int) -> list[int]:
    """List the steps that may calibrate a forecast of `step`, the best first: those like it, then the newest ones."""
    return list(dict.fromkeys([*alike_steps(step, period), *alike_steps(step, NO_SEASON)]))


def _calibration(
    name: str,
    method: Embedder | Scorer,
    past: PreparedGraph,
    known: Sequence[LabelledStep],
    period: int,
    seed: int,
    candidates_of: CandidatesOf | None,
) -> tuple[Calibration, int]:
    """Calibrate on the first of the `calibration_steps` in which some retrieved pair is linked; give that step, too.

    The labelled steps of the forecast are `known`, because the features of their graphs are the most expensive part.
    The rules of a large graph hold where they hold for the forecast, though there were fewer nodes a step earlier.
    """
    as_large = len(past.history.side_N) > MAX_NODES
    graphs = {step.before.until: step.before for step in known}
    for step in calibration_steps(past.until + 1, period):
        if step < FIRST_EVALUATED_STEP or not has_labelled_steps(past.history, step):
            continue
        before = graphs.get(step - 1) or prepare_graph(past.history, until=step - 1, config=past.config)
        try:
            # Where no step some periods before this one has links, its method learns from the newest ones.
            apart = period if have_links(past.history, alike_steps(step, period)) else None
            sampled = sampled_steps(before, seed=seed, known=known, as_large=as_large, period=apart)
        except TooFewLinks:  # links of a past step, and too few negative pairs
            continue
        drawn_A = np.random.default_rng([seed, step]).permutation(len(before.history.side_N))[:NUM_CALIBRATED]
        retrieval = fit_retrieval(sampled)
        retrieved = retrieved_pairs(before, retrieval, np.sort(drawn_A), candidates_of, as_large=as_large)
        pairs = ordered(before.history, retrieved)
        linked_R = linked_in(past.history, step, *pairs)
        if linked_R.any():
            labelled = with_retrieved(before, sampled, seed=seed, as_large=as_large)
            try:
                score_pairs = published_score(name, method, before, labelled, seed)
            except NoVectors:  # a newer step may have some
                continue
            score_R = checked_scores(name, score_pairs(*pairs), len(linked_R), step)
            return fit_calibration(score_R, linked_R), step
    raise TooFewLinks(
        f"no step up to {past.until} has links between nodes known before it and an earlier step to learn from: "
        f"probabilities cannot be calibrated; choose longer windows, or wait for more rows"
    )
