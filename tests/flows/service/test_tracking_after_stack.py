"""Runs of a store go on in MLflow when the server of `dyformer up` stops, and when it starts again."""

import base64
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from flows.service import stack
from flows.service.listening import listening, port_of
from flows.service.login import MLFLOW
from flows.service.processes import end_marked
from storage.layout import Layout
from storage.tracking.runs import TrackedRun, open_tracker
from storage.tracking.spool import spooled_runs


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_database: Callable[[Path], Path]) -> Layout:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path))
    monkeypatch.delenv("DYFORMER_STATE", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    layout = Layout.from_environment()
    empty_database(Path(layout.state) / "mlflow.db")
    Path(layout.service).mkdir()
    return layout


@contextmanager
def mlflow_server(layout: Layout) -> Iterator[str]:
    """Start MLflow's server as `dyformer up` does, and point this process to it."""
    mark = uuid.uuid4().hex
    with pytest.MonkeyPatch.context() as patch, ExitStack() as ending:
        listeners = {name: ending.enter_context(listening(stack.HOST, 0)) for name in stack.USUAL_PORTS}
        addresses = stack._addresses({name: port_of(listener) for name, listener in listeners.items()})
        for name, value in stack._variables_of_clients(addresses).items():
            patch.setenv(name, value)
        _, service = stack._servers(layout, Path(layout.service), addresses, listeners, mark)
        ending.callback(lambda: service.process and service.process.wait(timeout=30))
        ending.callback(end_marked, mark, 10)
        service.start()
        service.wait_until_ready(stack.SECONDS_TO_START, lambda: False)
        yield addresses["mlflow"]


def file_of(server: str, run: str | None) -> bytes:
    login = base64.b64encode(":".join(os.environ[name] for name in MLFLOW).encode()).decode()
    address = f"{server}/get-artifact?path=note.txt&run_uuid={run}"
    with urlopen(Request(address, headers={"authorization": f"Basic {login}"}), timeout=30) as response:
        return response.read()


def tracked(layout: Layout, name: str, dataset: str = "uci") -> TrackedRun:
    """Track a run with a file and a model."""
    model = Path(layout.root) / "a-model"
    model.mkdir(exist_ok=True)
    (model / "MLmodel").write_text("flavors: {}")
    with open_tracker(layout).run(dataset=dataset, name=name) as run:
        run.artifact("note.txt", name.encode())
        run.register_model(model, name=f"dyformer-{dataset}")
    return run


def test_a_store_is_tracked_with_its_server_without_it_and_with_it_again(layout: Layout) -> None:
    with mlflow_server(layout):
        runs = [tracked(layout, "with")]
    runs.append(tracked(layout, "without"))
    client = open_tracker(layout).client()
    assert [run.problem for run in runs] == [None, None]
    for run, version in zip(runs, "12", strict=True):
        assert run.run_id is not None
        assert {file.path for file in client.list_artifacts(run.run_id)} == {"note.txt", "model"}
        address = str(client.get_run(run.run_id).info.artifact_uri)
        assert address.startswith(layout.tracking_artifacts)
        assert client.get_model_version("dyformer-uci", version).source == f"{address}/model"
    client.create_experiment("dyformer-served", artifact_location="mlflow-artifacts:/served")
    runs.append(tracked(layout, "waits", "served"))
    assert "start `dyformer up`" in str(runs[-1].problem)
    with mlflow_server(layout) as server:
        for path in ("", "version", "api/2.0/mlflow/experiments/search?max_results=9", "get-artifact?path=note.txt"):
            with pytest.raises(HTTPError, match="401"):
                urlopen(f"{server}/{path}", timeout=30)
        assert tracked(layout, "again").problem is None
        open_tracker(layout).replay_spool()
        assert spooled_runs(Path(layout.spool)) == []
        for run in runs:
            assert file_of(server, run.run_id) == run.start["name"].encode()
