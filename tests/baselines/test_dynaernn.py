"""DynAERNN's network written plainly, and the rows from which it forecasts."""

import numpy as np
import pytest
import torch
from toy_graphs import random_graph

from dyformer.baselines.dynaernn import network
from dyformer.baselines.dynaernn.method import DynAERNN
from dyformer.baselines.dynaernn.network import RowForecaster, active_nodes
from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.sampling.adjacency import adjacency

LOG = random_graph(np.random.default_rng(0), num_nodes=12, num_steps=5, num_edges=9)
WINDOW = [adjacency(snapshot) for snapshot in LOG.snapshots]
SMALL = DynAERNN(hidden=(8, 6), width=4, epochs=2, batch_rows=5)


def sigmoid(value: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-value))


def plain(model: RowForecaster, rows: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The vector of one node from its dense rows, and the forecast of its next row."""
    weight = {name: value.numpy() for name, value in model.state_dict().items()}
    inputs = []
    for row in rows:
        hidden = np.maximum(row @ weight["first_NH"] + weight["first_H"], 0)
        inputs.append(np.maximum(weight["inner.weight"] @ hidden + weight["inner.bias"], 0))
    for layer in range(2):
        state, cell, outputs = np.zeros(4), np.zeros(4), []
        for each in inputs:
            gates = weight[f"lstm.weight_ih_l{layer}"] @ each + weight[f"lstm.bias_ih_l{layer}"]
            gates = gates + weight[f"lstm.weight_hh_l{layer}"] @ state + weight[f"lstm.bias_hh_l{layer}"]
            enter, forget, value, leave = np.split(gates, 4)
            cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(value)
            state = sigmoid(leave) * np.tanh(cell)
            outputs.append(state)
        inputs = outputs
    hidden = np.maximum(weight["decoder.0.weight"] @ inputs[-1] + weight["decoder.0.bias"], 0)
    hidden = np.maximum(weight["decoder.2.weight"] @ hidden + weight["decoder.2.bias"], 0)
    return inputs[-1], weight["last_NH"] @ hidden + weight["last_N"]


def test_a_vector_and_a_forecast_are_those_of_the_layers_written_plainly():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = RowForecaster(12, (8, 6), 4)
        for bias in (model.first_H, model.last_N):
            torch.nn.init.normal_(bias)
    nodes, columns = np.array([0, 4, 9]), torch.tensor([2, 11, 0])
    vector_UD = model.encode([matrix[nodes] for matrix in WINDOW[:2]])
    output_UC = model.decode(vector_UD, columns)
    for row, node in enumerate(nodes):
        vector, output = plain(model, [matrix.toarray()[node] for matrix in WINDOW[:2]])
        np.testing.assert_allclose(vector_UD[row].detach(), vector, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(output_UC[row].detach(), output[columns.numpy()], rtol=1e-4, atol=1e-5)


def test_every_active_row_of_a_step_is_forecast_from_the_two_before(monkeypatch: pytest.MonkeyPatch):
    encoded, forecast = [], []
    encode, row_targets = RowForecaster.encode, network.row_targets

    def recorded_encode(self, history):
        if torch.is_grad_enabled():
            encoded.append([rows_UN.toarray() for rows_UN in history])
        return encode(self, history)

    def recorded_targets(rows_UN, *arguments):
        forecast.append(rows_UN.toarray())
        return row_targets(rows_UN, *arguments)

    monkeypatch.setattr(RowForecaster, "encode", recorded_encode)
    monkeypatch.setattr(network, "row_targets", recorded_targets)
    graph = prepare_graph(LOG, until=5, config=GraphConfig(history_window=4))
    DynAERNN(hidden=(8, 6), width=4, epochs=1, batch_rows=100).fit(graph, seed=0)
    assert len(encoded) == len(forecast) == 2
    for history, following in zip(encoded, forecast, strict=True):
        step = next(step for step in (3, 4) if WINDOW[step].toarray().sum() == following.sum())
        assert len(history) == 2
        for rows_UN, matrix in zip(history, WINDOW[step - 2 : step], strict=True):
            assert len(rows_UN) == len(active_nodes(WINDOW[step - 2 : step + 1]))
            np.testing.assert_array_equal(
                np.sort(rows_UN.sum(axis=1)), np.sort(matrix.sum(axis=1)[active_nodes(WINDOW[step - 2 : step + 1])])
            )


def test_the_vectors_read_the_two_newest_rows_and_a_short_window_fewer():
    graph = prepare_graph(LOG, until=5, config=GraphConfig())
    lonely = np.setdiff1d(np.arange(12), active_nodes(WINDOW[-2:]))
    assert len(lonely) > 1
    vector_ND = SMALL.fit(graph, seed=0)(np.arange(12))
    assert np.ptp(vector_ND[lonely], axis=0).max() < 1e-6
    assert np.ptp(vector_ND, axis=0).max() > 1e-3
    assert SMALL.fit(prepare_graph(LOG, until=2, config=GraphConfig()), seed=0)(np.arange(12)).shape == (12, 4)


def test_a_window_of_one_snapshot_is_refused():
    with pytest.raises(ValueError, match="expected a window of 2, found 1"):
        SMALL.fit(prepare_graph(LOG, until=5, config=GraphConfig(history_window=1)), seed=0)
