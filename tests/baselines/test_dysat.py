"""DySAT's attentions against plain loops and softmax, and what may influence a vector."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from toy_graphs import random_graph

from dyformer.baselines.dysat import network
from dyformer.baselines.dysat.method import DySAT
from dyformer.baselines.dysat.network import StructuralAttention, TemporalAttention, TwoAttentions, neighbours
from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.sampling.adjacency import adjacency

LOG = random_graph(np.random.default_rng(0), num_nodes=12, num_steps=4, num_edges=14)
WINDOW = [adjacency(snapshot) for snapshot in LOG.snapshots]
NODES = np.array([0, 3, 4, 9, 11])


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def softmax(value: np.ndarray) -> np.ndarray:
    return np.exp(value) / np.exp(value).sum()


def test_structural_attention_is_a_softmax_over_the_neighbours_and_the_node_itself():
    attention = StructuralAttention(6, 2, 0.5).eval()
    input_ND = torch.randn(12, 6)
    value_ND = attention.value(input_ND)
    found = attention(value_ND, *neighbours(WINDOW[0], NODES)).detach().numpy()
    dense, values = WINDOW[0].toarray(), value_ND.detach().numpy().reshape(12, 2, 3)
    query, key = attention.query_HW.detach().numpy(), attention.key_HW.detach().numpy()
    for row, node in enumerate(NODES):
        others = [*np.flatnonzero(dense[node]).tolist(), node]
        for head in range(2):
            logits = np.array([query[head] @ values[node, head] + key[head] @ values[other, head] for other in others])
            weights = softmax(np.where(logits > 0, logits, 0.2 * logits))
            mean = sum(weight * values[other, head] for weight, other in zip(weights, others, strict=True))
            expected = np.where(mean > 0, mean, np.exp(mean) - 1)
            np.testing.assert_allclose(found[row, 3 * head : 3 * head + 3], expected, rtol=1e-4, atol=1e-6)


def test_temporal_attention_is_a_softmax_over_the_steps_up_to_its_own():
    attention, input_UTD = TemporalAttention(6, 2, 0.5).eval(), torch.randn(2, 4, 6)
    found = attention(input_UTD).detach().numpy()
    query, key, value = (projection(input_UTD).detach().numpy() for projection in attention.projections)
    for node in range(2):
        for step in range(4):
            parts = []
            for head in (slice(0, 3), slice(3, 6)):
                logits = key[node, : step + 1, head] @ query[node, step, head] / np.sqrt(3)
                parts.append(softmax(logits) @ value[node, : step + 1, head])
            output = np.concatenate(parts)
            layer = attention.feed_forward
            inner = layer.weight.detach().numpy() @ output + layer.bias.detach().numpy()
            expected = input_UTD[node, step].numpy() + output + np.maximum(inner, 0)
            np.testing.assert_allclose(found[node, step], expected, rtol=1e-4, atol=1e-5)


def model() -> TwoAttentions:
    return TwoAttentions((12, 4, 6), (2, 2), (0.1, 0.5)).eval()


def test_a_later_snapshot_does_not_influence_an_older_vector_and_the_newest_does():
    both = model()
    before = both(WINDOW, NODES)
    for step in range(4):
        changed = [*WINDOW[:step], WINDOW[step - 1], *WINDOW[step + 1 :]]
        after = both(changed, NODES)
        assert torch.equal(before[:, :step], after[:, :step])
        for later in range(step, 4):
            assert not torch.equal(before[:, later], after[:, later])


def test_a_vector_does_not_depend_on_the_other_nodes_of_its_batch():
    both = model()
    alone = torch.cat([both(WINDOW, NODES[row : row + 1]) for row in range(len(NODES))])
    torch.testing.assert_close(both(WINDOW, NODES), alone)


def test_positives_are_near_on_walks_of_the_step_and_negatives_have_edges_there():
    matrix = WINDOW[0]
    method = DySAT(walk_window=1, num_positives=5)
    source = network._source(method, matrix, np.random.default_rng(0))
    center_P, context_P, negative_K = network._draw(method, source, np.arange(12), np.random.default_rng(0))
    degree_N = matrix.sum(axis=1)
    assert np.bincount(center_P, minlength=12).tolist() == np.where(degree_N > 0, 5, 0).tolist()
    assert matrix.toarray()[center_P, context_P].all()
    assert len(negative_K) == 10
    assert degree_N[negative_K].all()


def test_an_epoch_is_a_pass_over_the_nodes():
    graph, nodes = prepare_graph(LOG, until=4, config=GraphConfig()), np.arange(12)
    sizes = {"width": 4, "structural_heads": 2, "temporal_heads": 2, "num_walks": 1, "walk_length": 3}
    method = DySAT(**sizes, batches=5, batch_nodes=5)
    vectors = {epochs: replace(method, epochs=epochs).fit(graph, seed=0)(nodes) for epochs in (1, 2, None)}
    np.testing.assert_array_equal(vectors[1], replace(method, batches=3).fit(graph, seed=0)(nodes))
    np.testing.assert_array_equal(vectors[2], vectors[None])  # `batches` is fewer
    assert not np.array_equal(vectors[1], vectors[None])
