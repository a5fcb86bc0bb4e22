"""A small log and a model of a few numbers -> each command of a retraining, without a Prefect server.

Importing this module makes everything smaller that costs time, so it is only for processes that run sweeps.
"""

import importlib
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ingests import DATASET, INGESTS
from matplotlib.figure import Figure
from prefect import Task

import flows.retrain as retraining
import flows.tasks.train
import storage.tracking.runs
from dyformer.evaluation import bootstrap, labelled_steps, scored_queries
from dyformer.experiments.methods import METHODS
from dyformer.experiments.settings import Experiment
from dyformer.scoring import heads
from flows.tasks.complete_windows import make_complete_snapshots
from flows.tasks.models import Contender
from flows.tasks.prepare import prepare_tables
from flows.tasks.snapshots import newest_until
from storage.layout import Layout
from storage.tracking.mlflow_client import set_environment
from storage.tracking.runs import open_tracker

IMPORTED = (
    "alembic.command",
    "lightgbm",
    "matplotlib.pyplot",
    "mlflow.data.polars_dataset",
    "mlflow.pyfunc",
    "mlflow.store.model_registry.sqlalchemy_store",
    "mlflow.store.tracking.sqlalchemy_store",
    "torch._dynamo",
)
"""Modules that the commands import late."""

SEED = 0
KEPT_METHODS = ("EdgeBank (last)", "L3", "Forecaster without vectors", "DyFormer")
TINY_STAGE = {"epochs": 3, "batches_per_epoch": 1, "validation_batches": 1, "num_targets": 16, "num_positives": 8}
EXPERIMENT = Experiment().changed(
    {
        "model.width": 8,
        "model.num_heads": 2,
        "model.num_layers": 1,
        "model.feed_forward_width": 8,
        "model.num_context": 8,
        **{f"{stage}.{name}": value for stage in ("pretrain", "finetune") for name, value in TINY_STAGE.items()},
    }
)


def _shrink() -> None:
    """Leave what has no effect on files: few methods, trees and resamples, no drawing. A flow calls its tasks directly.

    All that stays in memory is read before a fork.
    """
    setattr(Figure, "savefig", _save_no_plot)  # noqa: B010, as a type checker refuses assignments
    set_environment()
    for name in IMPORTED:
        importlib.import_module(name)
    requirements = importlib.import_module("mlflow.utils.requirements_utils")
    requirements._init_modules_to_packages_map()
    for title in METHODS.keys() - set(KEPT_METHODS):
        del METHODS[title]
    heads.NUM_ROUNDS, labelled_steps.TRAINING_PER_FAMILY = 3, 2
    bootstrap.NUM_RESAMPLES, bootstrap.MIN_RESAMPLES, scored_queries.NUM_PAIR_RESAMPLES = 200, 20, 20
    flows.tasks.train.SECONDS_BETWEEN_CHECKPOINTS = 0.0  # a checkpoint after every epoch
    for name, task in vars(retraining).items():
        if isinstance(task, Task):
            setattr(retraining, name, task.fn)


def _save_no_plot(self: Figure, file: Any, **options: Any) -> None:
    if isinstance(file, str | os.PathLike):
        Path(file).write_bytes(b"plot")
    else:
        file.write(b"<svg></svg>" if options.get("format") == "svg" else b"plot")


_shrink()


def snapshots() -> str:
    """Give the snapshots of the complete windows, of which a retraining learns."""
    return make_complete_snapshots(DATASET)


def prepare() -> None:
    address = snapshots()
    prepare_tables(address, newest_until(address), EXPERIMENT)


def connect() -> None:
    """Begin a run as a training does with its first epoch, which makes MLflow's database."""
    tracker = open_tracker(Layout.from_environment())
    start = partial(tracker.start_run, dataset=DATASET, name="first", key="first")
    storage.tracking.runs.LiveCurves(tracker=tracker, dataset=DATASET, start=start).flush("FINISHED")


def train() -> Contender:
    storage.tracking.runs.FLUSH_METRICS = 12  # so that some are sent during the training
    address = snapshots()
    return retraining._trained(address, EXPERIMENT, SEED, retraining.start_task(address, EXPERIMENT))


def evaluate() -> None:
    """Evaluate in both protocols, without a promotion."""
    address = snapshots()
    contender, step = train(), newest_until(address) + 1
    posed = retraining.Posed(snapshots=address, protocol=retraining.PREQUENTIAL, units=(step,), seed=SEED)
    retraining.draw_task(posed)
    retraining.evaluate_task(posed, retraining.Group({"DyFormer": None}, contender.models))
    retraining._evaluated(address, contender, SEED)


def promote() -> dict[str, Any]:
    return retraining._promoted(snapshots(), train(), EXPERIMENT, SEED)[1]


def predict() -> None:
    retraining._published(snapshots(), train(), promote(), SEED)


def track() -> None:
    """Run the flow of `dyformer retrain` on the rows that are there; it ends with the tracking and the report."""
    retraining.retrain.fn(DATASET, None, EXPERIMENT, SEED)


STAGES: dict[str, Callable[[], object]] = {
    **INGESTS,
    "prepare": prepare,
    "first connection": connect,
    "train": train,
    "evaluate": evaluate,
    "promote": promote,
    "predict": predict,
    "track": track,
}
"""Name of a command -> the function that does it, in the order of a retraining; each needs the earlier ones."""
