"""A GPU's order of sums is fixed while a model trains or embeds there; what the process had set comes back after it."""

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch
from toy_graphs import random_graph

from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.model.config import ModelConfig
from dyformer.model.transformer import DyFormer
from dyformer.training import loop, stages
from dyformer.training.config import PretrainConfig
from dyformer.training.ranks import MEMORY, fixed_order

GPU, CPU = torch.device("cuda"), torch.device("cpu")


def setting() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), MEMORY.fill_uninitialized_memory


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # so that it is restored
    del os.environ["CUBLAS_WORKSPACE_CONFIG"]


def test_the_order_is_fixed_within_a_section_of_a_gpu_and_free_after_it():
    before = setting()
    with fixed_order(GPU):
        assert setting() == (True, False)
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert setting() == before == (False, True)
    with pytest.raises(KeyError), fixed_order(GPU):
        raise KeyError
    assert setting() == before


def test_a_section_of_a_cpu_sets_nothing():
    with fixed_order(CPU):
        assert setting() == (False, True)
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


@pytest.mark.parametrize("warn_only", [False, True])
def test_what_a_user_has_set_stays_set(warn_only: bool):
    torch.use_deterministic_algorithms(mode=True, warn_only=warn_only)
    try:
        with fixed_order(GPU):
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert setting() == (True, True)
        assert torch.is_deterministic_algorithms_warn_only_enabled() == warn_only
    finally:
        torch.use_deterministic_algorithms(mode=False)


def test_the_order_stays_fixed_until_the_last_of_overlapping_sections_ends():
    begun, first_over = Barrier(2), Barrier(2)
    after_first: list[tuple[bool, bool]] = []

    def first() -> None:
        with fixed_order(GPU):
            begun.wait(10)
        first_over.wait(10)

    def second() -> None:
        with fixed_order(GPU):
            begun.wait(10)
            first_over.wait(10)
            after_first.append(setting())

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(first), pool.submit(second)]:
            future.result()
    assert after_first == [(True, False)]
    assert setting() == (False, True)


def test_training_and_embedding_are_such_sections(monkeypatch: pytest.MonkeyPatch):
    inside: list[torch.device] = []
    found: list[list[torch.device]] = []

    @contextmanager
    def section(device: torch.device):
        inside.append(device)
        yield
        inside.pop()

    def noted(model: DyFormer, *arguments: Any) -> Any:
        found.append(list(inside))
        return views(model, *arguments)

    views = DyFormer.views
    for module in (loop, stages):
        monkeypatch.setattr(module, "fixed_order", section)
    monkeypatch.setattr(DyFormer, "views", noted)
    graph = prepare_graph(
        random_graph(np.random.default_rng(3), num_nodes=40, num_steps=6, num_edges=60), until=4, config=GraphConfig()
    )
    model = ModelConfig(width=8, num_layers=1, num_heads=2, feed_forward_width=8, num_targets=6, num_context=8)
    sizes: dict[str, Any] = {"batches_per_epoch": 2, "validation_batches": 1, "num_positives": 8, "num_targets": 12}
    weights = stages.last_weights(stages.pretrain(graph, model, PretrainConfig(epochs=1, **sizes), seed=0))
    num_trained = len(found)
    stages.embed(graph, weights, model)
    assert num_trained == 3  # two batches, and one of validation
    assert len(found) > num_trained
    assert found == [[CPU]] * len(found)
