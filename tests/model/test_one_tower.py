"""One tower, limited distance and single encodings against torch's own attention on dense matrices.

B nodes of a batch, targets first    H heads    D width
"""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from toy_graphs import random_graph

from dyformer.experiments.settings import Experiment
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.model.config import Encodings, ModelConfig
from dyformer.model.encodings import AttentionBias
from dyformer.model.transformer import DyFormer, TwoTowerLayer
from dyformer.sampling.subgraphs import SubgraphBatch, as_of_graph, make_batch, make_two_views
from dyformer.training.config import FinetuneConfig, PretrainConfig
from dyformer.training.stages import embed, finetune, last_weights, pretrain, started_model

CONFIG = ModelConfig(
    width=8,
    num_heads=2,
    feed_forward_width=8,
    residual_dropout=0.0,
    id_dropout=0.0,
    num_context=6,
    num_targets=5,
    towers="one",
)
TARGETS = np.array([0, 2, 3, 7])


@pytest.fixture(scope="module")
def graph() -> PreparedGraph:
    return prepare_graph(
        random_graph(np.random.default_rng(3), num_nodes=20, num_steps=4, num_edges=9),
        until=4,
        config=GraphConfig(max_distance=4),
    )


def model_of(graph: PreparedGraph, config: ModelConfig) -> DyFormer:
    torch.manual_seed(1)
    model = started_model(graph, config, None, seed=0).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    model.inputs.trained_N.fill_(True)
    return model


def batch_of(graph: PreparedGraph) -> SubgraphBatch:
    return make_batch(as_of_graph(graph, until=4), TARGETS, num_context=6, all_pairs=True)


def dense_vectors(model: DyFormer, batch: SubgraphBatch) -> Tensor:
    """Every node attends to every node of the batch, by torch's attention."""
    node_B = torch.cat([batch.target_G, batch.context_C])
    structure_BS = model.inputs.structure(torch.cat([batch.target_feature_GF, batch.context_feature_CF]))
    id_BO = model.inputs.id_embedding(node_B)
    row_BD, bias_HBB = torch.cat([structure_BS, id_BO], dim=1), model.bias(batch)
    for layer in model.layers:
        assert isinstance(layer, TwoTowerLayer)
        normed_BD = functional.layer_norm(
            row_BD, (8,), layer.attention_norm.weight, layer.attention_norm.bias, layer.attention_norm.eps
        )
        heads = [
            linear(normed_BD).reshape(-1, 2, 4).transpose(0, 1) for linear in (layer.query, layer.key, layer.value)
        ]
        message_HBW = functional.scaled_dot_product_attention(*heads, attn_mask=bias_HBB)
        row_BD = row_BD + layer.out(message_HBW.transpose(0, 1).reshape(-1, 8))
        row_BD = row_BD + layer.feed_forward(layer.feed_forward_norm(row_BD))
    target_GD = row_BD[: len(TARGETS)]
    if model.norm is None:
        return target_GD
    return torch.cat([model.norm(target_GD[:, : structure_BS.shape[1]]), id_BO[: len(TARGETS)]], dim=1)


def test_pairs_of_one_tower_are_those_of_all_nodes_of_a_batch(graph: PreparedGraph):
    batch, two = batch_of(graph), make_batch(as_of_graph(graph, until=4), TARGETS, num_context=6)
    node_B = torch.cat([batch.target_G, batch.context_C]).tolist()
    assert node_B == [*TARGETS.tolist(), *two.context_C.tolist()]
    union = nx.Graph()
    union.add_nodes_from(range(20))
    edges = {}
    for snapshot in graph.history.snapshots:
        for pair in zip(snapshot.source_E.tolist(), snapshot.target_E.tolist(), strict=True):
            union.add_edge(*pair)
            edges.setdefault(frozenset(pair), set()).add(4 - snapshot.step)
    paths = dict(nx.all_pairs_shortest_path_length(union))
    expected = [[min(paths[first].get(second, 4), 4) for second in node_B] for first in node_B]
    assert batch.distance_GC.tolist() == expected
    found = set(
        zip(batch.edge_target_A.tolist(), batch.edge_context_A.tolist(), batch.edge_lag_A.tolist(), strict=True)
    )
    assert found == {
        (i, j, lag)
        for i, first in enumerate(node_B)
        for j, second in enumerate(node_B)
        for lag in edges.get(frozenset((first, second)), ())
    }


@pytest.mark.parametrize("max_hops", [None, 1, 3])
@torch.no_grad()
def test_one_tower_is_attention_among_all_nodes_of_a_batch(graph: PreparedGraph, max_hops: int | None):
    model, batch = model_of(graph, replace(CONFIG, max_hops=max_hops)), batch_of(graph)
    first, second = make_two_views(
        as_of_graph(graph, until=4), TARGETS, num_context=6, generator=np.random.default_rng(0), all_pairs=True
    )
    expected = dense_vectors(model, batch)
    torch.testing.assert_close(model(batch), expected)
    for found, view in zip(model.views([first, second]), (first, second), strict=True):
        torch.testing.assert_close(found, dense_vectors(model, view))
    bias_HBB = model.bias(batch)
    is_far_BB = torch.tensor(batch.distance_GC.tolist()) > (max_hops or 99)
    assert torch.equal(bias_HBB.isinf().all(dim=0), is_far_BB)
    assert bool(is_far_BB.any()) == (max_hops is not None)


@torch.no_grad()
def test_a_target_reads_other_targets_only_in_one_tower(graph: PreparedGraph):
    for towers in ("one", "two"):
        model = model_of(graph, replace(CONFIG, towers=towers, num_layers=1))
        batch = make_batch(as_of_graph(graph, until=4), TARGETS, num_context=6, all_pairs=towers == "one")
        changed = batch.target_feature_GF.clone()
        changed[1] += 1.0
        before, after = model(batch), model(replace(batch, target_feature_GF=changed))
        assert bool((before[0] != after[0]).any()) == (towers == "one")


def test_a_node_beyond_the_distance_has_no_influence_and_no_gradient(graph: PreparedGraph):
    model, batch = model_of(graph, replace(CONFIG, max_hops=1, num_layers=1)), batch_of(graph)
    features = batch.context_feature_CF.clone().requires_grad_()
    vector_GD = model(replace(batch, context_feature_CF=features))
    is_near_C = batch.distance_GC[0, len(TARGETS) :] <= 1
    (gradient_CF,) = torch.autograd.grad(vector_GD[0, : 8 - model.inputs.id_width].square().sum(), features)
    assert gradient_CF.isfinite().all()
    assert torch.equal((gradient_CF != 0).any(dim=1), is_near_C)


@pytest.mark.parametrize("encodings", ["both", "connections", "distances", "neither"])
@torch.no_grad()
def test_encodings_that_are_left_out_add_nothing(graph: PreparedGraph, encodings: Encodings):
    model, batch = model_of(graph, replace(CONFIG, encodings=encodings)), batch_of(graph)
    whole, bias = model_of(graph, CONFIG).bias, model.bias
    assert isinstance(whole, AttentionBias)
    edges = (batch.edge_target_A.tolist(), batch.edge_context_A.tolist(), batch.edge_lag_A.tolist())
    connected = torch.zeros(10, 10, 5, dtype=torch.bool)
    connected[edges] = True
    weight_T = torch.softmax(whole.temporal.aggregation_T.masked_fill(~batch.visible_T, -torch.inf), dim=0)
    rows_BBTD = whole.temporal.table[2 * torch.arange(5) + connected]
    temporal = whole.temporal.project((weight_T[:, None] * rows_BBTD).sum(dim=2))
    spatial = whole.spatial.project(whole.spatial.table[batch.distance_GC.long()])
    parts = {"connections": temporal, "distances": spatial, "both": temporal + spatial, "neither": 0 * spatial}
    torch.testing.assert_close(bias(batch), parts[encodings].permute(2, 0, 1))


def test_one_tower_is_trained_and_embeds_all_nodes(graph: PreparedGraph):
    first = PretrainConfig(epochs=1, batches_per_epoch=2, validation_batches=1, num_targets=6, num_positives=4)
    second = FinetuneConfig(epochs=1, batches_per_epoch=2, validation_batches=1, num_targets=6, num_positives=4)
    config = replace(CONFIG, max_hops=1)
    weights = last_weights(pretrain(graph, config, first, seed=0))
    weights = last_weights(finetune(graph, weights, config, second, seed=0))
    vector_ND = embed(graph, weights, config)
    assert vector_ND.shape == (20, 8)
    assert np.isfinite(vector_ND).all()


def test_a_limited_distance_needs_one_tower_and_known_distances():
    with pytest.raises(ValueError, match=r"model.max_hops=1 needs one tower: set model.towers=one"):
        Experiment().changed({"model.max_hops": 1})
    with pytest.raises(ValueError, match=r"model.max_hops=5 .* graph.max_distance=5"):
        Experiment().changed({"model.max_hops": 5, "model.towers": "one"})
    assert Experiment().changed({"model.max_hops": 3, "model.towers": "one"}).model.max_hops == 3
