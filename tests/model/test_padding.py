"""A padded batch has the vectors, losses and gradients of the batch without padding."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from toy_graphs import random_graph

from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.model.config import ModelConfig
from dyformer.model.transformer import DyFormer
from dyformer.sampling.link_batches import PairBatch, forecast_tasks, reconstruction_tasks
from dyformer.sampling.subgraphs import FEWEST_CONNECTIONS, PADDING, as_of_graph, make_batch, padded, padded_batches
from dyformer.training.config import FinetuneConfig, PretrainConfig
from dyformer.training.stages import forecast_loss, pair_source, pretraining_loss, started_model

GRAPH = prepare_graph(
    random_graph(np.random.default_rng(0), num_nodes=60, num_steps=4, num_edges=100), until=4, config=GraphConfig()
)
SIZES: dict[str, Any] = {"num_targets": 23, "num_positives": 6}
FORMS: dict[str, dict[str, Any]] = {
    "two towers": {},
    "one tower": {"towers": "one"},
    "one hop": {"towers": "one", "max_hops": 1},
    "no encoding": {"encodings": "neither"},
    "distances": {"encodings": "distances"},
    "ids alone": {"inputs": "id", "output": "plain", "id_fraction": 1.0},
    "structure alone": {"inputs": "structure"},
}


def model_config(form: str) -> ModelConfig:
    changes = {"num_context": 7, **FORMS[form]}
    # Without dropout, because a padded batch draws more random numbers.
    return ModelConfig(width=16, num_heads=2, feed_forward_width=16, residual_dropout=0, id_dropout=0, **changes)


def drawn(form: str, *, is_first: bool) -> tuple[PairBatch, PairBatch]:
    """Draw a batch; give it without padding and with it."""
    config = PretrainConfig(**SIZES) if is_first else FinetuneConfig(**SIZES)
    source = pair_source(GRAPH, model_config(form), config, seed=0)
    task = reconstruction_tasks(4, 4, hidden=True)[-2] if is_first else forecast_tasks(4)[-1]
    batch = source.batch(task, np.random.default_rng(1), held_out=False, two_views=is_first)
    wide = batch.padded(source.sizes)
    assert len(batch.subgraph.target_G) < 23 == len(wide.subgraph.target_G)
    return batch, wide


def results(model: DyFormer, batch: PairBatch, *, is_first: bool) -> dict[str, Tensor]:
    """Give the losses, the gradient of each weight and the marks of trained nodes."""
    model.zero_grad()
    if is_first:
        losses = pretraining_loss(model, batch, PretrainConfig(**SIZES))
    else:
        losses = forecast_loss(model, batch, FinetuneConfig(**SIZES))
    losses["loss"].backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    marks = {"trained": model.inputs.trained_N} if model.inputs.id_width else {}
    return {**losses, **{name: grad.to_dense() for name, grad in gradients.items()}, **marks}


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_losses_and_gradients_are_those_without_padding(form: str, is_first: bool):
    batch, wide = drawn(form, is_first=is_first)
    models = [started_model(GRAPH, model_config(form), None, seed=2) for _ in range(2)]
    expected, found = (results(model, one, is_first=is_first) for model, one in zip(models, (batch, wide), strict=True))
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: name + text)
        assert tensor.any() or name.endswith("key.bias"), name  # which adds as much to each score of a query


@pytest.mark.parametrize("form", FORMS)
def test_vectors_are_those_without_padding(form: str):
    config = model_config(form)
    model = started_model(GRAPH, config, None, seed=2).eval()
    for flags in model.buffers():
        flags.fill_(value=True) if flags.dtype == torch.bool else None
    batch = make_batch(as_of_graph(GRAPH, until=4), np.arange(5, 14), num_context=7, all_pairs=config.towers == "one")
    (wide,) = padded([batch], num_targets=12, num_context=11)
    with torch.no_grad():
        torch.testing.assert_close(model(wide), model(batch), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("all_pairs", [False, True])
def test_padding_stands_after_the_targets_and_after_the_context(all_pairs: bool):
    view = as_of_graph(GRAPH, until=4)
    batches = [make_batch(view, np.arange(num), num_context=5, all_pairs=all_pairs) for num in (9, 4)]
    node, far = PADDING
    for batch, wide in zip(batches, padded(batches, num_targets=8, num_context=6), strict=True):
        num_targets = len(batch.target_G)
        assert (batch.is_padded, wide.is_padded) == (False, True)
        assert wide.num_targets == num_targets
        assert (wide.target_G.shape, wide.context_C.shape) == ((9,), (6,))
        assert wide.target_G.tolist() == [*batch.target_G.tolist(), *[node] * (9 - num_targets)]
        assert wide.context_C.tolist() == [*batch.context_C.tolist(), node]
        rows = [*range(num_targets), *(range(9, 14) if all_pairs else ())]
        columns = rows if all_pairs else list(range(5))
        assert torch.equal(wide.distance_GC[rows][:, columns], batch.distance_GC)
        assert int((wide.distance_GC == far).sum()) == wide.distance_GC.numel() - batch.distance_GC.numel()
        assert torch.equal(wide.is_padding_GC(), wide.distance_GC == far)
        num = len(batch.edge_lag_A)
        assert len(wide.edge_lag_A) == FEWEST_CONNECTIONS > num
        assert [rows[at] for at in batch.edge_target_A] == wide.edge_target_A[:num].tolist()
        assert [columns[at] for at in batch.edge_context_A] == wide.edge_context_A[:num].tolist()
        assert wide.edge_lag_A.tolist() == [
            *batch.edge_lag_A.tolist(),
            *[len(batch.visible_T)] * (FEWEST_CONNECTIONS - num),
        ]
        assert torch.equal(wide.context_feature_CF[:5], batch.context_feature_CF)
        assert not wide.context_feature_CF[5:].any()


def test_a_batch_larger_than_the_sizes_is_never_cut():
    batch = make_batch(as_of_graph(GRAPH, until=4), np.arange(9), num_context=5)
    (wide,) = padded([batch], num_targets=3, num_context=2)
    assert torch.equal(wide.distance_GC, batch.distance_GC)


def test_room_for_connections_doubles_and_is_that_of_the_largest_batch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dyformer.sampling.subgraphs.FEWEST_CONNECTIONS", 4)
    batches = [make_batch(as_of_graph(GRAPH, until=4), np.arange(num), num_context=12) for num in (20, 2)]
    most = max(len(batch.edge_lag_A) for batch in batches)
    (room,) = {len(wide.edge_lag_A) for wide in padded(batches, num_targets=20, num_context=12)}
    assert room / 2 < most <= room
    assert room.bit_count() == 1


def test_batches_without_context_stay_as_they_are():
    batch = make_batch(as_of_graph(GRAPH, until=4), np.arange(60), num_context=5)
    assert not len(batch.context_C)
    assert padded([batch], num_targets=64, num_context=5) == [batch]


def test_padded_batches_are_made_of_their_tensors():
    view = as_of_graph(GRAPH, until=4)
    batches = padded([make_batch(view, np.arange(num), num_context=5) for num in (9, 4)], num_targets=8, num_context=6)
    again = padded_batches([tensor for batch in batches for tensor in batch.tensors()])
    for batch, other in zip(batches, again, strict=True):
        assert other.num_targets == 9
        assert all(one is two for one, two in zip(batch.tensors(), other.tensors(), strict=True))
