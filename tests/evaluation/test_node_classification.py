"""Who gets a label next: forecasts from the past alone, measured as scikit-learn does, that find a planted signal."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_array_equal
from sklearn.metrics import average_precision_score, roc_auc_score
from toy_graphs import Edges, toy_graph

from dyformer.baselines.activity import Activity, ActivityRegression
from dyformer.evaluation.node_classification import (
    COUNTS_AND,
    PROTOCOL,
    PUBLISHED_PROTOCOL,
    evaluate_labels,
    forecast_trial,
    label_metrics,
    published_trial,
    steps_with_labels,
)
from dyformer.evaluation.scored_pairs import ScoredPairs, from_table, to_table
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.interactions import NodeLabels, first_positives, newest_labels
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph, prefix
from dyformer.scoring.interfaces import Embed, LabelledNodes, NodeScore

NUM_USERS, NUM_STEPS = 60, 6


@dataclass(frozen=True)
class MarkedVectors:
    """Vectors of which one axis marks nodes; before `until` each training may turn the axes anew."""

    marked: frozenset[int]
    until: int = 0
    width: int = 6

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        num_nodes = len(graph.history.node_N)
        vector_ND = np.random.default_rng(5).normal(size=(NUM_USERS + 5, self.width))[:num_nodes]
        vector_ND[:, 0] = [3.0 * (node in self.marked) for node in range(num_nodes)]
        if graph.until < self.until:
            vector_ND = vector_ND @ np.linalg.qr(np.random.default_rng(graph.until).normal(size=(self.width,) * 2))[0]
        return lambda node_P: vector_ND[node_P]


@dataclass(frozen=True)
class CommunityVectors:
    """Vectors of all that a graph holds: the number of neighbours of each node at each step."""

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        degree_N2 = graph.activity.degree_TN[-2:].T.astype(np.float64)
        return lambda node_P: degree_N2[node_P]


def labelled_log(seed: int = 0) -> tuple[DynamicGraph, NodeLabels]:
    """Users edit pages; those with many edits in a step often get a positive label in the next one."""
    generator = np.random.default_rng(seed)
    steps: list[Edges] = []
    busy: set[int] = set()
    node_R, step_R, label_R = [], [], []
    for step in range(1, NUM_STEPS + 1):
        rows: Edges = [(user, NUM_USERS + int(generator.integers(5))) for user in range(NUM_USERS) if user % 3 != 1]
        next_busy = set(generator.integers(0, NUM_USERS, 12).tolist())
        rows += [(user, NUM_USERS + page) for user in next_busy for page in range(5)]
        for user, _ in rows:
            node_R.append(user)
            step_R.append(step)
            label_R.append(int(user in busy and user % 3 != 1))
        steps.append(rows)
        busy = next_busy
    labels = NodeLabels(node_R=np.array(node_R), step_R=np.array(step_R), label_R=np.array(label_R, dtype=np.int8))
    return toy_graph(*steps), labels


def scores_of(method, graph: DynamicGraph, labels: NodeLabels, steps=(5, 6), name: str = "Method") -> list[ScoredPairs]:
    return evaluate_labels(name, method, graph, labels, steps, seed=0, config=GraphConfig())


def the(scored: list[ScoredPairs], name: str, protocol: str, step: int) -> ScoredPairs:
    return next(each for each in scored if (each.method, each.family, each.step) == (name, protocol, step))


def test_a_planted_signal_is_found():
    graph, labels = labelled_log()
    marked = frozenset(int(node) for node in labels.node_R[labels.label_R > 0])
    for method in (ActivityRegression(), MarkedVectors(marked)):
        for step in (5, 6):
            own = the(scores_of(method, graph, labels), "Method", PROTOCOL, step)
            assert roc_auc_score(own.positive_P, own.score_P) > 0.85, (method, step)


def test_vectors_of_earlier_trainings_are_turned_onto_the_axes_of_the_newest():
    graph, labels = labelled_log()
    marked = frozenset(range(0, NUM_USERS, 4))
    one, other = (scores_of(MarkedVectors(marked, until), graph, labels, steps=[5]) for until in (0, 4))
    for own, turned in zip(one, other, strict=True):
        np.testing.assert_allclose(turned.score_P, own.score_P, atol=1e-6)


def test_counts_and_vectors_that_say_nothing_score_as_the_counts_do():
    graph, labels = labelled_log()
    both, counts = (
        scores_of(method, graph, labels, steps=[5])
        for method in (MarkedVectors(frozenset(), width=1), ActivityRegression())
    )
    own, expected = the(both, COUNTS_AND + "Method", PROTOCOL, 5), the(counts, "Method", PROTOCOL, 5)
    np.testing.assert_allclose(own.score_P, expected.score_P, atol=1e-9)
    assert np.ptp(own.score_P) > 0.01


@pytest.mark.parametrize(("value", "num"), [(np.nan, 60), (0.0, 3)])
def test_scores_of_nodes_that_are_broken_are_refused_by_method_and_step(value: float, num: int):
    @dataclass(frozen=True)
    class Broken:
        def fit_nodes(self, graph: PreparedGraph, labelled: Sequence[LabelledNodes]) -> NodeScore:
            return lambda node_P: np.full(min(num, len(node_P)), value)

    with pytest.raises(ValueError, match=r"Method: .* scores of step 5"):
        scores_of(Broken(), *labelled_log(), steps=[5])


def test_a_trial_holds_past_labels_alone_and_every_node_once():
    graph, labels = labelled_log()
    graphs = {until: prepare_graph(graph, until=until, config=GraphConfig()) for until in range(2, 5)}
    trial = forecast_trial(graphs, labels, 5, seed=0)
    assert [step.before.until for step in trial.labelled] == [2, 3]
    for step in trial.labelled:
        for found, expected in zip(
            (step.node_P, step.positive_P), first_positives(labels, step.before.until + 1), strict=True
        ):
            assert_array_equal(found, expected)
    assert trial.past.history.num_steps == 4
    assert trial.node_P.tolist() == sorted(set(trial.node_P.tolist()))
    was_positive = set(labels.until(4).node_R[labels.until(4).label_R > 0].tolist())
    assert not was_positive & set(trial.node_P.tolist())


def test_the_published_sample_is_balanced_and_most_of_its_positive_nodes_were_trained_on():
    graph, labels = labelled_log()
    graphs = {until: prepare_graph(graph, until=until, config=GraphConfig()) for until in range(2, 6)}
    trial = published_trial(graphs, labels, 6, seed=0)
    (fitted,) = trial.labelled
    for node_P, positive_P in ((fitted.node_P, fitted.positive_P), (trial.node_P, trial.positive_P)):
        assert positive_P.sum() == (~positive_P).sum() == len(set(node_P[positive_P].tolist()))
    known_P, was_positive_P = newest_labels(labels, 5)
    assert set(fitted.node_P[fitted.positive_P].tolist()) == set(known_P[was_positive_P].tolist())
    assert set(trial.node_P.tolist()) <= set(known_P.tolist())
    assert fitted.before is trial.past
    assert trial.past.until == 5
    again = published_trial(graphs, labels, 6, seed=0)
    assert_array_equal(trial.node_P, again.node_P)
    assert not np.array_equal(trial.node_P, published_trial(graphs, labels, 6, seed=1).node_P)


@pytest.mark.parametrize("method", [ActivityRegression(), Activity(kind="ever"), CommunityVectors()])
def test_later_labels_and_events_change_no_score(method):
    graph, labels = labelled_log()
    expected = scores_of(method, graph, labels, steps=[5])
    flipped = replace(labels, label_R=np.where(labels.step_R > 5, 1 - labels.label_R, labels.label_R).astype(np.int8))
    without = labels.until(5)
    for poisoned, later in ((flipped, graph), (without, prefix(graph, 5)), (without, graph)):
        for own, other in zip(expected, scores_of(method, later, poisoned, steps=[5]), strict=True):
            assert_array_equal(own.score_P, other.score_P)
            assert_array_equal(own.source_P, other.source_P)
    # Labels of the forecast step decide which nodes are positive, and no forecast.
    now = replace(labels, label_R=np.where(labels.step_R == 5, 0, labels.label_R).astype(np.int8))
    own, other = (the(scores_of(method, graph, each, steps=[5]), "Method", PROTOCOL, 5) for each in (labels, now))
    assert_array_equal(own.score_P, other.score_P)
    assert own.positive_P.any()
    assert not other.positive_P.any()


def test_earlier_labels_and_events_change_scores():
    graph, labels = labelled_log()
    expected = the(scores_of(ActivityRegression(), graph, labels), "Method", PROTOCOL, 5)
    earlier = replace(labels, label_R=np.where(labels.step_R == 3, 0, labels.label_R).astype(np.int8))
    other = the(scores_of(ActivityRegression(), graph, earlier), "Method", PROTOCOL, 5)
    assert not np.isin(expected.score_P, other.score_P).all()


def test_metrics_equal_those_of_scikit_learn_per_step_pooled_and_averaged():
    graph, labels = labelled_log()
    scored = scores_of(Activity(kind="ever"), graph, labels, name="Count") + scores_of(
        CommunityVectors(), graph, labels, name="Vectors"
    )
    scored = from_table(to_table(scored))
    rows = pl.concat(
        label_metrics([each for each in scored if each.family == protocol], "toy", baselines={"Count"})
        for protocol in (PROTOCOL, PUBLISHED_PROTOCOL)
    )
    measures = {"auc": roc_auc_score, "average_precision": average_precision_score}
    for name in ("Count", "Vectors", COUNTS_AND + "Vectors"):
        for protocol in (PROTOCOL, PUBLISHED_PROTOCOL):
            own = [the(scored, name, protocol, step) for step in (5, 6)]
            for metric, measure in measures.items():
                value = {
                    row["step"]: row for row in rows.filter(method=name, protocol=protocol, metric=metric).to_dicts()
                }
                of_step = [measure(each.positive_P, each.score_P) for each in own]
                assert [value[step]["value"] for step in ("5", "6")] == pytest.approx(of_step, abs=1e-12)
                assert value["macro"]["value"] == pytest.approx(np.mean(of_step), abs=1e-12)
                pooled = [np.concatenate([getattr(each, part) for each in own]) for part in ("positive_P", "score_P")]
                assert value["micro"]["value"] == pytest.approx(measure(*pooled), abs=1e-12)
                assert value["micro"]["low"] <= value["micro"]["value"] <= value["micro"]["high"]
                assert value["micro"]["best_baseline"] == "Count"
    positives = rows.filter(method="-", metric="positives", protocol=PROTOCOL, step="micro")
    assert positives["value"].item() == sum(the(scored, "Count", PROTOCOL, step).positive_P.sum() for step in (5, 6))


def test_the_interval_is_that_of_a_bootstrap_over_nodes():
    """A node counts as often as it is drawn, and not as the square of it, as a pair of itself would."""
    from dyformer.evaluation.bootstrap import interval, node_resamples, resampled_metrics

    generator = np.random.default_rng(3)
    node_P, positive_P = np.arange(300), generator.random(300) < 0.3
    score_P = generator.normal(size=300) + positive_P
    no_node_P = np.full(300, -1)
    drawn = node_resamples([node_P, no_node_P], generator=np.random.default_rng(0))
    auc_B, _ = resampled_metrics(drawn, node_P, no_node_P, positive_P, score_P)
    weight_BP = drawn.weight_BS[:, 1:]
    assert auc_B[:20] == pytest.approx(
        [roc_auc_score(positive_P, score_P, sample_weight=weight_P) for weight_P in weight_BP[:20]]
    )
    plain = [roc_auc_score(positive_P[index], score_P[index]) for index in generator.integers(0, 300, (150, 300))]
    width, expected = np.diff(interval(auc_B)).item(), np.diff(np.quantile(plain, [0.025, 0.975])).item()
    assert width == pytest.approx(expected, rel=0.3)


def test_steps_without_a_known_positive_node_or_without_a_past_one_are_left_out():
    node_R = np.array([0, 1, 2, 0, 1, 3, 1, 2, 0])
    step_R = np.array([1, 1, 2, 3, 4, 5, 5, 6, 6])
    label_R = np.array([0, 0, 0, 0, 1, 1, 0, 1, 0], dtype=np.int8)
    labels = NodeLabels(node_R=node_R, step_R=step_R, label_R=label_R)
    assert steps_with_labels(labels, 6) == [6]  # 4 has the first positive node, and that of 5 is new
    assert steps_with_labels(replace(labels, label_R=np.zeros(9, dtype=np.int8)), 6) == []
