"""A training is tracked while it runs, each epoch once, even if its process is killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from own_log import own_log
from test_tasks import CHANGES, EXPERIMENT, UNTIL, snapshots_in

import storage.tracking.runs
from flows.tasks.models import model_losses
from flows.tasks.track import tracked_epochs
from flows.tasks.train import EpochRow, train_model
from storage.artifacts.artifact import Lineage
from storage.layout import Layout
from storage.tracking.runs import open_tracker

# A training that is killed two epochs after its last checkpoint.
TRAINING = """
import time
import flows.tasks.train as steps
import storage.tracking.runs
from dyformer.experiments.settings import Experiment
from flows.tasks.track import tracked_epochs

storage.tracking.runs.FLUSH_SECONDS, storage.tracking.runs.FLUSH_PAUSE = {flush_seconds}, 0
steps.SECONDS_BETWEEN_CHECKPOINTS = 0.0
save, calls = steps.save_checkpoint, 0

def save_at_first(*arguments):
    global calls
    calls += 1
    if calls <= 2:
        save(*arguments)
    if calls == 5:
        print("tracked", flush=True)
        time.sleep(600)

steps.save_checkpoint = save_at_first
with tracked_epochs({snapshots!r}) as on_epoch:
    steps.train_model({snapshots!r}, {until}, Experiment().changed({changes!r}), {seed}, on_epoch)
"""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One database for the module: making its tables takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('tracking')}/mlflow.db"


@pytest.fixture
def snapshots(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    return snapshots_in(tmp_path / "store", own_log(tmp_path / "mylog.csv"))


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
    with tracked_epochs(snapshots) as on_epoch:
        return train_model(snapshots, UNTIL, EXPERIMENT, seed, on_epoch)


@pytest.mark.parametrize(("seed", "flush_seconds"), [(1, 0), (2, 600)], ids=["sent", "not yet sent"])
def test_every_epoch_of_a_killed_training_is_tracked_once(seed: int, flush_seconds: int, snapshots: str):
    code = TRAINING.format(flush_seconds=flush_seconds, snapshots=snapshots, until=UNTIL, changes=CHANGES, seed=seed)
    process = subprocess.Popen([sys.executable, "-c", code], env=dict(os.environ), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert "tracked" in process.stdout.readline()
        process.kill()
    assert process.wait(30) == -9
    assert tracked_points("pretrain/link", seed)[0] == "RUNNING"
    losses = model_losses(train_tracked(snapshots, seed))
    for stage, name in losses.select("stage", "loss").unique().iter_rows():
        values = losses.filter(stage=stage, loss=name)["value"].to_list()
        assert tracked_points(f"{stage}/{name}", seed) == ("FINISHED", list(enumerate(values, start=1)))
    for name in ("pretrain/seconds", "finetune/waiting_fraction"):
        assert [step for step, _ in tracked_points(name, seed)[1]] == [1, 2, 3, 4, 5, 6]


def test_finished_training_is_not_tracked_again(snapshots: str):
    model = train_model(snapshots, UNTIL, EXPERIMENT, seed=3)
    assert train_tracked(snapshots, seed=3) == model
    client = open_tracker(Layout.from_environment()).client()
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    assert not client.search_runs(experiments, filter_string="tags.seed = '3'")
