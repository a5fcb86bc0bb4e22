"""Runs of a store go on in MLflow when the server of `dyformer up` stops, and when it starts again."""

import base64
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from flows.service import stack
from flows.service.listening import listening, port_of
from flows.service.processes import end_marked
from flows.service.running import MLFLOW
from flows.tasks.tracking import results
from flows.tasks.tracking.projection import project
from storage.artifacts.artifact import Lineage, lineage_of, write_artifact
from storage.layout import Layout
from storage.tracking.marks import due
from storage.tracking.runs import Tracker, open_tracker, tracking_of


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


def result(layout: Layout, name: str, dataset: str = "uci") -> str:
    """Store a result, whose run has a file and a model."""
    number = len(NAMES)
    lineage = Lineage(kind="study", dataset=dataset, table_version=number, until=3)
    address = layout.artifact("study", dataset, version=number, until=3, settings="0" * 12)
    NAMES[address] = name
    return write_artifact(address, {}, lineage)


def send(tracker: Tracker, address: str) -> dict[str, Any]:
    model, dataset = Path(tracker.layout.root) / "a-model", lineage_of(address).dataset
    model.mkdir(exist_ok=True)
    (model / "MLmodel").write_text("flavors: {}")
    with tracker.run(dataset=dataset, name=NAMES[address], key=NAMES[address]) as run:
        run.artifact("note.txt", NAMES[address].encode())
        run.register_model(model, name=f"dyformer-{dataset}")
    return run.where


NAMES: dict[str, str] = {}


def test_a_store_is_tracked_with_its_server_without_it_and_with_it_again(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(results.SEND, "study", send)
    made = [result(layout, "with")]
    with mlflow_server(layout):
        assert project(layout).problems == []
    made.append(result(layout, "without"))
    assert project(layout).problems == []
    client = open_tracker(layout).client()
    for each, version in zip(made, "12", strict=True):
        run = tracking_of(each)["run"]
        assert {file.path for file in client.list_artifacts(run)} == {"note.txt", "model"}
        address = str(client.get_run(run).info.artifact_uri)
        assert address.startswith(layout.tracking_artifacts)
        assert client.get_model_version("dyformer-uci", version).source == f"{address}/model"
    client.create_experiment("dyformer-served", artifact_location="mlflow-artifacts:/served")
    made.append(result(layout, "waits", "served"))
    assert "start `dyformer up`" in project(layout).problems[0]
    with mlflow_server(layout) as server:
        for path in ("", "version", "api/2.0/mlflow/experiments/search?max_results=9", "get-artifact?path=note.txt"):
            with pytest.raises(HTTPError, match="401"):
                urlopen(f"{server}/{path}", timeout=30)
        made.append(result(layout, "again"))
        assert project(layout).problems == []
        assert due(layout) == []
        for each in made:
            assert file_of(server, tracking_of(each)["run"]) == NAMES[each].encode()
