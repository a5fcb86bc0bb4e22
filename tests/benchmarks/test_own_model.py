"""The labels and inputs of benchmarks/own_model.py, beside the rows of a planted log."""

from dataclasses import replace

import numpy as np
import pytest
from benchmark_modules import benchmark_module

from dyformer.experiments.settings import Experiment
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.logs.planted import PlantedLog, planted_rows

own_model = benchmark_module("own_model")
vector_uses = benchmark_module("vector_uses")

LOG = PlantedLog(num_nodes=120, num_groups=4, num_weeks=8, num_interactions=80, following=0.9)


def test_labels_say_who_has_a_link_in_the_next_step_and_who_a_new_partner():
    graph, log_node_N = vector_uses.graph_of(LOG)
    rows = [(week + 1, source, target) for week, source, target in planted_rows(LOG) if source != target]
    past = {frozenset(pair) for step, *pair in rows if step <= 5}
    label_of = own_model.labels(graph, 5)
    for node, number in enumerate(log_node_N[: graph.snapshots[4].num_nodes].tolist()):
        partners = {frozenset(pair) for step, *pair in rows if step == 6 and number in pair}
        assert label_of["comes back"][node] == bool(partners)
        assert label_of["new partner"][node] == bool(partners - past)


def test_labels_read_the_next_step_alone():
    graph, _ = vector_uses.graph_of(LOG)
    shorter = replace(graph, snapshots=graph.snapshots[:6])
    for name, label_N in own_model.labels(graph, 5).items():
        np.testing.assert_array_equal(own_model.labels(shorter, 5)[name], label_N)


def test_inputs_that_hold_the_label_gain_and_those_of_chance_do_not():
    graph, _ = vector_uses.graph_of(LOG)
    read = []

    def label(past, seed):
        def of(later):
            read.append((past.until, later.until))
            return own_model.labels(graph, later.until)["comes back"][:, None].astype(float)

        return of

    def chance(past, seed):
        return lambda later: np.random.default_rng([seed, later.until]).normal(size=(len(later.history.node_N), 4))

    value_of = {name: rest for name, *rest in own_model.measured(graph, {"label": label, "chance": chance}, 0)}
    for model in own_model.MODELS:
        counts, own = (value_of[f"comes back, {model}: {name}"][0] for name in ("counts", "label"))
        assert own == value_of[f"comes back, {model}: counts, label"][0] == 1
        gain, low, high = value_of[f"comes back, {model}: counts, label, gain"]
        assert gain == pytest.approx(1 - counts)
        assert 0.2 < low <= gain <= high
        assert value_of[f"comes back, {model}: counts, chance, gain"][1] < 0.1
    assert read == [(6, 6), (6, 7)]  # of eight steps: fitted on the labels of step 7, measured on those of step 8
    assert value_of["comes back: positive"][0] == own_model.labels(graph, 7)["comes back"].sum()


def test_singular_vectors_of_a_later_step_lie_along_the_directions_of_the_fit():
    graph, _ = vector_uses.graph_of(LOG)
    first, second = (prepare_graph(graph, until=step, config=Experiment().graph) for step in (5, 6))
    vectors_of = own_model.decomposition(first, 0)
    found_NK = vectors_of(first)
    np.testing.assert_allclose(found_NK, vector_uses.decomposition(first, 0), atol=1e-8)
    before_NN, after_NN = (vector_uses.contacts(past.history, 1, past.until).toarray() for past in (first, second))
    num_nodes = len(before_NN)
    moved_NK = vectors_of(second)
    unmoved_N = (after_NN[:num_nodes, :num_nodes] == before_NN).all(axis=1)
    assert unmoved_N.any()
    assert not unmoved_N.all()
    np.testing.assert_allclose(moved_NK[:num_nodes][unmoved_N], found_NK[unmoved_N], atol=1e-8)
