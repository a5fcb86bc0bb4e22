"""Features of nodes and past labels -> a logistic regression that scores nodes.

N nodes    F features    P labelled nodes
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dyformer.embedder import LabelledNodes, NodeScore
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.scoring.decoder import fit_decoder, logit

STRENGTH = 0.01  # C. Positive labels are few, so the weights are small; it is the same for all features, chosen once

FeaturesOf = Callable[[PreparedGraph], NDArray[np.floating]]
"""A graph -> the features [N, F] of all its nodes."""


def fit_node_head(graph: PreparedGraph, labelled: Sequence[LabelledNodes], features_of: FeaturesOf) -> NodeScore:
    """Fit on the labelled nodes, each with its features before the labels; score nodes by their features in `graph`.

    Inputs are standardised, all labelled nodes count alike. Raises ValueError unless some labels are positive and
    some are not, and for features that are not finite.
    """
    inputs_PF = np.concatenate([features_of(step.before)[step.node_P] for step in labelled])
    decoder = fit_decoder(inputs_PF, np.concatenate([step.positive_P for step in labelled]), strength=STRENGTH)
    features_NF = features_of(graph)
    return lambda node_P: logit(decoder, features_NF[node_P])
