"""The regression on nodes learns from features before the labels, and scores by those of the newest graph."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import LogisticRegression
from toy_graphs import toy_graph

from dyformer.embedder import LabelledNodes
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.scoring.node_head import STRENGTH, fit_node_head

GRAPH = toy_graph([(0, 1), (2, 39)], [(0, 1)], [(1, 2)])
BEFORE, NOW = (prepare_graph(GRAPH, until=until, config=GraphConfig()) for until in (2, 3))
INPUTS = {until: np.random.default_rng(until).normal(size=(40, 3)) for until in (2, 3)}


def features_of(graph: PreparedGraph) -> np.ndarray:
    return INPUTS[graph.until]


def test_scores_equal_those_of_scikit_learn_on_the_features_before_the_labels():
    node_P = np.arange(5, 38)
    positive_P = INPUTS[2][node_P, 0] > 0.3
    found_N = fit_node_head(NOW, [LabelledNodes(before=BEFORE, node_P=node_P, positive_P=positive_P)], features_of)(
        np.arange(40)
    )
    mean_F, scale_F = INPUTS[2][node_P].mean(axis=0), INPUTS[2][node_P].std(axis=0)
    plain = LogisticRegression(C=STRENGTH, tol=1e-8).fit((INPUTS[2][node_P] - mean_F) / scale_F, positive_P)
    assert_allclose(found_N, plain.decision_function((INPUTS[3] - mean_F) / scale_F), atol=1e-4)


def test_labels_of_one_kind_are_refused():
    nothing = LabelledNodes(before=BEFORE, node_P=np.arange(9), positive_P=np.zeros(9, dtype=bool))
    with pytest.raises(ValueError, match="positive and negative"):
        fit_node_head(NOW, [nothing], features_of)
