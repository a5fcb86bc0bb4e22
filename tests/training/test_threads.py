"""A method fitted in several threads at once has the vectors that it has alone."""

import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from toy_graphs import random_graph

from dyformer.baselines.dynaernn.method import DynAERNN
from dyformer.baselines.dyngem.method import DynGEM
from dyformer.baselines.dysat.method import DySAT
from dyformer.baselines.evolvegcn.method import EvolveGCN
from dyformer.baselines.graphsage.method import GraphSAGE
from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.model.config import ModelConfig
from dyformer.sampling.seeded import seeded
from dyformer.scoring.interfaces import Embedder
from dyformer.training.config import FinetuneConfig, PretrainConfig
from dyformer.training.stages import DyFormerEmbedder

NUM_THREADS = 4
BATCHES: dict[str, Any] = {
    "epochs": 2,
    "batches_per_epoch": 3,
    "validation_batches": 2,
    "num_positives": 8,
    "num_targets": 12,
}
METHODS: dict[str, Embedder] = {
    "DyFormer": DyFormerEmbedder(
        model=ModelConfig(
            width=8,
            num_layers=2,
            num_heads=2,
            feed_forward_width=8,
            num_targets=6,
            num_context=8,
            residual_dropout=0.3,
            id_dropout=0.3,
        ),
        pretrain=PretrainConfig(**BATCHES),
        finetune=FinetuneConfig(**BATCHES),
    ),
    **{type(method).__name__: method for method in (DySAT(), DynGEM(), DynAERNN(), EvolveGCN(), GraphSAGE())},
}


def short(method: Embedder) -> Embedder:
    """Cut the training of a baseline."""
    fields = {field.name for field in dataclasses.fields(method)} & {"batches", "epochs"}  # pyright: ignore[reportArgumentType]
    return dataclasses.replace(method, **dict.fromkeys(fields, 2))  # pyright: ignore[reportArgumentType, reportCallIssue]


@pytest.mark.parametrize("title", METHODS)
def test_threads_do_not_change_the_vectors_of_a_seed(title: str):
    graph = random_graph(np.random.default_rng(3), num_nodes=40, num_steps=6, num_edges=60)
    past = prepare_graph(graph, until=4, config=GraphConfig(history_window=3))
    method, node_N = short(METHODS[title]), np.arange(len(past.history.node_N))
    start = threading.Barrier(NUM_THREADS)

    def fitted(seed: int) -> NDArray[np.floating]:
        start.wait()
        return method.fit(past, seed=seed)(node_N)

    alone = [method.fit(past, seed=seed)(node_N) for seed in (0, 1)]
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        together = list(pool.map(fitted, [0, 1, 0, 1]))
    assert not np.array_equal(alone[0], alone[1])
    for index, vector_ND in enumerate(together):
        assert np.array_equal(vector_ND, alone[index % 2])


def test_a_seeded_section_leaves_the_generator_of_its_thread_as_it_was():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        expected = torch.rand(3)
        torch.manual_seed(7)
        with seeded(1):
            inner = torch.rand(3)
            with seeded(1):  # sections of one thread may lie in each other
                assert torch.equal(torch.rand(3), inner)
        assert torch.equal(torch.rand(3), expected)


def in_threads(call: Callable[[int], None]) -> None:
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        list(pool.map(call, range(NUM_THREADS)))


def test_one_thread_at_a_time_is_in_a_seeded_section():
    inside, most = 0, 0

    def section(seed: int) -> None:
        nonlocal inside, most
        for _ in range(20):
            with seeded(seed):
                inside += 1
                most = max(most, inside)
                torch.rand(10)
                inside -= 1

    in_threads(section)
    assert most == 1
