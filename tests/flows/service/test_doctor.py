"""dyformer doctor names what is wrong with a remedy, and its exit code is for a monitor."""

import json
import os
import pickle
import re
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, patch

import httpx
import pytest
from filelock import FileLock
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.objects import State
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings
from prefect.states import Cancelled, Completed, Crashed, Failed, Running, Scheduled

import flows.cli
from flows import cluster
from flows.service import doctor
from flows.service.deployments import ENDING, GPU_POOL, POOL, deploy, file_of_deployments, read_deployments
from flows.service.running import LOCK
from flows.service.schedules import make_schedule, remove_schedule, schedule_of, set_active
from storage.artifacts.artifact import Lineage, write_artifact
from storage.layout import Layout
from storage.tracking.runs import open_tracker
from storage.tracking.upkeep import FLOW_RUN

Found = dict[str, dict[str, str]]


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_database: Callable[[Path], Path]) -> Layout:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path))
    monkeypatch.delenv("DYFORMER_STATE", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(doctor, "LEAST_FREE_BYTES", 0)
    empty_database(tmp_path / "mlflow.db")
    return Layout.from_environment()


@pytest.fixture
def look(layout: Layout, capsys: pytest.CaptureFixture[str]) -> Callable[[], tuple[int, Found]]:
    def run() -> tuple[int, Found]:
        with pytest.raises(SystemExit) as ending:
            flows.cli.main(["doctor", "--json"])
        rows = json.loads(capsys.readouterr().out)
        assert all(bool(row["remedy"]) == (row["outcome"] == "wrong") for row in rows)
        return int(ending.value.code or 0), {row["check"]: row for row in rows}

    return run


def wrong(found: Found) -> set[str]:
    return {check for check, row in found.items() if row["outcome"] == "wrong"}


@pytest.fixture
def no_server() -> Iterator[None]:
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        yield


def test_a_machine_without_a_driver_has_no_gpu_though_torch_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(doctor, "find_library", lambda name: None)
    monkeypatch.setattr(Path, "exists", lambda path: False)
    assert doctor._gpu().outcome == "ok"


@pytest.mark.usefixtures("no_server")
def test_a_sound_installation_without_servers_has_nothing_wrong(look: Callable[[], tuple[int, Found]]) -> None:
    code, found = look()
    assert (code, wrong(found)) == (0, set())
    assert set(found) == {"versions", "storage", "disk", "tracking", "GPU", "MLflow", "Prefect"}
    assert "`dyformer up`" in found["Prefect"]["detail"]


@pytest.mark.usefixtures("no_server")
def test_versions_disk_waiting_results_gpu_and_mlflow_that_are_wrong_are_named(
    look: Callable[[], tuple[int, Found]], layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    lineage = Lineage(kind="study", dataset="uci", table_version=1, until=3)
    write_artifact(layout.artifact("study", "uci", version=1, until=3, settings="0" * 12), {}, lineage)
    monkeypatch.setattr(doctor, "OLDEST_DUE_SECONDS", 0.0)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=-1))
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    requirements = ["numpy<1", "no-such-package>=1", "other-package>=2; extra == 'server'"]
    monkeypatch.setattr(doctor.importlib.metadata, "requires", lambda name: requirements)
    code, found = look()
    expected = {"versions", "disk", "tracking", "MLflow"}
    import torch

    assert (code, wrong(found)) == (1, expected if torch.cuda.is_available() else expected | {"GPU"})
    assert "no-such-package is missing" in found["versions"]["detail"]
    assert "other-package" not in found["versions"]["detail"]
    assert found["tracking"]["detail"].startswith("1 result is not in MLflow, one for")
    assert "dyformer track" in found["tracking"]["remedy"]


def test_a_store_that_may_not_be_written_is_wrong(
    look: Callable[[], tuple[int, Found]], layout: Layout, monkeypatch: pytest.MonkeyPatch, no_server: None
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: (str(path), mode) != (layout.state, os.W_OK))
    code, found = look()
    assert (code, wrong(found), found["disk"]["detail"]) == (1, {"disk"}, f"{layout.state} may not be written")


def test_a_server_without_a_worker_or_with_zombies_and_leaks_is_wrong(
    look: Callable[[], tuple[int, Found]], layout: Layout, client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy(read_deployments(file_of_deployments()))
    deployment = client.read_deployment_by_name("retrain/any")
    ended = client.create_flow_run_from_deployment(
        deployment.id, parameters={"dataset": "generated"}, state=Cancelled()
    )
    with open_tracker(layout).run(dataset="uci", name="dead", tags={FLOW_RUN: str(ended.id)}, key="k") as run:
        monkeypatch.setattr(doctor, "silent_runs", lambda client: [SimpleNamespace(name="a-zombie")])
        [automation] = client.read_automations_by_name(ENDING)
        client.pause_automation(automation.id)
        limit = deployment.global_concurrency_limit
        assert limit is not None
        client.increment_concurrency_slots([limit.name], 1, "concurrency")
        code, found = look()
        assert code == 1
        assert wrong(found) == {"workers", "automation", "zombies", "MLflow's runs", "slots"}
        assert "a-zombie" in found["zombies"]["detail"]
        assert found["slots"]["detail"] == "taken without a run: retrain/any"
        client.release_concurrency_slots([limit.name], 1, 0.1)
        run.metrics({"loss": 1.0})
    client.resume_automation(automation.id)
    monkeypatch.undo()


def test_a_server_that_is_away_is_wrong(look: Callable[[], tuple[int, Found]], monkeypatch: pytest.MonkeyPatch) -> None:
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        code, found = look()
    assert (code, wrong(found)) == (1, {"Prefect"})
    assert "http://127.0.0.1:9/api cannot be reached" in found["Prefect"]["detail"]


def test_a_pool_whose_runs_choose_their_command_is_named(client: SyncPrefectClient) -> None:
    from prefect.workers.process import ProcessWorker

    deploy(read_deployments(file_of_deployments()))
    assert doctor._pools(client).outcome == "ok"
    client.update_work_pool(POOL, WorkPoolUpdate(base_job_template=ProcessWorker.get_default_base_job_template()))
    assert doctor._pools(client)[1:] == (
        "wrong",
        f"runs of {POOL} could choose what their processes execute",
        "`dyformer deploy` corrects it",
    )
    deploy(read_deployments(file_of_deployments()))


@pytest.fixture
def online(client: SyncPrefectClient) -> Iterator[Callable[[str, str], None]]:
    """Let a worker of a pool report; it is gone after the test, and not only once it was silent for a while."""
    reported: list[tuple[str, str]] = []

    def report(pool: str, name: str) -> None:
        client.send_worker_heartbeat(pool, name, heartbeat_interval_seconds=30)
        reported.append((pool, name))

    yield report
    for pool, name in reported:
        path = {"work_pool_name": pool, "name": name}
        client.request("DELETE", "/work_pools/{work_pool_name}/workers/{name}", path_params=path)


def test_a_worker_that_is_online_is_named(client: SyncPrefectClient, online: Callable[[str, str], None]) -> None:
    from prefect.exceptions import ObjectAlreadyExists

    with suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
    online(POOL, "here")
    finding: Any = doctor._workers(client)
    for _ in range(50):
        if finding.outcome == "ok":
            break
        time.sleep(0.1)
        finding = doctor._workers(client)
    assert finding == ("workers", "ok", f"here online in {POOL}", "")


def test_a_pool_that_a_schedule_waits_for_needs_a_worker(
    client: SyncPrefectClient, online: Callable[[str, str], None]
) -> None:
    deploy(read_deployments(file_of_deployments()))
    online(POOL, "here")
    make_schedule("pooled", schedule_of("0 3 1 1 *", None), {"window": "7d"}, {}, 0, gpu=True)
    _found(client, "wrong", f"none is online in {GPU_POOL}: its runs wait")
    online(GPU_POOL, "there")
    _found(client, "ok", f"here online in {POOL}; there online in {GPU_POOL}")
    remove_schedule("pooled")


def _found(client: SyncPrefectClient, outcome: str, detail: str) -> None:
    """Look until the server has seen the heartbeats."""
    until = time.monotonic() + 10
    while (found := doctor._workers(client))[1:3] != (outcome, detail):
        assert time.monotonic() < until, found
        time.sleep(0.1)


@pytest.mark.parametrize(("names", "words"), [((), "0 datasets"), (("a",), "1 dataset"), (("a", "b"), "2 datasets")])
def test_the_datasets_of_the_storage_are_counted(layout: Layout, names: tuple[str, ...], words: str) -> None:
    for name in names:
        Path(layout.of_dataset(layout.datasets, name)).mkdir(parents=True)
    [found] = [finding for finding in doctor._storage(layout) if finding.check == "storage"]
    assert found.detail == f"{layout.root}: {words}"


def test_a_storage_that_cannot_be_read_is_wrong(
    look: Callable[[], tuple[int, Found]], tmp_path: Path, no_server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.bytes.files.children", Mock(side_effect=PermissionError("may not be read")))
    code, found = look()
    assert code == 1
    assert "storage" in wrong(found)
    assert "may not be read" in found["storage"]["detail"]


def test_results_that_cannot_be_listed_are_a_finding_and_end_no_other_check(
    look: Callable[[], tuple[int, Found]], no_server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.service.doctor.due", Mock(side_effect=PermissionError("may not be listed")))
    code, found = look()
    assert code == 1
    assert "tracking" in wrong(found)
    assert "may not be listed" in found["tracking"]["detail"]
    assert {"GPU", "MLflow"} <= set(found)


def test_a_run_that_is_late_is_wrong(client: SyncPrefectClient) -> None:
    deploy(read_deployments(file_of_deployments()))
    deployment = client.read_deployment_by_name("retrain/any")
    due = datetime.now(UTC) - timedelta(minutes=doctor.LATE_MINUTES + 1)
    run = client.create_flow_run_from_deployment(
        deployment.id, parameters={"dataset": "mylog"}, state=Scheduled(scheduled_time=due)
    )
    found = doctor._late(client)
    client.delete_flow_run(run.id)
    assert (found.check, found.outcome) == ("schedules", "wrong")
    assert f"more than {doctor.LATE_MINUTES} minutes late" in found.detail


def test_a_server_that_fails_is_a_finding_beside_those_of_the_machine(
    client: SyncPrefectClient, look: Callable[[], tuple[int, Found]], server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", server)
    response = httpx.Response(500, request=httpx.Request("POST", f"{server}/csrf-token"))
    error = PrefectHTTPStatusError(
        "Server error '500 Internal Server Error'", request=response.request, response=response
    )
    monkeypatch.setattr(SyncPrefectClient, "read_workers_for_work_pool", Mock(side_effect=error))
    code, found = look()
    assert code == 1
    assert found["Prefect"]["detail"] == "Server error '500 Internal Server Error'"
    assert {"disk", "tracking", "MLflow"} <= set(found)


def test_schedules_of_a_service_that_does_not_run_are_named(client: SyncPrefectClient, layout: Layout) -> None:
    database = Path(layout.service) / "prefect" / "prefect.db"
    database.parent.mkdir(parents=True)

    def found() -> doctor.Finding:
        with (
            closing(sqlite3.connect(PREFECT_HOME.value() / "prefect.db")) as running,
            closing(sqlite3.connect(database)) as stopped,
        ):
            running.backup(stopped)
        with temporary_settings(restore_defaults={PREFECT_API_URL}):
            [finding] = doctor._prefect(layout)
        return finding

    deploy(read_deployments(file_of_deployments()))
    make_schedule("stopped-log", schedule_of(None, "520w"), {"log": ["s3://bucket/log"], "window": "7d"}, {}, 0)
    try:
        assert found().outcome == "wrong"
        assert "start nothing: stopped-log-schedule" in found().detail
        with FileLock(Path(layout.service) / LOCK):
            assert found().outcome == "ok"
        set_active("stopped-log", is_active=False)
        assert found().outcome == "ok"
    finally:
        remove_schedule("stopped-log")
    database.unlink()
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        assert [each.outcome for each in doctor._prefect(layout)] == ["ok"]


def test_a_schedule_whose_last_run_failed_is_wrong_until_one_completes_or_it_is_paused(
    client: SyncPrefectClient, layout: Layout
) -> None:
    deploy(read_deployments(file_of_deployments()))
    make_schedule("failing-log", schedule_of(None, "520w"), {"log": ["s3://bucket/log"], "window": "7d"}, {}, 0)
    deployment = client.read_deployment_by_name("retrain/failing-log-schedule")

    def end(state: State) -> doctor.Finding:
        run = client.create_flow_run_from_deployment(deployment.id)
        client.set_flow_run_state(run.id, Running(), force=True)
        client.set_flow_run_state(run.id, state, force=True)
        return doctor._failing(client)

    try:
        assert "failing-log" not in doctor._failing(client).detail
        found = end(Failed(message=f"{doctor.EXCEPTION}OneColumn: x.csv, line 1 does not split"))
        assert (found.check, found.outcome) == ("retrainings", "wrong")
        assert re.fullmatch(
            r"failing-log: the last retraining failed, the newest at 20..-..-.. ..:.. UTC: OneColumn: x.csv, line 1 .*",
            found.detail,
        )
        assert "the last 2 retrainings failed" in end(Crashed(message="its process is gone")).detail
        assert "its process is gone" in end(Cancelled(message="by a person")).detail
        set_active("failing-log", is_active=False)
        assert doctor._failing(client).outcome == "ok"
        set_active("failing-log", is_active=True)
        assert doctor._failing(client).outcome == "wrong"
        assert end(Completed()).outcome == "ok"
    finally:
        remove_schedule("failing-log")


def of_another_python() -> None:
    started = "Version mismatch: The cluster was started with:\n    Ray: 2.52.0\n    Python: 3.12.1\n"
    with (
        patch.multiple(cluster, _check_address=Mock(), _check_token=Mock()),
        patch("ray.init", side_effect=RuntimeError(f"{started}This process was started with:\n    Python: 3.11.2\n")),
        cluster._connected("head:6379"),
    ):
        pass


def that_does_not_respond() -> None:
    from ray.exceptions import GetTimeoutError

    with cluster._named_errors("the Ray node a"):
        raise GetTimeoutError


def test_a_cluster_without_ray_is_a_finding_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    monkeypatch.setattr("dyformer.experiments.extras.find_spec", lambda name: None)
    found = next(doctor.findings("head:6379"))
    assert (found.check, found.outcome) == ("Ray", "wrong")
    assert (found.detail, found.remedy) == (
        "this needs the package ray, which is not installed",
        "pip install 'dyformer[ray]'",
    )


@pytest.mark.parametrize(
    ("check", "detail", "remedy"),
    [
        (
            of_another_python,
            r"the Ray cluster at head:6379 .*Python: 3\.12\.1 .*Python: 3\.11\.2\)",
            "install the same",
        ),
        (that_does_not_respond, r"the Ray node a does not respond within 120 seconds", "wait until"),
        (
            lambda: cluster.check_facts("a", {"cpu": "x", "ray": "1"}, {"cpu": "y", "ray": "2"}),
            r"the Ray node a .*, because cpu is 'y', expected 'x'; ray is '2', expected '1'",
            f"{cluster.REMEDIES['cpu']}; {cluster.SAME_VERSION}",
        ),
        (
            lambda: cluster.check_facts("a", {"ray": "1", "numpy": "1"}, {"ray": "2", "numpy": "2"}),
            r"the Ray node a .*, because ray .*; numpy .*",
            cluster.SAME_VERSION,
        ),
        (cluster._check_token, r"there is no token for the Ray cluster", r"set RAY_AUTH_TOKEN or"),
    ],
)
def test_a_cluster_that_cannot_be_used_has_a_remedy(
    check: Callable[[], None], detail: str, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(cluster.TOKEN_MODE, "token")
    for name in cluster.TOKENS:
        monkeypatch.delenv(name, raising=False)
    found = doctor._node("a", check)
    assert (found.check, found.outcome) == ("Ray", "wrong")
    assert re.fullmatch(detail, found.detail)
    assert found.remedy.startswith(remedy)
    with pytest.raises(cluster.ClusterUnusable) as raised:
        check()
    assert str(pickle.loads(pickle.dumps(raised.value))) == f"{found.detail}: {found.remedy}"  # as Ray sends it


def test_a_store_that_cannot_be_written_for_the_nodes_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_connected", lambda address: nullcontext())
    (tmp_path / "file").touch()
    [found] = doctor._cluster("head:6379", Layout(str(tmp_path / "file")))
    assert (found.check, found.outcome) == ("Ray", "wrong")
    assert "file" in found.detail
    assert found.remedy == "check DYFORMER_STORAGE and that it may be written"
