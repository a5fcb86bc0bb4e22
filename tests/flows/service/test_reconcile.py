"""A fault of one duty of reconcile stops none of the others."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.reconcile import reconcile
from flows.service.deployments import deploy, read_deployments
from flows.service.look import (
    DEPLOYMENT,
    RETRY_SECONDS,
    WHOLE_LOOK,
    WHOLE_SECONDS,
    is_whole_due,
    look_by_itself,
    num_versions,
)
from flows.service.server import TEMPORARY
from flows.tasks.retention import KEEP
from storage.layout import Layout

ROOT = Path(__file__).parents[3]


def test_a_store_that_is_away_fails_no_run_and_is_named(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    monkeypatch.setattr("flows.service.look.start_missing", _fails)
    monkeypatch.setattr("flows.service.look.prune_published", lambda *_: (["mylog: 2 versions"], []))
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
    monkeypatch.setattr("flows.service.look.end_dead_runs", _fails)
    monkeypatch.setattr("flows.service.look.start_missing", lambda *_, **__: (["mylog, version 2"], []))
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

    monkeypatch.setattr("flows.service.look.project", sent)
    monkeypatch.setattr("flows.service.look.prune_published", lambda *_: (looks.append("pruned"), ([], []))[1])
    monkeypatch.setattr("flows.service.look.end_tracked", lambda *_: (looks.append("tracked"), [])[1])
    monkeypatch.setattr("flows.service.look.start_missing", lambda *_, **__: (looks.append("started"), ([], []))[1])
    assert is_whole_due(layout)  # `up` was started for the first time
    reconcile()
    assert looks == ["tracked", "started", "sent True False", "pruned"]
    assert not is_whole_due(layout)
    looks.clear()
    look_by_itself()
    assert looks == ["started", "sent False True"]
    note = Path(layout.service, WHOLE_LOOK)
    for age in (WHOLE_SECONDS + 1, -WHOLE_SECONDS):  # the clock may have been set back
        moment = time.time() - age
        os.utime(note, (moment, moment))
        looks.clear()
        look_by_itself()
        assert looks == ["tracked", "started", "sent True True", "pruned"]
    looks.clear()
    monkeypatch.setattr("flows.service.look.end_orphans", lambda _: ["train until step 3"])
    look_by_itself()
    assert looks == ["tracked", "started", "sent False True"]  # MLflow's runs of what has died end at once


def test_a_duty_that_failed_is_due_again_before_the_hour_is_over(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    monkeypatch.delenv("DYFORMER_STATE", raising=False)
    monkeypatch.setattr("flows.service.look.prune_published", lambda *_: 1 / 0)
    assert any("ZeroDivisionError" in problem for problem in reconcile()["problems"])
    layout = Layout.from_environment()
    assert not is_whole_due(layout)
    age = time.time() - Path(layout.service, WHOLE_LOOK).stat().st_mtime
    assert age == pytest.approx(WHOLE_SECONDS - RETRY_SECONDS, abs=60)  # so that the next one is due in ten minutes


def test_the_number_of_versions_that_stay_is_that_of_the_deployment(client: SyncPrefectClient) -> None:
    [deployment] = [each for each in read_deployments(ROOT / "prefect.yaml") if each.full_name == DEPLOYMENT]
    deploy([deployment])
    assert num_versions(client) == KEEP
    for number in (3, None):
        deploy([deployment.model_copy(update={"parameters": {"keep": number}})])
        assert num_versions(client) == number
    client.delete_deployment(client.read_deployment_by_name(DEPLOYMENT).id)
    assert num_versions(client) == KEEP


def test_a_look_that_did_something_has_a_page_and_another_one_has_none(
    client: SyncPrefectClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    monkeypatch.delenv("DYFORMER_STATE", raising=False)
    look_by_itself()  # at everything

    def pages() -> list[tuple[str, str]]:
        found = client.request("POST", "/artifacts/filter", json={"artifacts": {"key": {"any_": ["reconcile-all"]}}})
        return [(page["description"], page["data"]) for page in found.json()]

    before = pages()
    look_by_itself()
    monkeypatch.setattr("flows.service.look.start_missing", lambda *_, **__: ([], ["other: a fault"]))
    look_by_itself()
    assert pages() == before  # a fault that stays has one page an hour
    monkeypatch.setattr("flows.service.look.start_missing", lambda *_, **__: (["mylog, version 2"], ["other: a fault"]))
    look_by_itself()
    [(outcome, page)] = [each for each in pages() if each not in before]
    assert outcome == "retrainings that were missing, started: 1; to be looked at: 1"
    assert page == (
        "## retrainings that were missing, started\n\n- mylog, version 2\n\n## to be looked at\n\n- other: a fault"
    )


def test_no_look_starts_a_server_or_waits_for_one_that_is_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("flows.service.look.get_client", _fails)
    with monkeypatch.context() as patch:
        patch.setattr("flows.service.look.server_in_use", lambda: TEMPORARY)
        look_by_itself()
    assert capsys.readouterr().out == ""
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        look_by_itself()
    printed = capsys.readouterr().out
    assert printed.startswith("nothing is looked at, because the Prefect server at http://127.0.0.1:9/api cannot")


def test_a_look_loads_nothing_that_trains_or_evaluates() -> None:
    heavy = "{'torch', 'scipy', 'numba', 'mlflow'}"
    source = f"import sys, flows.service.look; print(*{heavy} & sys.modules.keys())"
    loaded = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
