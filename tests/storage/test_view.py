"""The view and the description with which MLflow's page of an experiment opens."""

import json
from pathlib import Path

import pytest

from storage.layout import Layout
from storage.tracking.pages import run_page, runs_page
from storage.tracking.runs import Tracker
from storage.tracking.view import SECTIONS, VIEW


@pytest.fixture
def tracker(tmp_path: Path, empty_database) -> Tracker:
    return Tracker(uri=f"sqlite:///{empty_database(tmp_path / 'mlflow.db')}", layout=Layout(str(tmp_path)))


def tags_of(tracker: Tracker, name: str) -> dict[str, str]:
    experiment = tracker.client().get_experiment_by_name(name)
    assert experiment is not None
    return experiment.tags


def test_an_experiment_is_made_with_its_view_and_description(tracker: Tracker) -> None:
    with tracker.run(dataset="uci", name="one"):
        pass
    tags = tags_of(tracker, "dyformer-uci")
    assert "`promoted`" in tags["mlflow.note.content"]
    state = json.loads(tags[f"mlflow.sharedViewState.{VIEW}"])
    assert state["selectedColumns"][:2] == ["tags.`promoted`", "metrics.`test/macro_mrr`"]
    assert [section["name"] for section in state["compareRunSections"]] == list(SECTIONS)


def test_address_names_the_experiment_that_changed_last_and_its_view(tracker: Tracker) -> None:
    client = tracker.client()
    experiment = client.create_experiment("dyformer-one")
    client.create_experiment("of-another-program")
    assert runs_page(tracker.uri).endswith(f"{experiment}/runs?workflowType=machine_learning&viewStateShareKey={VIEW}")


def test_page_of_a_run_is_that_of_a_server_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_page("sqlite:////data/mlflow.db", "abc", "7") is None
    own = "/#/experiments/7/runs/abc?workflowType=machine_learning"
    assert run_page("http://me:secret@mlflow:5000/", "abc", "7") == f"http://mlflow:5000{own}"
    monkeypatch.setenv("DYFORMER_MLFLOW_PAGES", "https://me:secret@ml.example/mlflow")
    assert run_page("http://mlflow:5000", "abc", "7") == f"https://ml.example/mlflow{own}"
