"""Epochs on batches that are made in the background."""

import threading
import traceback
import weakref
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from toy_graphs import random_graph

from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.model.config import ModelConfig
from dyformer.model.transformer import DyFormer
from dyformer.sampling import link_batches
from dyformer.sampling.link_batches import PairBatch, reconstruction_tasks
from dyformer.sampling.subgraphs import num_lags
from dyformer.training import loop
from dyformer.training.checkpoint import Weights
from dyformer.training.config import PretrainConfig
from dyformer.training.loop import BATCHES_PER_GRAPH, Stage, draw_tasks, run_epochs
from dyformer.training.stages import pair_source, pretraining_loss, started_model

GRAPH = prepare_graph(
    random_graph(np.random.default_rng(3), num_nodes=40, num_steps=6, num_edges=60),
    until=5,
    config=GraphConfig(history_window=3),
)
MODEL = ModelConfig(width=8, num_layers=1, num_heads=2, feed_forward_width=8, num_targets=6, num_context=8)
CONFIG = PretrainConfig(epochs=3, batches_per_epoch=4, validation_batches=3, num_positives=8, num_targets=12)


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
        num_threads=num_threads,
    )


def model() -> DyFormer:
    return started_model(GRAPH, MODEL, None, seed=0)


def loader_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("loader")]


@pytest.mark.parametrize("per_step", [1, 2])
def test_the_graph_of_a_batch_is_gone_before_the_next_one(per_step: int):
    """Because a GPU cannot record the kernels of another size of batches beside it."""
    results, num_alive = [], []

    def noted(model: DyFormer, batch: PairBatch) -> dict[str, Tensor]:
        num_alive.append(sum(result() is not None for result in results))
        losses = loss(model, batch)
        results.extend(weakref.ref(value) for value in losses.values() if value.grad_fn is not None)
        return losses

    stage = replace(example_stage(), loss=noted, config=replace(CONFIG, epochs=2, batches_per_step=per_step))
    assert len(list(run_epochs(stage, model(), None))) == 2
    assert len(results) >= 8
    assert set(num_alive) == {0}


def test_weights_of_steps_of_several_batches_do_not_depend_on_the_threads_of_torch():
    config = replace(CONFIG, epochs=1, batches_per_epoch=2, batches_per_step=2, num_positives=32, num_targets=40)
    sizes = replace(MODEL, width=64, feed_forward_width=128, num_context=16)
    past = prepare_graph(
        random_graph(np.random.default_rng(3), num_nodes=150, num_steps=6, num_edges=300),
        until=5,
        config=GraphConfig(history_window=3),
    )
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            stage = replace(example_stage(0), config=config, source=pair_source(past, sizes, config, seed=0))
            trained = started_model(past, sizes, None, seed=0)
            next(run_epochs(stage, trained, None))
            assert torch.get_num_threads() == threads  # as before the epoch
            found.append(trained.state_dict())
    finally:
        torch.set_num_threads(before)
    for name, weight in found[0].items():
        assert torch.equal(weight, found[1][name]), name


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
    jobs = [*loop.held_out_jobs(stage), *loop.epoch_jobs(stage, 1), *loop.epoch_jobs(stage, 2)]
    drawn = {tuple(job().subgraph.target_G.tolist()) for job in jobs}
    assert len(drawn) == len(jobs) == 3 + 2 * 4


@pytest.mark.parametrize(("num_threads", "expected"), [(0, 4 * 3.0), (2, 0.0)])
def test_seconds_waiting_are_those_in_which_no_batch_was_ready(
    num_threads: int, expected: float, monkeypatch: pytest.MonkeyPatch
):
    """A clock of the main thread alone: a batch takes 3 seconds where no other thread makes it, and a loss 5."""
    clock = [0.0]
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def taking(seconds: float, job: Callable[..., Any]) -> Callable[..., Any]:
        def slow_job(*arguments: Any, **options: Any) -> Any:
            clock[0] += seconds * (threading.current_thread() is threading.main_thread())
            return job(*arguments, **options)

        return slow_job

    stage = replace(example_stage(num_threads), loss=taking(5.0, loss))
    stage.source.batch = taking(3.0, stage.source.batch)
    epochs = list(run_epochs(stage, model(), None))
    assert [progress.seconds_waiting for progress in epochs] == [expected] * 3
    assert [progress.seconds for progress in epochs] == [expected + (4 + 3) * 5.0] * 3  # 3 batches are held out


def test_a_stage_that_ends_leaves_no_thread():
    assert len(list(run_epochs(example_stage(), model(), None))) == 3
    assert loader_threads() == []


def test_a_stage_that_is_left_leaves_no_thread():
    with closing(run_epochs(example_stage(), model(), None)) as epochs:
        next(epochs)
        assert loader_threads()
    assert loader_threads() == []


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_in_training_leaves_no_thread(error: type[BaseException]):
    def broken_loss(model: DyFormer, batch: PairBatch) -> dict[str, Tensor]:
        raise error

    with pytest.raises(error) as found:
        next(run_epochs(replace(example_stage(), loss=broken_loss), model(), None))
    assert loader_threads() == []
    assert found.value.__traceback__ is not None  # the error holds the frames, but no thread


@pytest.mark.parametrize("num_threads", [0, 2])
def test_an_error_in_a_batch_ends_training_and_says_where_it_happened(
    num_threads: int, monkeypatch: pytest.MonkeyPatch
):
    def broken_view(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(link_batches, "as_of_graph", broken_view)
    with pytest.raises(ZeroDivisionError) as found:
        next(run_epochs(example_stage(num_threads), model(), None))
    assert "broken_view" in [frame.name for frame in traceback.extract_tb(found.value.__traceback__)]
    assert loader_threads() == []


def test_an_as_of_graph_that_does_not_fit_the_cache_serves_batches_in_a_row(monkeypatch: pytest.MonkeyPatch):
    stage = example_stage()
    single = draw_tasks(stage, 1, 400, held_out=False)
    assert sum(a.as_of == b.as_of for a, b in pairwise(single)) < 200
    monkeypatch.setattr(link_batches, "MAX_CACHED_GRAPHS", 10)
    in_a_row = draw_tasks(stage, 1, 399, held_out=False)
    assert len(in_a_row) == 399
    assert all(task == in_a_row[index - index % BATCHES_PER_GRAPH] for index, task in enumerate(in_a_row))
    assert {task.step for task in in_a_row} == {task.step for task in single}


def test_dropout_of_a_batch_does_not_depend_on_the_draws_for_another():
    def drawing(num: int) -> Callable[[DyFormer, PairBatch], dict[str, Tensor]]:
        def loss_and_draws(model: DyFormer, batch: PairBatch) -> dict[str, Tensor]:
            losses = loss(model, batch)
            torch.rand(num)
            return losses

        return loss_and_draws

    few, many = (states(replace(example_stage(0), loss=drawing(num))) for num in (0, 7))
    assert all(torch.equal(many[-1][name], few[-1][name]) for name in few[-1])
