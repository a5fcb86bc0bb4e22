"""A commit that completes a snapshot sends one event, and is retrained on, whatever becomes of the event."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.events import ReceivedEvent
from prefect.events.filters import EventFilter
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelled, Completed, Running
from test_missing_runs import write_report

from flows.service.commit_events import COMMITTED, announce
from flows.service.dead_runs import runs_where
from flows.service.deployments import deploy, file_of_deployments, read_deployments
from flows.service.look import start_missing
from flows.service.schedules import make_schedule, remove_schedule, schedule_of, scheduled
from flows.stages import ingest
from flows.tasks.ingest import ingest_log
from storage.layout import Layout

DAY = 86_400
SECONDS_TO_ARRIVE = 60.0


@pytest.fixture
def client(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncPrefectClient]:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    deploy(read_deployments(file_of_deployments())[:1])
    make_schedule("eventlog", schedule_of("0 3 1 1 *", None), {}, {}, 0)
    with get_client(sync_client=True) as client:
        yield client
        if scheduled(client):
            remove_schedule("eventlog")


def reading(folder: Path, first: int, last: int) -> dict[str, object]:
    """A log of ten rows a day, from the hour 0 of each day on."""
    rows = [f"u{n % 4},v{n % 5},{DAY * day + 3_600 * n}" for day in range(first, last) for n in range(10)]
    path = folder / f"{first}.csv"
    path.write_text("\n".join(["source,target,time", *rows, ""]))
    return {"log": [str(path)], "window": "1d", "time_unit": "s", "bipartite": False}


def started(client: SyncPrefectClient) -> list[FlowRun]:
    """Runs of the schedule that were started, not those of next year."""
    [deployment] = scheduled(client)
    return [run for run in runs_where(client, deployment_id={"any_": [deployment.id]}) if not run.auto_scheduled]


def events_since(client: SyncPrefectClient, begun: datetime) -> list[ReceivedEvent]:
    wanted = EventFilter.model_validate({"occurred": {"since": begun}, "event": {"name": [COMMITTED]}})
    return client.read_events(wanted, limit=50).events


def test_a_complete_snapshot_has_one_event_until_a_run_has_reported_on_it(
    client: SyncPrefectClient, tmp_path: Path
) -> None:
    begun = datetime.now(UTC)
    ingest("eventlog", reading(tmp_path, 0, 5))
    first = announce("eventlog")  # the same snapshot once more
    assert first is not None
    assert first == announce("eventlog")
    until = time.monotonic() + SECONDS_TO_ARRIVE
    while not (found := events_since(client, begun)) and time.monotonic() < until:
        time.sleep(0.5)
    assert {(str(event.id), event.resource.id) for event in found} == {(first, "dyformer.dataset.eventlog")}
    write_report("eventlog")
    assert announce("eventlog") is None


def test_what_completes_no_snapshot_has_no_event(client: SyncPrefectClient, tmp_path: Path) -> None:
    ingest_log("eventlog", reading(tmp_path, 0, 2), lambda text: None)
    assert announce("eventlog") is None  # two windows are too few
    ingest_log("eventlog", reading(tmp_path, 2, 5), lambda text: None)
    for address in (None, "http://127.0.0.1:9/api"):  # no server, or one that is away
        with temporary_settings({PREFECT_API_URL: address}, restore_defaults={PREFECT_API_URL}):
            assert announce("eventlog") is None
    assert started(client) == []


def test_a_commit_during_a_run_that_did_not_see_it_is_retrained_by_reconcile(
    client: SyncPrefectClient, tmp_path: Path
) -> None:
    """A run of the schedule's own time was cancelled, because the deployment runs one at a time."""
    layout, [deployment] = Layout.from_environment(), scheduled(client)
    running = client.create_flow_run_from_deployment(deployment.id)
    client.set_flow_run_state(running.id, Running(), force=True)
    ingest("eventlog", reading(tmp_path, 0, 5))
    late = client.create_flow_run_from_deployment(deployment.id)
    client.set_flow_run_state(late.id, Cancelled(), force=True)
    assert start_missing(client, layout) == ([], [])  # the first one still runs
    client.set_flow_run_state(running.id, Completed(), force=True)
    assert start_missing(client, layout) == (["eventlog, version 1 of the event table"], [])
    [own] = [run for run in started(client) if run.id not in (running.id, late.id)]
    client.set_flow_run_state(own.id, Cancelled(), force=True)
    write_report("eventlog")
    assert start_missing(client, layout) == ([], [])  # the store has what was missing
