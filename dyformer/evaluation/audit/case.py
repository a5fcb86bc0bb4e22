"""Methods and a graph as of a step -> their scores of the same probe pairs, and whether two runs agree byte for byte.

N nodes    S probe pairs    Q queries    C candidates of a query
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dyformer.evaluation.fitting import FittedOnce, fitted_vectors
from dyformer.evaluation.labelled_steps import fitted_scores
from dyformer.evaluation.scored_queries import RankingTrial, ScoredQueries, scored_queries
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.sampling.pairs import LinkExamples, NewPartners, Pairs, evaluated_steps, joined, paper_examples
from dyformer.sampling.ranking_queries import FAMILIES, RankingQueries, ranking_queries
from dyformer.sampling.subgraphs import as_of_graph, make_batch
from dyformer.scoring.interfaces import Embedder, LabelledStep, Score, Scorer
from dyformer.scoring.link_features import prepare_link_features
from dyformer.scoring.new_partners import recent_activity

PAST_FAMILIES = tuple(name for name in FAMILIES if name != "inductive")  # `inductive` reads later steps by definition
MAX_QUERIES = 300
NUM_TARGETS = 32
MOST_NAMED = 4  # differing results in a line
MAX_LABELLED = 5_000  # pairs of a step on which methods are fitted

Method = Embedder | Scorer
Results = dict[str, list[NDArray]]
"""Name of a result -> its arrays."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """The outcome of one check."""

    name: str
    compared: str
    methods: tuple[str, ...]
    passed: bool | None  # None: the log has too few links for it
    detail: str

    def record(self) -> dict[str, Any]:
        """Give the outcome as plain values."""
        return {**asdict(self), "methods": list(self.methods)}


@dataclass(frozen=True, kw_only=True)
class AuditCase:
    """What is audited: methods that know the steps up to `until` of a graph and forecast the next one.

    Methods are by title; `remembering` is the one that ranks the links of the newest step first, and is a control. The
    graph has at least one later step.
    """

    graph: DynamicGraph
    until: int
    methods: Mapping[str, Method]
    remembering: Mapping[str, Scorer]
    seed: int = 0
    config: GraphConfig = field(default_factory=GraphConfig)

    @property
    def uniform(self) -> str:
        """Name the family whose candidates are drawn like a random link: uniform over all possible targets."""
        return "typed" if self.graph.side_N.any() else "random"

    def queries(self, graph: DynamicGraph, step: int, families: Sequence[str] = PAST_FAMILIES) -> RankingQueries:
        """Give some ranking queries of a step, with candidates of all families but the inductive one, or of some."""
        return ranking_queries(graph, step, seed=self.seed, families=families, max_queries=MAX_QUERIES)

    def trial(self, graph: DynamicGraph, queries: RankingQueries) -> RankingTrial:
        """Give the trial in which the methods are evaluated on queries of the step after `until`."""
        return RankingTrial(graph=graph, queries=queries, seed=self.seed, config=self.config)


def _first_pairs(step: LabelledStep) -> LabelledStep:
    """Leave out labelled pairs of a large step, whose order is random: a leak does not need a well fitted method."""
    examples, new = (
        {name: value_P[:MAX_LABELLED] for name, value_P in vars(pairs).items()}
        for pairs in (step.examples, step.new_partners)
    )
    return replace(step, examples=LinkExamples(**examples), new_partners=NewPartners(**new))


@dataclass(frozen=True, kw_only=True, eq=False)
class Fitted:
    """All methods of a case, fitted in the trial of one graph at the first use."""

    case: AuditCase
    trial: RankingTrial
    other_labels: Sequence[LabelledStep] | None = None  # in place of the trial's own labelled steps

    @cached_property
    def methods(self) -> dict[str, Method]:
        """The methods; those of vectors are trained once for each step."""
        return {
            name: FittedOnce(method=method) if isinstance(method, Embedder) else method
            for name, method in self.case.methods.items()
        }

    @cached_property
    def scores(self) -> dict[str, Score]:
        """Scores of pairs, by the title of the row."""
        labelled = self.trial.labelled if self.other_labels is None else self.other_labels
        few = [_first_pairs(step) for step in labelled]
        scores: dict[str, Score] = {}
        for name, method in self.methods.items():
            scores |= fitted_scores(name, method, self.trial.past, few, self.trial.seed)
        return scores

    def results(self, probes: Pairs) -> Results:
        """Give the vectors, and the scores of probe pairs."""
        vectors = {
            f"vectors of {name}": [np.asarray(fitted_vectors(name, method, self.trial.past, self.trial.seed))]
            for name, method in self.methods.items()
            if isinstance(method, Embedder)
        }
        return vectors | {f"scores of {title}": [np.asarray(score(*probes))] for title, score in self.scores.items()}

    def on(self, queries: RankingQueries) -> dict[str, ScoredQueries]:
        """Score queries by every method."""
        trial = replace(self.trial, queries=queries)
        return {title: scored_queries(title, trial, score) for title, score in self.scores.items()}


def probes_of(*queries: RankingQueries) -> Pairs:
    """Give the distinct pairs of queries."""
    pairs = [np.stack([step_queries.pairs.source_S, step_queries.pairs.target_S]) for step_queries in queries]
    source_S, target_S = np.unique(np.concatenate(pairs, axis=1), axis=1)
    return source_S, target_S


def history_of(past: PreparedGraph) -> Results:
    """Give the history that a method gets."""
    history = past.history
    assert history.interactions is not None
    return {
        "snapshots": [value for snapshot in history.snapshots for value in _values(snapshot)],
        "nodes": [history.node_N, history.side_N],
        "interactions": _values(history.interactions),
    }


def inputs_of(case: AuditCase, trial: RankingTrial, probes: Pairs) -> Results:
    """Give all that a method may read as of `until`, and the pairs of that step on which methods are evaluated."""
    past, until = trial.past, case.until
    batch = make_batch(as_of_graph(past, until=until), np.unique(probes[0])[:NUM_TARGETS], num_context=NUM_TARGETS)
    features = prepare_link_features(past.history)
    results = {
        **history_of(past),
        "link features": [features.directed(*probes), recent_activity(features, *probes, directed=True)],
        "subgraphs": [tensor.numpy() for tensor in batch.tensors()],
        "ranking queries": _values(case.queries(trial.graph, until)),
    }
    for age, step in enumerate(trial.labelled):
        description = np.array([step.before.until, step.weight, step.directed, step.ranked])
        results[f"labelled step {age + 1}"] = [
            description,
            *_values(step.examples),
            *_values(step.new_partners),
            step.before.history.node_N,
        ]
    if until in evaluated_steps(trial.graph, first_step=until):
        examples = joined(*vars(paper_examples(trial.graph, until, seed=case.seed)).values())
        results["pairs of the paper's protocol"] = _values(examples)
    return results


def _values(record: Any) -> list[NDArray]:
    return [np.asarray(value) for name, value in vars(record).items() if name != "pairs"]


def differing(found: Results, expected: Results) -> dict[str, str]:
    """Name the results whose bytes differ, each with its largest difference."""
    names = [*expected, *(name for name in found if name not in expected)]
    pairs = {name: (found.get(name, []), expected.get(name, [])) for name in names}
    return {name: _difference(*both) for name, both in pairs.items() if not _same(*both)}


def _same(found: list[NDArray], expected: list[NDArray]) -> bool:
    def exact(arrays: list[NDArray]) -> list[tuple]:
        return [(array.dtype.str, array.shape, array.tobytes()) for array in arrays]

    return exact(found) == exact(expected)


def _difference(found: list[NDArray], expected: list[NDArray]) -> str:
    if [array.shape for array in found] != [array.shape for array in expected]:
        return "other sizes"
    largest = 0.0
    for new, old in zip(found, expected, strict=True):
        with np.errstate(invalid="ignore"):  # a difference of infinite numbers is no number
            difference = np.abs(new.astype(np.float64) - old.astype(np.float64))
        largest = max(largest, float(np.nan_to_num(difference, nan=np.inf).max(initial=0)))
    return f"largest difference {largest:.3g}"


def described(differences: Mapping[str, str]) -> str:
    """Name differing results in one line."""
    parts = [f"{name} ({text})" for name, text in differences.items()]
    return ", ".join(parts[:MOST_NAMED]) + (f" and {len(parts) - MOST_NAMED} more" if len(parts) > MOST_NAMED else "")
