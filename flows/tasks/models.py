"""Address of a finished training -> its weights, settings, lineage, losses and times."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import polars as pl

from dyformer.evaluation.fitting import FORECASTER_WITH, FittedOnce
from dyformer.experiments.extras import need
from dyformer.experiments.methods import METHODS
from dyformer.experiments.settings import Experiment, from_record
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.model.config import ModelConfig
from dyformer.scoring.interfaces import Embed, Embedder, Scorer
from dyformer.training.checkpoint import Weights, WeightsDoNotFit
from flows.tasks.snapshots import Snapshots, StepOutOfRange, open_snapshots
from storage.artifacts.artifact import Lineage, digest, is_complete, lineage_of, open_artifact, read_table
from storage.artifacts.checkpoints import check_finite, from_bytes
from storage.artifacts.made import address_of
from storage.layout import WEIGHTS

if TYPE_CHECKING:
    from dyformer.training.stored_weights import TrainedDyFormer

PARTS = ("graph", "model", "pretrain", "finetune")
"""Parts of an experiment on which the weights depend."""

TRAINING = ("dyformer.training.stages",)
"""Code that makes the weights."""

DYFORMER = FORECASTER_WITH + "DyFormer"
"""Title of the forecaster that reads the vectors of the trained model."""

LOSSES = {"stage": pl.String, "epoch": pl.Int64, "loss": pl.String, "value": pl.Float64}
TIMES = {"stage": pl.String, "epoch": pl.Int64, "time": pl.String, "value": pl.Float64}


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A method that may be champion: its title, and the addresses of its models, the newest last.

    A baseline and the forecaster without vectors have no models.
    """

    title: str
    models: tuple[str, ...] = ()


def open_model(address: str) -> tuple[Weights, Experiment, Lineage]:
    """Read the weights of a finished training, its settings, and its lineage."""
    artifact = open_artifact(address)
    weights, _ = from_bytes(artifact.content(WEIGHTS), name=f"{address}/{WEIGHTS}")
    check_finite(weights, f"{address}/{WEIGHTS}")
    return weights, from_record({part: artifact.lineage.settings[part] for part in PARTS}), artifact.lineage


def model_losses(address: str) -> pl.DataFrame:
    """Read the losses of a training: stage, epoch, loss, value."""
    return read_table(address, "losses")


def model_times(opened: Snapshots, model: str) -> pl.DataFrame:
    """Read the times of a training: stage, epoch, time, value; no rows where they are not stored.

    They are a separate artifact, so that repeated trainings write the same bytes of weights.
    """
    address = address_of(opened.layout, replace(lineage_of(model), kind="times"))
    return read_table(address, "times") if is_complete(address) else pl.DataFrame(schema=TIMES)


def space_of(model: str) -> str:
    """Return the id of a model's vector space, which is equal only for equal weights."""
    return open_artifact(model).entries[WEIGHTS]["sha256"][:16]


def trained_until(trained: Lineage, opened: Snapshots) -> int:
    """Return the last step of the snapshots with events that weights were trained on.

    With another history or other windows the steps differ, so the times are compared.
    """
    assert trained.until is not None
    if opened.has_history(trained):
        return trained.until
    return int((opened.steps["start_time"] <= trained.max_event_time).sum())


def check_trained_before(opened: Snapshots, models: Sequence[str], step: int) -> None:
    """Raise StepOutOfRange if weights were trained on events after a step as of which they embed nodes."""
    end_time = opened.time("end_time", step)
    for model in models:
        newest = lineage_of(model).max_event_time
        if newest is not None and newest >= end_time:
            raise StepOutOfRange(
                f"{model}: trained on events after step {step} of {opened.dataset}, so it is not used as of that step:"
                " choose a later time, or train anew, as a retraining does"
            )


@dataclass(frozen=True, kw_only=True)
class StoredWeights:
    """Weights as a method, whose error names the artifacts."""

    addresses: tuple[str, ...]
    method: "TrainedDyFormer"

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        """Fit as the method does. Raises WeightsDoNotFit, with the addresses."""
        with naming(*self.addresses):
            return self.method.fit(graph, seed=seed)


@contextmanager
def naming(*models: str) -> Iterator[None]:
    """Add the addresses of models to an error of their weights."""
    try:
        yield
    except WeightsDoNotFit as error:
        raise WeightsDoNotFit(f"{' or '.join(models)}: {error}") from error


def stored_method(opened: Snapshots, model: str, older: Sequence[str], step: int) -> tuple[FittedOnce, Experiment]:
    """Return stored weights as a method for the forecast of a step, with their settings and lineage.

    `older` are models of the same settings, trained until earlier steps: the forecaster learns from their vectors how
    to read those of `model`. Raises StepOutOfRange for a step that the weights were trained on.
    """
    _, experiment, trained = open_model(model)
    if trained_until(trained, opened) >= step:
        raise StepOutOfRange(f"step {step} cannot evaluate {model}: it was trained on that step; use a later one")
    stored, _ = method_of(opened, Contender(title=model, models=(*older, model)))
    assert isinstance(stored, FittedOnce)
    return stored, experiment


def method_of(opened: Snapshots, contender: Contender) -> tuple[Embedder | Scorer, Experiment]:
    """Return the method of a contender, and the experiment whose graph settings it has.

    Of a contender with models these are their weights, whose vectors the forecaster reads.
    """
    if not contender.models:
        return METHODS[contender.title], Experiment()
    digests = digest(opened.address), *map(digest, contender.models)
    return _weights_as_method(opened.address, contender.models, digests)


@lru_cache(maxsize=2)  # challenger and champion: the tasks of a run share their vectors
def _weights_as_method(
    snapshots: str, addresses: tuple[str, ...], digests: tuple[str, ...]
) -> tuple[FittedOnce, Experiment]:
    need("torch")
    from dyformer.training.stored_weights import TrainedDyFormer

    opened, models = open_snapshots(snapshots), [open_model(model) for model in addresses]
    experiment = models[-1][1]
    # A window of the whole history is settled at training, so the older weights may have fewer lags.
    fitting = [fitted for fitted in models if _but_window(fitted[1]) == _but_window(experiment)]
    weights = {trained_until(lineage, opened): weights_of for weights_of, _, lineage in fitting}
    lags = {
        trained_until(lineage, opened): settings_of_model.graph.history_window
        for _, settings_of_model, lineage in fitting
    }
    windows = {until: window for until, window in lags.items() if window is not None}
    trained = TrainedDyFormer(weights=weights, windows=windows, model=experiment.model, device=device())
    return FittedOnce(method=StoredWeights(addresses=addresses, method=trained)), experiment


def method_code(method: object) -> tuple[type, ...]:
    """Return the class of a method, whose module computes by it; that of the weights where it has stored ones."""
    while isinstance(method, FittedOnce | StoredWeights):
        method = method.method
    return (type(method),)


def _but_window(experiment: Experiment) -> tuple[GraphConfig, ModelConfig]:
    return replace(experiment.graph, history_window=None), experiment.model


def device() -> str:
    """Name the device of training and embedding: a GPU where there is one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
