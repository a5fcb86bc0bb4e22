"""A commit that no retraining has seen starts one, once; a paused schedule starts none."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import polars as pl
import pytest
from own_log import own_log
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import Cancelled, Completed, Crashed, Failed, Running

from dyformer.experiments.settings import Experiment, as_record
from flows.service.dead_runs import runs_where
from flows.service.deployments import deploy, file_of_deployments, read_deployments
from flows.service.look import FEW_TRIES, REFUSED, start_missing
from flows.service.schedules import make_schedule, remove_schedule, schedule_of, scheduled, schedules, set_active
from flows.tasks.complete_windows import make_complete_snapshots
from flows.tasks.finished import SUMMARY
from flows.tasks.ingest import ingest_log
from flows.tasks.snapshots import open_snapshots
from flows.tasks.tracking.projection import pause_after
from storage.artifacts.artifact import write_artifact
from storage.bytes.files import find, remove_folder
from storage.bytes.objects import StoreUnreachable
from storage.layout import Layout
from storage.removal import drop_dataset


@pytest.fixture
def client(server: str) -> Iterator[SyncPrefectClient]:
    deploy(read_deployments(file_of_deployments())[:1])  # `retrain/any` with its pool and queue
    schedule("missedlog")
    with get_client(sync_client=True) as client:
        yield client
        for deployment in scheduled(client):
            client.delete_deployment(deployment.id)


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    monkeypatch.delenv("DYFORMER_STATE", raising=False)
    return Layout.from_environment()


def schedule(dataset: str) -> None:
    make_schedule(dataset, schedule_of("0 3 1 1 *", None), {"window": "7d"}, {}, 0)


def commit(path: Path, num_rows: int, dataset: str = "missedlog", window: str = "1d") -> None:
    reading = {"log": [str(own_log(path, num_rows))], "max_bad": "20%", "window": window, "force": True}  # it may grow
    columns = {"source": "user", "target": "item", "time": "created_at"}
    ingest_log(dataset, reading | columns, show=lambda text: None)


def write_report(dataset: str, changes: dict[str, Any] | None = None) -> dict[str, str]:
    """Write what a run leaves at its end; returns the addresses of what it published."""
    opened = open_snapshots(make_complete_snapshots(dataset))
    settings = {**as_record(Experiment().changed(changes or {})), "seed": 0}
    lineage = opened.lineage("report", until=opened.num_steps, settings=settings)
    keys = {"version": lineage.table_version, "until": opened.num_steps, "settings": lineage.settings_hash, "seed": 0}
    published = {}
    for kind in ("vectors", "forecasts"):
        published[kind] = opened.layout.artifact(kind, dataset, **keys)
        write_artifact(
            published[kind], {kind: pl.DataFrame()}, opened.lineage(kind, until=opened.num_steps, settings={})
        )
    names = {kind: opened.layout.relative(address) for kind, address in published.items()}
    tables = {"metrics": pl.DataFrame(), SUMMARY: json.dumps({"addresses": names}).encode()}
    write_artifact(opened.layout.artifact("report", dataset, **keys), tables, lineage)
    return published


def complete(client: SyncPrefectClient, run: FlowRun, end: State[Any] | None = None) -> None:
    """Let a run begin and end."""
    client.set_flow_run_state(run.id, Running(), force=True)
    client.set_flow_run_state(run.id, end or Completed(), force=True)


def due_runs(client: SyncPrefectClient, dataset: str = "missedlog") -> list[FlowRun]:
    """Runs of the schedule of a dataset that were started, not those of next year."""
    [deployment] = [each for each in scheduled(client) if each.parameters["dataset"] == dataset]
    runs = runs_where(client, deployment_id={"any_": [deployment.id]})
    return [run for run in runs if not run.auto_scheduled]


def waiting_run(client: SyncPrefectClient) -> FlowRun:
    """The only started run that no worker has taken."""
    [run] = [run for run in due_runs(client) if run.state is not None and run.state.is_scheduled()]
    return run


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.service.look.pause_after", lambda num_tries: timedelta())


def test_failures_are_followed_by_longer_and_longer_pauses() -> None:
    assert pause_after(0) == timedelta()
    assert [pause_after(number) for number in (1, 2, 3)] == [timedelta(minutes=5 * 4**power) for power in range(3)]
    assert pause_after(7) == pause_after(1_000) == timedelta(days=1)


def test_a_failed_run_is_followed_by_another_after_a_pause_and_its_third_failure_is_named(
    client: SyncPrefectClient, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(tmp_path / "log.csv", 300)
    problems: list[str] = []
    for number in range(1, FEW_TRIES + 1):
        with monkeypatch.context() as patch:
            patch.setattr("flows.service.look.pause_after", lambda num_tries: timedelta())
            assert start_missing(client, layout) == (["missedlog, version 1 of the event table"], [])
        client.set_flow_run_state(waiting_run(client).id, Failed(), force=True)
        started, problems = start_missing(client, layout)
        assert (started, len(problems)) == ([], int(number == FEW_TRIES))
    assert problems[0].startswith(f"missedlog: {FEW_TRIES} retrainings after version 1 of the event table failed")
    commit(tmp_path / "second.csv", 600)  # a new commit waits for no pause
    assert start_missing(client, layout) == (["missedlog, version 2 of the event table"], [])


@pytest.mark.usefixtures("no_pause")
def test_a_run_that_died_is_followed_by_another_though_all_rows_have_a_report(
    client: SyncPrefectClient, layout: Layout, tmp_path: Path
) -> None:
    commit(tmp_path / "log.csv", 300)
    write_report("missedlog")
    assert start_missing(client, layout) == ([], [])
    [deployment] = scheduled(client)
    for end, expected in ((Failed(), []), (Crashed(), ["missedlog, version 1 of the event table"])):
        complete(client, client.create_flow_run_from_deployment(deployment.id), end)
        assert start_missing(client, layout) == (expected, [])


def test_what_a_repair_removed_is_made_again_by_a_run_at_once_and_later_ones_after_pauses(
    client: SyncPrefectClient, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(tmp_path / "log.csv", 300)
    published = write_report("missedlog")
    [deployment] = scheduled(client)
    complete(client, client.create_flow_run_from_deployment(deployment.id))  # by its cron line
    assert start_missing(client, layout) == ([], [])
    remove_folder(published["forecasts"])
    assert start_missing(client, layout, whole=False) == ([], [])  # the look of a minute lists no reports
    for _ in range(2):  # the second one comes after a pause of 0 minutes
        assert start_missing(client, layout) == (["missedlog, version 1 of the event table"], [])
        assert start_missing(client, layout) == ([], [])
        complete(client, waiting_run(client))  # and it made nothing
    assert start_missing(client, layout) == ([], [])  # the third one after 5
    monkeypatch.setattr("flows.service.look.pause_after", lambda num_tries: timedelta())
    for _ in range(2, FEW_TRIES + 1):
        assert start_missing(client, layout) == (["missedlog, version 1 of the event table"], [])
        complete(client, waiting_run(client))
    started, [problem] = start_missing(client, layout)  # no run for ever
    assert not started
    assert "did not make it again" in problem


def test_what_a_repair_removed_of_a_run_of_other_settings_is_not_made_again_by_the_schedule(
    client: SyncPrefectClient, layout: Layout, tmp_path: Path
) -> None:
    commit(tmp_path / "log.csv", 200)
    of_schedule = write_report("missedlog")
    commit(tmp_path / "log.csv", 300)
    of_another = write_report("missedlog", {"model.width": 64})  # the newest of all
    [deployment] = scheduled(client)
    complete(client, client.create_flow_run_from_deployment(deployment.id))
    remove_folder(of_another["forecasts"])
    assert start_missing(client, layout) == ([], [])
    remove_folder(of_schedule["vectors"])
    assert start_missing(client, layout) == (["missedlog, version 2 of the event table"], [])


def test_a_dataset_on_which_another_deployment_runs_waits(
    client: SyncPrefectClient, layout: Layout, tmp_path: Path
) -> None:
    commit(tmp_path / "log.csv", 300)
    by_hand = client.read_deployment_by_name("retrain/any").id
    run = client.create_flow_run_from_deployment(by_hand, parameters={"dataset": "missedlog"})
    client.set_flow_run_state(run.id, Running(), force=True)
    assert start_missing(client, layout) == ([], [])
    client.set_flow_run_state(run.id, Completed(), force=True)
    assert start_missing(client, layout) == (["missedlog, version 1 of the event table"], [])


def test_a_run_of_another_deployment_that_nobody_takes_keeps_nothing_back(
    client: SyncPrefectClient, layout: Layout, tmp_path: Path
) -> None:
    commit(tmp_path / "log.csv", 300)
    by_hand = client.read_deployment_by_name("retrain/any").id
    run = client.create_flow_run_from_deployment(by_hand, parameters={"dataset": "missedlog"})
    assert start_missing(client, layout) == (["missedlog, version 1 of the event table"], [])
    assert start_missing(client, layout) == ([], [])  # its own run waits
    client.delete_flow_run(run.id)  # a test of `dyformer doctor` would find it late


@pytest.mark.usefixtures("no_pause")
def test_a_failure_after_a_completed_run_is_followed_by_another_without_a_report(
    client: SyncPrefectClient, layout: Layout, tmp_path: Path
) -> None:
    commit(tmp_path / "log.csv", 300)
    [deployment] = scheduled(client)
    for end in (Completed(), Failed()):  # such as of two windows that are complete by the clock
        complete(client, client.create_flow_run_from_deployment(deployment.id), end)
    assert start_missing(client, layout) == (["missedlog, version 1 of the event table"], [])


@pytest.mark.usefixtures("no_pause")
def test_a_commit_is_followed_by_one_run_until_one_completes(
    client: SyncPrefectClient, layout: Layout, tmp_path: Path
) -> None:
    assert start_missing(client, layout) == ([], [])  # nothing is stored
    commit(tmp_path / "first.csv", 300)
    set_active("missedlog", is_active=False)
    assert start_missing(client, layout) == ([], [])
    set_active("missedlog", is_active=True)
    assert start_missing(client, layout) == (["missedlog, version 1 of the event table"], [])
    assert start_missing(client, layout) == ([], [])  # it waits for a worker
    for number in range(1, 3):
        run = waiting_run(client)
        client.set_flow_run_state(run.id, Running(), force=True)
        assert start_missing(client, layout) == ([], [])
        client.set_flow_run_state(run.id, Failed(), force=True)
        assert start_missing(client, layout)[0] == ["missedlog, version 1 of the event table"]
        assert len(due_runs(client)) == number + 1
    complete(client, waiting_run(client))
    assert start_missing(client, layout) == ([], [])
    commit(tmp_path / "second.csv", 600)  # a new commit needs a new run
    assert start_missing(client, layout) == (["missedlog, version 2 of the event table"], [])


def test_each_dataset_and_each_history_of_one_has_a_run_of_its_own(
    client: SyncPrefectClient, layout: Layout, tmp_path: Path
) -> None:
    schedule("secondlog")
    commit(tmp_path / "log.csv", 300)
    commit(tmp_path / "log.csv", 300, "secondlog")
    lines = [f"{name}, version 1 of the event table" for name in ("missedlog", "secondlog")]
    assert start_missing(client, layout) == (lines, [])
    for deployment in scheduled(client):
        [run] = due_runs(client, str(deployment.parameters["dataset"]))
        client.set_flow_run_state(run.id, Completed(), force=True)
    assert start_missing(client, layout) == ([], [])
    drop_dataset(layout, "secondlog")
    commit(tmp_path / "log.csv", 300, "secondlog")
    remove_schedule("missedlog")  # its run goes with it
    schedule("missedlog")
    assert start_missing(client, layout) == (lines, [])
    assert len(due_runs(client, "secondlog")) == 2
    assert len(due_runs(client, "missedlog")) == 1


def test_a_fault_of_one_dataset_stops_no_other(client: SyncPrefectClient, layout: Layout, tmp_path: Path) -> None:
    schedule("secondlog")
    for number, dataset in enumerate(("missedlog", "missedlog", "secondlog"), start=1):
        commit(tmp_path / f"{number}.csv", 300 * number, dataset, "12 equal")  # the windows of missedlog have moved
    started, [problem] = start_missing(client, layout)
    assert started == ["secondlog, version 1 of the event table"]
    assert problem.startswith("missedlog: the window ")


def test_a_schedule_whose_dataset_was_removed_by_hand_is_named_and_stops_no_other(
    client: SyncPrefectClient, layout: Layout, tmp_path: Path
) -> None:
    schedule("secondlog")
    [damaged] = [each for each in scheduled(client) if each.parameters["dataset"] == "secondlog"]
    client.request(
        "PATCH",
        "/deployments/{id}",
        path_params={"id": damaged.id},
        json={"parameters": {}, "enforce_parameter_schema": False},
    )
    commit(tmp_path / "log.csv", 300)
    started, [problem] = start_missing(client, layout)
    assert started == ["missedlog, version 1 of the event table"]
    assert problem.startswith("the deployment secondlog-schedule is a schedule and has no parameter `dataset`")
    assert [row["dataset"] for row in schedules()] == ["", "missedlog"]


def test_a_damaged_report_is_named_by_each_whole_look(
    client: SyncPrefectClient, layout: Layout, tmp_path: Path
) -> None:
    commit(tmp_path / "log.csv", 300)
    published = write_report("missedlog")
    [deployment] = scheduled(client)
    complete(client, client.create_flow_run_from_deployment(deployment.id))
    [manifest] = find(layout.artifacts("report", "missedlog"), "manifest.json")
    whole = Path(manifest).read_bytes()
    Path(manifest).write_bytes(b"?")
    started, [problem] = start_missing(client, layout)
    assert started == []
    assert problem.startswith(f"missedlog: {manifest}")
    assert start_missing(client, layout, whole=False) == ([], [])
    Path(manifest).write_bytes(whole)
    remove_folder(published["vectors"])
    assert start_missing(client, layout) == (["missedlog, version 1 of the event table"], [])


def test_a_store_that_is_away_is_no_fault_of_a_dataset(
    client: SyncPrefectClient, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(tmp_path / "log.csv", 300)
    away = StoreUnreachable("s3://bucket", "it is away")
    monkeypatch.setattr("flows.service.look.history", Mock(side_effect=away))
    with pytest.raises(StoreUnreachable):
        start_missing(client, layout)


def test_a_report_by_the_clock_counts_where_the_schedule_has_one(
    client: SyncPrefectClient, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(tmp_path / "log.csv", 300)
    seen: list[tuple[str, str | None]] = []
    monkeypatch.setattr("flows.service.look.complete_snapshots", lambda *given: seen.append(given))
    make_schedule("missedlog", schedule_of("0 3 1 1 *", None), {"window": "7d"}, {}, 0, as_of="now")
    assert start_missing(client, layout) == ([], [])
    assert seen == [("missedlog", "now")]


def test_the_run_that_made_the_commit_is_not_followed_by_another(
    client: SyncPrefectClient, layout: Layout, tmp_path: Path
) -> None:
    [deployment] = scheduled(client)
    run = client.create_flow_run_from_deployment(deployment.id)
    client.set_flow_run_state(run.id, Running(), force=True)
    commit(tmp_path / "log.csv", 300)
    assert start_missing(client, layout) == ([], [])
    client.set_flow_run_state(run.id, Completed(), force=True)
    write_report("missedlog")
    assert start_missing(client, layout) == ([], [])
    commit(tmp_path / "later.csv", 600)
    assert start_missing(client, layout)[0] == ["missedlog, version 2 of the event table"]


@pytest.mark.parametrize("by_schedule", [False, True])
def test_a_run_that_a_person_cancels_is_a_try(
    client: SyncPrefectClient, layout: Layout, tmp_path: Path, by_schedule: bool
) -> None:
    commit(tmp_path / "log.csv", 300)
    if by_schedule:
        [deployment] = scheduled(client)
        run = client.create_flow_run_from_deployment(deployment.id)
    else:
        assert start_missing(client, layout) == (["missedlog, version 1 of the event table"], [])
        [run] = due_runs(client)
    client.set_flow_run_state(run.id, Cancelled(), force=True)
    assert start_missing(client, layout) == ([], [])


def test_a_scheduled_run_that_was_refused_is_no_try(client: SyncPrefectClient, layout: Layout, tmp_path: Path) -> None:
    make_schedule("missedlog", schedule_of("0 3 1 * *", None), {}, {}, 0)
    commit(tmp_path / "log.csv", 300)
    [deployment] = scheduled(client)
    client.request("POST", "/deployments/{id}/schedule", path_params={"id": deployment.id}, json={"min_runs": 3})
    refused = runs_where(client, deployment_id={"any_": [deployment.id]})
    assert len(refused) >= 3
    for run in refused:
        client.set_flow_run_state(run.id, Cancelled(message=REFUSED), force=True)
    assert start_missing(client, layout) == (["missedlog, version 1 of the event table"], [])
