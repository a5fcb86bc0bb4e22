"""Committed rows of a scheduled dataset that no retraining has seen -> a retraining.

An event that starts one is lost while the server is away, and a run that was to start one may have died. The newest
commit to the event table is compared with the runs that began after it.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from flows.service.dead_runs import runs_where
from flows.service.schedules import scheduled
from storage.checksums import Damaged
from storage.disk import ReadFailed
from storage.events.table import history, ingested_datasets
from storage.layout import Layout

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

MOST_TRIES = 3  # of one commit, before a person has to look
WAITING = ("SCHEDULED", "PENDING", "RUNNING", "PAUSED")


def start_missing(client: "SyncPrefectClient", layout: Layout) -> tuple[list[str], list[str]]:
    """Start the retrainings of commits that have none; returns a line for each, and one for each that goes wrong.

    A paused schedule starts nothing. The same commit is never started twice at once, because the run has its name.
    """
    started, problems = [], []
    stored = set(ingested_datasets(layout))
    for deployment in scheduled(client):
        dataset = str(deployment.parameters["dataset"])
        if dataset in stored and any(each.active for each in deployment.schedules):
            try:
                line = _started(client, layout, deployment, dataset)
            except (Damaged, ReadFailed, TooManyTries) as error:
                problems.append(f"{dataset}: {error}")
            else:
                started += [] if line is None else [line]
    return started, problems


class TooManyTries(ValueError):
    """The retrainings of a commit failed again and again."""


def _started(client: "SyncPrefectClient", layout: Layout, deployment: "DeploymentResponse", dataset: str) -> str | None:
    version, arrival = history(layout, dataset).select("version", "arrival").row(-1)
    committed = datetime.fromtimestamp(arrival / 1e6, UTC)
    runs = runs_where(client, deployment_id={"any_": [deployment.id]}, expected_start_time={"after_": committed})
    due = datetime.now(UTC)
    states = [run.state for run in runs if run.state is not None and (run.expected_start_time or due) <= due]
    if any(state.type.value == "COMPLETED" or state.type.value in WAITING for state in states):
        return None
    tries = sum(state.type.value in ("FAILED", "CRASHED") for state in states)
    if tries >= MOST_TRIES:
        raise TooManyTries(f"{tries} retrainings after version {version} of the event table failed: see their logs")
    client.create_flow_run_from_deployment(deployment.id, idempotency_key=f"reconcile-{version}-{tries}")
    return f"{dataset}, version {version} of the event table"
