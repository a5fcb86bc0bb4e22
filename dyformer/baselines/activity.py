"""Activity of nodes -> scores of nodes: one count, or a logistic regression on all of them.

N nodes    R interactions    E ends of interactions    F features
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dyformer.embedder import LabelledNodes, NodeScore
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.graphs.snapshots import interactions_of
from dyformer.sampling.pairs import past_pair_keys
from dyformer.scoring.contact_features import HALF_LIVES
from dyformer.scoring.node_head import fit_node_head

FEATURES = ("last", "ever", "decayed_025", "decayed_1", "decayed_4", "since_last", "since_first", "partners")
"""Columns of `activity_features`, each as log1p: a node's interactions as source or target in the newest step, in all
steps, and decayed with half-lives of 0.25, 1 and 4 windows; the age of its newest and of its first one in windows; and
the number of its partners."""


@dataclass(frozen=True, kw_only=True)
class Activity:
    """One count as the score: interactions of the newest step or of all steps, or how recent the newest one is."""

    kind: Literal["last", "ever", "recency"]

    def fit_nodes(self, graph: PreparedGraph, labelled: Sequence[LabelledNodes]) -> NodeScore:
        """Score nodes; the labels have no effect."""
        features_NF = activity_features(graph)
        if self.kind == "recency":
            score_N = -features_NF[:, FEATURES.index("since_last")]
        else:
            score_N = features_NF[:, FEATURES.index(self.kind)]
        return lambda node_P: score_N[node_P]


@dataclass(frozen=True, kw_only=True)
class ActivityRegression:
    """A logistic regression on `activity_features`, fitted on the past labels."""

    def fit_nodes(self, graph: PreparedGraph, labelled: Sequence[LabelledNodes]) -> NodeScore:
        """Fit, and score nodes. Raises ValueError as fit_node_head does."""
        return fit_node_head(graph, labelled, activity_features)


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
