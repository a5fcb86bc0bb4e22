"""Processes that track the same runs at once double no run, no point of a curve and no version of a model."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

from storage import locks
from storage.bytes import files
from storage.layout import Layout
from storage.locks import LeaseBusy, leased
from storage.tracking import runs
from storage.tracking.runs import open_tracker

EPOCHS = 2

# A process that tracks two runs, one of them as a training that runs does; MLflow's searches take longer, so that the
# others search meanwhile.
PROCESS = """
import sys, time
from pathlib import Path
from storage.layout import Layout
from storage.tracking import runs
from storage.tracking.runs import open_tracker

root, state, go, epochs, dataset = sys.argv[1:]
tracker = open_tracker(Layout(root, state=state))

def losses(add):
    for epoch in range(int(epochs)):
        add({"loss": 1.0 + epoch, "seconds": time.time() % 60}, step=epoch)

def started(key):
    return tracker.start_run(dataset=dataset, name="DyFormer", key=key)

def track(key):
    with tracker.turn(dataset), tracker.run(dataset=dataset, name="DyFormer", key=key) as run:
        losses(run.metrics)
        version = run.register_model(model, name=f"dyformer-{dataset}")
    return run.run_id, version

model = Path(state) / "model"
model.mkdir(parents=True)
(model / "MLmodel").write_text("flavors: {}")
runs.FLUSH_SECONDS, runs.FLUSH_PAUSE = 0.0, 0

from mlflow import MlflowClient

def slow(name):
    real = getattr(MlflowClient, name)

    def call(*arguments, **options):
        found = real(*arguments, **options)
        time.sleep(0.2)
        return found

    setattr(MlflowClient, name, call)

for name in ("search_runs", "get_run", "search_model_versions"):
    slow(name)
Path(state, "ready").touch()
while not Path(go).exists():
    time.sleep(0.01)
curves = runs.LiveCurves(tracker=tracker, dataset=dataset, start=lambda: started("live"))
losses(curves.add)
curves.flush()
print([tracker.problem], track("live"), track("sent"))
"""


def started(root: str, states: list[Path], go: Path, dataset: str, **environment: str) -> list[subprocess.Popen[str]]:
    """Start a process for each state folder, and let all go on once each is ready."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, root, str(state), str(go), str(EPOCHS), dataset],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        for state in states
    ]
    while not all((state / "ready").exists() for state in states):
        assert all(process.poll() is None for process in processes)
        time.sleep(0.05)
    go.touch()
    return processes


def assert_once(uri: str, processes: list[subprocess.Popen[str]], states: list[Path], dataset: str) -> None:
    """Wait for the processes; each run, point of a curve and version of the model must be there once."""
    printed = [process.communicate(timeout=120)[0] for process in processes]
    assert len(set(printed)) == 1, printed
    assert printed[0].startswith("[None] "), printed
    client = MlflowClient(uri, uri)  # not earlier, because it would make the database
    (experiment,) = (each for each in client.search_experiments() if each.name == f"dyformer-{dataset}")
    found = client.search_runs([experiment.experiment_id])
    assert sorted(run.data.tags["dyformer.run_key"] for run in found) == ["live", "sent"]
    for run in found:
        for name in ("loss", "seconds"):
            points = client.get_metric_history(run.info.run_id, name)
            assert sorted(point.step for point in points) == list(range(EPOCHS))
    versions = client.search_model_versions(f"name = 'dyformer-{dataset}'")
    assert sorted(str(version.run_id) for version in versions) == sorted(run.info.run_id for run in found)


def test_two_processes_at_once_double_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    uri = f"sqlite:///{tmp_path}/mlflow.db"  # which the first of them makes
    states = [tmp_path / name for name in ("one", "two")]
    processes = started(str(tmp_path / "store"), states, tmp_path / "go", "chat", MLFLOW_TRACKING_URI=uri)
    assert_once(uri, processes, states, "chat")


def test_machines_with_one_object_store_take_turns_at_a_server(
    s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr(locks, "MOST_SECONDS", 0.3)
    here, there = (Layout(f"{s3_bucket}/{tmp_path.name}", state=str(tmp_path / name)) for name in ("here", "there"))
    with pytest.raises(OSError, match="refused"), open_tracker(here).turn("chat"):  # it had its turn
        open_tracker(here).start_run(dataset="chat", name="a", key="same")
    (lease,) = files.find(f"{here.root}/leases")
    assert lease == runs.lease_of(there, "http://127.0.0.1:9", "dyformer-chat")
    with leased(lease), pytest.raises(LeaseBusy, match="is held by other processes"), open_tracker(there).turn("chat"):
        raise AssertionError
