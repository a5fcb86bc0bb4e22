"""GraphSAGE's four aggregators against plain loops, and the sampling of neighbours."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from toy_graphs import random_graph, toy_graph

from dyformer.baselines.graphsage import network
from dyformer.baselines.graphsage.method import GraphSAGE
from dyformer.baselines.graphsage.network import AGGREGATORS, SampledNetwork, pairs_with_starts, sampled_neighbours
from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.sampling.adjacency import adjacency

EDGES = adjacency(toy_graph([(0, 1), (0, 2), (0, 3), (4, 6)]).snapshots[0])  # the node 5 has no neighbour
NODES, NEIGHBOURS = np.array([3, 0]), np.array([[1, 2, 2], [4, 0, 5]])


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def sigmoid(value: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-value))


def weights_of(layer: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in layer.state_dict().items()}


def plain(aggregator: str, weight: dict[str, np.ndarray], own: np.ndarray, near: list[np.ndarray]) -> np.ndarray:
    """The article's aggregators for one node."""
    if aggregator == "gcn":
        return weight["linear.weight"] @ (sum(near, own) / (1 + len(near)))
    if aggregator == "mean":
        aggregated = sum(near) / len(near)
    elif aggregator == "max-pool":
        pooled = [np.maximum(weight["pool.weight"] @ each + weight["pool.bias"], 0) for each in near]
        aggregated = np.max(pooled, axis=0)
    else:
        aggregated = cell = np.zeros(4)
        for each in near:
            gates = weight["lstm.weight_ih_l0"] @ each + weight["lstm.bias_ih_l0"]
            gates = gates + weight["lstm.weight_hh_l0"] @ aggregated + weight["lstm.bias_hh_l0"]
            enter, forget, value, leave = np.split(gates, 4)
            cell = sigmoid(forget) * cell + sigmoid(enter) * np.tanh(value)
            aggregated = sigmoid(leave) * np.tanh(cell)
    return np.concatenate([weight["output.own.weight"] @ own, weight["output.near.weight"] @ aggregated])


@pytest.mark.parametrize("aggregator", AGGREGATORS)
def test_an_aggregator_is_that_of_plain_loops(aggregator):
    layer, input_UI = AGGREGATORS[aggregator](3, 4), torch.randn(7, 3)
    found = layer(input_UI, torch.tensor(NODES), torch.tensor(NEIGHBOURS)).detach().numpy()
    inputs, weight = input_UI.numpy(), weights_of(layer)
    for row, node in enumerate(NODES):
        near = [inputs[other] for other in NEIGHBOURS[row]]
        np.testing.assert_allclose(found[row], plain(aggregator, weight, inputs[node], near), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("aggregator", AGGREGATORS)
def test_a_vector_has_length_1_and_reads_nodes_two_steps_away_and_no_further(aggregator):
    path = adjacency(toy_graph([(0, 1), (1, 2), (2, 3), (3, 4)]).snapshots[0])
    model = SampledNetwork(5, 6, aggregator, (25, 25))
    before = model(path, np.array([0]), np.random.default_rng(0))
    assert before.norm().item() == pytest.approx(1, abs=1e-5)
    for node, changes in ((1, True), (2, True), (3, False), (4, False)):
        other = SampledNetwork(5, 6, aggregator, (25, 25))
        other.load_state_dict(model.state_dict())
        with torch.no_grad():
            other.id_NI[node] += 10 * torch.randn(6)
        assert torch.equal(before, other(path, np.array([0]), np.random.default_rng(0))) != changes


def test_neighbours_are_drawn_alike_and_all_nodes_without_have_the_same_one():
    drawn_BK = sampled_neighbours(EDGES, np.array([0, 6, 5, 7]), 9000, np.random.default_rng(0))
    np.testing.assert_allclose(
        np.bincount(drawn_BK[0], minlength=7) / 9000, np.array([0, 1, 1, 1, 0, 0, 0]) / 3, atol=0.02
    )
    assert set(drawn_BK[1].tolist()) == {4}
    assert set(drawn_BK[2:].ravel().tolist()) == {7}


def test_a_node_reads_10_neighbours_and_25_of_each(monkeypatch):
    drawn = []

    def recorded(edges, node_B, num, generator):
        drawn.append((node_B.tolist(), num))
        return sampled_neighbours(edges, node_B, num, generator)

    monkeypatch.setattr(network, "sampled_neighbours", recorded)
    model = SampledNetwork(7, 6, "gcn", GraphSAGE().fan_out)
    model(EDGES, np.array([1]), np.random.default_rng(0))
    assert drawn == [([1], 10), ([0, 1], 25)]


@pytest.mark.parametrize("aggregator", AGGREGATORS)
def test_first_weights_are_those_of_glorot_and_bengio(aggregator):
    model = SampledNetwork(300, 32, aggregator, (25, 10))
    for weight in model.parameters():
        if weight.dim() == 2:
            limit = np.sqrt(6 / sum(weight.shape))
            assert 0.95 * limit < weight.abs().max().item() <= limit
        else:
            assert not weight.any()


def test_nodes_without_neighbours_have_one_input_for_them():
    model = SampledNetwork(7, 6, "mean", (25, 10))
    before = model(EDGES, np.arange(7), np.random.default_rng(0))
    with torch.no_grad():
        model.id_NI[7] += 1
    changed = (before != model(EDGES, np.arange(7), np.random.default_rng(0))).any(dim=1)
    assert changed.tolist() == [False] * 5 + [True, False]  # the node 5 alone has none


def test_pairs_are_a_walks_start_and_its_later_nodes():
    walk_SL = np.array([[0, 1, 0, 2], [3, 4, 5, 4]], dtype=np.int32)
    source_P, target_P = pairs_with_starts(walk_SL, 6000, np.random.default_rng(0))
    assert set(zip(source_P.tolist(), target_P.tolist(), strict=True)) == {(0, 1), (0, 2), (3, 4), (3, 5)}
    # All three later nodes of the second walk are others, and two of the first one's.
    assert [(source_P == node).sum() for node in (0, 3)] == pytest.approx([2000, 3000], abs=150)


def test_a_window_without_edges_gives_untrained_vectors():
    log = toy_graph([(0, 1), (1, 2)], [])
    graph = prepare_graph(log, until=2, config=GraphConfig(history_window=1))
    assert np.isfinite(GraphSAGE(width=4).fit(graph, seed=0)(np.arange(3))).all()


@pytest.mark.parametrize("aggregator", ["mean", "max-pool", "lstm"])  # test_embedders.py has "gcn"
def test_every_aggregator_trains(aggregator):
    log = random_graph(np.random.default_rng(0), num_nodes=20, num_steps=2, num_edges=30)
    graph, nodes = prepare_graph(log, until=2, config=GraphConfig()), np.arange(20)
    method = GraphSAGE(aggregator=aggregator, width=8, batches=2, num_walks=5, batch_pairs=32)
    vector_ND = method.fit(graph, seed=0)(nodes)
    assert np.isfinite(vector_ND).all()
    assert not np.array_equal(
        vector_ND, GraphSAGE(aggregator=aggregator, width=8, batches=0, num_walks=5).fit(graph, seed=0)(nodes)
    )


def test_an_epoch_has_as_many_pairs_as_the_walks():
    log = random_graph(np.random.default_rng(0), num_nodes=20, num_steps=2, num_edges=30)
    graph, nodes = prepare_graph(log, until=2, config=GraphConfig()), np.arange(20)
    method = GraphSAGE(width=4, batches=99, epochs=9, num_walks=3, batch_pairs=16)
    num_batches = int(-(-3 * 4 * np.count_nonzero(graph.union.degree) // 16))  # four later nodes of each walk

    def vectors(**changes):
        return replace(method, **changes).fit(graph, seed=0)(nodes)

    np.testing.assert_array_equal(vectors(epochs=1), vectors(batches=num_batches))
    assert not np.array_equal(vectors(epochs=1), vectors(epochs=2))
    np.testing.assert_array_equal(vectors(epochs=10), vectors())  # `batches` is fewer
