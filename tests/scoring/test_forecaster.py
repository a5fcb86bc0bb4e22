"""The forecaster: its inputs, its mean of heads, and what it may read."""

from dataclasses import replace

import numpy as np
import pytest
from toy_graphs import random_graph

from dyformer.evaluation.fitting import FittedOnce, fitted_vectors
from dyformer.graphs.prepared_graph import GraphConfig, PreparedGraph, prepare_graph
from dyformer.sampling.pairs import NewPartners, joined, paper_examples
from dyformer.scoring import forecaster
from dyformer.scoring.forecaster import Forecaster, ForecasterScore
from dyformer.scoring.heads import TreesHead, fit_scaled_heads
from dyformer.scoring.interfaces import Embed, LabelledStep, rows_of
from dyformer.scoring.labelled_tables import labelled_table
from dyformer.scoring.link_features import GROUPS, groups, names
from dyformer.scoring.vector_scores import NUM_VECTOR_SCORES, prepare_vectors

GRAPH = random_graph(np.random.default_rng(0), num_nodes=40, num_steps=4, num_edges=120)
SOURCE_P, TARGET_P = np.array([0, 5, 7]), np.array([3, 2, 9])


def as_of(until: int) -> PreparedGraph:
    return prepare_graph(GRAPH, until=until, config=GraphConfig())


def labelled(*, directed: bool, ranked: bool = False) -> list[LabelledStep]:
    return [
        LabelledStep(
            before=as_of(step - 1),
            examples=joined(*vars(paper_examples(GRAPH, step, seed=0)).values()),
            weight=0.5 ** (4 - step),
            directed=directed,
            ranked=ranked,
        )
        for step in (4, 3, 2)
    ]


@pytest.mark.parametrize(("directed", "ranked"), [(False, False), (True, False), (True, True)])
def test_a_score_is_the_mean_of_the_heads_at_the_spread_of_log_odds(directed: bool, ranked: bool):
    fitted = Forecaster().fitted(labelled(directed=directed, ranked=ranked))
    assert len(fitted.heads) == 2 + ranked
    inputs = Forecaster().inputs(as_of(4), SOURCE_P, TARGET_P, directed=directed)
    assert inputs.shape == (3, len(names(directed)))
    if ranked:
        steps = labelled(directed=directed, ranked=True)
        known = np.concatenate(
            [
                Forecaster().inputs(step.before, step.examples.source_P, step.examples.target_P, directed=directed)
                for step in steps
            ]
        )
        spreads = [scale * head.logits(known).std() for head, scale in zip(fitted.heads, fitted.scales, strict=True)]
        assert spreads[2] == pytest.approx(spreads[1])
    parts = [scale * head.logits(inputs) for head, scale in zip(fitted.heads, fitted.scales, strict=True)]
    logits = sum(parts) / len(parts)
    score = Forecaster().fit_pairs(as_of(4), labelled(directed=directed, ranked=ranked))
    np.testing.assert_allclose(score(SOURCE_P, TARGET_P), 1 / (1 + np.exp(-logits)))


def test_only_a_directed_forecast_depends_on_the_order_of_the_ends():
    for directed in (False, True):
        score = Forecaster().fit_pairs(as_of(4), labelled(directed=directed))
        same = np.array_equal(score(SOURCE_P, TARGET_P), score(TARGET_P, SOURCE_P))
        assert same != directed


def test_graphs_without_vectors_have_missing_scores():
    vectors = {4: np.ones((40, 4))}
    reading = Forecaster(vectors_of=lambda graph: vectors.get(graph.until))
    known, missing = (reading.inputs(as_of(until), SOURCE_P, TARGET_P, directed=False) for until in (4, 3))
    assert known.shape == missing.shape
    assert not np.isnan(known).any()
    assert np.isnan(missing[:, -NUM_VECTOR_SCORES:]).all()
    assert not np.isnan(missing[:, :-NUM_VECTOR_SCORES]).any()


def test_vectors_that_know_the_labels_decide_the_score():
    steps = labelled(directed=False)
    linked = np.zeros((40, 40))
    newest = GRAPH.snapshots[3]
    linked[newest.source_E, newest.target_E] = linked[newest.target_E, newest.source_E] = 1
    value, vector = np.linalg.eigh(linked + 10 * np.eye(40))
    telling = vector * np.sqrt(np.maximum(value, 0))  # products of these vectors are the links of step 4
    score = Forecaster(vectors_of=lambda graph: telling).fit_pairs(steps[0].before, steps[:1])
    examples = steps[0].examples
    score_P = score(examples.source_P, examples.target_P)
    assert score_P[examples.positive_P].min() > score_P[~examples.positive_P].max()
    assert isinstance(score, ForecasterScore)
    assert score.fitted.gains()["vectors"] > 0.5


def test_gains_of_the_groups_are_parts_of_all_gains():
    fitted = Forecaster().fitted(labelled(directed=True, ranked=True))
    gains = fitted.gains()
    assert set(gains) == set(groups(directed=True))
    assert sum(gains.values()) == pytest.approx(1)
    parts = [head.trees.gain_F / head.trees.gain_F.sum() for head in fitted.heads if isinstance(head, TreesHead)]
    assert len(parts) == 2
    contact_names = [name for name in names(directed=True) if name.removesuffix("_back") in GROUPS["contacts"]]
    by_name = [dict(zip(names(directed=True), part.tolist(), strict=True)) for part in parts]
    assert gains["contacts"] == pytest.approx(np.mean([sum(each[name] for name in contact_names) for each in by_name]))


def test_a_group_is_a_source_in_one_step():
    steps = labelled(directed=True)
    tables = [labelled_table(step, np.zeros((len(step.examples.source_P), 1))) for step in steps]
    groups = [set(table.group_P.tolist()) for table in tables]
    for step, own in zip(steps, groups, strict=True):
        assert len(own) == len(set(step.examples.source_P.tolist()))
    assert len(set().union(*groups)) == sum(map(len, groups))


def test_other_vectors_of_the_same_graph_have_scores_of_their_own():
    first, second = (np.random.default_rng(seed).normal(size=(40, 8)) for seed in (0, 1))
    graph = as_of(4)
    found = [
        Forecaster(vectors_of=lambda graph, vectors=vectors: vectors).inputs(graph, SOURCE_P, TARGET_P, directed=True)
        for vectors in (first, second, first)
    ]
    np.testing.assert_array_equal(found[0], found[2])
    assert (found[0][:, -NUM_VECTOR_SCORES:] != found[1][:, -NUM_VECTOR_SCORES:]).any()


def new_partners() -> NewPartners:
    positive_P = np.array([True, False, False])
    return NewPartners(node_P=SOURCE_P, source_P=SOURCE_P, target_P=TARGET_P, positive_P=positive_P)


def counted_fits(monkeypatch):
    fits = []

    def counted(table, *, seed, ranked):
        fits.append(seed)
        return fit_scaled_heads(table, seed=seed, ranked=ranked)

    monkeypatch.setattr(forecaster, "fit_scaled_heads", counted)
    monkeypatch.setattr(forecaster, "_FITTED", {})
    return fits


def test_the_rows_of_all_nodes_in_order_are_the_array_itself():
    vector_ND = np.arange(12.0).reshape(6, 2)
    embed = rows_of(vector_ND)
    assert embed(np.arange(6)) is vector_ND
    for node_B in (np.arange(5, -1, -1), np.array([4, 0, 4]), np.arange(5), np.array([0, 1, 2, 3, 4, 4])):
        assert embed(node_B).tolist() == [[2 * node, 2 * node + 1] for node in node_B.tolist()]


def test_partners_of_one_graph_are_averaged_once_though_its_vectors_are_read_twice(monkeypatch):
    averaged = []
    monkeypatch.setattr(forecaster, "prepare_vectors", lambda *given: averaged.append(given) or prepare_vectors(*given))

    class Fixed:
        def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
            return rows_of(np.random.default_rng(seed).standard_normal((len(graph.history.node_N), 8)))

    method, graph = FittedOnce(method=Fixed()), as_of(3)
    for _ in range(2):
        vectors_ND = fitted_vectors("fixed", method, graph, seed=0)
        Forecaster(vectors_of={graph: vectors_ND}.get).inputs(graph, SOURCE_P, TARGET_P, directed=False)
    assert len(averaged) == 1


def test_equal_labelled_pairs_of_equal_pasts_are_fitted_once(monkeypatch):
    fits = counted_fits(monkeypatch)
    first, again = (Forecaster().fitted(labelled(directed=True, ranked=True)) for _ in range(2))
    assert first == again
    assert len(fits) == 1


def test_whatever_differs_is_fitted_anew(monkeypatch):
    fits = counted_fits(monkeypatch)
    steps = labelled(directed=True, ranked=True)
    vectors_ND = np.random.default_rng(0).normal(size=(40, 4))
    others = [
        (Forecaster(), steps),
        (Forecaster(seed=1), steps),
        (Forecaster(vectors_of=lambda graph: vectors_ND), steps),
        (Forecaster(), labelled(directed=False, ranked=True)),
        (Forecaster(), labelled(directed=True)),
        (Forecaster(), steps[1:]),
        (Forecaster(), [replace(steps[0], weight=0.9), *steps[1:]]),
        (Forecaster(), [replace(steps[0], before=as_of(2)), *steps[1:]]),
        (Forecaster(), [replace(steps[0], new_partners=new_partners()), *steps[1:]]),
    ]
    for number, (other, own) in enumerate(others, start=1):
        other.fitted(own)
        assert len(fits) == number


class TakenMeanwhile(dict):
    """Another thread takes each entry right after it was looked for."""

    def __contains__(self, key: object) -> bool:
        return self.pop(key, None) is not None


def test_a_forecaster_that_another_thread_takes_is_fitted_anew(monkeypatch):
    monkeypatch.setattr(forecaster, "_FITTED", TakenMeanwhile())
    steps = labelled(directed=True)
    first, again = (Forecaster(seed=seed).fitted(steps) for seed in (0, 0))
    texts = [[head.text for head in fitted.heads if isinstance(head, TreesHead)] for fitted in (first, again)]
    assert texts[0] == texts[1] != []


def test_a_process_keeps_some_forecasters_alone(monkeypatch):
    fits = counted_fits(monkeypatch)
    monkeypatch.setattr(forecaster, "NUM_FITTED", 2)
    steps = labelled(directed=True)
    for seed in (0, 1, 0, 2, 0, 1):  # the last one was used too long ago
        Forecaster(seed=seed).fitted(steps)
    assert fits == [0, 1, 2, 1]
