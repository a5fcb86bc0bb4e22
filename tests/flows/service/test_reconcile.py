"""A fault of one duty of reconcile stops none of the others."""

import os
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun

from flows.reconcile import RETRY_SECONDS, WHOLE_LOOK, WHOLE_SECONDS, is_by_schedule, is_whole_due, reconcile
from storage.layout import Layout


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


def _fails(*_: object, **__: object) -> None:
    raise ConnectionError("the store is away")


def test_a_server_that_fails_one_duty_does_not_stop_the_others(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    monkeypatch.setattr("flows.reconcile.end_dead_runs", _fails)
    monkeypatch.setattr("flows.reconcile.start_missing", lambda *_, **__: (["mylog, version 2"], []))
    done = reconcile()
    assert [line.partition(":")[0] for line in done["problems"]] == ["runs without a heartbeat, ended"]
    assert done["started"] == ["mylog, version 2"]


def test_everything_is_looked_at_once_an_hour_whatever_the_minute_of_the_clock(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    monkeypatch.delenv("DYFORMER_STATE", raising=False)
    layout = Layout.from_environment()
    looks: list[str] = []

    def sent(_: Layout, *, whole: bool, patient: bool) -> tuple[list[str], list[str]]:
        looks.append(f"sent {whole} {patient}")
        return [], []

    monkeypatch.setattr("flows.reconcile.project", sent)
    monkeypatch.setattr("flows.reconcile.prune_published", lambda *_: (looks.append("pruned"), ([], []))[1])
    monkeypatch.setattr("flows.reconcile.end_tracked", lambda *_: (looks.append("tracked"), [])[1])
    monkeypatch.setattr("flows.reconcile.start_missing", lambda *_, **__: (looks.append("started"), ([], []))[1])
    assert is_whole_due(layout)  # `up` was started for the first time
    reconcile()
    assert looks == ["tracked", "sent True False", "started", "pruned"]
    assert not is_whole_due(layout)
    monkeypatch.setattr("flows.reconcile.is_by_schedule", lambda _: True)
    looks.clear()
    reconcile()
    assert looks == ["sent False True", "started"]
    note = Path(layout.service, WHOLE_LOOK)
    for age in (WHOLE_SECONDS + 1, -WHOLE_SECONDS):  # the clock may have been set back
        moment = time.time() - age
        os.utime(note, (moment, moment))
        looks.clear()
        reconcile()
        assert looks == ["tracked", "sent True True", "started", "pruned"]
    looks.clear()
    monkeypatch.setattr("flows.reconcile.end_orphans", lambda _: ["train until step 3"])
    reconcile()
    assert looks == ["tracked", "sent False True", "started"]  # MLflow's runs of what has died end at once


def test_a_duty_that_failed_is_due_again_before_the_hour_is_over(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    monkeypatch.delenv("DYFORMER_STATE", raising=False)
    monkeypatch.setattr("flows.reconcile.prune_published", lambda *_: 1 / 0)
    assert any("ZeroDivisionError" in problem for problem in reconcile()["problems"])
    layout = Layout.from_environment()
    assert not is_whole_due(layout)
    age = time.time() - Path(layout.service, WHOLE_LOOK).stat().st_mtime
    assert age == pytest.approx(WHOLE_SECONDS - RETRY_SECONDS, abs=60)  # so that the next one is due in ten minutes


def test_only_a_run_that_the_schedule_made_is_by_schedule() -> None:
    run = FlowRun.model_validate({"flow_id": uuid4(), "auto_scheduled": True})
    assert is_by_schedule(run)
    assert not is_by_schedule(run.model_copy(update={"auto_scheduled": False}))
    assert not is_by_schedule(None)


def test_a_look_loads_nothing_that_trains_or_evaluates() -> None:
    heavy = "{'torch', 'scipy', 'numba', 'mlflow'}"
    source = f"import sys, flows.reconcile; print(*{heavy} & sys.modules.keys())"
    loaded = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
