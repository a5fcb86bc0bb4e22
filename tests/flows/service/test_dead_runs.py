"""Runs whose process is gone are ended, with all that belongs to them; live ones and those of others are left alone."""

import os
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prefect import flow, task
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import FlowRun, State
from prefect.events import emit_event
from prefect.events.worker import EventsWorker
from prefect.states import Cancelling, Completed, Pending, Running
from prefect_server import shared_server

from flows.service import TAG, dead_runs
from flows.service.dead_runs import end_dead_runs, end_orphans, ended_among, resubmit_unbegun, runs_where
from flows.service.deployments import HEARTBEAT


@flow
def waiting() -> None:
    """Never called: its runs are made as a server would see them."""


@task
def part() -> None:
    """Never called."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of its own, because these tests end runs that do not report, also those of tests beside them."""
    EventsWorker.drain_all()  # whose connection would go on to the server of the tests before
    with shared_server(tmp_path_factory.mktemp("prefect")) as address:
        yield address
        EventsWorker.drain_all()


def begun(client: SyncPrefectClient, name: str, *labels: str, **more: Any) -> FlowRun:
    """Make a run that is running, and whose process does not exist."""
    run = client.create_flow_run(waiting, name=name, tags=labels, state=Pending(), **more)
    client.set_flow_run_state(run.id, Running(), force=True)
    return client.read_flow_run(run.id)


def state_of(client: SyncPrefectClient, run: FlowRun) -> State:
    state = client.read_flow_run(run.id).state
    assert state is not None
    return state


def heartbeat(run: FlowRun) -> None:
    emit_event(event=HEARTBEAT, resource={"prefect.resource.id": f"prefect.flow-run.{run.id}"})


def report(monkeypatch: pytest.MonkeyPatch, *alive: FlowRun) -> None:
    """Let these runs have brought a heartbeat in the time that is looked at."""
    ids = {f"prefect.flow-run.{run.id}" for run in alive}
    monkeypatch.setattr(dead_runs, "_reporting", lambda client, since: ids)


def test_heartbeats_are_read_from_the_server(client: SyncPrefectClient) -> None:
    run, since = begun(client, "alive"), datetime.now(UTC) - timedelta(seconds=60)
    heartbeat(run)
    for _ in range(100):
        if f"prefect.flow-run.{run.id}" in dead_runs._reporting(client, since):
            break
        time.sleep(0.2)
    assert f"prefect.flow-run.{run.id}" in dead_runs._reporting(client, since)
    assert dead_runs._reporting(client, datetime.now(UTC)) == set()
    client.set_flow_run_state(run.id, Completed(), force=True)


def test_a_silent_run_is_ended_and_a_reporting_a_young_and_a_foreign_one_are_not(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, foreign = begun(client, "dead", TAG), begun(client, "foreign", "others")
    alive, own = begun(client, "alive", TAG), begun(client, "own", TAG)
    time.sleep(1.0)
    young = begun(client, "young", TAG)
    report(monkeypatch, alive)
    assert end_dead_runs(client, own.id, silent=1.0, second_look=0.0) == ["dead"]
    assert state_of(client, dead).is_crashed()
    assert "heartbeat" in str(state_of(client, dead).message)
    for run in (foreign, alive, young, own):
        assert state_of(client, run).is_running(), run.name
        client.set_flow_run_state(run.id, Completed(), force=True)


def test_a_cancelled_run_whose_worker_is_gone_ends_as_cancelled_begun_or_not(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, alive = begun(client, "gone", TAG), begun(client, "alive", TAG)
    never = client.create_flow_run(waiting, name="never begun", tags=[TAG], state=Pending())
    runs = (gone, alive, never)
    for run in runs:
        client.set_flow_run_state(run.id, Cancelling(), force=True)
    report(monkeypatch, alive)
    assert end_dead_runs(client, silent=60.0, second_look=0.0) == []  # a worker has its time
    time.sleep(1.0)
    assert set(end_dead_runs(client, silent=1.0, second_look=0.0)) == {"gone", "never begun"}
    assert [state_of(client, run).type.value for run in runs] == ["CANCELLED", "CANCELLING", "CANCELLED"]
    client.set_flow_run_state(alive.id, Completed(), force=True)


def test_more_runs_than_a_page_of_the_server_are_all_found(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_runs, "PAGE", 2)
    read, pages = SyncPrefectClient.read_flow_runs, []

    def small_pages(self: SyncPrefectClient, *, offset: int, **more: Any) -> list[FlowRun]:
        pages.append(offset)
        return read(self, offset=offset, limit=2, **more)

    monkeypatch.setattr(SyncPrefectClient, "read_flow_runs", small_pages)
    runs = [client.create_flow_run(waiting, tags=["many"]) for _ in range(5)]
    assert {run.id for run in runs_where(client, tags={"all_": ["many"]})} == {run.id for run in runs}
    assert pages == [0, 2, 4]


def test_a_run_that_reports_at_the_second_look_is_alive(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, looks = begun(client, "late", TAG), []

    def wait(seconds: float) -> None:
        looks.append(seconds)
        report(monkeypatch, late)

    report(monkeypatch)
    monkeypatch.setattr(dead_runs.time, "sleep", wait)
    assert end_dead_runs(client, silent=0.0, second_look=30.0) == []
    assert looks == [30.0]
    assert state_of(client, late).is_running()
    client.set_flow_run_state(late.id, Completed(), force=True)


def test_tasks_of_an_ended_run_end_with_it(client: SyncPrefectClient) -> None:
    outer, live, foreign = begun(client, "outer", TAG), begun(client, "live", TAG), begun(client, "foreign", "others")
    tasks = [
        client.create_task_run(part, flow_run_id=run.id, dynamic_key="0", state=Running())
        for run in (outer, live, foreign)
    ]
    for run in (outer, foreign):
        client.set_flow_run_state(run.id, Completed(), force=True)
    assert len(end_orphans(client)) == 1
    states = [client.read_task_run(task.id).state for task in tasks]
    assert [state is not None and state.is_crashed() for state in states] == [True, False, False]
    assert end_orphans(client) == []
    client.set_flow_run_state(live.id, Completed(), force=True)
    end_orphans(client)


def test_a_run_that_was_taken_and_never_begun_is_due_again(client: SyncPrefectClient) -> None:
    deployment = client.create_deployment(flow_id=client.create_flow(waiting), name="dead-runs", tags=[TAG])
    lost = client.create_flow_run(waiting, name="nobody starts it again", tags=[TAG], state=Pending())
    runs = []
    for name in ("slow", "old", "new"):
        runs.append(client.create_flow_run_from_deployment(deployment, name=name))
        client.set_flow_run_state(runs[-1].id, Pending(name="Submitting"), force=True)
        time.sleep(2.0 if name == "old" else 0.0)
    beginning = subprocess.Popen(["sleep", "60"], env={**os.environ, "PREFECT__FLOW_RUN_ID": str(runs[0].id)})
    assert resubmit_unbegun(client, seconds=1.5) == ["old"]
    assert [state_of(client, run).is_scheduled() for run in runs] == [False, True, False]
    assert state_of(client, lost).is_pending()
    beginning.kill()
    beginning.wait()
    assert resubmit_unbegun(client, seconds=1.5) == ["slow"]
    client.delete_deployment(deployment)  # and its runs
    client.set_flow_run_state(lost.id, Completed(), force=True)


def test_a_run_that_another_machine_may_be_beginning_waits_for_longer(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is not seen from here, and the server would let both begin it."""
    client.create_work_pool(WorkPoolCreate(name="two-machines", type="process"))
    deployment = client.create_deployment(
        flow_id=client.create_flow(waiting), name="elsewhere", tags=[TAG], work_pool_name="two-machines"
    )
    run = client.create_flow_run_from_deployment(deployment, name="slow")
    client.set_flow_run_state(run.id, Pending(name="Submitting"), force=True)
    assert dead_runs._has_other_machines(client, client.read_flow_run(run.id)) is False
    client.send_worker_heartbeat("two-machines", "there", heartbeat_interval_seconds=30)
    time.sleep(1.0)
    assert "slow" not in resubmit_unbegun(client, seconds=0.5)
    with monkeypatch.context() as patch:
        patch.setattr(dead_runs, "called_with", lambda *parts: [1])  # that worker is here
        assert "slow" in resubmit_unbegun(client, seconds=0.5)
    client.set_flow_run_state(run.id, Pending(name="Submitting"), force=True)
    time.sleep(1.0)
    assert "slow" in resubmit_unbegun(client, seconds=0.5, elsewhere=0.5)
    client.delete_deployment(deployment)
    client.delete_work_pool("two-machines")


def test_a_run_that_the_server_does_not_know_has_ended_after_a_day(client: SyncPrefectClient) -> None:
    live, done = begun(client, "live"), begun(client, "done")
    client.set_flow_run_state(done.id, Completed(), force=True)
    unknown = "00000000-0000-4000-8000-000000000000"
    ids = (str(live.id), str(done.id), unknown, "no id")
    now = datetime.now(UTC)
    assert ended_among(client, dict.fromkeys(ids, now - timedelta(hours=23))) == {str(done.id)}
    assert ended_among(client, dict.fromkeys(ids, now - timedelta(hours=25))) == {str(done.id), unknown, "no id"}
    client.set_flow_run_state(live.id, Completed(), force=True)
