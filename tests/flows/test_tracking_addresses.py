"""A command names the page of its run in MLflow, and no output has the password of MLflow's address."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest

from flows.commands.runs import next_commands
from flows.ending import exit_code
from flows.service import doctor, stack
from flows.tasks.tracking.projection import project
from storage.artifacts.artifact import Lineage, write_artifact
from storage.layout import Layout
from storage.tracking.runs import open_tracker, tracking_of, where

SERVER = "http://me:canary@127.0.0.1:9"
DATABASE = "postgresql://me:canary@127.0.0.1:9/db"


@pytest.fixture(autouse=True)
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path))
    monkeypatch.delenv("DYFORMER_STATE", raising=False)
    monkeypatch.delenv("DYFORMER_MLFLOW_PAGES", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return Layout(str(tmp_path))


def tracked(layout: Layout, **changes: object) -> dict[str, Any]:
    """Make the record of a run at the present address, as if MLflow had taken it."""
    return {**where(open_tracker(layout), {"run": "abc", "experiment": "7"}), **changes}


def commands(tracking: dict[str, Any]) -> list[str]:
    addresses = {"forecasts": "/store/dataset=uci", "vectors": "/store/dataset=uci"}
    summary = {"dataset": "uci", "addresses": addresses, "tracking": tracking, "promotion": {"champion": None}}
    ends = {"directed": True, "bipartite": False}
    return next_commands({**summary, **ends}, [], [], None)[2:]  # after those of forecasts and vectors


@pytest.mark.parametrize(
    ("ends", "pairs"),
    [
        ({"directed": True, "bipartite": False}, ["a b", "b a", "c a"]),
        ({"directed": False, "bipartite": False}, ["a b", "c a"]),
        ({"directed": True, "bipartite": True}, ["a b", "c a"]),
    ],
    ids=["directed", "undirected", "bipartite"],
)
def test_the_next_command_lists_each_pair_once(ends: dict[str, bool], pairs: list[str]) -> None:
    champion = {"promotion": {"champion": {}}, "tracking": {"problem": "away", "tracker": "", "run": ""}}
    addresses = {"forecasts": "/store/dataset=uci", "vectors": "/store/dataset=uci"}
    summary = {"dataset": "uci", "addresses": addresses, **champion, **ends}
    with duckdb.connect() as database:
        database.sql(
            "create table latest_forecasts as select 'uci' as dataset, true as linked_before, score as probability, *"
            " from (values ('a', 0, 'b', 3), ('b', 1, 'a', 2), ('c', 0, 'a', 1)) as _(id, side, partner_id, score)"
        )
        statement = shlex.split(next_commands(summary, [], [], None)[0])[2]
        assert [f"{row[0]} {row[1]}" for row in database.sql(statement).fetchall()] == pairs


def test_next_command_opens_the_page_of_the_run(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    page = 'open "http://127.0.0.1:5000/#/experiments/7/runs/abc?workflowType=machine_learning"'
    assert commands(tracked(layout)) == ["dyformer ui", page]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert commands(tracked(layout)) == [page]
    assert commands(tracked(layout, problem="it is away")) == []


@pytest.mark.parametrize("address", [SERVER, DATABASE])
def test_record_and_next_commands_of_a_run_have_no_password(
    address: str, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    tracking = tracked(layout)
    assert tracking["tracker"] == address.replace("me:canary@", "")
    assert "canary" not in json.dumps(tracking)
    page = {
        SERVER: 'open "http://127.0.0.1:9/#/experiments/7/runs/abc?workflowType=machine_learning"',
        DATABASE: "dyformer ui",
    }
    assert commands(tracking)[0] == page[address]
    assert "canary" not in "".join(commands(tracking))


def test_problem_of_a_run_has_no_password(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(uri: str) -> None:
        raise ConnectionError(f"API request to {uri}/api failed")

    monkeypatch.setattr("storage.tracking.runs.connect", refused)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", SERVER)
    lineage = Lineage(kind="study", dataset="uci", table_version=1, until=3)
    address = layout.artifact("study", "uci", version=1, until=3, settings="0" * 12)
    record = b'{"study": "a", "snapshots": "3_snapshots"}'
    write_artifact(address, {"study.json": record}, lineage)
    monkeypatch.setattr("flows.tasks.tracking.results.SEND", {"study": lambda tracker, address: tracker.client()})
    problem = "API request to http://127.0.0.1:9/api failed"
    assert project(layout).problems == [problem]
    assert tracking_of(address)["problem"] == problem


@pytest.mark.parametrize("address", [SERVER, DATABASE])
@pytest.mark.parametrize("is_away", [True, False])
def test_doctor_prints_no_password(
    address: str, is_away: bool, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(tracker: object) -> dict[str, object]:
        if is_away:
            raise ConnectionError(f"API request to {address}/api failed")
        return {}

    monkeypatch.setattr(doctor, "running_flows", found)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    [finding] = doctor._mlflow(layout)
    assert finding.outcome == ("wrong" if is_away else "ok")
    assert finding.detail.startswith(address.replace("me:canary@", ""))
    assert "canary" not in str(finding)


def raising(error: Exception) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


def test_unexpected_error_and_its_log_have_no_password(layout: Layout, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(raising(RuntimeError(f"API request to {SERVER}/api failed"))) == 1
    assert "API request to http://127.0.0.1:9/api failed" in capsys.readouterr().err
    [log] = Path(layout.faults).iterdir()
    assert "API request to http://127.0.0.1:9/api failed" in log.read_text()
    assert "canary" not in log.read_text()


def test_stack_without_runs_names_the_page_that_lists_them(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = {"prefect": "http://127.0.0.1:4200/api", "mlflow": "http://127.0.0.1:5000"}
    for page, is_new in (("/#/experiments", True), ("/#/experiments/1/runs?workflowType=machine_learning", False)):
        lines: list[str] = []
        monkeypatch.setattr("storage.tracking.pages.runs_page", lambda uri, page=page: uri + page)
        stack._show(layout, addresses, 1.0, lambda function, *values: function(*values), lines.append)
        assert f"MLflow:  http://127.0.0.1:5000{page}" in lines
        assert any("Choose Model training" in line for line in lines) is is_new
