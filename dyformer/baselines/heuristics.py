"""The simple baselines: past-only scores of a pair, one formula each, and two classifiers on the pair features.

N nodes    P pairs    F features    T snapshots

A history is all snapshots before the predicted one; ages count back from its newest snapshot, whose age is 0.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier

from dyformer.graphs.snapshots import DynamicGraph
from dyformer.scoring.decoder import fit_decoder, score
from dyformer.scoring.pair_features import (
    edge_degree,
    edge_values,
    path_scores,
    prepare_pair_features,
    union_edges,
)

Nodes = NDArray[np.int64]
Scores = NDArray[np.float64]
Scorer = Callable[[DynamicGraph, Nodes, Nodes], Scores]
FittedScorer = Callable[[NDArray[np.float64]], Scores]


def edgebank_ever(history: DynamicGraph, source_P: Nodes, target_P: Nodes) -> Scores:
    """Score 1 for a pair that was ever linked, else 0 (EdgeBank; Poursafaei et al., 2022)."""
    edges = union_edges(history)
    return edge_values(edges, np.ones(len(edges.key_E)), source_P, target_P)


def edgebank_last(history: DynamicGraph, source_P: Nodes, target_P: Nodes) -> Scores:
    """Score 1 for a pair that is linked in the newest snapshot, else 0."""
    edges = union_edges(history)
    return edge_values(edges, edges.last_step_E == edges.num_steps, source_P, target_P)


def edgebank_decayed(history: DynamicGraph, source_P: Nodes, target_P: Nodes) -> Scores:
    """Score the sum of 0.5^age over the snapshots with the pair."""
    edges = union_edges(history)
    return edge_values(edges, edges.decayed_E, source_P, target_P)


def preferential_attachment(history: DynamicGraph, source_P: Nodes, target_P: Nodes) -> Scores:
    """Score the product of the two degrees in the union of the history."""
    edges = union_edges(history)
    return _end_product(edge_degree(edges, np.ones(len(edges.key_E))), source_P, target_P)


def preferential_attachment_last(history: DynamicGraph, source_P: Nodes, target_P: Nodes) -> Scores:
    """Score the product of the two degrees in the newest snapshot."""
    edges = union_edges(history)
    return _end_product(edge_degree(edges, edges.last_step_E == edges.num_steps), source_P, target_P)


def popularity_decayed(history: DynamicGraph, source_P: Nodes, target_P: Nodes) -> Scores:
    """Score the product of the two decayed degrees: the sums of 0.5^age x degree at that age."""
    edges = union_edges(history)
    return _end_product(edge_degree(edges, edges.decayed_E), source_P, target_P)


def common_neighbors(history: DynamicGraph, source_P: Nodes, target_P: Nodes) -> Scores:
    """Score the number of common neighbours in the union of the history."""
    return path_scores(prepare_pair_features(history), source_P, target_P)[0]


def adamic_adar(history: DynamicGraph, source_P: Nodes, target_P: Nodes) -> Scores:
    """Score the sum over common neighbours of 1 / ln(degree) (Adamic and Adar, 2003)."""
    return path_scores(prepare_pair_features(history), source_P, target_P)[1]


def l3(history: DynamicGraph, source_P: Nodes, target_P: Nodes) -> Scores:
    """Score the degree-normalised paths of length 3: the pair's entry of (D^-1/2 A D^-1/2)^3 of the union."""
    return path_scores(prepare_pair_features(history), source_P, target_P)[2]


SCORERS: dict[str, Scorer] = {
    "edgebank_ever": edgebank_ever,
    "edgebank_last": edgebank_last,
    "edgebank_decayed": edgebank_decayed,
    "preferential_attachment": preferential_attachment,
    "preferential_attachment_last": preferential_attachment_last,
    "popularity_decayed": popularity_decayed,
    "common_neighbors": common_neighbors,
    "adamic_adar": adamic_adar,
    "l3": l3,
}


def logistic_regression(features_PF: NDArray[np.float64], positive_P: NDArray[np.bool_]) -> FittedScorer:
    """Fit a logistic regression (C = 1) on standardised pair features; give the scorer of further features."""
    return partial(score, fit_decoder(features_PF, positive_P))


def boosted_trees(features_PF: NDArray[np.float64], positive_P: NDArray[np.bool_]) -> FittedScorer:
    """Fit gradient-boosted trees (80 rounds of at most 8 leaves) on pair features; give the scorer of further ones."""
    trees = HistGradientBoostingClassifier(max_iter=80, max_leaf_nodes=8, random_state=0)
    trees.fit(features_PF, positive_P)
    return lambda asked_PF: trees.predict_proba(asked_PF)[:, 1]


CLASSIFIERS: dict[str, Callable[[NDArray[np.float64], NDArray[np.bool_]], FittedScorer]] = {
    "logistic_regression": logistic_regression,
    "boosted_trees": boosted_trees,
}


def _end_product(value_N: NDArray[np.float64], source_P: Nodes, target_P: Nodes) -> Scores:
    return value_N[source_P] * value_N[target_P]
