"""The measures of benchmarks/vector_uses.py, on vectors that hold the groups and on none that do."""

import numpy as np
import pytest
from benchmark_modules import benchmark_module

from dyformer.logs.planted import PLANTED, PlantedLog, planted_groups, planted_rows

vector_uses = benchmark_module("vector_uses")

LOG = PlantedLog(num_nodes=120, num_groups=4, num_weeks=8, num_interactions=150, following=0.9)


def values_of(vectors, planted=LOG, seed=0):
    return {name: value for name, value, *_ in vector_uses.measured(planted, vectors, seed)}


def test_recall_is_the_fraction_of_partners_among_the_nearest(monkeypatch):
    monkeypatch.setattr(vector_uses, "NUM_NEIGHBOURS", 2)
    score_NN = np.array([[-np.inf, 3, 2, 1], [3, -np.inf, 2, 1], [-np.inf, -np.inf, -np.inf, 1], [1, 2, 3, -np.inf]])
    partner_NN = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [1, 0, 0, 1], [0, 0, 0, 0]], dtype=np.bool_)
    np.testing.assert_array_equal(vector_uses.recall(score_NN, partner_NN), [0.5, 1, 0.5, np.nan])


def test_contacts_are_the_rows_between_two_nodes_in_the_steps():
    graph, log_node_N = vector_uses.graph_of(LOG)
    rows = [(week, {source, target}) for week, source, target in planted_rows(LOG)]
    count_NN = vector_uses.contacts(graph, 3, 4).toarray()
    number = np.argsort(log_node_N)
    for a, b in [(0, 1), (5, 80), *(sorted(pair) for _, pair in rows[:40])]:
        expected = sum(week in (2, 3) and pair == {a, b} for week, pair in rows)
        assert count_NN[number[a], number[b]] == count_NN[number[b], number[a]] == expected


def test_vectors_of_the_groups_give_equal_clusters_and_those_of_chance_none():
    _, log_node_N = vector_uses.graph_of(LOG)

    def groups(past, seed):
        group_N = planted_groups(LOG)[3][log_node_N[: len(past.history.node_N)]]
        return np.eye(4)[group_N] + 1e-3 * np.random.default_rng(seed).normal(size=(len(group_N), 4))

    def chance(past, seed):
        return np.random.default_rng(seed).normal(size=(len(past.history.node_N), 4))

    by_groups, by_chance = values_of(groups), values_of(chance)
    assert by_groups["adjusted Rand index"] == 1
    assert abs(by_chance["adjusted Rand index"]) < 0.05
    assert by_groups["recall@50"] > 0.8  # most links are among about 30 nodes
    recalls = [values_of(chance, seed=seed)["recall@50"] for seed in range(6)]
    assert np.mean(recalls) == pytest.approx(50 / 119, abs=0.03)


def test_new_partners_are_found_among_those_that_were_none_before():
    def same(past, seed):
        return np.ones((len(past.history.node_N), 1))

    def partners(past, seed):
        return vector_uses.contacts(past.history, 1, past.until).toarray() + np.eye(len(past.history.node_N))

    repeats = PLANTED["generated-repeats"]
    assert values_of(partners, repeats)["recall@50"] > 2 * values_of(same, repeats)["recall@50"]
    assert values_of(partners, repeats)["recall@50, new partners"] < 0.5
    assert "adjusted Rand index" not in values_of(same, repeats)
