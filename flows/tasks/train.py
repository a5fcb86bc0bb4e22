"""Snapshots up to a step -> trained weights; a crash loses at most the seconds since the last checkpoint."""

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import polars as pl

from dyformer.evaluation.fitting import model_steps
from dyformer.evaluation.seasons import period_before
from dyformer.experiments.settings import Experiment, as_record
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.training.checkpoint import Checkpoint, Progress, Weights
from dyformer.training.loop import check_ranks
from dyformer.training.ranks import Rank
from dyformer.training.stages import finetune, id_bytes, pretrain
from flows.console import QUIET, tracked
from flows.tasks.made import plan
from flows.tasks.models import (
    DYFORMER,
    LOSSES,
    PARTS,
    TIMES,
    TRAINING,
    Contender,
    open_model,
    space_of,
    trained_until,
)
from flows.tasks.ranks import num_ranks, shared_training
from flows.tasks.snapshots import StepOutOfRange, open_snapshots
from storage.artifacts.artifact import Lineage
from storage.artifacts.checkpoints import (
    check_finite,
    has_checkpoint,
    load_checkpoint,
    remove_checkpoint,
    save_checkpoint,
    to_bytes,
)
from storage.artifacts.made import Planned, address_of, planned
from storage.layout import WEIGHTS, Layout
from storage.locks import alone, in_use

SECONDS_BETWEEN_CHECKPOINTS = 15.0  # or this many times the seconds of the last save, if longer
LARGE = 100_000_000  # bytes of id embeddings, whose size is printed before the training
TIME_NAMES = ("seconds", "waiting_fraction")  # an epoch's seconds, and the fraction spent waiting for batches

EpochRow = tuple[str, int, str, float]
"""Stage, epoch, name of a loss or of a time, value."""

OnEpoch = Callable[[Lineage, list[EpochRow]], None]
"""Called with the rows of each epoch at its end; a resumed training first passes those of all earlier epochs."""


def ignore_epoch(lineage: Lineage, rows: list[EpochRow]) -> None:
    """Ignore the rows of an epoch, because the finished training stores them in tables."""


def train_contender(snapshots: str, experiment: Experiment, seed: int = 0) -> Contender:
    """Train the models of `trained_steps`."""
    untils = trained_steps(snapshots)
    return Contender(title=DYFORMER, models=tuple(train_model(snapshots, until, experiment, seed) for until in untils))


def trained_steps(snapshots: str) -> list[int]:
    """Return the steps until which models are trained to evaluate the newest step and to forecast the next one."""
    opened = open_snapshots(snapshots)
    newest, graph = opened.num_steps, opened.graph(opened.num_steps)
    periods = [period_before(graph, step) for step in (newest, newest + 1)]
    return sorted({until for period in periods for until in model_steps(newest - 1, period)})


def train_model(
    snapshots: str,
    until: int,
    experiment: Experiment,
    seed: int = 0,
    on_epoch: OnEpoch = ignore_epoch,
    start: str | None = None,
) -> str:
    """Pre-train and fine-tune on the steps up to `until` and return the address of the weights.

    A finished training of the same key (snapshots, until, settings, seed, start) is not repeated. An interrupted one
    continues from its checkpoint. If two start at once, the second waits for the first.

    Args:
        snapshots: address of the snapshots.
        until: the last step to train on.
        experiment: settings.
        seed: of the first weights, the batches and the dropout.
        on_epoch: called at the end of each epoch.
        start: address of a model of an earlier step, whose weights the training starts from; it then takes the
            fraction `warm_start` of the epochs. None: from scratch.

    Raises:
        StepOutOfRange: too short a history, or a `start` that was trained on step `until` or a later one.
    """
    opened = open_snapshots(snapshots)
    if until < 2:
        raise StepOutOfRange(f"training needs at least 2 steps of history: expected until of 2 or more, found {until}")
    ranks = num_ranks()
    experiment = (_with_lags(experiment, until) if start is None else _warm(experiment)).capped
    for stage in ("pretrain", "finetune"):  # before any of the two
        if (config := getattr(experiment, stage)) is not None:
            check_ranks(stage, config, ranks)
    settings, weights, inputs = {**as_record(experiment, PARTS), "seed": seed}, None, ()
    if start is not None:
        weights, _, before = open_model(start)
        if trained_until(before, opened) >= until:
            raise StepOutOfRange(
                f"{start} was trained on step {until}: expected a model of an earlier step to start from"
            )
        settings, inputs = {**settings, "start": space_of(start)}, (start,)
    model = plan(opened, "model", until=until, settings=settings, code=TRAINING, inputs=inputs)
    key = f"model-{opened.dataset}-{model.lineage.settings_hash[:12]}-{until}-{seed}"
    with in_use(opened.layout, opened.dataset).read_lock(), alone(opened.layout, key):
        if not model.is_current:
            order = {
                "snapshots": snapshots,
                "start": start,
                "experiment": as_record(experiment),
                **_keys(opened.layout, model.lineage),
            }
            with shared_training(order, ranks) as rank:
                graph = prepare_graph(opened.graph(until), until=until, config=experiment.graph)
                _print_size(graph, experiment, ranks)
                _train(opened.layout, graph, experiment, model, weights, rank, on_epoch)
        for folder in _checkpoints(opened.layout, model.lineage).values():
            remove_checkpoint(folder)  # also of a process that was killed before it did
    return model.address


def _with_lags(experiment: Experiment, until: int) -> Experiment:
    """Set a window of the whole history to the steps of the training, because the model has weights only for these."""
    if experiment.graph.history_window is not None:
        return experiment
    return replace(experiment, graph=replace(experiment.graph, history_window=until))


def _warm(experiment: Experiment) -> Experiment:
    """Shorten both stages to the fraction `warm_start` of their epochs."""
    for stage in ("pretrain", "finetune"):
        config = getattr(experiment, stage)
        if config is not None:
            epochs = math.ceil((experiment.warm_start or 1) * config.epochs)
            experiment = replace(experiment, **{stage: replace(config, epochs=epochs)})
    return experiment


def _print_size(graph: PreparedGraph, experiment: Experiment, ranks: int) -> None:
    """Print the memory of the id embeddings, which grows with the nodes, where it is more than a little."""
    num_bytes = id_bytes(len(graph.history.node_N), experiment.model)
    if num_bytes >= LARGE and QUIET not in os.environ:
        print(
            f"id embeddings: {num_bytes / 1e9:.2f} GB with their best copy and their moments"
            f"{f', in each of {ranks} processes' if ranks > 1 else ''}; `model.inputs=structure` needs none",
            file=sys.stderr,
            flush=True,
        )


def _train(
    layout: Layout,
    graph: PreparedGraph,
    experiment: Experiment,
    model: Planned,
    weights: Weights | None,
    rank: Rank,
    on_epoch: OnEpoch,
) -> None:
    """Run the stages, from scratch or from weights of an earlier step, and write the weights once, at the end."""
    lineage, keys = model.lineage, _keys(layout, model.lineage)
    rows: list[EpochRow] = []
    for name, folder in keys["folders"].items():
        if getattr(experiment, name) is not None:
            epochs = partial(stage_epochs, name, graph, experiment, weights, rank=rank)
            key, num_epochs = {**keys["key"], "stage": name}, getattr(experiment, name).epochs
            weights, stage_rows = _run_stage(folder, epochs, num_epochs, key, partial(on_epoch, lineage))
            rows += stage_rows
    assert weights is not None
    check_finite(weights, f"the training of {model.address}")
    losses, times = ([row for row in rows if (row[2] in TIME_NAMES) == is_time] for is_time in (False, True))
    times_table = {"times": pl.DataFrame(times, orient="row", schema=TIMES)}
    planned(layout, replace(lineage, kind="times")).made(lambda: times_table)
    losses_table = pl.DataFrame(losses, orient="row", schema=LOSSES)
    model.made(lambda: {WEIGHTS: to_bytes(weights, keys["key"]), "losses": losses_table})


def _keys(layout: Layout, lineage: Lineage) -> dict[str, Any]:
    """Give the folder of each stage's checkpoint, and what its record must have."""
    key = {
        "settings_hash": lineage.settings_hash,
        "dataset": lineage.dataset,
        "until": lineage.until,
        "seed": lineage.settings["seed"],
    }
    return {"folders": _checkpoints(layout, lineage), "key": key}


def _checkpoints(layout: Layout, lineage: Lineage) -> dict[str, str]:
    """Give the address of the checkpoint of each stage."""
    return {name: address_of(layout, replace(lineage, kind=name)) for name in ("pretrain", "finetune")}


def stage_epochs(
    name: str,
    graph: PreparedGraph,
    experiment: Experiment,
    weights: Weights | None,
    *,
    seed: int,
    resume: Checkpoint | None,
    rank: Rank,
) -> Iterator[Progress]:
    """Run the epochs of a stage that are left, in each process that shares the training."""
    if name == "pretrain" and experiment.pretrain is not None:
        return pretrain(
            graph, experiment.model, experiment.pretrain, weights=weights, seed=seed, resume=resume, rank=rank
        )
    return finetune(graph, weights, experiment.model, experiment.finetune, seed=seed, resume=resume, rank=rank)


def _run_stage(
    folder: str,
    epochs: Callable[..., Iterator[Progress]],
    num_epochs: int,
    key: dict[str, Any],
    on_epoch: Callable[[list[EpochRow]], None],
) -> tuple[Weights, list[EpochRow]]:
    """Run a stage from its checkpoint, if there is one, to its end."""
    name, (resume, rows) = key["stage"], last_checkpoint(folder, key)
    on_epoch(rows)
    title = f"{name} {key['dataset']} until step {key['until']}"
    best, saved, pause = resume and resume.weights(), time.monotonic(), SECONDS_BETWEEN_CHECKPOINTS
    with sigterm_deferred() as is_ending:
        for progress in tracked(epochs(seed=key["seed"], resume=resume), title, num_epochs):
            times = (progress.seconds, progress.seconds_waiting / progress.seconds)
            values = {**progress.losses, **dict(zip(TIME_NAMES, times, strict=True))}
            newest = [(name, progress.epoch, quantity, value) for quantity, value in values.items()]
            rows += newest
            on_epoch(newest)
            if progress.is_last or is_ending() or time.monotonic() - saved > pause:
                started = time.monotonic()
                best = _saved(folder, progress, {**key, "rows": rows})
                saved = time.monotonic()
                pause = SECONDS_BETWEEN_CHECKPOINTS * max(1.0, saved - started)
            if is_ending():
                break
    assert best is not None
    return best, rows


def _saved(folder: str, progress: Progress, record: dict[str, Any]) -> Weights:
    """Save the state after an epoch; only its best weights stay in memory."""
    checkpoint = progress.checkpoint()
    save_checkpoint(folder, checkpoint.tensors, {**record, "progress": checkpoint.record})
    return checkpoint.weights()


def last_checkpoint(folder: str, key: dict[str, Any]) -> tuple[Checkpoint | None, list[EpochRow]]:
    """Read the checkpoint of a stage, if there is one, and the rows of its epochs."""
    if not has_checkpoint(folder):
        return None, []
    tensors, record = load_checkpoint(folder, expected=key)
    return Checkpoint(tensors=tensors, record=record["progress"]), [tuple(row) for row in record["rows"]]


MOST_SECONDS = 20.0  # a worker kills a run 30 s after SIGTERM


@contextmanager
def sigterm_deferred(most_seconds: float = MOST_SECONDS) -> Iterator[Callable[[], bool]]:
    """Hold SIGTERM back until the end of a `with` block, for at most some seconds; a second one is not held back.

    Then it does what it did before the block, and the process never goes on behind it.

    Yields:
        A function that says whether it has come.
    """
    before, received = signal.getsignal(signal.SIGTERM), threading.Event()
    if threading.current_thread() is not threading.main_thread() or before is signal.SIG_IGN:
        yield received.is_set
        return
    timer = threading.Timer(most_seconds, _send)
    timer.daemon = True

    def receive(number: int, frame: FrameType | None) -> None:
        if received.is_set():
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
            _send()
        else:
            received.set()
            timer.start()

    signal.signal(signal.SIGTERM, receive)
    try:
        yield received.is_set
    finally:
        timer.cancel()
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
        if received.is_set():
            _send()
            raise SystemExit(128 + signal.SIGTERM)  # whatever the handler did: the block did not reach its end


def _send() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
