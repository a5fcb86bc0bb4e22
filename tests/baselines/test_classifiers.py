"""The classifiers on pair features, against those of scikit-learn and of LightGBM's own interface on the same rows."""

import itertools
import warnings

import numpy as np
import pytest
from lightgbm import LGBMClassifier
from sklearn.linear_model import LogisticRegression as SklearnRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import StandardScaler
from toy_graphs import random_graph, toy_graph

from dyformer.baselines.classifiers import BoostedTrees, LogisticRegression
from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.sampling.pairs import LinkExamples, first_half
from dyformer.scoring.decoder import STRENGTHS
from dyformer.scoring.interfaces import LabelledStep
from dyformer.scoring.pair_features import prepare_pair_features

Rows = tuple[np.ndarray, ...]  # inputs, labels, weights


def learnable(history: DynamicGraph, weight: float, *, seed: int, num_pairs: int, sign: int = 1) -> LabelledStep:
    """Pairs of the step after a history, labelled by their degrees and noise."""
    generator = np.random.default_rng(seed)
    source_P, target_P = np.array(list(itertools.combinations(range(30), 2))).T
    chosen_P = generator.permutation(len(source_P))[:num_pairs]
    source_P, target_P = source_P[chosen_P], target_P[chosen_P]
    value_P = sign * prepare_pair_features(history).table(source_P, target_P)[:, 6] + generator.normal(size=num_pairs)
    positive_P = value_P > np.median(value_P)
    examples = LinkExamples(source_P=source_P, target_P=target_P, positive_P=positive_P, new_P=positive_P)
    before = prepare_graph(history, until=history.num_steps, config=GraphConfig())
    return LabelledStep(before=before, examples=examples, weight=weight)


def rows_of(step: LabelledStep) -> Rows:
    examples = step.examples
    table_PF = prepare_pair_features(step.before.history).table(examples.source_P, examples.target_P)
    return table_PF, examples.positive_P, np.full(len(examples.positive_P), step.weight)


def stacked(*rows: Rows) -> Rows:
    return tuple(np.concatenate(columns) for columns in zip(*rows, strict=True))


def regression_scores(rows: Rows, test_PF: np.ndarray, strength: float) -> np.ndarray:
    scaler = StandardScaler().fit(rows[0], sample_weight=rows[2])
    regression = SklearnRegression(C=strength, tol=1e-10, max_iter=10_000)
    regression.fit(scaler.transform(rows[0]), rows[1], sample_weight=rows[2])
    return regression.predict_proba(scaler.transform(test_PF))[:, 1]


def tree_scores(rows: Rows, test_PF: np.ndarray, max_leaves: float) -> np.ndarray:
    smallest = min(20, len(rows[1]) // 20)
    trees = LGBMClassifier(
        n_estimators=80, num_leaves=int(max_leaves), min_child_samples=smallest, n_jobs=1, verbosity=-1
    )
    return np.asarray(trees.fit(*rows[:2], sample_weight=rows[2]).predict_proba(test_PF))[:, 1]


@pytest.mark.parametrize("sign", [1, -1])  # with -1 the older step's labels mislead, so that it must be left out
def test_the_choice_on_half_of_the_newest_pairs_and_the_fit_on_all_of_them_are_those_of_the_libraries(sign: int):
    histories = [random_graph(np.random.default_rng(1), num_nodes=30, num_steps=n, num_edges=40) for n in (3, 2)]
    newest = learnable(histories[0], 1.0, seed=4, num_pairs=60)
    older = learnable(histories[1], 0.5, seed=14, num_pairs=400, sign=sign)
    own, past = rows_of(newest), rows_of(older)
    first_P = first_half(own[1])
    train, held_out = (tuple(column[part_P] for column in own) for part_P in (first_P, ~first_P))
    source_P, target_P = np.triu_indices(30, k=1)
    test_PF = prepare_pair_features(histories[0]).table(source_P, target_P)
    for method, oracle, grid in (
        (LogisticRegression(), regression_scores, STRENGTHS),
        (BoostedTrees(), tree_scores, (4, 8)),
    ):
        values = {
            (with_past, value): roc_auc_score(
                held_out[1], oracle(stacked(train, past) if with_past else train, held_out[0], value)
            )
            for with_past in (True, False)
            for value in grid
        }
        with_past, value = max(values, key=lambda choice: values[choice])
        if method == LogisticRegression():
            assert with_past == (sign > 0)
        expected = oracle(stacked(own, past) if with_past else own, test_PF, value)
        found = method.fit_pairs(newest.before, [newest, older])(source_P, target_P)
        np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=repr(method))


def test_trees_of_forty_pairs_are_no_constant():
    history = random_graph(np.random.default_rng(1), num_nodes=30, num_steps=3, num_edges=40)
    newest = learnable(history, 1.0, seed=0, num_pairs=40)
    examples = newest.examples
    score_P = BoostedTrees().fit_pairs(newest.before, [newest])(examples.source_P, examples.target_P)
    assert roc_auc_score(examples.positive_P, score_P) > 0.9


def test_four_labelled_pairs_are_enough_and_give_no_warning():
    history = toy_graph([(0, 1), (1, 2), (3, 4)], [(0, 1)], [(0, 1), (2, 3)])
    graph = prepare_graph(history, until=3, config=GraphConfig())
    positive_P = np.array([True, True, False, False])
    source_P, target_P = np.array([0, 0, 1, 1]), np.array([1, 2, 3, 4])
    examples = LinkExamples(source_P=source_P, target_P=target_P, positive_P=positive_P, new_P=positive_P)
    labelled = [LabelledStep(before=graph, examples=examples, weight=1.0)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for method in (LogisticRegression(), BoostedTrees()):
            assert np.isfinite(method.fit_pairs(graph, labelled)(source_P, target_P)).all(), method
