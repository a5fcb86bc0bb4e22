"""Snapshots up to a cut -> trained weights; a crash loses at most the seconds since the last checkpoint."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import polars as pl

from dyformer.experiments.settings import Experiment, as_record, experiment_for, from_record
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.training.checkpoint import Checkpoint, Progress, Weights
from dyformer.training.stages import finetune, pretrain
from flows.progress import tracked
from flows.tasks.snapshots import Snapshots, StepOutOfRange, open_snapshots
from storage.artifacts.artifact import (
    Lineage,
    is_complete,
    is_current,
    lineage_of,
    read_bytes,
    read_table,
    write_artifact,
)
from storage.artifacts.checkpoints import (
    from_bytes,
    has_checkpoint,
    load_checkpoint,
    remove_checkpoint,
    save_checkpoint,
    to_bytes,
)
from storage.locks import alone

WEIGHTS = "weights.safetensors"
PARTS = ("graph", "model", "pretrain", "finetune")  # of an experiment: what weights depend on
SECONDS_BETWEEN_CHECKPOINTS = 15.0  # so many times more for each second that the last one took

TIMES = ("seconds", "waiting_fraction")  # of an epoch, and of that the share for which batches were waited for

Told = tuple[str, int, str, float]
"""Stage, epoch, name of a loss or of a time, value."""

Tell = Callable[[list[Told]], None]
"""Is told every epoch as it ends; where a training goes on from a checkpoint, first all that came before it."""


def experiment_of(dataset: str, changes: Mapping[str, Any] | None) -> Experiment:
    """Settings of a dataset with the user's changes; raises a ValueError that lists what is allowed."""
    return experiment_for(dataset).changed(changes or {})


def tell_nobody(told: list[Told]) -> None:
    """Keep the numbers of an epoch for the tables alone."""


def train_model(
    snapshots: str, until: int, changes: dict[str, Any] | None = None, seed: int = 0, tell: Tell = tell_nobody
) -> str:
    """Pre-train and fine-tune on the steps up to `until` and give the address of the weights.

    A finished training of the same key (snapshots, until, settings, seed) is not repeated, an interrupted one goes
    on from its checkpoint, and of two at once the second waits for the first.
    """
    opened = open_snapshots(snapshots)
    if until < 2:
        raise StepOutOfRange(f"training needs at least 2 steps of history; until = {until}")
    experiment, lineage = planned(opened, until, changes, seed)
    address = _address(opened, "model", lineage, seed)
    with alone(opened.layout, f"model-{opened.dataset}-{lineage.settings_hash[:12]}-{until}-{seed}"):
        if is_current(address, lineage):
            return address
        graph = prepare_graph(opened.graph(until), until=until, config=experiment.graph)
        return _train(opened, graph, experiment, lineage, address, tell)


def planned(opened: Snapshots, until: int, changes: Mapping[str, Any] | None, seed: int) -> tuple[Experiment, Lineage]:
    """Give the settings of a training and the lineage that its weights will have."""
    experiment = _with_lags(experiment_of(opened.dataset, changes), until)
    return experiment, opened.lineage("model", until=until, settings={**as_record(experiment, PARTS), "seed": seed})


def _with_lags(experiment: Experiment, until: int) -> Experiment:
    """Settle a window of the whole history as its steps at the training: a model tells no more lags apart later on."""
    if experiment.graph.history_window is not None:
        return experiment
    return experiment.changed({"graph.history_window": until})


def open_model(address: str) -> tuple[Weights, Experiment, Lineage]:
    """Read the weights of a finished training, its settings, and what it was trained on."""
    lineage = lineage_of(address)
    weights, _ = from_bytes(read_bytes(address, WEIGHTS), place=f"{address}/{WEIGHTS}")
    return weights, from_record({part: lineage.settings[part] for part in PARTS}), lineage


def model_losses(address: str) -> pl.DataFrame:
    """Losses of a training: stage, epoch, loss, value."""
    return read_table(address, "losses")


def model_times(opened: Snapshots, model: str) -> pl.DataFrame:
    """Times of a training, kept beside it because its own bytes are repeatable: stage, epoch, time, value."""
    lineage = lineage_of(model)
    address = _address(opened, "times", lineage, lineage.settings["seed"])
    if not is_complete(address):  # it was trained by a version that did not keep them
        return pl.DataFrame(schema=_schema("time"))
    return read_table(address, "times")


def device() -> str:
    """Train on a GPU where there is one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _train(
    opened: Snapshots, graph: PreparedGraph, experiment: Experiment, lineage: Lineage, address: str, tell: Tell
) -> str:
    """Run both stages and publish the weights once."""
    seed = lineage.settings["seed"]
    key = {"settings_hash": lineage.settings_hash, "dataset": opened.dataset, "until": graph.until, "seed": seed}
    stages = {name: _address(opened, name, lineage, seed) for name in ("pretrain", "finetune")}
    weights, told = None, []
    for name, folder in stages.items():
        if getattr(experiment, name) is not None:
            weights, stage_told = _run_stage(name, folder, graph, experiment, weights, {**key, "stage": name}, tell)
            told += stage_told
    assert weights is not None
    losses, times = _table(told, "loss"), _table(told, "time")
    write_artifact(_address(opened, "times", lineage, seed), {"times": times}, replace(lineage, kind="times"))
    write_artifact(address, {WEIGHTS: to_bytes(weights, key), "losses": losses}, lineage)
    for folder in stages.values():
        remove_checkpoint(folder)
    return address


def _table(told: list[Told], kind: str) -> pl.DataFrame:
    """Table of the losses or of the times."""
    rows = [row for row in told if (row[2] in TIMES) == (kind == "time")]
    return pl.DataFrame(rows, orient="row", schema=_schema(kind))


def _schema(kind: str) -> dict[str, Any]:
    return {"stage": pl.String, "epoch": pl.Int64, kind: pl.String, "value": pl.Float64}


def _run_stage(
    name: str,
    folder: str,
    graph: PreparedGraph,
    experiment: Experiment,
    weights: Weights | None,
    key: dict[str, Any],
    tell: Tell,
) -> tuple[Weights, list[Told]]:
    """Run a stage, or what is left of it, to its end."""
    resume, told = _last_checkpoint(folder, key)
    tell(told)
    common = {"seed": key["seed"], "device": device(), "resume": resume}
    if name == "pretrain" and experiment.pretrain is not None:
        epochs = pretrain(graph, experiment.model, experiment.pretrain, **common)
    else:
        epochs = finetune(graph, weights, experiment.model, experiment.finetune, **common)
    title = f"{name} {key['dataset']} until step {key['until']}"
    best, saved, pause = resume and resume.weights(), time.monotonic(), SECONDS_BETWEEN_CHECKPOINTS
    for progress in tracked(epochs, title, getattr(experiment, name).epochs):
        times = (progress.seconds, progress.seconds_waiting / progress.seconds)
        values = {**progress.losses, **dict(zip(TIMES, times, strict=True))}
        newest = [(name, progress.epoch, what, value) for what, value in values.items()]
        told += newest
        tell(newest)
        if progress.is_last or time.monotonic() - saved > pause:
            started = time.monotonic()
            best = _saved(folder, progress, {**key, "told": told})
            saved = time.monotonic()
            pause = SECONDS_BETWEEN_CHECKPOINTS * max(1.0, saved - started)
    assert best is not None
    return best, told


def _saved(folder: str, progress: Progress, record: dict[str, Any]) -> Weights:
    """Save the state after an epoch; of its copy only the best weights are held on."""
    checkpoint = progress.checkpoint()
    save_checkpoint(folder, checkpoint.tensors, {**record, "progress": checkpoint.record})
    return checkpoint.weights()


def _last_checkpoint(folder: str, key: dict[str, Any]) -> tuple[Checkpoint | None, list[Told]]:
    if not has_checkpoint(folder):
        return None, []
    tensors, record = load_checkpoint(folder, expected=key)
    return Checkpoint(tensors=tensors, record=record["progress"]), [tuple(row) for row in record["told"]]


def _address(opened: Snapshots, stage: str, lineage: Lineage, seed: int) -> str:
    layout, settings = opened.layout, lineage.settings_hash
    keys = {"version": opened.version, "until": lineage.until, "settings": settings, "seed": seed}
    return (
        layout.model(opened.dataset, **keys) if stage == "model" else layout.checkpoint(stage, opened.dataset, **keys)
    )
