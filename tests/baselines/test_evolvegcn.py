"""EvolveGCN's parts, each against its formula written plainly."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from toy_graphs import random_graph, toy_graph

from dyformer.baselines.evolvegcn import network as evolvegcn_network
from dyformer.baselines.evolvegcn.method import EvolveGCN
from dyformer.baselines.evolvegcn.network import (
    SLOPE,
    EvolvingNetwork,
    EvolvingWeight,
    MatrixGRU,
    convolved,
    forecast_tasks,
    summary,
)
from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.sampling.adjacency import adjacency, gcn_matrix

LOG = random_graph(np.random.default_rng(0), num_nodes=12, num_steps=4, num_edges=20)
WINDOW = [gcn_matrix(adjacency(snapshot)) for snapshot in LOG.snapshots]


def sigmoid(value: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-value))


def network(evolution, num_layers: int = 2) -> EvolvingNetwork:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return EvolvingNetwork(12, 6, num_layers, evolution)


def scorer(layer: EvolvingWeight) -> torch.Tensor:
    assert layer.scorer_I is not None
    return layer.scorer_I


def test_a_convolution_is_that_of_dense_algebra():
    generator = np.random.default_rng(1)
    input_NI, weight_IO = generator.normal(size=(12, 5)), generator.normal(size=(5, 3))
    found = convolved(WINDOW[0], torch.tensor(input_NI).float(), torch.tensor(weight_IO).float())
    product_NO = WINDOW[0].to_dense().numpy() @ input_NI @ weight_IO
    np.testing.assert_allclose(found, np.where(product_NO > 0, product_NO, SLOPE * product_NO), rtol=1e-4, atol=1e-5)


def test_the_matrix_gru_is_a_gru_of_each_column_with_a_bias_of_its_own():
    gru, generator = MatrixGRU(4, 3), np.random.default_rng(2)
    torch.nn.init.normal_(gru.bias_3IO, generator=torch.Generator().manual_seed(3))
    input_IO, state_IO = generator.normal(size=(2, 4, 3)).astype(np.float32)
    found = gru(torch.tensor(input_IO), torch.tensor(state_IO)).detach().numpy()
    inputs, states, biases = (getattr(gru, name).detach().numpy() for name in ("input_3II", "state_3II", "bias_3IO"))
    for column in range(3):
        x, h = input_IO[:, column], state_IO[:, column]
        update, reset = (sigmoid(inputs[g] @ x + states[g] @ h + biases[g, :, column]) for g in (0, 1))
        candidate = np.tanh(inputs[2] @ x + states[2] @ (reset * h) + biases[2, :, column])
        np.testing.assert_allclose(found[:, column], (1 - update) * h + update * candidate, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("evolution", ["O", "H"])
def test_a_history_may_begin_with_steps_without_nodes(evolution):
    graph = prepare_graph(toy_graph([], [(0, 2)], [(0, 1), (1, 2)]), until=3, config=GraphConfig())
    vector_ND = EvolveGCN(evolution=evolution, width=6, epochs=2).fit(graph, seed=0)(np.arange(3))
    assert np.isfinite(vector_ND).all()
    assert len(np.unique(vector_ND, axis=0)) == 3


def test_the_summary_has_the_best_nodes_each_times_the_tanh_of_its_score():
    input_NI = np.array([[1.0, 0.0], [3.0, 1.0], [-2.0, 4.0], [2.0, 2.0]])
    scorer_I = np.array([3.0, 4.0])
    score_N = input_NI @ np.array([0.6, 0.8])
    assert np.argsort(-score_N).tolist() == [3, 1, 2, 0]
    for num_columns, nodes in ((2, [3, 1]), (6, [3, 1, 2, 0, 0, 0])):
        found = summary(torch.tensor(input_NI), torch.tensor(scorer_I), num_columns)
        expected = np.stack([input_NI[node] * np.tanh(score_N[node]) for node in nodes], axis=1)
        np.testing.assert_allclose(found, expected)


def test_the_network_evolves_each_layers_weights_before_the_convolution_of_a_step():
    for evolution in ("O", "H"):
        model = network(evolution)
        vectors = [model.id_NI for _ in WINDOW]
        for layer in model.layers:
            assert isinstance(layer, EvolvingWeight)
            weight, outputs = layer.first_IO, []
            for matrix, vector in zip(WINDOW, vectors, strict=True):
                weight = layer.gru(weight if evolution == "O" else summary(vector, scorer(layer), 6), weight)
                outputs.append(convolved(matrix, vector, weight))
            vectors = outputs
        torch.testing.assert_close(model(WINDOW), vectors[-1])


def test_only_in_h_do_the_nodes_of_an_older_step_change_the_newest_vectors():
    other = [WINDOW[1], *WINDOW[1:]]
    for evolution, is_same in (("O", True), ("H", False)):
        model = network(evolution)
        assert torch.equal(model(WINDOW), model(other)) == is_same
        assert not torch.equal(model(WINDOW), model([*WINDOW[:3], WINDOW[0]]))
        assert not torch.equal(model(WINDOW), model(WINDOW[1:]))  # the weights moved on once less


def test_a_step_is_forecast_from_the_window_before_it_and_between_nodes_known_there():
    log = toy_graph([(0, 1), (1, 2)], [(0, 2), (2, 3)], [(0, 1), (1, 3), (3, 4)], [(0, 4)])
    graph = prepare_graph(log, until=4, config=GraphConfig(history_window=2))
    matrices = {snapshot.step: gcn_matrix(adjacency(snapshot)) for snapshot in log.snapshots}
    tasks = forecast_tasks(graph, matrices, 0.0, np.random.default_rng(0))
    assert [len(task.window) for task in tasks] == [1, 2, 2]
    assert tasks[1].window[-1] is matrices[2]
    assert [list(zip(*(end.tolist() for end in task.positives), strict=True)) for task in tasks] == [
        [(0, 2)],
        [(0, 1), (1, 3)],
        [(0, 4)],
    ]
    half = forecast_tasks(prepare_graph(LOG, until=4, config=GraphConfig()), matrices, 0.5, np.random.default_rng(0))
    for task, snapshot in zip(half, LOG.snapshots[1:], strict=True):
        parts = [np.stack(pairs).T.tolist() for pairs in (task.positives, task.held_out)]
        assert parts[0]
        assert parts[1]
        assert sorted(parts[0] + parts[1]) == np.stack([snapshot.source_E, snapshot.target_E]).T.tolist()
        negatives = np.stack(task.negatives(500, np.random.default_rng(0))).T
        assert not {tuple(sorted(pair)) for pair in negatives.tolist()} & {tuple(pair) for pair in parts[0] + parts[1]}


def test_training_stops_when_held_out_links_get_no_better_and_takes_the_best_epoch(monkeypatch: pytest.MonkeyPatch):
    graph = prepare_graph(LOG, until=4, config=GraphConfig())
    nodes = np.arange(12)
    losses = []
    monkeypatch.setattr(evolvegcn_network, "_loss", recorded(evolvegcn_network._loss, losses))
    method = EvolveGCN(width=6, epochs=50, patience=3, learning_rate=0.05, validation_fraction=0.3)
    vectors = method.fit(graph, seed=0)(nodes)
    mean_by_epoch = np.array(losses).reshape(-1, 3).mean(axis=1)
    best = int(np.argmin(mean_by_epoch))
    assert len(mean_by_epoch) == best + 1 + 3 < 50
    np.testing.assert_array_equal(replace(method, epochs=best + 1).fit(graph, seed=0)(nodes), vectors)


def recorded(loss, losses: list[float]):
    """Record the losses that need no gradient, which are those of the held-out links."""

    def record(method, vector_NO, positives, negatives):
        value = loss(method, vector_NO, positives, negatives)
        if not value.requires_grad:
            losses.append(value.item())
        return value

    return record


def test_a_history_of_one_step_is_refused():
    with pytest.raises(ValueError, match="expected 2 steps, found 1"):
        EvolveGCN().fit(prepare_graph(LOG, until=1, config=GraphConfig()), seed=0)
