"""DynGEM's loss and network written plainly, and its warm start."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from toy_graphs import random_graph, toy_graph, with_snapshots

from dyformer.baselines.dyngem import network
from dyformer.baselines.dyngem.method import DynGEM
from dyformer.baselines.dyngem.network import RowAutoEncoder, edge_batches
from dyformer.graphs.prepared_graph import GraphConfig, PreparedGraph, prepare_graph
from dyformer.sampling.adjacency import adjacency, input_tensor, row_targets

LOG = random_graph(np.random.default_rng(0), num_nodes=12, num_steps=3, num_edges=14)
MATRIX = adjacency(LOG.snapshots[0])
SMALL = DynGEM(hidden=(8, 6), width=4, first_epochs=3, epochs=2, batch_edges=5)


def autoencoder() -> RowAutoEncoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = RowAutoEncoder(12, (8, 6), 4)
        for bias in (model.first_H, model.last_N):
            torch.nn.init.normal_(bias)
    return model


def plain(model: RowAutoEncoder, rows_UN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The codes and the reconstruction of dense rows, layer by layer."""
    weight = {name: value.numpy() for name, value in model.state_dict().items()}
    hidden = np.maximum(rows_UN @ weight["first_NH"] + weight["first_H"], 0)
    hidden = np.maximum(hidden @ weight["encoder.1.weight"].T + weight["encoder.1.bias"], 0)
    code = hidden @ weight["encoder.3.weight"].T + weight["encoder.3.bias"]
    hidden = np.maximum(code @ weight["decoder.0.weight"].T + weight["decoder.0.bias"], 0)
    hidden = np.maximum(hidden @ weight["decoder.2.weight"].T + weight["decoder.2.bias"], 0)
    return code, hidden @ weight["last_NH"].T + weight["last_N"]


def test_the_loss_is_that_of_sdne_and_the_penalty_that_of_dyngem():
    model, method = autoencoder(), replace(SMALL, first_order=300.0, edge_factor=2.0, l1=0.01, l2=0.02)
    node_U, source_E, target_E = np.array([0, 2, 5, 7]), np.array([0, 1, 0]), np.array([1, 2, 3])
    targets = row_targets(MATRIX[node_U], 12, np.random.default_rng(0))
    code_UD = model.encode(input_tensor(MATRIX[node_U]))
    output_UC = model.decode(code_UD, targets.column_C)
    found = network._loss(method, code_UD, output_UC, targets, torch.tensor(source_E), torch.tensor(target_E))
    rows_UN = MATRIX.toarray()[node_U]
    code, output = plain(model, rows_UN)
    second = (((output - rows_UN) * np.where(rows_UN > 0, 2.0, 1.0)) ** 2).sum(axis=1)
    edges = zip(source_E, target_E, strict=True)
    expected = np.mean([second[i] + second[j] + 300 * ((code[i] - code[j]) ** 2).sum() for i, j in edges])
    assert found.item() == pytest.approx(expected, rel=1e-4)
    matrices = [value.numpy() for name, value in model.state_dict().items() if "bias" not in name and value.dim() == 2]
    assert len(matrices) == 6
    penalty = sum(0.01 * np.abs(weight).sum() + 0.02 * (weight**2).sum() for weight in matrices)
    assert network._penalty(method, model).item() == pytest.approx(penalty, rel=1e-4)


def test_an_epoch_has_every_edge_once():
    batches = list(edge_batches(MATRIX, 4, np.random.default_rng(0)))
    assert [len(source_E) for source_E, _ in batches[:-1]] == [4] * (len(batches) - 1)
    edges = sorted((int(a), int(b)) for ends in batches for a, b in zip(*ends, strict=True))
    snapshot = LOG.snapshots[0]
    assert edges == list(zip(snapshot.source_E.tolist(), snapshot.target_E.tolist(), strict=True))


def prepared(log) -> PreparedGraph:
    return prepare_graph(log, until=log.num_steps, config=GraphConfig())


def test_each_step_starts_from_the_weights_of_the_step_before(monkeypatch: pytest.MonkeyPatch):
    starts, ends, epochs = [], [], []
    train = network._train

    def recorded(method, model, matrix, number, generator):
        starts.append({name: value.clone() for name, value in model.state_dict().items()})
        train(method, model, matrix, number, generator)
        ends.append({name: value.clone() for name, value in model.state_dict().items()})
        epochs.append(number)

    monkeypatch.setattr(network, "_train", recorded)
    SMALL.fit(prepared(LOG), seed=0)
    assert epochs == [3, 2, 2]
    for end, start in zip(ends, starts[1:], strict=False):
        assert all(torch.equal(end[name], start[name]) for name in end)
        assert not torch.equal(end["first_NH"], starts[0]["first_NH"])


def test_a_warm_start_makes_an_equal_snapshot_cheap(monkeypatch: pytest.MonkeyPatch):
    losses = []
    loss = network._loss

    def recorded(*arguments):
        value = loss(*arguments)
        losses.append(value.item())
        return value

    monkeypatch.setattr(network, "_loss", recorded)
    first = LOG.snapshots[0]
    repeated = with_snapshots(LOG, first, replace(first, step=2))
    method = replace(SMALL, hidden=(32, 16), first_epochs=40, epochs=1, batch_edges=100, learning_rate=0.01)
    method.fit(prepared(repeated), seed=0)
    assert len(losses) == 41
    assert losses[40] < 1.2 * losses[39] < 0.5 * losses[0]


def test_steps_without_edges_are_skipped():
    vector_ND = SMALL.fit(prepared(toy_graph([(0, 1), (1, 2)], [])), seed=0)(np.arange(3))
    assert np.isfinite(vector_ND).all()
