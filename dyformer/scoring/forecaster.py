"""Labelled pairs of past steps -> the forecaster: the mean of several heads on link features and scores of vectors.

P pairs    F inputs    N nodes    D width of a vector
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import expit

from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.sampling.pairs import LinkExamples, NewPartners
from dyformer.scoring import vector_scores
from dyformer.scoring.heads import (
    Head,
    LinearHead,
    TreesHead,
    fit_scaled_heads,
    head_from_record,
    mean_logits,
    plain_values,
)
from dyformer.scoring.interfaces import LabelledStep, Score
from dyformer.scoring.labelled_tables import (
    Inputs,
    LabelledTable,
    PairTable,
    check_labelled,
    digest_of,
    known_inputs,
    labelled_table,
    new_partner_table,
    pair_features,
    stacked,
)
from dyformer.scoring.link_features import LinkFeatures, Walks, groups, names, prepare_link_features
from dyformer.scoring.new_partners import NewPartnerRanker, fit_new_partners, recent_activity, with_products
from dyformer.scoring.pair_features import slices
from dyformer.scoring.reasons import kind_of, reason
from dyformer.scoring.retrieval import MAX_NODES
from dyformer.scoring.vector_scores import NUM_VECTOR_SCORES, VectorScores, prepare_vectors

VectorsOf = Callable[[PreparedGraph], NDArray[np.floating] | None]
"""A graph as of a step -> vectors `[N, D]` of a model trained on no later step; None where there is no such model."""

SEEN = names(directed=True).index("seen")  # in tables of pairs without direction, too
NUM_REASONS = 3
BLOCK_PAIRS = 1 << 18

NUM_LARGE = 2  # graphs of more than MAX_NODES nodes whose features a process keeps: that of the fit and one before it
NUM_FITTED = 8  # forecasters that a process keeps, each of some hundred kilobytes

_FEATURES: WeakKeyDictionary[PreparedGraph, LinkFeatures] = WeakKeyDictionary()
_VECTORS: WeakKeyDictionary[PreparedGraph, tuple[NDArray[np.floating], VectorScores]] = WeakKeyDictionary()
_TABLES: Inputs = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class FittedForecaster:
    """Heads and the factor of each, which brings its output to the spread of log-odds; a ranker of new partners."""

    heads: tuple[Head, ...]
    scales: tuple[float, ...]
    directed: bool
    new_partners: NewPartnerRanker | None = None  # see fit_new_partners; none on a graph of more than 50,000 nodes

    def logits(self, inputs_PF: NDArray[np.floating], recent_P2: NDArray[np.float32] | None) -> NDArray[np.float64]:
        """Give the log-odds [P] of pairs: those of new ones come in part from the ranker.

        `recent_P2` is the `recent_activity` of the pairs, which only a ranker needs.
        """
        logit_P = self.head_logits(inputs_PF)
        if self.new_partners is not None:
            assert recent_P2 is not None
            new_P = np.flatnonzero(inputs_PF[:, SEEN] == 0)
            ranked_P, weight = self.new_partners.logits(inputs_PF[new_P], recent_P2[new_P]), self.new_partners.weight
            logit_P[new_P] = (1 - weight) * logit_P[new_P] + weight * ranked_P
        return logit_P

    def head_logits(self, inputs_PF: NDArray[np.floating]) -> NDArray[np.float64]:
        """Give the mean of the heads' log-odds [P]."""
        return mean_logits(self.heads, self.scales, inputs_PF)

    def gains(self) -> dict[str, float]:
        """Give the fraction of the gain of all splits of the heads' trees by group of inputs."""
        gains = [head.trees.gain_F for head in self.heads if isinstance(head, TreesHead)]
        gain_F = np.sum([gain_F / max(gain_F.sum(), np.finfo(np.float64).tiny) for gain_F in gains], axis=0)
        columns = groups(self.directed)
        num_features = sum(map(len, columns.values()))
        if len(gain_F) > num_features:
            columns["vectors"] = list(range(num_features, len(gain_F)))
        return {name: float(gain_F[columns_of].sum() / max(gain_F.sum(), 1)) for name, columns_of in columns.items()}

    def record(self) -> dict[str, Any]:
        """Give plain values for JSON, of which `from_record` makes an equal object."""
        return {
            "heads": list(map(plain_values, self.heads)),
            "scales": self.scales,
            "directed": self.directed,
            "new_partners": None if self.new_partners is None else self.new_partners.record(),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "FittedForecaster":
        """Read the values of `record`."""
        heads, scales = tuple(map(head_from_record, record["heads"])), tuple(record["scales"])
        ranker = record["new_partners"]
        new_partners = None if ranker is None else NewPartnerRanker.from_record(ranker)
        return cls(heads=heads, scales=scales, directed=record["directed"], new_partners=new_partners)


# The ranking of a step, the calibration of the next one and a backtest fit on the same pairs of the same past.
_FITTED: dict[tuple[str, str, int, bool, bool], FittedForecaster] = {}


@dataclass(frozen=True, kw_only=True)
class Forecaster:
    """Score pairs by the mean log-odds of several heads on link features and, if given, scores of vectors.

    A third of the log-odds of a pair that was never linked comes from a ranker of new partners (see `new_partners`),
    except on a graph of more than 50,000 nodes, where no labelled step has pairs to fit one on.
    The mean of all heads was as good as the best choice among them, so no choice is made
    (docs/experiments/forecaster.md).
    """

    vectors_of: VectorsOf | None = None
    seed: int = 0

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        """Fit on the labelled pairs and return the scores of pairs for the step after `graph.until`.

        Raises ValueError without a labelled step, or where their pairs are all of one kind.
        """
        return ForecasterScore(forecaster=self, fitted=self.fitted(labelled), graph=graph)

    def fitted(self, labelled: Sequence[LabelledStep]) -> FittedForecaster:
        """Fit the heads on all labelled pairs, or return what was fitted on equal ones. Raises like `fit_pairs`."""
        check_labelled(labelled)
        directed, ranked = labelled[0].directed, labelled[0].ranked
        tables = [
            (
                labelled_table(step, self._labelled_inputs(step, step.examples)),
                new_partner_table(step, self._new_partner_inputs(step)),
            )
            for step in labelled
        ]
        table, new = (stacked(*step_tables) for step_tables in zip(*tables, strict=True))
        key = digest_of(table), digest_of(new), self.seed, directed, ranked
        fitted = _FITTED.pop(key, None)  # another thread may take it at the same time, and then fits an equal one
        fitted = fitted or _fitted(table, new, self.seed, directed=directed, ranked=ranked)
        _FITTED[key] = fitted
        for oldest in list(_FITTED)[:-NUM_FITTED]:
            _FITTED.pop(oldest, None)
        return fitted

    def inputs(
        self,
        graph: PreparedGraph,
        source_P: NDArray[np.int64],
        target_P: NDArray[np.int64],
        walks: Walks | None = None,
        *,
        directed: bool,
    ) -> NDArray[np.floating]:
        """Give the inputs [P, F] of pairs as of `graph.until`; scores of vectors are NaN where there is no model."""
        features = _link_features(graph)
        table_PF = (features.directed if directed else features.undirected)(source_P, target_P, walks)
        return self._with_vectors(table_PF, graph, source_P, target_P, directed=directed)

    def _labelled_inputs(self, step: LabelledStep, pairs: LinkExamples | NewPartners) -> NDArray[np.floating]:
        def table_of(graph: PreparedGraph) -> PairTable:
            features = _link_features(graph)
            return features.directed if step.directed else features.undirected

        table_PF = known_inputs(_TABLES, step.before, pairs, table_of)
        return self._with_vectors(table_PF, step.before, pairs.source_P, pairs.target_P, directed=step.directed)

    def _new_partner_inputs(self, step: LabelledStep) -> NDArray[np.floating]:
        pairs, directed = step.new_partners, step.directed
        recent_P2 = np.empty((0, 2), dtype=np.float32)
        if len(pairs.node_P):  # none on a large graph, whose features may be gone
            features = _link_features(step.before)
            recent_P2 = recent_activity(features, pairs.source_P, pairs.target_P, directed=directed)
        return with_products(self._labelled_inputs(step, pairs), recent_P2, directed=directed)

    def _with_vectors(
        self,
        table_PF: NDArray[np.floating],
        graph: PreparedGraph,
        source_P: NDArray[np.int64],
        target_P: NDArray[np.int64],
        *,
        directed: bool,
    ) -> NDArray[np.floating]:
        if self.vectors_of is None:
            return table_PF
        vectors_ND = self.vectors_of(graph)
        if vectors_ND is None:
            return np.hstack([table_PF, np.full((len(source_P), NUM_VECTOR_SCORES), np.nan, dtype=np.float32)])
        scores = _prepared_vectors(graph, vectors_ND)
        return np.hstack([table_PF, scores.table(source_P, target_P, directed=directed)])


@dataclass(frozen=True, kw_only=True)
class ForecasterScore:
    """The scores of a fitted forecaster for the step after `graph.until`."""

    forecaster: Forecaster
    fitted: FittedForecaster
    graph: PreparedGraph

    def walks(self, source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> Walks:
        """Walk between the ends of pairs, for their scores and their reasons."""
        return _link_features(self.graph).walks(source_P, target_P)

    def __call__(self, source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.float64]:
        """Score pairs [P]."""
        return self.scores(source_P, target_P, self.walks(source_P, target_P))

    def scores(self, source_P: NDArray[np.int64], target_P: NDArray[np.int64], walks: Walks) -> NDArray[np.float64]:
        """Score pairs [P] whose walks are known."""
        logit_P = np.empty(len(source_P))
        for block in slices(len(source_P), BLOCK_PAIRS):
            ends = source_P[block], target_P[block]
            logit_P[block] = self.fitted.logits(self._inputs(*ends, walks.rows(block)), self._recent(*ends))
        return expit(logit_P)

    def reasons(
        self, source_P: NDArray[np.int64], target_P: NDArray[np.int64], walks: Walks | None = None
    ) -> pl.Series:
        """Write the inputs that raise the score of each pair most in words, a list [P] each, the strongest first.

        These are the inputs with the largest positive part in the log-odds of the linear head: slope x (value - mean of
        the labelled pairs), of inputs that measure the same (`kind_of`) the largest alone. `dyformer.scoring.reasons`
        has the words.
        """
        walks = walks or self.walks(source_P, target_P)
        linear = next(head for head in self.fitted.heads if isinstance(head, LinearHead))
        names_F = [*names(self.fitted.directed), *vector_scores.names(self.fitted.directed)]
        words = [*(reason(name, is_large=is_large) for name in names_F for is_large in (False, True)), None]
        _, kind_F = np.unique([kind_of(name) for name in names_F[: len(linear.mean_F)]], return_inverse=True)
        word_PK = np.empty((len(source_P), NUM_REASONS), dtype=np.int64)
        for block in slices(len(source_P), BLOCK_PAIRS):
            inputs_BF = self._inputs(source_P[block], target_P[block], walks.rows(block))
            part_BF = (inputs_BF - linear.mean_F) * linear.slope_F
            part_BF[~(part_BF > 0)] = 0  # a missing input, NaN, is no reason
            row_B = np.arange(len(part_BF))
            for k in range(NUM_REASONS):
                best_B = part_BF.argmax(axis=1)
                is_large_B = inputs_BF[row_B, best_B] > linear.mean_F[best_B]
                word_PK[block, k] = np.where(part_BF[row_B, best_B] > 0, 2 * best_B + is_large_B, len(words) - 1)
                part_BF[kind_F == kind_F[best_B][:, None]] = 0
        return (
            pl.Series(words, dtype=pl.String)
            .gather(word_PK.ravel())
            .reshape(word_PK.shape)
            .arr.to_list()
            .list.drop_nulls()
        )

    def _recent(self, source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.float32] | None:
        if self.fitted.new_partners is None:
            return None
        return recent_activity(_link_features(self.graph), source_P, target_P, directed=self.fitted.directed)

    def _inputs(self, source_P: NDArray[np.int64], target_P: NDArray[np.int64], walks: Walks) -> NDArray[np.floating]:
        return self.forecaster.inputs(self.graph, source_P, target_P, walks, directed=self.fitted.directed)


def _fitted(table: LabelledTable, new: LabelledTable, seed: int, *, directed: bool, ranked: bool) -> FittedForecaster:
    heads, scales = fit_scaled_heads(table, seed=seed, ranked=ranked)
    fitted = FittedForecaster(heads=heads, scales=scales, directed=directed)
    logit_P = fitted.head_logits(new.inputs_PF[:, : table.inputs_PF.shape[1]])
    ranker = fit_new_partners(new, logit_P, directed=directed, seed=seed)
    return replace(fitted, new_partners=ranker)


def _prepared_vectors(graph: PreparedGraph, vectors_ND: NDArray[np.floating]) -> VectorScores:
    """Average partners' vectors once for all calls with the same vectors."""
    cached = _VECTORS.get(graph)
    if cached is None or cached[0] is not vectors_ND:
        cached = _VECTORS[graph] = vectors_ND, prepare_vectors(vectors_ND, graph.history)
    return cached[1]


def _link_features(graph: PreparedGraph) -> LinkFeatures:
    features = _FEATURES.get(graph)
    if features is None:
        large = [
            graph_of_features
            for graph_of_features in list(_FEATURES)
            if len(graph_of_features.history.node_N) > MAX_NODES
        ]
        for oldest in large[: -(NUM_LARGE - 1)]:
            _FEATURES.pop(oldest, None)
        features = _FEATURES[graph] = prepare_link_features(graph.history, pair_features(graph))
    return features
