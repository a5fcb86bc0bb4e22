"""Epochs on batches that are made in the background."""

import threading
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from toy_graphs import random_graph

from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.model.config import ModelConfig
from dyformer.model.transformer import DyFormer
from dyformer.sampling import link_batches as pair_batches
from dyformer.sampling.link_batches import PairBatch, reconstruction_tasks
from dyformer.sampling.subgraphs import num_lags
from dyformer.training import loop as epochs
from dyformer.training.checkpoint import Weights
from dyformer.training.config import PretrainConfig
from dyformer.training.loop import Stage, draw_tasks, run_epochs
from dyformer.training.stages import pair_source, pretraining_loss, started_model

GRAPH = prepare_graph(
    random_graph(np.random.default_rng(3), num_nodes=40, num_steps=6, num_edges=60),
    until=5,
    config=GraphConfig(history_window=3),
)
MODEL = ModelConfig(width=8, num_layers=1, num_heads=2, feed_forward_width=8, num_targets=6, num_context=8)
CONFIG = PretrainConfig(epochs=3, batches_per_epoch=4, validation_batches=3, num_positives=8, num_targets=12)
SECONDS = 10.0  # until a test that hangs fails


def loss(model: DyFormer, batch: PairBatch) -> dict[str, Tensor]:
    return pretraining_loss(model, batch, CONFIG)


def example_stage(num_threads: int = 2) -> Stage:
    return Stage(
        name="pretrain",
        number=1,
        tasks=reconstruction_tasks(GRAPH.until, num_lags(GRAPH), hidden=True),
        source=pair_source(GRAPH, MODEL, CONFIG, seed=0),
        two_views=True,
        loss=loss,
        config=CONFIG,
        seed=0,
        device=torch.device("cpu"),
        num_threads=num_threads,
    )


def model() -> DyFormer:
    return started_model(GRAPH, MODEL, None, seed=0)


def loader_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("loader")]


def states(stage: Stage) -> list[Weights]:
    return [progress.checkpoint().tensors for progress in run_epochs(stage, model(), None)]


@pytest.mark.parametrize("num_threads", [1, 4])
def test_number_of_threads_changes_no_bit(num_threads: int):
    for found, expected in zip(states(example_stage(num_threads)), states(example_stage(0)), strict=True):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_resumed_with_another_number_of_threads_is_the_uninterrupted_run_bit_for_bit():
    whole = [progress.checkpoint() for progress in run_epochs(example_stage(0), model(), None)]
    resumed = [progress.checkpoint() for progress in run_epochs(example_stage(4), model(), whole[0])]
    assert len(resumed) == 2
    for found, expected in zip(resumed, whole[1:], strict=True):
        assert found.record == expected.record
        assert all(torch.equal(found.tensors[name], expected.tensors[name]) for name in expected.tensors)


def test_every_batch_has_its_own_random_numbers():
    stage = example_stage()
    works = [*epochs.held_out_works(stage), *epochs.epoch_works(stage, 1), *epochs.epoch_works(stage, 2)]
    drawn = {tuple(work().subgraph.target_G.tolist()) for work in works}
    assert len(drawn) == len(works) == 3 + 2 * 4


@pytest.mark.parametrize(("num_threads", "is_waiting"), [(0, True), (2, False)])
def test_seconds_waiting_are_those_that_batches_were_not_ready(num_threads: int, is_waiting: bool):
    stage = replace(example_stage(num_threads), loss=slowly(loss, 0.1))
    stage.source.batch = slowly(stage.source.batch, 0.1)
    told = list(run_epochs(stage, model(), None))
    assert len(told) == 3
    assert all(0 <= progress.seconds_waiting <= progress.seconds - 4 * 0.1 for progress in told)
    if is_waiting:
        assert min(progress.seconds_waiting for progress in told) >= 4 * 0.1
    else:
        assert min(progress.seconds_waiting for progress in told) <= 2 * 0.1


def slowly(work: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def slow_work(*arguments: Any, **options: Any) -> Any:
        time.sleep(seconds)
        return work(*arguments, **options)

    return slow_work


def test_a_stage_that_ends_leaves_no_thread():
    assert len(list(run_epochs(example_stage(), model(), None))) == 3
    assert loader_threads() == []


def test_a_stage_that_is_left_leaves_no_thread():
    with closing(run_epochs(example_stage(), model(), None)) as told:
        next(told)
        assert loader_threads()
    assert loader_threads() == []


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_in_training_leaves_no_thread(error: type[BaseException]):
    def broken_loss(model: DyFormer, batch: PairBatch) -> dict[str, Tensor]:
        raise error

    with pytest.raises(error) as found:
        next(run_epochs(replace(example_stage(), loss=broken_loss), model(), None))
    assert loader_threads() == []
    assert found.value.__traceback__ is not None  # whoever keeps the error keeps the frames, but no thread


@pytest.mark.parametrize("num_threads", [0, 2])
def test_an_error_in_a_batch_ends_training_and_says_where_it_happened(
    num_threads: int, monkeypatch: pytest.MonkeyPatch
):
    def broken_view(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(pair_batches, "as_of_graph", broken_view)
    with pytest.raises(ZeroDivisionError) as found:
        next(run_epochs(example_stage(num_threads), model(), None))
    assert "broken_view" in [frame.name for frame in traceback.extract_tb(found.value.__traceback__)]
    assert loader_threads() == []


def test_a_view_of_a_large_graph_serves_batches_in_a_row(monkeypatch: pytest.MonkeyPatch):
    stage = example_stage()
    single = draw_tasks(stage, 1, 400, held_out=False)
    assert sum(a.as_of == b.as_of for a, b in pairwise(single)) < 200
    monkeypatch.setattr(pair_batches, "MAX_CACHED_GRAPHS", 10)
    in_a_row = draw_tasks(stage, 1, 399, held_out=False)
    assert len(in_a_row) == 399
    assert all(task == in_a_row[place - place % 4] for place, task in enumerate(in_a_row))
    assert {task.step for task in in_a_row} == {task.step for task in single}
