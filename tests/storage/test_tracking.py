"""Tracking loses no record, duplicates none and never stops a training."""

import errno
import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from free_ports import free_port
from matplotlib.figure import Figure

from storage.layout import Layout
from storage.tracking import spool
from storage.tracking.mlflow_client import RUN_KEY, connect, ensure_run
from storage.tracking.runs import TrackedRun, Tracker, open_tracker
from storage.tracking.spool import DONE, RECORDS, REFUSED, WRITTEN, spooled_runs

TAGS = {"seed": 0, "method": "DyFormer"}


@pytest.fixture(autouse=True)
def no_outer_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def database(empty_database: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return empty_database(tmp_path_factory.mktemp("tracking") / "mlflow.db")


@pytest.fixture
def tracker(database: Path, tmp_path: Path) -> Tracker:
    return replace(open_tracker(Layout(str(database.parent))), spool=tmp_path / "spool")


@pytest.fixture
def away(tracker: Tracker) -> Tracker:
    """A tracker at whose address no server listens."""
    return Tracker(uri=f"http://127.0.0.1:{free_port()}", spool=tracker.spool)


class DyingClient:
    """MLflow's client, whose process dies while it makes the tables of a database; later ones make all."""

    died = False

    def __init__(self, tracking_uri: str, registry_uri: str = ""):
        self.path = Path(tracking_uri.removeprefix("sqlite:///"))

    def search_experiments(self, max_results: int) -> None:
        self.path.write_bytes(b"")
        with sqlite3.connect(self.path) as database:
            database.execute("create table first (id integer)")
            if not DyingClient.died:
                DyingClient.died = True
                raise KeyboardInterrupt
            database.execute("create table second (id integer)")
        database.close()


def test_a_process_that_dies_while_the_database_is_made_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mlflow.MlflowClient", DyingClient)
    path = tmp_path / "store" / "mlflow.db"
    with pytest.raises(KeyboardInterrupt):
        connect(f"sqlite:///{path}")
    assert not path.exists()
    assert len(list(path.parent.glob(".mlflow.db.*"))) == 1
    connect(f"sqlite:///{path}")
    with sqlite3.connect(path) as database:
        assert {name for (name,) in database.execute("select name from sqlite_master")} == {"first", "second"}
    database.close()
    assert {file.name for file in path.parent.iterdir()} == {"mlflow.db"}


def track_everything(run: TrackedRun) -> None:
    curve = Figure()
    curve.subplots().plot([1, 2])
    run.params({"graph": {"max_distance": 5}, "pretrain": None})
    for epoch in range(1, 4):
        run.metrics({"pretrain/loss": 1 / epoch}, step=epoch)
    for step in range(1, 4):
        run.metrics({"test/hits@10": 0.5}, step=step, replace=True)
    run.plot("plots/curve.png", curve)
    run.table("scores.csv", pl.DataFrame({"method": ["L3"], "macro": [91.9]}))
    run.artifact("vectors/part.bin", b"abc")
    run.artifact("raw/note.txt", b"text")
    run.dataset(pl.DataFrame({"step": [1]}), name="uci v1", digest="v1-abc", source="/data/3_snapshots")


def assert_everything_once(tracker: Tracker, run_id: str, status: str = "FINISHED") -> None:
    client = tracker.client()
    run = client.get_run(run_id)
    assert run.info.status == status
    assert run.data.params == {"graph.max_distance": "5", "pretrain": "None"}
    history = client.get_metric_history(run_id, "pretrain/loss")
    assert [(point.step, point.value) for point in history] == [(1, 1.0), (2, 0.5), (3, 1 / 3)]
    history = client.get_metric_history(run_id, "test/hits_at_10")
    assert [(point.step, point.value) for point in history] == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert {file.path for file in client.list_artifacts(run_id)} == {"plots", "scores.csv", "vectors", "raw"}
    assert client.list_artifacts(run_id, "vectors")[0].file_size == 3
    assert run.inputs is not None
    assert [entry.dataset.digest for entry in run.inputs.dataset_inputs] == ["v1-abc"]


def only_run(tracker: Tracker, dataset: str) -> str:
    """Id of the only run of a dataset."""
    experiment = tracker.client().get_experiment_by_name(f"dyformer-{dataset}")
    assert experiment is not None
    [run] = tracker.client().search_runs([experiment.experiment_id])
    return run.info.run_id


def num_runs(tracker: Tracker, dataset: str) -> int:
    experiment = tracker.client().get_experiment_by_name(f"dyformer-{dataset}")
    return len(tracker.client().search_runs([experiment.experiment_id])) if experiment else 0


def test_everything_of_a_run_arrives(tracker: Tracker, tmp_path: Path) -> None:
    with tracker.run(dataset="uci", name="DyFormer", tags=TAGS) as run:
        track_everything(run)
    assert run.problem is None
    assert run.run_id is not None
    assert_everything_once(tracker, run.run_id)
    assert spooled_runs(tracker.spool) == []


def test_files_lie_in_the_store_and_not_in_the_working_directory(
    tracker: Tracker, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with tracker.run(dataset="uci", name="x") as run:
        run.artifact("a.txt", b"a")
    assert run.run_id is not None
    uri = tracker.client().get_run(run.run_id).info.artifact_uri
    assert uri is not None
    assert uri.startswith(str(database.parent))
    assert list(tmp_path.glob("*ml*")) == []


def test_environment_decides_about_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    tracker = open_tracker(Layout(str(tmp_path)))
    assert (tracker.uri, tracker.artifact_root) == ("http://mlflow:5000", None)


def test_failed_run_is_marked(tracker: Tracker) -> None:
    with pytest.raises(RuntimeError, match="boom"), tracker.run(dataset="failed", name="a", tags=TAGS) as run:
        raise RuntimeError("boom")
    assert run.run_id is not None
    assert tracker.client().get_run(run.run_id).info.status == "FAILED"


def test_unreachable_server_costs_seconds_and_the_spool_is_replayed_once(
    away: Tracker, tracker: Tracker, tmp_path: Path
) -> None:
    started = time.monotonic()
    with away.run(dataset="away", name="DyFormer", tags=TAGS) as run:
        track_everything(run)
    assert time.monotonic() - started < 5
    assert run.problem is not None
    assert len(spooled_runs(away.spool)) == 1
    assert num_runs(tracker, "away") == 0

    for _ in range(2):
        tracker.replay_spool()
        assert (spooled_runs(tracker.spool), tracker.problem) == ([], None)
    assert_everything_once(tracker, only_run(tracker, "away"))


def test_silent_server_costs_only_seconds(tracker: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as listening:  # accepts and never responds
        silent = Tracker(uri=f"http://127.0.0.1:{listening.getsockname()[1]}", spool=tracker.spool)
        started = time.monotonic()
        with silent.run(dataset="silent", name="DyFormer", tags=TAGS) as run:
            track_everything(run)
        assert time.monotonic() - started < 6
    assert run.problem is not None
    assert len(spooled_runs(tracker.spool)) == 1


def test_tracker_that_goes_away_in_the_middle_gets_the_rest_later(tracker: Tracker, tmp_path: Path) -> None:
    with tracker.run(dataset="middle", name="DyFormer", tags=TAGS) as run:
        run.params({"early": 1})
        uri, tracker.uri = tracker.uri, "http://127.0.0.1:9"
        track_everything(run)
    tracker.uri = uri
    assert run.run_id is not None
    assert tracker.client().get_run(run.run_id).info.status == "RUNNING"
    tracker.replay_spool()
    assert tracker.client().get_run(run.run_id).data.params["early"] == "1"
    assert tracker.client().get_run(run.run_id).info.status == "FINISHED"
    assert num_runs(tracker, "middle") == 1


def test_locked_database_sends_the_run_to_the_spool(
    tracker: Tracker, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.tracking.mlflow_client.LOCKED_SECONDS", 0.2)
    run = tracker.start_run(dataset="locked", name="a", tags=TAGS)
    holder = sqlite3.connect(database, isolation_level=None)
    holder.execute("begin immediate")
    started = time.monotonic()
    run.params({"a": 1})
    run.finish()
    assert time.monotonic() - started < 3
    holder.execute("rollback")
    holder.close()
    assert run.problem is not None
    assert "locked" in run.problem
    tracker.replay_spool()
    assert spooled_runs(tracker.spool) == []
    assert run.run_id is not None
    assert tracker.client().get_run(run.run_id).data.params == {"a": "1"}


def test_broken_database_file_sends_the_run_to_the_spool(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"this is no database at all, only text" * 100)
    tracker = open_tracker(Layout(str(tmp_path)))
    started = time.monotonic()
    with tracker.run(dataset="uci", name="a") as run:
        run.metrics({"loss": 1.0})
    assert time.monotonic() - started < 5
    assert run.problem is not None
    assert len(spooled_runs(tracker.spool)) == 1


def test_spool_that_cannot_be_written_does_not_stop_a_training(tmp_path: Path) -> None:
    (tmp_path / "spool").write_text("a file where the folder should be")
    with Tracker(uri="http://127.0.0.1:9", spool=tmp_path / "spool").run(dataset="uci", name="a") as run:
        run.metrics({"loss": 1.0})
    assert run.problem is not None
    assert "cannot be written" in run.problem


def test_missing_driver_of_the_artifact_store_sends_the_run_to_the_spool(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = Tracker(uri=f"sqlite:///{database}", spool=tmp_path / "spool", artifact_root="s3://nobody/mlflow")
    monkeypatch.setitem(sys.modules, "boto3", None)
    with tracker.run(dataset="driver", name="a") as run:
        run.artifact("a.txt", b"a")
    assert run.problem is not None
    assert "pip install 'dyformer[server]'" in run.problem
    assert len(spooled_runs(tracker.spool)) == 1


def test_interrupted_replay_continues_without_doubling(
    away: Tracker, tracker: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with away.run(dataset="cut", name="DyFormer", tags=TAGS) as run:
        track_everything(run)
    [folder] = spooled_runs(away.spool)
    num_records = len((folder / RECORDS).read_text().splitlines())
    for _ in range(num_records - 2):
        # A crash after a record was applied but before it was marked as done: it is applied again.
        _replay_until(tracker, monkeypatch, 2)
        done = (folder / DONE).read_text().split()
        (folder / DONE).write_text("\n".join([*done[:-1], ""]))
    tracker.replay_spool()
    assert spooled_runs(tracker.spool) == []
    assert_everything_once(tracker, only_run(tracker, "cut"))


def _replay_until(tracker: Tracker, monkeypatch: pytest.MonkeyPatch, num_done: int) -> None:
    import storage.tracking.runs as tracking

    left = [num_done]

    def limited(*arguments: object) -> object:
        if left[0] == 0:
            raise ConnectionError("gone")
        left[0] -= 1
        return whole(*arguments)  # pyright: ignore[reportArgumentType]

    whole = tracking.apply_record
    with monkeypatch.context() as patch:
        patch.setattr(tracking, "apply_record", limited)
        tracker.replay_spool()
        assert tracker.problem == "gone"


def test_last_line_of_a_process_that_died_is_left_out_and_its_run_ends_as_killed(
    away: Tracker, tracker: Tracker
) -> None:
    run = away.start_run(dataset="died", name="a", tags=TAGS)
    run.params({"a": 1})
    [folder] = spooled_runs(away.spool)
    with (folder / RECORDS).open("a") as file:
        file.write('{"id": "half", "kind": "par')
    tracker.replay_spool()
    assert (num_runs(tracker, "died"), tracker.problem) == (0, None)  # its writer still runs
    assert run._spool is not None
    run._spool.close()  # as the kernel does when a process dies
    tracker.replay_spool()
    assert spooled_runs(tracker.spool) == []
    found = tracker.client().get_run(only_run(tracker, "died"))
    assert (found.info.status, found.data.params) == ("KILLED", {"a": "1"})


def test_folder_of_a_process_that_died_in_its_first_record_is_removed(away: Tracker, tracker: Tracker) -> None:
    run = away.start_run(dataset="died", name="a", tags=TAGS)
    [folder] = spooled_runs(away.spool)
    (folder / RECORDS).write_text('{"id": "half", "kind": "sta')
    (folder / WRITTEN).unlink()
    assert run._spool is not None
    run._spool.close()
    tracker.replay_spool()
    assert (list(tracker.spool.iterdir()), tracker.problem) == ([], None)


@pytest.mark.parametrize("failing", [1, 2, 3, 4])
def test_what_a_full_disk_refuses_leaves_nothing_in_the_spool(
    away: Tracker, tracker: Tracker, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == failing:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(spool.os, "fsync", fsync)
        with away.run(dataset=f"full-{failing}", name="a", tags=TAGS) as run:
            run.params({"a": 1})
            run.params({"b": 2})
    assert "No space left" in str(run.problem)
    assert len(list(tracker.spool.iterdir())) == 1  # a start record that failed leaves no folder
    tracker.replay_spool()
    assert (list(tracker.spool.iterdir()), tracker.damage) == ([], None)
    params = tracker.client().get_run(only_run(tracker, f"full-{failing}")).data.params
    # The first two calls are of the start record, which the next record brings again; the third is of the record of a.
    assert params == ({"b": "2"} if failing == 3 else {"a": "1", "b": "2"})


def test_record_that_is_refused_for_good_does_not_hold_up_the_others(away: Tracker, tracker: Tracker) -> None:
    with away.run(dataset="refused", name="a", tags=TAGS) as run:
        run.params({"a": 1})
        run.params({"a": 2})  # MLflow refuses to change a parameter
        run.params({"b": 3})
    [folder] = spooled_runs(away.spool)
    tracker.replay_spool()
    assert spooled_runs(tracker.spool) == []
    assert tracker.client().get_run(only_run(tracker, "refused")).data.params == {"a": "1", "b": "3"}
    assert json.loads((folder / REFUSED).read_text())["params"] == {"a": "2"}


def test_run_whose_files_need_a_server_waits_alone_and_says_so(away: Tracker, tracker: Tracker) -> None:
    tracker.client().create_experiment("dyformer-served", artifact_location="mlflow-artifacts:/served")
    with tracker.run(dataset="served", name="direct") as run:
        run.params({"a": 1})
        run.artifact("a.txt", b"a")
    assert "go through a server" in str(run.problem)
    assert tracker.problem is None  # runs of other datasets are still tracked
    for name in ("before", "served", "after"):
        with away.run(dataset=name, name="spooled") as spooled:
            spooled.artifact("a.txt", b"a")
    tracker.replay_spool()
    assert (num_runs(tracker, "before"), num_runs(tracker, "after")) == (1, 1)
    assert len(spooled_runs(tracker.spool)) == 2  # those of the experiment that a server made
    assert tracker.problem is None
    assert "start `dyformer up`" in str(tracker.damage)


def test_two_replays_at_once_double_nothing(away: Tracker, tracker: Tracker, tmp_path: Path) -> None:
    with away.run(dataset="twice", name="DyFormer", tags=TAGS) as run:
        track_everything(run)
    others = [Tracker(uri=tracker.uri, spool=tracker.spool, artifact_root=tracker.artifact_root) for _ in range(3)]
    tracker.client()
    threads = [threading.Thread(target=other.replay_spool) for other in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tracker.replay_spool()
    assert_everything_once(tracker, only_run(tracker, "twice"))


def test_run_of_a_known_key_continues_and_is_not_doubled(tracker: Tracker, tmp_path: Path) -> None:
    for _ in ("first", "second"):
        with tracker.run(dataset="keyed", name="DyFormer", tags=TAGS, key="abc") as run:
            track_everything(run)
    assert run.run_id is not None
    assert_everything_once(tracker, run.run_id)
    assert num_runs(tracker, "keyed") == 1


def test_a_newer_evaluation_replaces_the_one_before_and_a_repeated_one_adds_nothing(tracker: Tracker) -> None:
    for value in (0.5, 0.25, 0.25):
        with tracker.run(dataset="replaced", name="a", key="abc") as run:
            run.metrics({"loss": value}, step=1)
            run.metrics({"test/auc": value}, step=1, replace=True)
    assert run.run_id is not None
    client = tracker.client()
    history = client.get_metric_history(run.run_id, "test/auc")
    assert [point.value for point in history] == [0.5, 0.25]
    assert client.get_run(run.run_id).data.metrics == {"loss": 0.5, "test/auc": 0.25}
    first = ("test/auc", 0.5, history[0].timestamp, 1)  # sent from the spool, later than the newer one
    record = {"kind": "metrics", "metrics": [first], "once": True, "replaces": True}
    tracker.apply(run.start, run.run_id, record, None)
    assert len(client.get_metric_history(run.run_id, "test/auc")) == 2


def test_a_model_that_is_registered_again_has_the_newest_tags(tracker: Tracker, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "MLmodel").write_text("flavors: {}")
    versions = []
    for forecasts in ("old", "new"):
        with tracker.run(dataset="again", name="a", key="abc") as run:
            tags = {"forecasts": forecasts}
            versions.append(run.register_model(tmp_path / "model", name="again", tags=tags, description=forecasts))
    assert versions == ["1", "1"]
    found = tracker.client().get_model_version("again", "1")
    assert (found.tags["forecasts"], found.description) == ("new", "new")


def test_lost_response_does_not_double_the_run(tracker: Tracker) -> None:
    run = tracker.start_run(dataset="lost", name="a", tags=TAGS)
    assert ensure_run(tracker.client(), run.start) == run.run_id
    assert tracker.client().get_run(str(run.run_id)).data.tags[RUN_KEY] == run.start["run_key"]


def test_numbers_are_sent_together(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tracker.start_run(dataset="batch", name="a")
    sent = []
    client = tracker.client()
    monkeypatch.setattr(client, "log_batch", lambda *arguments, **values: sent.append(len(values["metrics"])))
    for epoch in range(1, 2501):
        run._next_flush = float("inf")
        run.metrics({"loss": 1.0}, step=epoch)
    run.flush()
    assert sent == [1000, 1000, 500]


def test_tracker_costs_nothing_before_its_first_use() -> None:
    code = "import sys, storage.tracking.runs, storage.tracking.model_package; sys.exit('mlflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, env=dict(os.environ)).returncode == 0


def test_files_of_a_database_that_is_named_lie_in_the_store(
    database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{database}")
    layout = Layout(str(tmp_path / "store"))
    with open_tracker(layout).run(dataset="named", name="a") as run:
        run.table("metrics.csv", pl.DataFrame({"a": [1]}))
    assert run.problem is None
    assert [path.name for path in Path(layout.tracking_artifacts).rglob("*.csv")] == ["metrics.csv"]
    assert not (tmp_path / "mlruns").exists()


@pytest.mark.parametrize(
    ("address", "is_own"),
    [("postgresql+psycopg2://host/runs", True), ("http://host", False), ("https://host", False), ("databricks", False)],
)
def test_a_server_names_the_folder_of_files_and_a_database_does_not(
    address: str, is_own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    layout = Layout(str(tmp_path))
    assert open_tracker(layout).artifact_root == (layout.tracking_artifacts if is_own else None)
