"""Skip-gram training against the same updates in plain Python."""

import math

import numpy as np
import pytest
from toy_graphs import random_graph, toy_graph

from dyformer.baselines import node2vec
from dyformer.baselines.node2vec import Node2Vec, train_skip_gram
from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph


def plain_skip_gram(walks, vectors, contexts, noise, sizes, rates, generator) -> None:
    """word2vec's loop, each update from the gradient of the logistic loss."""
    window, num_negatives = sizes
    for row, walk in enumerate(walks):
        rate = max(rates[0] + (rates[1] - rates[0]) * row / len(walks), rates[2])
        for position, node in enumerate(walk):
            reach = 1 + int(generator.random() * window)
            for other in range(max(0, position - reach), min(len(walk), position + reach + 1)):
                if other == position:
                    continue
                targets = [(walk[other], 1.0)]
                drawn = [noise[int(generator.random() * len(noise))] for _ in range(num_negatives)]
                targets += [(negative, 0.0) for negative in drawn if negative != walk[other]]
                gradient = np.zeros(vectors.shape[1])
                for target, label in targets:
                    error = label - 1 / (1 + math.exp(-float(vectors[node] @ contexts[target])))
                    gradient += error * contexts[target]
                    contexts[target] = contexts[target] + rate * error * vectors[node]
                vectors[node] = vectors[node] + rate * gradient


def test_training_makes_the_updates_of_word2vec():
    generator = np.random.default_rng(0)
    walk_SL = generator.integers(7, size=(30, 9)).astype(np.int32)
    noise_K = generator.integers(7, size=64).astype(np.int32)
    start = generator.normal(size=(2, 7, 5)) / 2
    arguments = noise_K, (3, 4), (0.3, 0.1, 0.15)
    found, expected = start.astype(np.float32), start.copy()
    train_skip_gram(walk_SL, found[0], found[1], *arguments, np.random.default_rng(1))
    plain_skip_gram(walk_SL, expected[0], expected[1], *arguments, np.random.default_rng(1))
    assert np.abs(expected - start).max() > 0.5
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_node_without_an_edge_in_the_window_gets_zeros():
    log = toy_graph([(0, 1), (2, 5)], [(0, 1), (1, 2)], [(3, 4), (1, 2)])
    graph = prepare_graph(log, until=3, config=GraphConfig(history_window=2))
    vector_ND = Node2Vec(width=4, walk_length=10).fit(graph, seed=0)(np.arange(6))
    assert vector_ND.any(axis=1).tolist() == [True] * 5 + [False]
    empty = prepare_graph(toy_graph([(0, 1)], []), until=2, config=GraphConfig(history_window=1))
    assert not Node2Vec(width=4).fit(empty, seed=0)(np.arange(2)).any()


def test_the_learning_rate_decays_over_all_epochs(monkeypatch: pytest.MonkeyPatch):
    log = random_graph(np.random.default_rng(0), num_nodes=20, num_steps=2, num_edges=60)
    rates = []
    monkeypatch.setattr(node2vec, "train_skip_gram", lambda *arguments: rates.append(arguments[5]))
    Node2Vec(width=8, epochs=2, learning_rate=0.4).fit(prepare_graph(log, until=2, config=GraphConfig()), seed=0)
    assert rates == [(0.4, 0.2, 0.4e-4), (0.2, 0.0, 0.4e-4)]
