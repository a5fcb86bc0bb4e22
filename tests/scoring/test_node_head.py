"""The regression on nodes learns from features before the labels, and scores by those of the newest graph."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from toy_graphs import toy_graph

from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.scoring.decoder import STRENGTHS
from dyformer.scoring.interfaces import LabelledNodes
from dyformer.scoring.node_head import FOLDS, STRENGTH, chosen_strength, fit_node_head

GRAPH = toy_graph([(0, 1), (2, 39)], [(0, 1)], [(1, 2)])
BEFORE, NOW = (prepare_graph(GRAPH, until=until, config=GraphConfig()) for until in (2, 3))
INPUTS = {until: np.random.default_rng(until).normal(size=(40, 3)) for until in (2, 3)}


def features_of(graph: PreparedGraph) -> np.ndarray:
    return INPUTS[graph.until]


def labelled(node_P: np.ndarray, positive_P: np.ndarray) -> LabelledNodes:
    return LabelledNodes(before=BEFORE, node_P=node_P, positive_P=positive_P)


def test_scores_equal_those_of_scikit_learn_on_the_features_before_the_labels():
    node_P = np.arange(5, 38)
    positive_P = INPUTS[2][node_P, 0] + INPUTS[3][node_P, 1] > 0.3
    found_N = fit_node_head(NOW, [labelled(node_P, positive_P)], features_of)(np.arange(40))
    plain = searched(INPUTS[2][node_P], positive_P, node_P)
    assert_allclose(found_N, plain.decision_function(INPUTS[3]), atol=1e-4)


def test_with_one_positive_node_nothing_is_chosen():
    node_P = np.arange(5, 38)
    found_N = fit_node_head(NOW, [labelled(node_P, node_P == 7)], features_of)(np.arange(40))
    plain = make_pipeline(StandardScaler(), LogisticRegression(C=STRENGTH, tol=1e-8))
    assert_allclose(found_N, plain.fit(INPUTS[2][node_P], node_P == 7).decision_function(INPUTS[3]), atol=1e-4)


@pytest.mark.parametrize("kind", ["noise", "signal", "the same node twice"])
def test_the_strength_is_that_of_a_search_over_folds_of_nodes(kind: str):
    generator = np.random.default_rng(3)
    inputs_PF, node_P = generator.normal(size=(300, 6)), np.arange(300)
    positive_P = generator.random(300) < 0.2
    if kind == "signal":
        positive_P = inputs_PF @ [3, -2, 1, 0, 0, 0.5] + generator.logistic(size=300) > 2
    if kind == "the same node twice":  # its other row would give its label away
        inputs_PF = np.repeat(generator.normal(size=(100, 60)), 3, axis=0)
        positive_P, node_P = np.repeat(generator.random(100) < 0.3, 3), np.repeat(np.arange(100), 3)
    found = chosen_strength(inputs_PF, positive_P, node_P)
    search = searched(inputs_PF, positive_P, node_P)
    assert found == search.best_params_["logisticregression__C"]
    if kind == "signal":
        assert found > min(STRENGTHS)


def searched(inputs_PF: np.ndarray, positive_P: np.ndarray, node_P: np.ndarray) -> GridSearchCV:
    folds = StratifiedGroupKFold(n_splits=FOLDS, shuffle=True, random_state=0)
    grid = {"logisticregression__C": STRENGTHS}
    plain = make_pipeline(StandardScaler(), LogisticRegression(tol=1e-8, max_iter=1000))
    return GridSearchCV(plain, grid, scoring="neg_log_loss", cv=folds).fit(inputs_PF, positive_P, groups=node_P)


def test_labels_of_one_kind_are_refused():
    nothing = labelled(np.arange(9), np.zeros(9, dtype=bool))
    with pytest.raises(ValueError, match="positive and negative"):
        fit_node_head(NOW, [nothing], features_of)
