"""Features of nodes, those of their activity among them, and past labels -> a logistic regression that scores nodes.

N nodes    F features    P labelled nodes    R interactions    E ends of interactions
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.graphs.snapshots import interactions_of
from dyformer.sampling.pairs import past_pair_keys
from dyformer.scoring.contact_features import HALF_LIVES
from dyformer.scoring.decoder import STRENGTHS, fit_decoder, logit, score
from dyformer.scoring.interfaces import LabelledNodes, NodeScore

FOLDS = 5
STRENGTH = 0.01  # C where a single node is positive, so that nothing can be chosen by

FEATURES = ("last", "ever", "decayed_025", "decayed_1", "decayed_4", "since_last", "since_first", "partners")
"""Columns of `activity_features`, each as log1p: a node's interactions as source or target in the newest step, in all
steps, and decayed with half-lives of 0.25, 1 and 4 windows; the age of its newest and of its first one in windows; and
the number of its partners."""

FeaturesOf = Callable[[PreparedGraph], NDArray[np.floating]]
"""A graph -> the features [N, F] of all its nodes."""


def fit_node_head(graph: PreparedGraph, labelled: Sequence[LabelledNodes], features_of: FeaturesOf) -> NodeScore:
    """Fit on the labelled nodes, each with its features before the labels; score nodes by their features in `graph`.

    Inputs are standardised, all labelled nodes count alike. C is the value of STRENGTHS with the least mean log loss
    over FOLDS folds of the labelled nodes, so that eight counts and a hundred values of a vector have each their own.
    Raises ValueError unless some labels are positive and some are not, and for features that are not finite.
    """
    inputs_PF = np.concatenate([features_of(step.before)[step.node_P] for step in labelled])
    positive_P = np.concatenate([step.positive_P for step in labelled])
    strength = chosen_strength(inputs_PF, positive_P, np.concatenate([step.node_P for step in labelled]))
    decoder = fit_decoder(inputs_PF, positive_P, strength=strength)
    features_NF = features_of(graph)
    return lambda node_P: logit(decoder, features_NF[node_P])


def chosen_strength(inputs_PF: NDArray[np.floating], positive_P: NDArray[np.bool_], node_P: NDArray[np.int64]) -> float:
    """Choose C by cross-validation, with all rows of a node in one fold.

    The log loss depends smoothly on the inputs, so that vectors that differ by a rotation have the same C.
    """
    from sklearn.metrics import log_loss
    from sklearn.model_selection import StratifiedGroupKFold

    num_folds = min(FOLDS, len(np.unique(node_P[positive_P])), len(np.unique(node_P[~positive_P])))
    if num_folds < 2:
        return STRENGTH
    losses = np.zeros(len(STRENGTHS))
    folds = StratifiedGroupKFold(n_splits=num_folds, shuffle=True, random_state=0)
    for fitted_P, held_out_P in folds.split(inputs_PF, positive_P, node_P):
        if len(set(positive_P[fitted_P])) < 2:  # the folds balance rows as far as whole nodes allow
            continue
        for number, strength in enumerate(STRENGTHS):
            decoder = fit_decoder(inputs_PF[fitted_P], positive_P[fitted_P], strength=strength)
            found_P = score(decoder, inputs_PF[held_out_P])
            losses[number] += log_loss(positive_P[held_out_P], found_P, labels=[False, True])
    return STRENGTHS[int(losses.argmin())]


def activity_features(graph: PreparedGraph) -> NDArray[np.float64]:
    """Give FEATURES of all nodes, [N, F], in continuous time. Raises ValueError for a graph without interactions."""
    rows, num_nodes, until = interactions_of(graph.history), len(graph.history.node_N), graph.until
    node_E = np.concatenate([rows.source_R, rows.target_R])
    age_E = np.tile(until - rows.position_R, 2)
    since_N, first_N = np.full(num_nodes, until + 1.0), np.zeros(num_nodes)  # a node without interactions: as if before
    np.minimum.at(since_N, node_E, age_E)
    np.maximum.at(first_N, node_E, age_E)
    key_K = past_pair_keys(graph.history.snapshots, num_nodes)
    columns = [
        np.bincount(node_E, age_E <= 1, num_nodes),
        np.bincount(node_E, minlength=num_nodes),
        *(np.bincount(node_E, 0.5 ** (age_E / half_life), num_nodes) for half_life in HALF_LIVES),
        since_N,
        first_N,
        np.bincount(np.concatenate([key_K // num_nodes, key_K % num_nodes]), minlength=num_nodes),
    ]
    return np.log1p(np.column_stack(columns).astype(np.float64))
