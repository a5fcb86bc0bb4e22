"""A commit that completes a snapshot -> an event on the Prefect server, which starts the dataset's retraining.

An event is lost while the server is away, or if the run that it starts is cancelled because another one goes on.
`flows.service.missing_runs` then starts the retraining.
"""

import uuid
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import httpx
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL

from dyformer.logs.time_windows import WindowError
from flows.environment import ServerUnreachable, server_in_use
from flows.service.automations import delete_automations
from flows.tasks.complete_windows import complete_snapshots, has_report
from flows.tasks.snapshots import open_snapshots
from storage.artifacts.artifact import digest
from storage.events.table import history

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient

COMMITTED = "dyformer.snapshot.committed"


def announce(dataset: str) -> str | None:
    """Send the event of the newest complete snapshot; return its id, None if there is nothing to retrain on.

    The id is that of the snapshot and of the commit that completed it, so that the server takes an event that is sent
    again soon for the same one. A snapshot that a run has reported on has no event. Without a server, or while it is
    away, nothing is sent.
    """
    snapshots = _complete(dataset) if PREFECT_API_URL.value() else None
    if snapshots is None or has_report(snapshots):
        return None
    opened = open_snapshots(snapshots)
    [arrival] = history(opened.layout, dataset).filter(version=opened.version)["arrival"].unique()
    event = {
        "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{COMMITTED} {dataset} {arrival} {digest(snapshots)}")),
        "event": COMMITTED,
        "occurred": datetime.now(UTC).isoformat(),
        "resource": {"prefect.resource.id": _resource(dataset), "prefect.resource.name": dataset},
        "payload": {"snapshots": opened.layout.relative(snapshots), "step": opened.num_steps},
    }
    try:
        server_in_use()  # because the client repeats its request for minutes
        with get_client(sync_client=True) as client:
            client.request("POST", "/events", json=[event])
    except (ServerUnreachable, httpx.HTTPError):
        return None
    return event["id"]


def ensure_start(client: "SyncPrefectClient", dataset: str, deployment: "UUID", *, is_active: bool = True) -> None:
    """Make or replace the automation that runs a deployment at every event of a dataset."""
    from prefect.events.actions import RunDeployment
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    wanted = AutomationCore(
        name=_name(dataset),
        description=f"Starts the retraining of {dataset} when a commit has completed a snapshot.",
        enabled=is_active,
        trigger=EventTrigger(
            expect={COMMITTED},
            match={"prefect.resource.id": _resource(dataset)},  # pyright: ignore[reportArgumentType], coerced
            posture=Posture.Reactive,
            threshold=1,
            within=timedelta(0),
        ),
        actions=[RunDeployment(source="selected", deployment_id=deployment, parameters=None, job_variables=None)],
    )
    remove_start(client, dataset)
    client.create_automation(wanted)


def remove_start(client: "SyncPrefectClient", dataset: str) -> None:
    """Remove the automation of a dataset, if there is one."""
    delete_automations(client, client.read_automations_by_name(_name(dataset)))


def _complete(dataset: str) -> str | None:
    try:
        return complete_snapshots(dataset)
    except WindowError:  # a retraining would refuse these windows
        return None


def _name(dataset: str) -> str:
    return f"dyformer: retrain {dataset} at every complete snapshot"


def _resource(dataset: str) -> str:
    return f"dyformer.dataset.{dataset}"
