"""A recording of a GPU's kernels gives what the function gives, to the last bit. Without a GPU nothing is recorded."""

from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from toy_graphs import random_graph

from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.model import cuda_graphs
from dyformer.model.config import ModelConfig
from dyformer.model.cuda_graphs import RecordingFailed, Recordings, replayed
from dyformer.sampling.seeded import seeded
from dyformer.sampling.subgraphs import as_of_graph, make_batch, padded
from dyformer.training.config import PretrainConfig
from dyformer.training.ranks import Rank
from dyformer.training.stages import embed, last_weights, pretrain, started_model

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
GPU = torch.device("cuda")
GRAPH = prepare_graph(
    random_graph(np.random.default_rng(3), num_nodes=80, num_steps=5, num_edges=90), until=5, config=GraphConfig()
)
MODEL = ModelConfig(width=16, num_heads=2, feed_forward_width=16, num_targets=12, num_context=9, attention_dropout=0.2)
SIZES: dict[str, Any] = {"epochs": 2, "batches_per_epoch": 4, "num_positives": 8, "num_targets": 16}


class Layer(torch.nn.Module):
    """A product with dropout; it counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.unused = torch.nn.Linear(5, 4), torch.nn.Parameter(torch.ones(3))
        self.num_calls = 0

    def forward(self, row_BD: Tensor, scale_B: Tensor) -> tuple[Tensor, Tensor]:
        self.num_calls += 1
        out_BO = torch.dropout(self.linear(row_BD).tanh(), 0.3, train=self.training)
        return out_BO, out_BO.sum(dim=1) * scale_B


def called(layer: Layer, recordings: Recordings | None, num: int, seed: int) -> list[Tensor]:
    """Call the layer, or its recording; give its results and all gradients."""
    generator = torch.Generator().manual_seed(seed)
    row_BD, scale_B = torch.randn(num, 5, generator=generator).to(GPU), torch.rand(num, generator=generator).to(GPU)
    row_BD.requires_grad_()
    layer.zero_grad(set_to_none=True)
    with seeded(seed, [GPU]):
        inputs = [row_BD, scale_B]
        outputs: Sequence[Tensor] = (
            layer(*inputs) if recordings is None else replayed(recordings, layer, layer.parameters(), inputs, None)
        )
        after = torch.rand(3, device=GPU)
    (outputs[0].square().sum() + outputs[1].sum()).backward()
    assert layer.unused.grad is None
    gradients = row_BD.grad, layer.linear.weight.grad, layer.linear.bias.grad
    return [tensor.detach().clone() for tensor in (*outputs, after, *gradients) if tensor is not None]


@needs_gpu
def test_results_gradients_and_later_random_numbers_are_those_of_the_function():
    layer, recordings = Layer().to(GPU), Recordings()
    for num, seed in ((6, 1), (6, 2), (3, 3), (6, 4)):
        with torch.no_grad():
            layer.linear.weight.add_(0.1)  # as an optimizer does
        expected, found = called(layer, None, num, seed), called(layer, recordings, num, seed)
        assert len(expected) == 6
        assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))
    assert len(recordings.by_shapes) == 2
    before = layer.num_calls
    called(layer, recordings, 3, 9)
    assert layer.num_calls == before


@needs_gpu
def test_without_gradients_results_are_those_of_the_function():
    layer, recordings = Layer().to(GPU).eval(), Recordings()
    with torch.no_grad():
        for seed in range(3):
            inputs = [torch.randn(4, 5, device=GPU), torch.rand(4, device=GPU)]
            expected, found = layer(*inputs), replayed(recordings, layer, layer.parameters(), inputs, seed)
            assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))
    assert len(recordings.by_shapes) == 3  # one for each mode


@needs_gpu
@pytest.mark.parametrize("room", [1024, 1])  # with 1 a training has recordings of several sizes
@pytest.mark.parametrize("form", [{}, {"towers": "one", "max_hops": 1}, {"gpu_precision": "float32"}])
@pytest.mark.parametrize("per_step", [1, 2])
def test_a_training_by_recordings_is_that_without(
    form: dict[str, Any], per_step: int, room: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("dyformer.sampling.subgraphs.FEWEST_CONNECTIONS", room)
    config, model = PretrainConfig(**SIZES, batches_per_step=per_step), replace(MODEL, **form)

    def trained() -> tuple[dict[str, Tensor], np.ndarray]:
        weights = last_weights(pretrain(GRAPH, model, config, seed=0, rank=Rank(device="cuda")))
        return weights, embed(GRAPH, weights, model, device="cuda")

    real, num_recorded = cuda_graphs.Recording, 0

    def counted(*arguments: Any) -> cuda_graphs.Recording:
        nonlocal num_recorded
        num_recorded += 1
        return real(*arguments)

    monkeypatch.setattr(cuda_graphs, "Recording", counted)
    weights, vector_ND = trained()
    assert num_recorded >= (3 if room > 1 else 5)  # of training, validation and vectors
    monkeypatch.setenv("DYFORMER_CUDA_GRAPHS", "off")
    expected, expected_ND = trained()
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
    np.testing.assert_array_equal(vector_ND, expected_ND)


def test_kernels_are_not_recorded_where_that_is_switched_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DYFORMER_CUDA_GRAPHS", "off")
    recordings = Recordings()
    layer, inputs = Layer().eval(), [torch.randn(4, 5), torch.rand(4)]
    expected = layer(*inputs)
    found = replayed(recordings, layer, layer.parameters(), inputs, None)
    assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True))
    assert not recordings.by_shapes


def test_a_recording_that_fails_names_the_remedy_and_leaves_its_stream(monkeypatch: pytest.MonkeyPatch):
    streams = ["the usual one"]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: streams[-1])
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)

    @contextmanager
    def failing(*_: Any, **options: Any):
        streams.append(options["stream"])
        yield
        raise RuntimeError("CUDA error: operation failed\nSearch for it")

    monkeypatch.setattr(torch.cuda, "graph", failing)
    graph: Any = "a graph"
    stream: Any = "that of recordings"
    message = r"recorded \(CUDA error: operation failed\): set DYFORMER_CUDA_GRAPHS=off"
    with pytest.raises(RecordingFailed, match=message), cuda_graphs._recorded(graph, stream):
        assert streams[-1] == stream
    assert streams[-1] == "the usual one"


def test_a_cpu_records_nothing():
    (batch,) = padded(
        [make_batch(as_of_graph(GRAPH, until=5), np.arange(9), num_context=9)], num_targets=12, num_context=9
    )
    model = started_model(GRAPH, MODEL, None, seed=0)
    assert model(batch).shape == (9, 16)
    assert not model.recordings.by_shapes
