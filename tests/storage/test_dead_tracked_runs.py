"""MLflow's runs whose flow run has ended are marked as killed; others go on."""

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from storage.layout import Layout
from storage.tracking.pages import make_database, runs_page
from storage.tracking.runs import open_tracker
from storage.tracking.upkeep import FLOW_RUN, end_dead_runs


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_database: Callable[[Path], Path]) -> Layout:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    empty_database(tmp_path / "mlflow.db")
    return Layout(str(tmp_path))


def test_runs_of_dead_flows_are_killed_and_others_go_on(layout: Layout) -> None:
    tracker = open_tracker(layout)
    runs = {
        name: tracker.start_run(dataset="uci", name=name, tags=tags)
        for name, tags in {"dead": {FLOW_RUN: "a"}, "live": {FLOW_RUN: "b"}, "of no flow": {}}.items()
    }
    done = tracker.start_run(dataset="uci", name="done", tags={FLOW_RUN: "a"})
    done.finish()
    looked: list[Mapping[str, datetime]] = []

    def ended(since: Mapping[str, datetime]) -> Collection[str]:
        looked.append(since)
        return {"a"}

    assert end_dead_runs(tracker, ended) == ["dead"]
    assert [set(since) for since in looked] == [{"a", "b"}]
    assert all(abs(datetime.now(UTC) - began) < timedelta(minutes=5) for began in looked[0].values())
    client = tracker.client()
    states = {name: client.get_run(str(run.run_id)).info.status for name, run in {**runs, "done": done}.items()}
    assert states == {"dead": "KILLED", "live": "RUNNING", "of no flow": "RUNNING", "done": "FINISHED"}
    assert end_dead_runs(tracker, ended) == []
    runs["dead"].finish()  # a training that is resumed continues its run
    assert client.get_run(str(runs["dead"].run_id)).info.status == "FINISHED"


def test_a_server_without_runs_has_none_that_are_dead(layout: Layout) -> None:
    assert end_dead_runs(open_tracker(layout), lambda ids: ids) == []


def test_page_of_the_runs_is_that_of_the_experiment_that_changed_last(layout: Layout) -> None:
    tracker = open_tracker(layout)
    assert runs_page(tracker.uri) == f"{tracker.uri}/#/experiments"
    client = tracker.client()
    client.create_experiment("dyformer-uci")
    newest = client.create_experiment("dyformer-rds")
    client.create_experiment("of-another-program")
    assert runs_page(tracker.uri).startswith(f"{tracker.uri}/#/experiments/{newest}/runs?workflowType=machine_learning")


def test_database_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    monkeypatch.setattr("storage.tracking.pages.connect", made.append)
    monkeypatch.setattr("storage.tracking.pages.follow_store", lambda layout: None)
    make_database(Layout(str(tmp_path)))
    assert made == [f"sqlite:///{tmp_path}/mlflow.db"]
