"""A run that is tracked again doubles nothing, and the curves of a training that runs never stop it."""

import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from matplotlib.figure import Figure

from storage.layout import Layout
from storage.tracking import mlflow_client, runs
from storage.tracking.mlflow_client import RUN_KEY, Point, connect, runs_of_key, send_points
from storage.tracking.runs import LiveCurves, TrackedRun, TrackedTwice, Tracker, open_tracker

TAGS = {"seed": 0, "method": "DyFormer"}


@pytest.fixture(autouse=True)
def no_outer_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def database(empty_database: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return empty_database(tmp_path_factory.mktemp("tracking") / "mlflow.db")


@pytest.fixture
def tracker(database: Path, tmp_path: Path) -> Tracker:
    return open_tracker(Layout(str(database.parent)))


class DyingClient:
    """MLflow's client, whose process dies while it makes the tables of a database; later ones make all."""

    died = False

    def __init__(self, tracking_uri: str, registry_uri: str = ""):
        self.path = Path(tracking_uri.removeprefix("sqlite:///"))

    def search_experiments(self, max_results: int) -> None:
        self.path.write_bytes(b"")
        with closing(sqlite3.connect(self.path)) as database:
            database.execute("create table first (id integer)")
            if not DyingClient.died:
                DyingClient.died = True
                raise KeyboardInterrupt
            database.execute("create table second (id integer)")


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


def num_runs(tracker: Tracker, dataset: str) -> int:
    experiment = tracker.client().get_experiment_by_name(f"dyformer-{dataset}")
    return len(tracker.client().search_runs([experiment.experiment_id])) if experiment else 0


def test_everything_of_a_run_arrives(tracker: Tracker, tmp_path: Path) -> None:
    with tracker.run(dataset="uci", name="DyFormer", tags=TAGS) as run:
        track_everything(run)
    assert_everything_once(tracker, run.run_id)


def test_files_lie_in_the_store_and_not_in_the_working_directory(
    tracker: Tracker, database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with tracker.run(dataset="uci", name="x") as run:
        run.artifact("a.txt", b"a")
    uri = tracker.client().get_run(run.run_id).info.artifact_uri
    assert uri is not None
    assert uri.startswith(str(database.parent))
    assert list(tmp_path.glob("*ml*")) == []


def test_environment_decides_about_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow:5000")
    tracker = open_tracker(Layout(str(tmp_path)))
    assert (tracker.uri, tracker.artifact_root) == ("http://mlflow:5000", None)


def test_run_of_a_known_key_continues_and_is_not_doubled(tracker: Tracker, tmp_path: Path) -> None:
    for _ in ("first", "second"):
        with tracker.run(dataset="keyed", name="DyFormer", tags=TAGS, key="abc") as run:
            track_everything(run)
    assert_everything_once(tracker, run.run_id)
    assert num_runs(tracker, "keyed") == 1


def test_a_newer_evaluation_replaces_the_one_before_and_a_repeated_one_adds_nothing(tracker: Tracker) -> None:
    for value in (0.5, 0.25, 0.25):
        with tracker.run(dataset="replaced", name="a", key="abc") as run:
            run.metrics({"loss": value}, step=1)
            run.metrics({"test/auc": value}, step=1, replace=True)
    client = tracker.client()
    history = client.get_metric_history(run.run_id, "test/auc")
    assert [point.value for point in history] == [0.5, 0.25]
    assert client.get_run(run.run_id).data.metrics == {"loss": 0.5, "test/auc": 0.25}
    send_points(client, run.run_id, [Point("test/auc", 0.5, history[0].timestamp, 1, True)])  # by a late writer
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


def test_of_two_runs_with_one_key_the_older_one_stays_and_goes_on(tracker: Tracker, tmp_path: Path) -> None:
    (tmp_path / "MLmodel").write_text("flavors: {}")
    client, runs = tracker.client(), []
    for number in range(2):
        with tracker.run(dataset="doubled", name="a", key=f"key {number}") as run:
            run.register_model(tmp_path, name="dyformer-doubled")
        runs.append(run)
        time.sleep(0.01)
    client.set_tag(runs[1].run_id, RUN_KEY, "key 0")  # as a machine without the lock of the first one
    with tracker.run(dataset="doubled", name="a", key="key 0") as again:
        again.metrics({"loss": 1.0})
    assert again.run_id == runs[0].run_id
    assert num_runs(tracker, "doubled") == 1
    assert [version.run_id for version in client.search_model_versions("name = 'dyformer-doubled'")] == [again.run_id]


def test_a_run_that_another_machine_creates_meanwhile_is_an_error_so_that_it_is_sent_again(tracker: Tracker) -> None:
    def track() -> None:
        with tracker.run(dataset="raced", name="a", key="k") as run:
            own = tracker.client().get_run(run.run_id).info
            tracker.client().create_run(own.experiment_id, tags={RUN_KEY: "k"})

    with pytest.raises(TrackedTwice, match="sent again"):
        track()
    tracker.start_run(dataset="raced", name="a", key="k").finish()
    assert num_runs(tracker, "raced") == 1


def test_numbers_are_sent_together(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    run, sent = tracker.start_run(dataset="batch", name="a"), []
    monkeypatch.setattr(tracker.client(), "log_batch", lambda *arguments, **values: sent.append(len(values["metrics"])))
    for epoch in range(1, 2501):
        run.metrics({"loss": 1.0}, step=epoch)
    run.flush()
    run.flush()
    assert sent == [1000, 1000, 500]


def sent_files(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Note the files of each upload from now on."""
    sent: list[list[str]] = []
    send = mlflow_client.send_files

    def noting(client: Any, run_id: str, files: Path, path: str | None) -> None:
        sent.append(sorted(str(each.relative_to(files)) for each in files.rglob("*") if each.is_file()))
        send(client, run_id, files, path)

    monkeypatch.setattr(mlflow_client, "send_files", noting)
    return sent


def test_files_are_sent_together_and_tags_in_one_call(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = sent_files(monkeypatch)
    with tracker.run(dataset="uci", name="x") as run:
        run.artifact("a/one.txt", b"1")
        run.artifact("a/two.txt", b"2")
        run.artifact("three.txt", b"3")
        assert sent == []
        run.tags({f"tag {number}": number for number in range(230)})
    assert sent == [["a/one.txt", "a/two.txt", "three.txt"]]
    client = tracker.client()
    assert {f"tag {number}": str(number) for number in range(230)}.items() <= client.get_run(
        run.run_id
    ).data.tags.items()
    assert [file.path for file in client.list_artifacts(run.run_id, "a")] == ["a/one.txt", "a/two.txt"]


def test_many_bytes_are_sent_before_the_end_and_once(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = sent_files(monkeypatch)
    monkeypatch.setattr(runs, "MOST_WAITING_BYTES", 5)
    with tracker.run(dataset="uci", name="x") as run:
        for number in range(5):
            run.artifact(f"a/{number}.txt", b"123")
    assert sent == [["a/0.txt", "a/1.txt"], ["a/2.txt", "a/3.txt"], ["a/4.txt"]]
    assert len(tracker.client().list_artifacts(run.run_id, "a")) == 5


def test_a_registered_version_has_the_files_of_its_run(
    tracker: Tracker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "MLmodel").write_text("flavors: {}")
    sent = sent_files(monkeypatch)
    with tracker.run(dataset="uci", name="x") as run:
        run.artifact("report.html", b"a page")
        run.register_model(tmp_path / "packed", name="dyformer-uci")
        assert sent == [["report.html"], ["MLmodel"]]
    assert len(sent) == 2


@pytest.fixture
def every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time pass between two sendings."""
    monkeypatch.setattr(runs, "FLUSH_SECONDS", -1.0)
    monkeypatch.setattr(runs, "FLUSH_PAUSE", 0)


def curves_of(tracker: Tracker, dataset: str) -> LiveCurves:
    def start() -> TrackedRun:
        return tracker.start_run(dataset=dataset, name="training", key=dataset)

    return LiveCurves(tracker=tracker, dataset=dataset, start=start, _next_flush=0.0)


@pytest.mark.usefixtures("every_epoch")
def test_a_training_waits_a_moment_for_a_process_that_sends_and_sends_its_curve_later(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "SECONDS_TO_WAIT", 0.2)
    curves, held, ended = curves_of(tracker, "waiting"), threading.Event(), threading.Event()

    def sending() -> None:
        with tracker.turn("waiting"):
            held.set()
            ended.wait(60)

    other = threading.Thread(target=sending)
    other.start()
    held.wait(60)
    started = time.monotonic()
    curves.add({"loss": 1.0}, 1)
    assert time.monotonic() - started < 10  # far less than MOST_SECONDS
    assert not tracker.is_paused
    ended.set()
    other.join()
    curves.add({"loss": 0.5}, 2)
    [run] = runs_of_key(tracker.client(), "dyformer-waiting", "waiting")
    points = tracker.client().get_metric_history(run.info.run_id, "loss")
    assert [(point.step, point.value) for point in points] == [(1, 1.0), (2, 0.5)]


@pytest.mark.usefixtures("every_epoch")
def test_a_silent_server_costs_a_training_one_call_until_a_pause_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    with socket.create_server(("127.0.0.1", 0)) as listening:  # accepts and never responds
        tracker = Tracker(uri=f"http://127.0.0.1:{listening.getsockname()[1]}", layout=Layout(str(tmp_path)))
        curves, started, calls = curves_of(tracker, "silent"), time.monotonic(), []
        monkeypatch.setattr(tracker, "client", lambda known=tracker.client: calls.append(1) or known())
        for epoch in range(50):
            curves.add({"loss": 1.0}, epoch)
        curves.flush()
        assert time.monotonic() - started < 5
        assert len(calls) == 1
        tracker._paused_until = 0.0
        curves.add({"loss": 1.0}, 50)
        assert len(calls) == 2
    assert "timed out" in str(tracker.problem).lower()


@pytest.mark.usefixtures("every_epoch")
def test_epochs_that_a_tracker_missed_are_sent_when_it_is_back(tracker: Tracker) -> None:
    curves, uri = curves_of(tracker, "missed"), tracker.uri
    for epoch in range(1, 6):
        if epoch == 2:
            tracker.uri = "http://127.0.0.1:9"
        if epoch == 4:
            assert "Connection refused" in str(tracker.problem)
            tracker.uri = uri
            tracker.resume()
        curves.add({"loss": float(epoch)}, epoch)
    curves.flush("FAILED")
    run = tracker.start_run(dataset="missed", name="training", key="missed")
    history = tracker.client().get_metric_history(run.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [(k, float(k)) for k in range(1, 6)]
    assert tracker.client().get_run(run.run_id).info.status == "FAILED"


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


@pytest.mark.parametrize("is_copy", [False, True], ids=["moved", "copied"])
def test_the_runs_of_a_moved_or_copied_store_have_their_files_in_it(
    database: Path, tmp_path: Path, is_copy: bool
) -> None:
    old, new = tmp_path / "old" / "store", tmp_path / "new" / "store"
    old.mkdir(parents=True)
    shutil.copy(database, old / "mlflow.db")
    with open_tracker(Layout(str(old))).run(dataset="mylog", name="first", key="first") as run:
        run.artifact("model/weights.safetensors", b"weights")
        client = run.tracker.client()
        foreign = client.create_experiment("of a user", artifact_location=f"{tmp_path}/mlflow/elsewhere")
        mlflow_client.register(client, run.run_id, "dyformer-mylog", {}, [], "")
    shutil.copytree(old, new) if is_copy else shutil.move(old, new)
    before = sorted(old.rglob("*"))
    tracker = open_tracker(Layout(str(new)))
    with tracker.run(dataset="mylog", name="second", key="second") as again:
        again.artifact("model/weights.safetensors", b"weights")
    client = tracker.client()
    for run_id in (run.run_id, again.run_id):
        address = str(client.get_run(run_id).info.artifact_uri)
        assert (Path(address) / "model" / "weights.safetensors").read_bytes() == b"weights"
        assert address.startswith(f"{new}/mlflow/dyformer-mylog/")
    [version] = client.search_model_versions("name = 'dyformer-mylog'")
    assert str(version.source) == f"{new}/mlflow/dyformer-mylog/{run.run_id}/artifacts/model"
    assert client.get_model_version_download_uri("dyformer-mylog", version.version) == version.source
    assert client.get_experiment(foreign).artifact_location == f"{tmp_path}/mlflow/elsewhere"
    assert sorted(old.rglob("*")) == before


def test_two_stores_with_one_database_have_their_own_files(database: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    shutil.copy(database, state / "mlflow.db")
    first, second = (open_tracker(Layout(str(tmp_path / name), str(state))) for name in ("one", "two"))
    for number, tracker in enumerate((first, second)):
        with tracker.run(dataset=f"log-{number}", name="run", key=f"{number}") as run:
            address = str(tracker.client().get_run(run.run_id).info.artifact_uri)
            assert address.startswith(f"{tracker.layout.root}/mlflow/")
    [again] = runs_of_key(second.client(), "dyformer-log-0", "0")
    assert str(again.info.artifact_uri).startswith(f"{first.layout.root}/mlflow/")
