"""No operation of a training step waits for a GPU: counted on the CPU, where the same operations run."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from toy_graphs import random_graph

from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.model import transformer
from dyformer.model.attention import fused_attention
from dyformer.model.config import ModelConfig
from dyformer.sampling.link_batches import forecast_tasks, reconstruction_tasks
from dyformer.training.config import FinetuneConfig, PretrainConfig
from dyformer.training.optimizer import Optimizer
from dyformer.training.ranks import mean_gradients
from dyformer.training.stages import forecast_loss, pair_source, pretraining_loss, started_model

WAITING = ("_local_scalar_dense", "item", "nonzero", "unique", "coalesce", "masked_select", "equal", "is_nonzero")
GRAPH = prepare_graph(
    random_graph(np.random.default_rng(3), num_nodes=40, num_steps=6, num_edges=60),
    until=5,
    config=GraphConfig(history_window=3),
)
MODEL = ModelConfig(width=8, num_layers=2, num_heads=2, feed_forward_width=8, num_context=8, attention_dropout=0.1)
SIZES: dict[str, Any] = {"num_positives": 8, "num_targets": 12}


class Waits(TorchDispatchMode):
    """Counts the operations whose result the CPU reads, or whose size follows from values."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::").partition(".")[0].strip("_")
        is_mask = name in ("index", "index_put") and any(
            isinstance(leaf, Tensor) and leaf.dtype == torch.bool for leaf in tree_leaves(args[1])
        )
        if is_mask or any(name == waiting.strip("_") or name.startswith("unique") for waiting in WAITING):
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("inputs", ["id+structure", "structure"])
@pytest.mark.parametrize("stage", ["pretrain", "finetune"])
@pytest.mark.parametrize("per_step", [1, 3])
def test_a_training_step_waits_for_no_result(stage: str, inputs, per_step: int, monkeypatch: pytest.MonkeyPatch):
    """Except once where id embeddings have gradients of several batches."""
    monkeypatch.setattr(transformer, "attention", fused_attention)  # as on a GPU
    model_config = replace(MODEL, inputs=inputs)
    config = PretrainConfig(**SIZES) if stage == "pretrain" else FinetuneConfig(**SIZES)
    is_first = isinstance(config, PretrainConfig)
    tasks = (reconstruction_tasks(5, 3, hidden=True) if is_first else forecast_tasks(5))[-3:]
    source = pair_source(GRAPH, model_config, config, seed=0)
    drawn = source.batches(tasks, np.random.default_rng(0), held_out=False, two_views=is_first)
    batches = [batch.padded(source.sizes) for batch in drawn]
    model = started_model(GRAPH, model_config, None, seed=0)
    optimizer = Optimizer(model, config)
    with Waits() as waits:
        for first in range(0, len(batches), per_step):
            gradients = []
            for batch in batches[first : first + per_step]:
                loss = pretraining_loss(model, batch, config) if is_first else forecast_loss(model, batch, config)
                gradients.append(optimizer.gradients(loss["loss"]))
            optimizer.step(mean_gradients(gradients))
    assert waits.found == ({"coalesce": 1} if per_step > 1 and "id" in inputs else {})


@pytest.mark.parametrize(
    "operation",
    [
        lambda row: float(row.sum()),
        lambda row: row[row > 0],
        lambda row: row.unique(),
        lambda row: row.nonzero(),
        lambda row: torch.sparse_coo_tensor(
            torch.zeros(1, 3, dtype=torch.int64), row, (4,), check_invariants=False
        ).coalesce(),
        lambda row: row.masked_select(row > 0),
    ],
)
def test_an_operation_that_waits_is_counted(operation):
    with Waits() as waits:
        operation(torch.arange(3.0))
    assert waits.found
