"""A method and the labels of a log -> scored nodes of each step: who gets a positive label next (paper, appendix).

N nodes known at a step    D width of a vector    F features    P labelled or scored nodes
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.evaluation.fitting import MIN_TRAINED_STEPS, checked_scores, fitted_vectors, rotated
from dyformer.evaluation.rows import METRICS_SCHEMA, log_rows
from dyformer.evaluation.scored_pairs import NO_NODE, ScoredPairs, metrics_of
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.interactions import NodeLabels, first_positives, newest_labels, positive_coverage
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.scoring.interfaces import Embedder, LabelledNodes, NodeScore, NodeScorer
from dyformer.scoring.node_head import FeaturesOf, activity_features, fit_node_head

PROTOCOL = "labels"
PUBLISHED_PROTOCOL = "labels-published"
COUNTS_AND = "Counts and "  # before the name of the method whose vectors the regression reads beside the counts
FIRST_LABELLED = MIN_TRAINED_STEPS + 1  # the first step whose labels a method is fitted on: vectors need steps before

Graphs = Mapping[int, PreparedGraph]
"""The graph as of each step."""


@dataclass(frozen=True, kw_only=True)
class LabelTrial:
    """The nodes of one step to score. A method gets `past` and the labelled nodes in `labelled`, all of earlier steps.

    In the protocol `labels` the nodes are those without a positive label before the step, and positive are those that
    get one in it. Methods are fitted on the same of every earlier step, from features before that step.

    In `labels-published` the newest label of a node holds until it gets another one. Methods are fitted on a balanced
    sample of all nodes as of the step before, and score a balanced sample as of the step. Most positive nodes are in
    both, so this is a comparison with the paper and no forecast. The paper does not define its sample; this is ours.
    """

    protocol: str
    step: int
    seed: int
    past: PreparedGraph
    labelled: tuple[LabelledNodes, ...]
    node_P: NDArray[np.int64]
    positive_P: NDArray[np.bool_]


def forecast_trial(graphs: Graphs, labels: NodeLabels, step: int, seed: int) -> LabelTrial:
    """Give the trial of a step in the protocol `labels`; the seed has no effect on it."""
    earlier = range(FIRST_LABELLED, step)
    labelled = tuple(_labelled(graphs[step - 1], *first_positives(labels, step)) for step in earlier)
    node_P, positive_P = first_positives(labels, step)
    return LabelTrial(
        protocol=PROTOCOL,
        step=step,
        seed=seed,
        past=graphs[step - 1],
        labelled=labelled,
        node_P=node_P,
        positive_P=positive_P,
    )


def published_trial(graphs: Graphs, labels: NodeLabels, step: int, seed: int) -> LabelTrial:
    """Give the trial of a step in the protocol `labels-published`, with samples drawn by the seed."""
    past, generator = graphs[step - 1], np.random.default_rng([seed, step])
    known_P, was_positive_P = newest_labels(labels, step - 1)
    node_P, is_positive_P = newest_labels(labels, step)
    has_vector_P = np.isin(node_P, known_P)
    labelled = _labelled(past, *_balanced(known_P, was_positive_P, generator))
    node_P, is_positive_P = _balanced(node_P[has_vector_P], is_positive_P[has_vector_P], generator)
    return LabelTrial(
        protocol=PUBLISHED_PROTOCOL,
        step=step,
        seed=seed,
        past=past,
        labelled=(labelled,),
        node_P=node_P,
        positive_P=is_positive_P,
    )


def steps_with_labels(labels: NodeLabels, num_steps: int) -> list[int]:
    """List the steps that can be forecast: some known node gets its first positive label, and some did before."""
    steps, has_past = [], False
    for step in range(FIRST_LABELLED, num_steps + 1):
        _, positive_P = first_positives(labels, step)
        is_mixed = bool(positive_P.any() and not positive_P.all())
        if is_mixed and has_past:
            steps.append(step)
        has_past = has_past or is_mixed
    return steps


def evaluate_labels(
    name: str,
    method: Embedder | NodeScorer,
    graph: DynamicGraph,
    labels: NodeLabels,
    steps: Sequence[int],
    *,
    seed: int,
    config: GraphConfig,
) -> list[ScoredPairs]:
    """Score the nodes of each step in both protocols, by a method that is fitted on the steps before.

    A NodeScorer gives one row. Vectors give two: one of the regression that reads them, and one, named with COUNTS_AND,
    of the same regression on activity_features and vectors. The vectors before an older step are those of a method
    fitted up to that step, rotated onto the newest ones. Each row has a node as source, NO_NODE as target, and the
    protocol as family. A sample without a positive node is left out. Raises ValueError as fitted_vectors and
    checked_scores do.
    """
    graphs = {until: prepare_graph(graph, until=until, config=config) for until in range(MIN_TRAINED_STEPS, max(steps))}
    trials = [make(graphs, labels, step, seed) for step in steps for make in (forecast_trial, published_trial)]
    trials = [trial for trial in trials if any(step.positive_P.any() for step in trial.labelled)]
    if isinstance(method, NodeScorer):
        return [_scored(name, trial, method.fit_nodes(trial.past, trial.labelled)) for trial in trials]
    vectors_of, counts_of = cache(lambda graph: fitted_vectors(name, method, graph, seed)), cache(activity_features)
    scored = []
    for trial in trials:
        in_space = _in_space_of(trial.past, vectors_of)
        inputs: dict[str, FeaturesOf] = {
            name: in_space,
            COUNTS_AND + name: lambda graph, in_space=in_space: np.hstack([counts_of(graph), in_space(graph)]),
        }
        for row, features_of in inputs.items():
            scored.append(_scored(row, trial, fit_node_head(trial.past, trial.labelled, features_of)))
    return scored


def label_metrics(scored: Sequence[ScoredPairs], dataset: str, *, baselines: Collection[str] = ()) -> pl.DataFrame:
    """Give AUC and average precision of nodes scored in one protocol as rows of METRICS_SCHEMA.

    `positives`, of the method `-`, is the number of scored nodes that are positive.
    """
    if not scored:
        return pl.DataFrame(schema=METRICS_SCHEMA)
    protocol, of_step = scored[0].family, {step_scores.step: step_scores.positive_P for step_scores in scored}
    counts = {str(step): (float(positive_P.sum()), len(positive_P)) for step, positive_P in of_step.items()}
    counts["micro"] = sum(value for value, _ in counts.values()), sum(number for _, number in counts.values())
    return pl.concat(
        [
            metrics_of(scored, dataset, protocol, baselines=baselines),
            log_rows(dataset, protocol, "positives", counts),
        ]
    )


def positive_fractions(labels: NodeLabels, steps: Sequence[int], dataset: str) -> pl.DataFrame:
    """Give `coverage`, of the method `-`, as rows of METRICS_SCHEMA.

    It is the fraction of the nodes with a first positive label in a step that had any label before, so that they are
    scored.
    """
    counts = {str(step): positive_coverage(labels, step) for step in steps}
    counts["micro"] = sum(number for number, _ in counts.values()), sum(covered for _, covered in counts.values())
    return log_rows(
        dataset, PROTOCOL, "coverage", {step: (covered / number, number) for step, (number, covered) in counts.items()}
    )


def _labelled(before: PreparedGraph, node_P: NDArray[np.int64], positive_P: NDArray[np.bool_]) -> LabelledNodes:
    return LabelledNodes(before=before, node_P=node_P, positive_P=positive_P)


def _balanced(
    node_P: NDArray[np.int64], positive_P: NDArray[np.bool_], generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Draw as many positive nodes as others."""
    kinds = [generator.permutation(node_P[positive_P]), generator.permutation(node_P[~positive_P])]
    num = min(map(len, kinds))
    return np.concatenate([kind[:num] for kind in kinds]), np.arange(2 * num) < num


def _in_space_of(newest: PreparedGraph, vectors_of: FeaturesOf) -> FeaturesOf:
    """Give vectors on the axes of those as of the newest step, because each training has axes of its own."""

    def rotated_vectors(graph: PreparedGraph) -> NDArray[np.floating]:
        vectors_ND = vectors_of(graph)
        return vectors_ND if graph is newest else rotated(vectors_ND, vectors_of(newest)[: len(vectors_ND)])

    return rotated_vectors


def _scored(name: str, trial: LabelTrial, score_nodes: NodeScore) -> ScoredPairs:
    return ScoredPairs(
        method=name,
        seed=trial.seed,
        step=trial.step,
        family=trial.protocol,
        source_P=trial.node_P,
        target_P=np.full_like(trial.node_P, NO_NODE),
        positive_P=trial.positive_P,
        new_P=np.zeros(len(trial.node_P), dtype=np.bool_),
        score_P=checked_scores(name, score_nodes(trial.node_P), len(trial.node_P), trial.step),
    )
