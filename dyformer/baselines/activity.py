"""Activity of nodes -> scores of nodes: one count, or a logistic regression on all of them.

N nodes    F features    P scored nodes
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.scoring.interfaces import LabelledNodes, NodeScore
from dyformer.scoring.node_head import FEATURES, activity_features, fit_node_head


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
