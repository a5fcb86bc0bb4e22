"""Committed rows of a scheduled dataset that no retraining has seen -> a retraining.

An event that starts one is lost while the server is away, and a run that was to start one may have died. The newest
commit to the event table is compared with the runs that ended after it or go on.
"""

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from flows.service.dead_runs import FINAL, runs_where
from flows.service.schedules import scheduled
from flows.tasks.complete_windows import complete_snapshots, has_report
from storage.events.table import history, ingested_datasets
from storage.layout import Layout
from storage.objects import StoreUnreachable

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import DeploymentResponse

NAME = "reconcile-"  # at the beginning of the names of these runs
MOST_TRIES = 3  # of one commit, before a person has to look
ACTIVE = ("SCHEDULED", "PENDING", "RUNNING", "PAUSED", "CANCELLING")


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
            except StoreUnreachable:  # of all datasets
                raise
            except Exception as error:  # noqa: BLE001, because no fault of one dataset may stop the others
                problems.append(f"{dataset}: {str(error).removeprefix(f'{dataset}: ')}")
            else:
                started += [] if line is None else [line]
    return started, problems


class TooManyTries(ValueError):
    """The retrainings of a commit failed again and again."""


def _started(client: "SyncPrefectClient", layout: Layout, deployment: "DeploymentResponse", dataset: str) -> str | None:
    version, arrival = history(layout, dataset).select("version", "arrival").row(-1)
    of_this = {"deployment_id": {"any_": [deployment.id]}}
    due = {"before_": datetime.now(UTC)}  # the server makes the runs of the next days long before
    if runs_where(client, **of_this, state={"type": {"any_": ACTIVE}}, expected_start_time=due):
        return None
    committed = datetime.fromtimestamp(arrival / 1e6, UTC)
    ended = runs_where(client, **of_this, state={"type": {"any_": FINAL}}, end_time={"after_": committed})
    completed = [run for run in ended if run.state_type == "COMPLETED"]
    if any(run.start_time is not None and run.start_time >= committed for run in completed):
        return None
    # A run makes its commit after it began. If another run made this one meanwhile, it has not seen it.
    if completed and _is_reported(dataset, deployment.parameters.get("as_of")):
        return None
    # A run that the schedule or an event starts while another one goes on is cancelled: that is no try.
    tries = sum(run.state_type in ("FAILED", "CRASHED") or _is_own(run) for run in ended if run not in completed)
    if tries >= MOST_TRIES:
        failed = "failed or were cancelled: see their logs"
        raise TooManyTries(f"{tries} retrainings after version {version} of the event table {failed}")
    return f"{dataset}, version {version} of the event table" if _is_new(client, deployment, arrival, ended) else None


def _is_reported(dataset: str, as_of: str | None) -> bool:
    """Whether the newest complete windows have a report, or are too few for one."""
    snapshots = complete_snapshots(dataset, as_of)
    return snapshots is None or has_report(snapshots)


def _is_own(run: "FlowRun") -> bool:
    """Whether this module started a run, which then was cancelled by a person."""
    return (run.idempotency_key or "").startswith(NAME)


def _is_new(
    client: "SyncPrefectClient", deployment: "DeploymentResponse", arrival: int, ended: "list[FlowRun]"
) -> bool:
    """Start a run, and return whether there was none of its name.

    A name counts for all deployments of a flow, also after a removal; Prefect returns the old run of a used name.
    """
    last = max(ended, key=lambda run: (run.end_time or run.created, run.id)).id if ended else "first"
    name = f"{NAME}{deployment.id}-{arrival}-{last}"
    if runs_where(client, idempotency_key={"any_": [name]}):
        return False
    client.create_flow_run_from_deployment(deployment.id, idempotency_key=name)
    return True
