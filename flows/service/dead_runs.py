"""Prefect's runs that are marked as running -> those whose process is gone, ended; those that never began, started.

A live run reports every 30 s. A run is dead if it was silent for some time and stays silent while this module looks
at it again, because a server that was away has missed the reports of all runs.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from flows.service import TAG
from flows.service.deployments import HEARTBEAT, SILENT_SECONDS
from flows.service.processes import called_with, marked

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

Found = TypeVar("Found")
PAGE = 200  # the server's own limit
SECOND_LOOK_SECONDS = 45.0
PENDING_SECONDS = 45.0  # with a look each minute its slot is free within two
PENDING_ELSEWHERE_SECONDS = 600.0
RECENT = timedelta(days=7)  # older runs were ended by an earlier look
LONGEST_UNKNOWN = timedelta(days=1)
TAGGED = {"all_": [TAG]}
ACTIVE = ("RUNNING", "PENDING")
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
DEAD = "its process is gone: no heartbeat"
PARENT_ENDED = "the run that it belongs to has ended"
NEVER_BEGAN = "a worker took it and ended before it began: it is due again"


def end_dead_runs(
    client: "SyncPrefectClient",
    own: "UUID | None" = None,
    silent: float = SILENT_SECONDS,
    second_look: float = SECOND_LOOK_SECONDS,
) -> list[str]:
    """End silent runs, as Crashed or as a person wanted as Cancelled, which frees their slots; returns their names.

    `own` is the run that looks.
    """
    from prefect.states import Cancelled, Crashed

    suspects = [run for run in silent_runs(client, silent) if run.id != own]
    if not suspects:
        return []
    time.sleep(second_look)
    still = {run.id for run in silent_runs(client, second_look)}
    dead = [run for run in suspects if run.id in still]
    for run in dead:
        is_cancelled = run.state is not None and run.state.is_cancelling()
        state = Cancelled(message=DEAD) if is_cancelled else Crashed(message=DEAD)
        client.set_flow_run_state(run.id, state, force=True)
    return [run.name for run in dead]


def end_orphans(client: "SyncPrefectClient") -> list[str]:
    """Mark the task runs of ended runs as Crashed; returns their names."""
    from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter
    from prefect.states import Crashed

    ended = {"state": _states(*FINAL), "end_time": {"after_": datetime.now(UTC) - RECENT}, "tags": TAGGED}
    tasks, flows = TaskRunFilter.model_validate({"state": _states(*ACTIVE)}), FlowRunFilter.model_validate(ended)
    task_runs = all_pages(
        lambda number: client.read_task_runs(task_run_filter=tasks, flow_run_filter=flows, offset=number)
    )
    for task in task_runs:
        client.set_task_run_state(task.id, Crashed(message=PARENT_ENDED), force=True)
    return [task.name for task in task_runs]


def resubmit_unbegun(
    client: "SyncPrefectClient", seconds: float = PENDING_SECONDS, elsewhere: float = PENDING_ELSEWHERE_SECONDS
) -> list[str]:
    """Make runs due again that a worker has taken and never begun; returns their names.

    A process of this machine may be about to begin a run: under load that took 60 s. One of another machine is not seen
    from here, and the server lets two processes begin one run. So a run of a pool with a worker on another machine
    waits for longer; where that worker is gone, it counts as there for a minute and a half.
    """
    from prefect.states import Scheduled

    now = datetime.now(UTC)
    silent = [
        run
        for run in runs_where(client, state=_states("PENDING"), tags=TAGGED)
        if run.deployment_id is not None
        and run.state is not None
        and run.state.timestamp < now - timedelta(seconds=seconds)
        and not marked(str(run.id), "PREFECT__FLOW_RUN_ID")
        and (run.state.timestamp < now - timedelta(seconds=elsewhere) or not _has_other_machines(client, run))
    ]
    for run in silent:
        client.set_flow_run_state(run.id, Scheduled(name="AwaitingRetry", message=NEVER_BEGAN), force=True)
    return [run.name for run in silent]


def _has_other_machines(client: "SyncPrefectClient", run: "FlowRun") -> bool:
    """Whether more workers of the run's pool report than run on this machine."""
    if run.work_pool_name is None:
        return False
    online = [worker for worker in client.read_workers_for_work_pool(run.work_pool_name) if worker.status == "ONLINE"]
    return len(online) > len(called_with("worker start", f"--pool {run.work_pool_name}"))


def ended_among(client: "SyncPrefectClient", since: Mapping[str, datetime]) -> set[str]:
    """Return which of these runs have ended. One that the server does not know may go on for a day.

    A program with a Prefect server of its own may track at the same MLflow.

    Args:
        client: of the server.
        since: when the tracking of each run began, by the run's id.
    """
    ids: list[str] = []
    for run_id in since:
        with suppress(ValueError):
            ids.append(str(UUID(run_id)))
    run_of = {str(run.id): run for run in runs_where(client, id={"any_": ids})} if ids else {}
    unknown = {
        run_id for run_id in since if run_id not in run_of and since[run_id] < datetime.now(UTC) - LONGEST_UNKNOWN
    }
    return unknown | {run_id for run_id, run in run_of.items() if run.state is not None and run.state.is_final()}


def runs_where(client: "SyncPrefectClient", **conditions: Any) -> "list[FlowRun]":
    """Read the runs that meet all conditions, as Prefect's filter names them, the newest first."""
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.client.schemas.sorting import FlowRunSort

    run_filter, newest = FlowRunFilter.model_validate(conditions), FlowRunSort.EXPECTED_START_TIME_DESC
    flow_runs = all_pages(lambda number: client.read_flow_runs(flow_run_filter=run_filter, sort=newest, offset=number))
    return list({run.id: run for run in flow_runs}.values())  # a run that is made meanwhile moves one to the next page


def all_pages(read: Callable[[int], list[Found]]) -> list[Found]:
    """Read what begins at a number, until a page of the server is not full."""
    entries = page = read(0)
    while len(page) == PAGE:
        page = read(len(entries))
        entries = entries + page
    return entries


def silent_runs(client: "SyncPrefectClient", seconds: float = SILENT_SECONDS) -> "list[FlowRun]":
    """Runs that have been running or cancelled for some seconds, none of which brought a heartbeat."""
    since = datetime.now(UTC) - timedelta(seconds=seconds)
    running = runs_where(client, state=_states("RUNNING"), tags=TAGGED, start_time={"before_": since})
    # Its worker ends a run that is cancelled; one that has not begun, or whose worker is gone, nobody ends.
    cancelled = runs_where(client, state=_states("CANCELLING"), tags=TAGGED)
    running += [run for run in cancelled if run.state is not None and run.state.timestamp < since]
    alive = _reporting(client, since) if running else set()
    return [run for run in running if f"prefect.flow-run.{run.id}" not in alive]


def active_runs(client: "SyncPrefectClient") -> "list[FlowRun]":
    """Runs that hold a slot."""
    return runs_where(client, state=_states(*ACTIVE, "CANCELLING"))


def late_runs(client: "SyncPrefectClient", minutes: float) -> "list[FlowRun]":
    """Runs that should have begun some minutes ago."""
    before = datetime.now(UTC) - timedelta(minutes=minutes)
    return runs_where(client, state=_states("SCHEDULED"), tags=TAGGED, next_scheduled_start_time={"before_": before})


def _reporting(client: "SyncPrefectClient", since: datetime) -> set[str]:
    from prefect.events.filters import EventFilter

    conditions = {"occurred": {"since": since}, "event": {"name": [HEARTBEAT]}}
    page = client.read_events(EventFilter.model_validate(conditions), limit=50)
    ids = {event.resource.id for event in page.events}
    while page.next_page is not None:
        page = client.read_events_page(str(page.next_page))
        ids |= {event.resource.id for event in page.events}
    return ids


def _states(*types: str) -> dict[str, Any]:
    return {"type": {"any_": types}}
