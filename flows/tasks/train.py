"""Snapshots up to a step -> trained weights; a crash loses at most the seconds since the last checkpoint."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import polars as pl

from dyformer.evaluation.fitting import model_steps
from dyformer.experiments.settings import Experiment, as_record
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.training.checkpoint import Checkpoint, Progress, Weights
from dyformer.training.stages import finetune, pretrain
from flows.console import tracked
from flows.made import plan
from flows.tasks.deferral import sigterm_deferred
from flows.tasks.models import (
    DYFORMER,
    LOSSES,
    PARTS,
    TIMES,
    TRAINING,
    Contender,
    device,
    open_model,
    space_of,
    trained_until,
)
from flows.tasks.snapshots import StepOutOfRange, newest_until, open_snapshots
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
TIME_NAMES = ("seconds", "waiting_fraction")  # an epoch's seconds, and the fraction spent waiting for batches

EpochRow = tuple[str, int, str, float]
"""Stage, epoch, name of a loss or of a time, value."""

OnEpoch = Callable[[Lineage, list[EpochRow]], None]
"""Called with the rows of each epoch at its end; a resumed training first passes those of all earlier epochs."""


def ignore_epoch(lineage: Lineage, rows: list[EpochRow]) -> None:
    """Ignore the rows of an epoch, because the finished training stores them in tables."""


def train_contender(snapshots: str, experiment: Experiment, seed: int = 0) -> Contender:
    """Train the models of `model_steps` as of the newest step."""
    untils = model_steps(newest_until(snapshots))
    return Contender(title=DYFORMER, models=tuple(train_model(snapshots, until, experiment, seed) for until in untils))


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
    experiment = (_with_lags(experiment, until) if start is None else _warm(experiment)).capped
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
            graph = prepare_graph(opened.graph(until), until=until, config=experiment.graph)
            _train(opened.layout, graph, experiment, model, weights, on_epoch)
        _remove_checkpoints(opened.layout, model.lineage)
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


def _train(
    layout: Layout,
    graph: PreparedGraph,
    experiment: Experiment,
    model: Planned,
    weights: Weights | None,
    on_epoch: OnEpoch,
) -> None:
    """Run the stages, from scratch or from weights of an earlier step, and write the weights once, at the end."""
    lineage = model.lineage
    seed, stages = lineage.settings["seed"], _checkpoints(layout, lineage)
    key = {"settings_hash": lineage.settings_hash, "dataset": lineage.dataset, "until": graph.until, "seed": seed}
    rows: list[EpochRow] = []
    for name, folder in stages.items():
        if getattr(experiment, name) is not None:
            run = partial(_run_stage, name, folder, on_epoch=partial(on_epoch, lineage))
            weights, stage_rows = run(graph, experiment, weights, {**key, "stage": name})
            rows += stage_rows
    assert weights is not None
    check_finite(weights, f"the training of {model.address}")
    losses, times = ([row for row in rows if (row[2] in TIME_NAMES) == is_time] for is_time in (False, True))
    times_table = {"times": pl.DataFrame(times, orient="row", schema=TIMES)}
    planned(layout, replace(lineage, kind="times")).made(lambda: times_table)
    losses_table = pl.DataFrame(losses, orient="row", schema=LOSSES)
    model.made(lambda: {WEIGHTS: to_bytes(weights, key), "losses": losses_table})


def _remove_checkpoints(layout: Layout, lineage: Lineage) -> None:
    """Remove the checkpoints of a finished training; a process may have been killed before it did."""
    for folder in _checkpoints(layout, lineage).values():
        remove_checkpoint(folder)


def _checkpoints(layout: Layout, lineage: Lineage) -> dict[str, str]:
    """Give the address of the checkpoint of each stage."""
    return {name: address_of(layout, replace(lineage, kind=name)) for name in ("pretrain", "finetune")}


def _run_stage(
    name: str,
    folder: str,
    graph: PreparedGraph,
    experiment: Experiment,
    weights: Weights | None,
    key: dict[str, Any],
    on_epoch: Callable[[list[EpochRow]], None],
) -> tuple[Weights, list[EpochRow]]:
    """Run a stage from its checkpoint, if there is one, to its end."""
    resume, rows = _last_checkpoint(folder, key)
    on_epoch(rows)
    common = {"seed": key["seed"], "device": device(), "resume": resume}
    if name == "pretrain" and experiment.pretrain is not None:
        epochs = pretrain(graph, experiment.model, experiment.pretrain, weights=weights, **common)
    else:
        epochs = finetune(graph, weights, experiment.model, experiment.finetune, **common)
    title = f"{name} {key['dataset']} until step {key['until']}"
    best, saved, pause = resume and resume.weights(), time.monotonic(), SECONDS_BETWEEN_CHECKPOINTS
    with sigterm_deferred() as is_ending:
        for progress in tracked(epochs, title, getattr(experiment, name).epochs):
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


def _last_checkpoint(folder: str, key: dict[str, Any]) -> tuple[Checkpoint | None, list[EpochRow]]:
    if not has_checkpoint(folder):
        return None, []
    tensors, record = load_checkpoint(folder, expected=key)
    return Checkpoint(tensors=tensors, record=record["progress"]), [tuple(row) for row in record["rows"]]
