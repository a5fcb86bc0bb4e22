import itertools
import warnings

import networkx as nx
import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from toy_graphs import random_graph, toy_graph

from dyformer.baselines.heuristics import CLASSIFIERS, SCORERS
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.scoring.pair_features import pair_feature_table

# 0-1 in steps 1, 2 and 3; 1-2 in step 1; 2-3 in step 3
HISTORY = toy_graph([(0, 1), (1, 2), (3, 4)], [(0, 1)], [(0, 1), (2, 3)])


@pytest.mark.parametrize(
    ("method", "pair", "expected"),
    [
        ("edgebank_ever", (1, 2), 1),
        ("edgebank_ever", (0, 2), 0),
        ("edgebank_last", (0, 1), 1),
        ("edgebank_last", (1, 2), 0),
        ("edgebank_decayed", (0, 1), 1 + 1 / 2 + 1 / 4),
        ("edgebank_decayed", (1, 2), 1 / 4),
        ("preferential_attachment", (1, 3), 2 * 2),
        ("preferential_attachment_last", (1, 3), 1),
        ("preferential_attachment_last", (1, 4), 0),
        ("popularity_decayed", (1, 3), (7 / 4 + 1 / 4) * (1 + 1 / 4)),
        ("common_neighbors", (1, 3), 1),
        ("adamic_adar", (1, 3), 1 / np.log(2)),
        ("l3", (0, 3), 1 / np.sqrt(1 * 2 * 2 * 2 * 2 * 2)),
    ],
)
def test_score_by_hand(method: str, pair: tuple[int, int], expected: float):
    assert SCORERS[method](HISTORY, np.array([pair[0]]), np.array([pair[1]]))[0] == pytest.approx(expected)
    assert SCORERS[method](HISTORY, np.array([pair[1]]), np.array([pair[0]]))[0] == pytest.approx(expected)


def test_union_scores_equal_networkx():
    history = random_graph(np.random.default_rng(0), num_nodes=25, num_steps=4, num_edges=20)
    union = nx.Graph()
    union.add_nodes_from(range(25))
    for snapshot in history.snapshots:
        union.add_edges_from(zip(snapshot.source_E.tolist(), snapshot.target_E.tolist(), strict=True))
    pairs = list(itertools.combinations(range(25), 2))
    oracles = {
        "edgebank_ever": [float(union.has_edge(*pair)) for pair in pairs],
        "preferential_attachment": [value for *_, value in nx.preferential_attachment(union, pairs)],
        "common_neighbors": [len(list(nx.common_neighbors(union, *pair))) for pair in pairs],
        "adamic_adar": [value for *_, value in nx.adamic_adar_index(union, pairs)],
    }
    for method, expected in oracles.items():
        np.testing.assert_allclose(SCORERS[method](history, *np.array(pairs).T), expected, err_msg=method)


def test_every_scorer_answers_for_a_log_with_an_empty_newest_window():
    history = toy_graph([(0, 1), (1, 2)], [])
    for method, scorer in SCORERS.items():
        score_P = scorer(history, np.array([0, 0]), np.array([1, 2]))
        assert score_P.shape == (2,), method
        assert np.isfinite(score_P).all(), method
    assert SCORERS["preferential_attachment_last"](history, np.array([0]), np.array([1]))[0] == 0


def classification(history: DynamicGraph) -> tuple[np.ndarray, np.ndarray]:
    pairs = np.array(list(itertools.combinations(range(30), 2)))
    table_PF = pair_feature_table(history, *pairs.T)
    noise_P = np.random.default_rng(0).normal(size=len(pairs))
    return table_PF, table_PF[:, 6] + noise_P > np.median(table_PF[:, 6])


def test_classifiers_are_those_of_scikit_learn_with_the_stated_settings():
    table_PF, positive_P = classification(
        random_graph(np.random.default_rng(1), num_nodes=30, num_steps=3, num_edges=40)
    )
    train, test = slice(None, 200), slice(200, None)
    regression = make_pipeline(StandardScaler(), LogisticRegression(C=1.0, tol=1e-10, max_iter=10_000))
    trees = HistGradientBoostingClassifier(max_iter=80, max_leaf_nodes=8, random_state=0)
    for method, oracle in {"logistic_regression": regression, "boosted_trees": trees}.items():
        score_P = CLASSIFIERS[method](table_PF[train], positive_P[train])(table_PF[test])
        expected = oracle.fit(table_PF[train], positive_P[train]).predict_proba(table_PF[test])[:, 1]
        np.testing.assert_allclose(score_P, expected, atol=1e-5, err_msg=method)


def test_classifiers_take_two_examples_without_a_warning():
    table_PF = pair_feature_table(HISTORY, np.array([0, 0]), np.array([1, 2]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for method, fit in CLASSIFIERS.items():
            assert np.isfinite(fit(table_PF, np.array([True, False]))(table_PF)).all(), method


def test_relabelling_nodes_relabels_the_scores_and_nothing_else():
    generator = np.random.default_rng(5)
    history = random_graph(generator, num_nodes=15, num_steps=3, num_edges=20)
    name_N = generator.permutation(15)
    renamed = toy_graph(
        *(list(zip(name_N[s.source_E].tolist(), name_N[s.target_E].tolist(), strict=True)) for s in history.snapshots),
        sides=[0] * 15,
    )
    source_P, target_P = np.triu_indices(15, k=1)
    for method, scorer in SCORERS.items():
        expected = scorer(history, source_P, target_P)
        np.testing.assert_allclose(scorer(renamed, name_N[source_P], name_N[target_P]), expected, err_msg=method)
