"""A fault of one duty of reconcile stops none of the others."""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun

from flows.reconcile import is_whole_look, reconcile


def test_a_store_that_is_away_fails_no_run_and_is_named(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    monkeypatch.setattr("flows.reconcile.start_missing", _fails)
    monkeypatch.setattr("flows.reconcile.prune_published", lambda *_: (["mylog: 2 versions"], []))
    done = reconcile()
    assert done["problems"] == [
        "retrainings that were missing, started: not done, because of ConnectionError: the store is away"
    ]
    assert (done["started"], done["pruned"]) == ([], ["mylog: 2 versions"])


def _fails(*_: object) -> None:
    raise ConnectionError("the store is away")


def test_a_server_that_fails_one_duty_does_not_stop_the_others(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    monkeypatch.setattr("flows.reconcile.end_dead_runs", _fails)
    monkeypatch.setattr("flows.reconcile.start_missing", lambda *_: (["mylog, version 2"], []))
    done = reconcile()
    assert [line.partition(":")[0] for line in done["problems"]] == ["runs without a heartbeat, ended"]
    assert done["started"] == ["mylog, version 2"]


@pytest.mark.parametrize(("minute", "by_schedule", "is_whole"), [(0, True, True), (1, True, False), (1, False, True)])
def test_a_scheduled_run_looks_at_everything_in_the_first_minute_of_an_hour_alone(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minute: int, by_schedule: bool, is_whole: bool
) -> None:
    due = datetime(2026, 1, 1, 3, minute, tzinfo=UTC)
    run = FlowRun.model_validate({"flow_id": uuid4(), "auto_scheduled": by_schedule, "expected_start_time": due})
    assert is_whole_look(run) == is_whole
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    looks: list[str] = []
    monkeypatch.setattr("flows.reconcile.is_whole_look", lambda _: is_whole)
    monkeypatch.setattr("flows.reconcile.project", lambda _, *, whole: (looks.append(f"sent {whole}"), ([], []))[1])
    monkeypatch.setattr("flows.reconcile.prune_published", lambda *_: (looks.append("pruned"), ([], []))[1])
    monkeypatch.setattr("flows.reconcile.end_tracked", lambda *_: (looks.append("tracked"), [])[1])
    monkeypatch.setattr("flows.reconcile.start_missing", lambda *_: (looks.append("started"), ([], []))[1])
    reconcile()
    assert looks == (["tracked", "sent True", "started", "pruned"] if is_whole else ["sent False", "started"])
    monkeypatch.setattr("flows.reconcile.end_orphans", lambda _: ["train until step 3"])
    reconcile()
    assert looks.count("tracked") == 1 + is_whole  # MLflow's runs of what has died end at once


def test_a_look_loads_nothing_that_trains_or_evaluates() -> None:
    heavy = "{'torch', 'scipy', 'numba', 'mlflow'}"
    source = f"import sys, flows.reconcile; print(*{heavy} & sys.modules.keys())"
    loaded = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
