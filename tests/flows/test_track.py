"""A training is tracked while it runs; if its process is killed, it ends with the same weights and epochs."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import polars as pl
import pytest
from test_tasks import CHANGES, EXPERIMENT, UNTIL, snapshots_in, trained, trained_files

import storage.tracking.runs
from flows.tasks.models import model_losses
from flows.tasks.tracking.benchmarks import write_study
from flows.tasks.tracking.projection import project
from flows.tasks.tracking.retraining import tracked_epochs, write_training
from flows.tasks.train import EpochRow, train_model
from storage.artifacts.artifact import Lineage
from storage.artifacts.code import code_version
from storage.layout import Layout
from storage.tracking.runs import open_tracker

# Forks a training for each line of settings, because the libraries take seconds to import. A training pauses two epochs
# after its last checkpoint, so that the test can kill it.
TRAININGS = """
import json, os, sys, time
import mlflow.tracking, numba  # imported late otherwise, by each training again
import flows.tasks.train as steps
import storage.tracking.runs
from dyformer.experiments.settings import Experiment
from flows.tasks.tracking.retraining import tracked_epochs

def train(environment, snapshots, until, changes, seed, saved, flush_seconds):
    os.environ.update(environment)
    storage.tracking.runs.FLUSH_SECONDS, storage.tracking.runs.FLUSH_PAUSE = flush_seconds, 0
    steps.SECONDS_BETWEEN_CHECKPOINTS = 0.0
    save, calls = steps.save_checkpoint, 0

    def save_at_first(*arguments):
        nonlocal calls
        calls += 1
        if calls <= saved:
            save(*arguments)
        if calls == saved + 3:
            print("tracked by", os.getpid(), flush=True)
            time.sleep(600)

    steps.save_checkpoint = save_at_first
    with tracked_epochs(snapshots) as on_epoch:
        steps.train_model(snapshots, until, Experiment().changed(changes), seed, on_epoch)

for line in sys.stdin:
    if (process := os.fork()) == 0:
        train(**json.loads(line))
        os._exit(1)
    print("ended by", os.waitpid(process, 0)[1], flush=True)
"""


@pytest.fixture(scope="module")
def trainings() -> Iterator[subprocess.Popen[str]]:
    """A process that trains as each line of its input says."""
    with subprocess.Popen(
        [sys.executable, "-c", TRAININGS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


@pytest.fixture(scope="module")
def database(empty_database: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{empty_database(tmp_path_factory.mktemp('tracking') / 'mlflow.db')}"


@pytest.fixture
def snapshots(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    return snapshots_in(tmp_path / "store")


def tracked_points(name: str, seed: int) -> tuple[str, list[tuple[int, float]]]:
    """Status of the only run of a seed, and the steps and values of a metric."""
    client = open_tracker(Layout.from_environment()).client()
    experiment = client.get_experiment_by_name("dyformer-mylog")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id], filter_string=f"tags.seed = '{seed}'")
    assert run.data.params["seed"] == str(seed)
    history = client.get_metric_history(run.info.run_id, name)
    return run.info.status, sorted((point.step, point.value) for point in history)


def test_losses_are_there_while_the_training_runs(snapshots: str, monkeypatch: pytest.MonkeyPatch):
    seen = []
    monkeypatch.setattr(storage.tracking.runs, "FLUSH_SECONDS", 0.0)
    monkeypatch.setattr(storage.tracking.runs, "FLUSH_PAUSE", 0)
    with tracked_epochs(snapshots) as on_epoch:

        def track_and_look(trained: Lineage, rows: list[EpochRow]) -> None:
            on_epoch(trained, rows)
            seen.extend((rows[0][:2], tracked_points(f"{stage}/link", 0)) for stage, *_ in rows[:1])

        short = EXPERIMENT.changed({"pretrain.epochs": 2, "finetune.epochs": 2})
        train_model(snapshots, UNTIL, short, 0, track_and_look)
    assert [epoch for epoch, _ in seen] == [("pretrain", 1), ("pretrain", 2), ("finetune", 1), ("finetune", 2)]
    for (_, epoch), (status, points) in seen:
        assert status == "RUNNING"
        assert [step for step, _ in points] == list(range(1, epoch + 1))


def train_tracked(snapshots: str, seed: int) -> str:
    """Train as the flow `train` does."""
    with tracked_epochs(snapshots) as on_epoch:
        model = train_model(snapshots, UNTIL, EXPERIMENT, seed, on_epoch)
    write_training(snapshots, model)
    assert project(Layout.from_environment()).problems == []
    return model


@dataclass(frozen=True, kw_only=True)
class Killed:
    """A training that was killed and then finished, and what the kill had left."""

    snapshots: str
    seed: int
    status: str | None  # of its run, None before the first epochs were sent
    stages: set[str]
    model: str

    @property
    def store(self) -> Path:
        return Path(os.environ["DYFORMER_STORAGE"])


@pytest.fixture(
    scope="module", params=[(1, 2, 0), (2, 7, 600)], ids=["in pre-training, sent", "in fine-tuning, not yet sent"]
)
def killed(
    request: pytest.FixtureRequest,
    database: str,
    trainings: subprocess.Popen[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Killed]:
    seed, saved, flush_seconds = request.param
    folder = tmp_path_factory.mktemp("killed")
    environment = {"MLFLOW_TRACKING_URI": database, "DYFORMER_STORAGE": str(folder / "store")}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        snapshots = snapshots_in(folder / "store")
        values = {"snapshots": snapshots, "until": UNTIL, "changes": CHANGES, "seed": seed}
        values |= {"environment": environment, "saved": saved, "flush_seconds": flush_seconds}
        assert trainings.stdin is not None
        assert trainings.stdout is not None
        print(json.dumps(values), file=trainings.stdin, flush=True)
        (tracked,) = islice((line for line in trainings.stdout if line.startswith("tracked")), 1)  # beside progress
        os.kill(int(tracked.split()[-1]), signal.SIGKILL)
        assert trainings.stdout.readline() == f"ended by {signal.SIGKILL.value}\n"
        status = None if flush_seconds else tracked_points("pretrain/link", seed)[0]
        checkpoints = (folder / "store").rglob("5_checkpoints/*/*/*/*/*/*")
        stages = {path.parts[-6] for path in checkpoints if path.is_dir()}
        model = train_tracked(snapshots, seed)
        yield Killed(snapshots=snapshots, seed=seed, status=status, stages=stages, model=model)


def test_every_epoch_of_a_killed_training_is_tracked_once(killed: Killed):
    assert killed.status == ("RUNNING" if killed.seed == 1 else None)
    losses = model_losses(killed.model)
    for stage, name in losses.select("stage", "loss").unique().iter_rows():
        values = losses.filter(stage=stage, loss=name)["value"].to_list()
        assert tracked_points(f"{stage}/{name}", killed.seed) == ("FINISHED", list(enumerate(values, start=1)))
    for name in ("pretrain/seconds", "finetune/waiting_fraction"):
        assert [step for step, _ in tracked_points(name, killed.seed)[1]] == [1, 2, 3, 4, 5, 6]


def test_killed_training_goes_on_to_the_same_weights(killed: Killed, tmp_path: Path):
    assert killed.stages == ({"pretrain"} if killed.seed == 1 else {"pretrain", "finetune"})
    whole = snapshots_in(tmp_path / "whole")
    assert trained_files(killed.model) == trained(tmp_path / "whole", whole, killed.seed)
    (times,) = (pl.read_parquet(path) for path in killed.store.rglob("times.parquet"))
    for name in ("seconds", "waiting_fraction"):
        rows = times.filter(time=name)
        assert rows["stage"].to_list() == ["pretrain"] * 6 + ["finetune"] * 6
        assert rows["epoch"].to_list() == [*range(1, 7), *range(1, 7)]
    assert rows["value"].is_between(0, 1).all()
    assert not [path for path in killed.store.rglob("*") if "pretrain" in path.parts and path.is_file()]


def test_a_training_without_a_record_is_not_tracked(snapshots: str):
    model = train_model(snapshots, UNTIL, EXPERIMENT, seed=3)
    with tracked_epochs(snapshots) as on_epoch:
        assert train_model(snapshots, UNTIL, EXPERIMENT, 3, on_epoch) == model
    assert project(Layout.from_environment()) == ([], [])
    client = open_tracker(Layout.from_environment()).client()
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    assert not client.search_runs(experiments, filter_string="tags.seed = '3'")


def test_what_is_sent_later_names_the_code_that_made_it(snapshots: str, monkeypatch: pytest.MonkeyPatch):
    short = EXPERIMENT.changed({"pretrain.epochs": 1, "finetune.epochs": 1})
    write_training(snapshots, train_model(snapshots, UNTIL, short, 4))
    write_study("layers", snapshots, {"layers.md": b"a table"})
    for module in ("retraining", "benchmarks"):
        monkeypatch.setattr(f"flows.tasks.tracking.{module}.code_version", lambda: "the code that sends")
    assert project(Layout.from_environment()).problems == []
    client = open_tracker(Layout.from_environment()).client()
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    for own in ("tags.seed = '4'", "tags.experiment = 'layers'"):
        (run,) = client.search_runs(experiments, filter_string=own)
        assert run.data.tags["code"] == code_version()
