"""A commit that completes a snapshot -> an event on the Prefect server, to which a user's automation may react.

Nothing of this project does, because an event is lost while the server is away: `flows.service.look` looks.
"""

import uuid
from contextlib import suppress
from datetime import UTC, datetime

import httpx
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL

from dyformer.logs.time_windows import WindowError
from flows.service.server import ServerUnreachable, server_in_use
from flows.tasks.complete_windows import complete_snapshots, has_report
from flows.tasks.snapshots import open_snapshots
from storage.artifacts.artifact import digest
from storage.events.table import history

COMMITTED = "dyformer.snapshot.committed"


def announce(dataset: str) -> str | None:
    """Send the event of the newest complete snapshot; return its id, None if there is nothing to retrain on.

    The id is that of the snapshot and of the commit that completed it, so that the server takes an event that is sent
    again soon for the same one. A snapshot that a run has reported on has no event. Without a server, or while it is
    away, nothing is sent.
    """
    snapshots = None
    with suppress(WindowError):  # a retraining would refuse these windows
        snapshots = complete_snapshots(dataset) if PREFECT_API_URL.value() else None
    if snapshots is None or has_report(snapshots):
        return None
    opened = open_snapshots(snapshots)
    [arrival] = history(opened.layout, dataset).filter(version=opened.version)["arrival"].unique()
    event = {
        "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"{COMMITTED} {dataset} {arrival} {digest(snapshots)}")),
        "event": COMMITTED,
        "occurred": datetime.now(UTC).isoformat(),
        "resource": {"prefect.resource.id": f"dyformer.dataset.{dataset}", "prefect.resource.name": dataset},
        "payload": {"snapshots": opened.layout.relative(snapshots), "step": opened.num_steps},
    }
    try:
        server_in_use()  # because the client repeats its request for minutes
        with get_client(sync_client=True) as client:
            client.request("POST", "/events", json=[event])
    except (ServerUnreachable, httpx.HTTPError):
        return None
    return event["id"]
