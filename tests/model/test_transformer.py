"""The layer and the encodings against the paper's equations, written with loops in double precision.

G targets    C context    H heads    D width    T lags
"""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from toy_graphs import random_graph

from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.model.config import ModelConfig, ModelSizes
from dyformer.model.encodings import AttentionBias
from dyformer.model.transformer import DyFormer, NodeInput, TwoTowerLayer
from dyformer.sampling.link_batches import reconstruction_tasks
from dyformer.sampling.subgraphs import SubgraphBatch
from dyformer.training.config import PretrainConfig
from dyformer.training.optimizer import Optimizer
from dyformer.training.stages import pair_source, pretraining_loss, started_model

CONFIG = ModelConfig(
    width=6,
    num_layers=2,
    num_heads=2,
    feed_forward_width=5,
    residual_dropout=0.0,
    attention_dropout=0.0,
    id_dropout=0.0,
)
SIZES = ModelSizes(num_nodes=9, num_features=3, num_lags=3, max_distance=4)


@pytest.fixture(autouse=True)
def _double_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        yield
    torch.set_default_dtype(torch.float32)


def example_batch() -> SubgraphBatch:
    """Three targets and four nodes of context; pairs (0, 1), (2, 1) and (2, 3) have edges."""
    return SubgraphBatch(
        target_G=torch.tensor([0, 3, 8]),
        context_C=torch.tensor([1, 2, 5, 7]),
        target_feature_GF=torch.randn(3, 3),
        context_feature_CF=torch.randn(4, 3),
        distance_GC=torch.tensor([[2, 1, 3, 4], [4, 2, 2, 3], [2, 1, 4, 1]], dtype=torch.uint8),
        edge_target_A=torch.tensor([0, 0, 2, 2, 2, 2]),
        edge_context_A=torch.tensor([1, 1, 1, 3, 3, 3]),
        edge_lag_A=torch.tensor([0, 2, 1, 0, 1, 2]),
        visible_T=torch.tensor([True, True, True]),
    )


def no_context(batch: SubgraphBatch) -> SubgraphBatch:
    return replace(
        batch,
        context_C=batch.context_C[:0],
        context_feature_CF=batch.context_feature_CF[:0],
        distance_GC=batch.distance_GC[:, :0],
        edge_target_A=batch.edge_target_A[:0],
        edge_context_A=batch.edge_context_A[:0],
        edge_lag_A=batch.edge_lag_A[:0],
    )


@torch.no_grad()
def plain_bias(bias: AttentionBias, batch: SubgraphBatch) -> Tensor:
    """A^TC + A^SD pair by pair and lag by lag: Linear(WeightAverage of e^TC) + Linear(e^SD)."""
    temporal, spatial = bias.temporal, bias.spatial
    visible = [lag for lag in range(3) if batch.visible_T[lag]]
    edges = torch.stack([batch.edge_target_A, batch.edge_context_A, batch.edge_lag_A], dim=1).tolist()
    total = sum(math.exp(float(temporal.aggregation_T[lag])) for lag in visible)
    found = torch.zeros(2, 3, 4)
    for i in range(3):
        for j in range(4):
            average = torch.zeros(6)
            for lag in visible:
                psi = 2 * lag + (1 if [i, j, lag] in edges else 0)
                average += math.exp(float(temporal.aggregation_T[lag])) / total * temporal.table[psi]
            distance = spatial.table[int(batch.distance_GC[i, j])]
            found[:, i, j] = temporal.project(average) + spatial.project(distance)
    return found


@torch.no_grad()
def plain_norm(row_D: Tensor, norm: torch.nn.LayerNorm) -> Tensor:
    mean = row_D.mean()
    return (row_D - mean) / ((row_D - mean).square().mean() + norm.eps).sqrt() * norm.weight + norm.bias


@torch.no_grad()
def plain_update(layer: TwoTowerLayer, query_QD: Tensor, key_KD: Tensor, bias_HQK: Tensor) -> Tensor:
    """The paper's equations of one tower, query by query and head by head."""
    rows = []
    for q in range(len(query_QD)):
        message = []
        for head in range(2):
            span = slice(3 * head, 3 * head + 3)
            query = layer.query(plain_norm(query_QD[q], layer.attention_norm))[span]
            keys = [layer.key(plain_norm(row_D, layer.attention_norm))[span] for row_D in key_KD]
            values = [layer.value(plain_norm(row_D, layer.attention_norm))[span] for row_D in key_KD]
            score = [query @ key / math.sqrt(3) + bias_HQK[head, q, k] for k, key in enumerate(keys)]
            total = sum(torch.exp(s) for s in score)
            message.append(sum(torch.exp(s) / total * value for s, value in zip(score, values, strict=True)))
        row = layer.out(torch.cat(message)) + query_QD[q]
        first, gelu, second = layer.feed_forward
        rows.append(second(gelu(first(plain_norm(row, layer.feed_forward_norm)))) + row)
    return torch.stack(rows)


def randomised(module: torch.nn.Module) -> torch.nn.Module:
    """Add noise to every initial weight, because ones and zeros would hide a mistake."""
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(torch.randn_like(weight) * 0.5)
    return module


def test_bias_follows_the_encodings():
    bias = randomised(AttentionBias(CONFIG, SIZES))
    assert isinstance(bias, AttentionBias)
    for visible in ([True, True, True], [True, False, True], [False, False, True]):
        batch = replace(example_batch(), visible_T=torch.tensor(visible))
        torch.testing.assert_close(bias(batch), plain_bias(bias, batch), rtol=1e-12, atol=1e-12)


def both_towers(layer: TwoTowerLayer, target_GD: Tensor, context_CD: Tensor, bias_HGC: Tensor) -> list[Tensor]:
    return list(layer(torch.cat([target_GD, context_CD]), [bias_HGC]).split([len(target_GD), len(context_CD)]))


def test_layer_follows_the_equations():
    layer = randomised(TwoTowerLayer(CONFIG))
    assert isinstance(layer, TwoTowerLayer)
    context_CD, target_GD, bias_HGC = torch.randn(4, 6), torch.randn(3, 6), torch.randn(2, 3, 4)
    new_target_GD, new_context_CD = both_towers(layer, target_GD, context_CD, bias_HGC)
    expected_CD = plain_update(layer, context_CD, target_GD, bias_HGC.transpose(1, 2))
    expected_GD = plain_update(layer, target_GD, context_CD, bias_HGC)
    torch.testing.assert_close(new_context_CD, expected_CD, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(new_target_GD, expected_GD, rtol=1e-11, atol=1e-11)
    targets_GD = layer.targets(torch.cat([target_GD, context_CD]), [bias_HGC])
    torch.testing.assert_close(targets_GD, expected_GD, rtol=1e-11, atol=1e-11)


def test_switching_the_towers_switches_the_outputs():
    layer = TwoTowerLayer(CONFIG)
    context_CD, target_GD, bias_HGC = torch.randn(4, 6), torch.randn(3, 6), torch.randn(2, 3, 4)
    new_target_GD, new_context_CD = both_towers(layer, target_GD, context_CD, bias_HGC)
    switched_context_CD, switched_target_GD = both_towers(layer, context_CD, target_GD, bias_HGC.transpose(1, 2))
    torch.testing.assert_close(switched_context_CD, new_context_CD, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(switched_target_GD, new_target_GD, rtol=1e-12, atol=1e-12)


def test_target_rows_depend_on_all_context_and_on_no_other_target():
    layer = TwoTowerLayer(CONFIG)
    context_CD, target_GD, bias_HGC = torch.randn(4, 6), torch.randn(3, 6), torch.randn(2, 3, 4)
    context_CD.requires_grad_()
    target_GD.requires_grad_()
    both_towers(layer, target_GD, context_CD, bias_HGC)[0][1].square().sum().backward()
    assert context_CD.grad is not None
    assert target_GD.grad is not None
    assert (context_CD.grad.abs().sum(dim=1) > 1e-6).all()
    assert target_GD.grad[1].abs().sum() > 1e-6
    assert target_GD.grad[[0, 2]].abs().sum() == 0


def test_model_is_its_input_its_layers_and_a_norm():
    model = DyFormer(CONFIG, SIZES).eval()
    assert model.norm is not None
    batch = example_batch()
    model.inputs.trained_N.fill_(True)
    id_GO = model.inputs.id_embedding(batch.target_G)
    assert id_GO.shape == (3, 1)
    target_GD, context_CD = (
        torch.cat([model.inputs.structure(feature_BF), model.inputs.id_embedding(node_B)], dim=1)
        for node_B, feature_BF in (
            (batch.target_G, batch.target_feature_GF),
            (batch.context_C, batch.context_feature_CF),
        )
    )
    bias = plain_bias(model.bias, batch)
    for layer in model.layers:
        assert isinstance(layer, TwoTowerLayer)
        target_GD, context_CD = (
            plain_update(layer, target_GD, context_CD, bias),
            plain_update(layer, context_CD, target_GD, bias.transpose(1, 2)),
        )
    expected_GD = torch.stack(
        [torch.cat([plain_norm(row_D[:5], model.norm), id_O]) for row_D, id_O in zip(target_GD, id_GO, strict=True)]
    )
    torch.testing.assert_close(model(batch), expected_GD, rtol=1e-10, atol=1e-10)


def other_batch() -> SubgraphBatch:
    """Two targets and three nodes of context, and an edge."""
    return SubgraphBatch(
        target_G=torch.tensor([4, 6]),
        context_C=torch.tensor([0, 1, 2]),
        target_feature_GF=torch.randn(2, 3),
        context_feature_CF=torch.randn(3, 3),
        distance_GC=torch.tensor([[1, 2, 4], [3, 1, 2]], dtype=torch.uint8),
        edge_target_A=torch.tensor([0]),
        edge_context_A=torch.tensor([0]),
        edge_lag_A=torch.tensor([2]),
        visible_T=torch.tensor([True, False, True]),
    )


def test_batches_given_together_have_the_vectors_that_each_has_alone():
    model = DyFormer(CONFIG, SIZES).eval()
    randomised(model)
    model.inputs.trained_N.fill_(True)
    batches = [example_batch(), other_batch(), no_context(example_batch())]
    found = model.views(batches[:2])
    for vector_GD, batch in zip(found, batches, strict=False):
        torch.testing.assert_close(vector_GD, model(batch), rtol=1e-11, atol=1e-11)
    assert [vector_GD.shape for vector_GD in model.views([batches[2], batches[2]])] == [(3, 6), (3, 6)]
    with pytest.raises(AssertionError):
        model.views(batches)


def test_rows_without_context_pass_through_the_feed_forward_network_alone():
    layer = randomised(TwoTowerLayer(CONFIG))
    assert isinstance(layer, TwoTowerLayer)
    row_GD, nothing_HGC = torch.randn(3, 6), torch.randn(2, 3, 0)
    expected_GD = row_GD + layer.feed_forward(layer.feed_forward_norm(row_GD))
    assert torch.equal(layer(row_GD, [nothing_HGC]), expected_GD)
    assert torch.equal(layer.targets(row_GD, [nothing_HGC]), expected_GD)


def test_hidden_lag_leaves_no_trace_in_the_encoding():
    model = DyFormer(CONFIG, SIZES).eval()
    hidden = replace(example_batch(), visible_T=torch.tensor([True, False, True]))
    with torch.no_grad():
        before = model(hidden)
        model.bias.temporal.table[2:4] = 1e3
        model.bias.temporal.aggregation_T[1] = 1e3
        after = model(hidden)
        is_visible_A = hidden.edge_lag_A != 1
        parts = ("edge_target_A", "edge_context_A", "edge_lag_A")
        without = replace(hidden, **{name: vars(hidden)[name][is_visible_A] for name in parts})
        assert torch.equal(before, after)
        assert torch.equal(model(without), before)
        visible = replace(hidden, visible_T=torch.tensor([True, True, True]))
        assert not torch.equal(model(visible), before)


def test_plain_initial_weights_are_torch_s():
    config = replace(CONFIG, inputs="id", initial_weights="plain", id_fraction=0.5)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        found = TwoTowerLayer(config)
        torch.manual_seed(3)
        expected = [torch.nn.Linear(6, 6) for _ in range(4)]
    for linear, plain in zip((found.query, found.key, found.value, found.out), expected, strict=True):
        assert torch.equal(linear.weight, plain.weight)
    model = DyFormer(config, replace(SIZES, num_nodes=400))
    id_NO = model.inputs.id_NO.detach()
    assert id_NO.shape == (400, 3)
    assert 0.9 / 20 < float(id_NO.abs().max()) <= 1 / 20
    assert abs(float(id_NO.mean())) < 0.01
    assert model.bias.temporal.table.shape == (6, 6)
    assert len(set(model.bias.temporal.table.flatten().tolist())) == 36  # no two lags alike
    assert model.bias.spatial.table.detach().abs().max() < 4  # none of the distances up to 4
    assert model.bias.spatial.project.weight.detach().abs().max() < 1
    largest = [float(weight.detach().max()) for name, weight in model.named_parameters() if "temporal.lags" in name]
    assert len(largest) == 6
    assert max(largest) < 1


def test_untrained_attention_prefers_near_nodes():
    bias_SH = AttentionBias(replace(CONFIG, width=128), SIZES).spatial()
    assert (bias_SH.diff(dim=0).mean(dim=1) < 0).all()


def test_weights_of_visible_lags_sum_to_one_where_a_lag_is_hidden():
    bias = AttentionBias(CONFIG, SIZES)
    batch = replace(example_batch(), visible_T=torch.tensor([True, False, False]))
    absent_H, delta_TH = bias.temporal(batch.visible_T)
    torch.testing.assert_close(absent_H, bias.temporal.project(bias.temporal.table[0]))
    assert delta_TH[1:].abs().sum() == 0


def test_nodes_without_context_get_finite_and_distinct_vectors():
    model = DyFormer(CONFIG, SIZES).eval()
    vector_GD = model(no_context(example_batch()))
    assert vector_GD.shape == (3, 6)
    assert torch.isfinite(vector_GD).all()
    assert len({tuple(row.tolist()) for row in vector_GD}) == 3


@pytest.mark.parametrize("inputs", ["id+structure", "id", "structure"])
def test_id_embedding_of_a_never_trained_node_is_zero(inputs):
    node_input = NodeInput(replace(CONFIG, inputs=inputs), SIZES)
    feature_BF = torch.randn(2, 3)
    node_input.id_embedding(torch.tensor([4, 5]))  # in training mode: nodes 4 and 5 count as trained
    node_input.eval()
    assert node_input.id_embedding(torch.tensor([0, 8])).abs().sum() == 0
    assert (node_input.id_embedding(torch.tensor([4, 5])).abs().sum() > 0) == ("id" in inputs)
    assert (node_input.structure(feature_BF).abs().sum() > 0) == ("structure" in inputs)


def test_padding_is_never_marked_as_trained_and_the_last_node_stays_untrained():
    node_input = NodeInput(replace(CONFIG, id_dropout=0.0), SIZES)
    row_BO = node_input.id_embedding(torch.tensor([4, -1, 5, -1]))
    assert node_input.trained_N.nonzero().flatten().tolist() == [4, 5]
    assert row_BO[[1, 3]].abs().sum() == 0 < row_BO[[0, 2]].abs().sum()


def test_dropped_id_is_that_of_a_never_trained_node():
    node_input, node_B = NodeInput(replace(CONFIG, id_dropout=1.0), SIZES), torch.tensor([4, 5])
    assert node_input.id_embedding(node_B).abs().sum() == 0
    assert node_input.ids(node_B).row_UO.abs().sum() > 0


def test_node_counts_as_trained_once_a_loss_used_its_id_embedding():
    node_input = NodeInput(replace(CONFIG, id_dropout=0.5), replace(SIZES, num_nodes=100))
    node_B = torch.arange(50).repeat(2)  # twice, as in two views
    is_used_B = node_input.id_embedding(node_B).abs().sum(dim=1) > 0
    assert 0 < len(node_B[is_used_B].unique()) < 50
    assert node_input.trained_N.nonzero().squeeze().tolist() == node_B[is_used_B].unique().tolist()
    before_N = node_input.trained_N.clone()
    node_input.eval()
    node_input.mark_trained(torch.arange(100), torch.ones(100, dtype=torch.bool))  # by a loss of validation
    found = node_input.id_embedding(torch.arange(100)).abs().sum(dim=1) > 0
    assert torch.equal(found, before_N)


@torch.no_grad()
def test_scores_are_symmetric_inner_products():
    model = DyFormer(CONFIG, SIZES)
    vector_GD = torch.randn(4, 6)
    with torch.no_grad():
        model.link.weight_D.copy_(torch.randn(6))
        model.link.offset.fill_(0.3)
    first_P, second_P = torch.tensor([0, 1, 3]), torch.tensor([2, 0, 1])
    expected = [
        sum(float(model.link.weight_D[d] * vector_GD[i, d] * vector_GD[j, d]) for d in range(6)) + 0.3
        for i, j in zip(first_P, second_P, strict=True)
    ]
    assert model.link(vector_GD, first_P, second_P).tolist() == pytest.approx(expected)
    assert torch.equal(model.link(vector_GD, first_P, second_P), model.link(vector_GD, second_P, first_P))
    decoded = model.temporal.lags[1](vector_GD)
    signed = decoded * torch.tensor([1, 1, 1, -1, 1, 1])
    expected = [float(decoded[i] @ signed[j]) - 2.5 for i, j in zip(first_P, second_P, strict=True)]
    assert model.temporal(vector_GD, first_P, second_P, 1).tolist() == pytest.approx(expected)


def test_plain_scores_are_inner_products_without_weights():
    model = DyFormer(replace(CONFIG, pair_score="plain"), SIZES)
    vector_GD, (first_P, second_P) = torch.randn(4, 6), torch.tensor([[0, 1, 3], [2, 0, 1]])
    expected = [float(vector_GD[i] @ vector_GD[j]) for i, j in zip(first_P, second_P, strict=True)]
    assert model.link(vector_GD, first_P, second_P).tolist() == pytest.approx(expected)
    decoded = model.temporal.lags[1](vector_GD).detach()
    expected = [float(decoded[i] @ decoded[j]) for i, j in zip(first_P, second_P, strict=True)]
    assert model.temporal(vector_GD, first_P, second_P, 1).tolist() == pytest.approx(expected)
    assert not any(name.startswith(("link", "id_link", "temporal.offset")) for name in model.state_dict())


def test_rows_of_a_layer_are_float32_where_its_products_are_bfloat16():
    # With a dropout above 0, attention uses the code path of a GPU; this one drops no weight.
    layer = TwoTowerLayer(replace(CONFIG, width=16, attention_dropout=1e-12)).float()
    row_BD, bias_HGC = torch.randn(7, 16).float(), torch.randn(2, 3, 4).float()
    exact = layer(row_BD, [bias_HGC]), layer.targets(row_BD, [bias_HGC])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = layer(row_BD, [bias_HGC]), layer.targets(row_BD, [bias_HGC])
    for one, other in zip(found, exact, strict=True):
        assert one.dtype == torch.float32
        assert not torch.equal(one, other)
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.05)


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        self.numel = max(self.numel, *sizes, 0)
        return made


def test_no_tensor_of_a_training_step_holds_pairs_times_lags():
    torch.set_default_dtype(torch.float32)
    num_lags, config = 200, PretrainConfig(num_positives=16, num_negatives=2, num_targets=64)
    graph = random_graph(np.random.default_rng(0), num_nodes=300, num_steps=num_lags, num_edges=20)
    prepared = prepare_graph(graph, until=num_lags, config=GraphConfig(history_window=None))
    model_config = replace(CONFIG, width=8, num_context=64)
    tasks = reconstruction_tasks(num_lags, num_lags, hidden=True)[-1:]
    source = pair_source(prepared, model_config, config, seed=0)
    batch = next(iter(source.batches(tasks, np.random.default_rng(0), held_out=False, two_views=True)))
    model = started_model(prepared, model_config, None, seed=0)
    optimizer = Optimizer(model, config)
    with LargestTensor() as largest:
        optimizer.step(optimizer.gradients(pretraining_loss(model, batch, config)["loss"]))
    num_targets, num_context = batch.subgraph.distance_GC.shape
    assert min(num_targets, num_context) > 32
    of_pairs = max(model_config.num_heads, 6) * num_targets * num_context  # a number for each head, or distance
    of_nodes = 2 * (num_targets + num_context) * batch.subgraph.target_feature_GF.shape[1]  # of both views
    assert largest.numel <= max(of_pairs, of_nodes, len(prepared.history.node_N) * 8)
    assert largest.numel < num_targets * num_context * num_lags / 10


def test_shape_that_cannot_be_built_is_refused():
    with pytest.raises(ValueError, match=r"model\.num_heads; got 6 and 4"):
        ModelConfig(width=6, num_heads=4)
    with pytest.raises(ValueError, match=r"num_layers\n.* greater than or equal to 1 .*input_value=0"):
        ModelConfig(num_layers=0)
    with pytest.raises(ValueError, match=r"gpu_precision\n.* 'bfloat16' or 'float32' .*input_value='half'"):
        ModelConfig(gpu_precision="half")  # pyright: ignore[reportArgumentType]
    whole = ModelConfig(inputs="id", output="plain", id_fraction=1.0)
    for change in ({"output": "norm+id"}, {"inputs": "id+structure"}):
        with pytest.raises(ValueError, match=r"model\.id_fraction=1\.0 leaves no width"):
            replace(whole, **change)
    assert whole.id_width == 128
    with pytest.raises(ValueError, match="degree"):
        ModelConfig(inputs="degree")  # pyright: ignore[reportArgumentType]
