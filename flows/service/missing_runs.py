"""The store and the runs of each schedule -> the retrainings that are due, started.

A retraining is due if rows were committed that no run has seen and that no report counts, if the last run died, or if
a repair has removed what a run of the schedule's settings published.
Every stage resumes, so that it goes on where the one before it stopped.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

from dyformer import InvalidInput
from dyformer.experiments.settings import Experiment
from flows.service import TAG
from flows.service.dead_runs import FINAL, runs_where
from flows.service.schedules import dataset_of, scheduled
from flows.tasks.complete_windows import complete_snapshots, has_report
from flows.tasks.finished import lacks_published
from flows.tasks.tracking.projection import pause_after
from storage.bytes.objects import StoreUnreachable
from storage.events.table import history, ingested_datasets
from storage.layout import Layout

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import DeploymentResponse

NAME = "reconcile-"  # at the beginning of the names of these runs
FEW_TRIES = 3  # of one commit; after more a person has to look
REFUSED = "Deployment concurrency limit reached."  # the server's message of a run that came while another one went on
ACTIVE = ("SCHEDULED", "PENDING", "RUNNING", "PAUSED", "CANCELLING")


def start_missing(client: "SyncPrefectClient", layout: Layout, *, whole: bool = True) -> tuple[list[str], list[str]]:
    """Start the retrainings that are due; returns a line for each, and one for each that goes wrong.

    A paused schedule starts nothing, and neither does one of a dataset that a run works on, or whose own run waits. A
    run of another deployment that waits, such as for a worker with a GPU, keeps nothing back. With `whole` it also
    looks for published parts that a repair has removed, which opens reports of the newest versions.
    """
    started, problems = [], []
    due = {"before_": datetime.now(UTC)}  # the server makes the runs of the next days long before
    active = runs_where(client, state={"type": {"any_": ACTIVE}}, tags={"all_": [TAG]}, expected_start_time=due)
    waiting = {run.deployment_id for run in active if run.state_type == "SCHEDULED"}
    worked_on = {run.parameters.get("dataset") for run in active if run.state_type != "SCHEDULED"}
    free = set(ingested_datasets(layout)) - worked_on
    for deployment in scheduled(client):
        dataset = dataset_of(deployment)
        if not dataset:
            problems.append(
                f"the deployment {deployment.name} is a schedule and has no parameter `dataset`: set it on Prefect's"
                " page, or delete the deployment there and give `dyformer schedule` again"
            )
        is_free, note = dataset in free and deployment.id not in waiting, partial(_note, problems, dataset)
        if is_free and any(schedule.active for schedule in deployment.schedules):
            try:
                line = _started(client, layout, deployment, dataset, note, whole=whole)
            except StoreUnreachable:  # of all datasets
                raise
            except Exception as error:  # noqa: BLE001, because no fault of one dataset may stop the others
                note(str(error))
            else:
                started += [] if line is None else [line]
    return started, problems


def _note(problems: list[str], dataset: str, problem: str) -> None:
    problems.append(f"{dataset}: {problem.removeprefix(f'{dataset}: ')}")


def _started(
    client: "SyncPrefectClient",
    layout: Layout,
    deployment: "DeploymentResponse",
    dataset: str,
    note: Callable[[str], None],
    *,
    whole: bool,
) -> str | None:
    version, arrival = history(layout, dataset).select("version", "arrival").row(-1)
    committed = datetime.fromtimestamp(arrival / 1e6, UTC)
    ended = runs_where(
        client,
        deployment_id={"any_": [deployment.id]},
        state={"type": {"any_": FINAL}},
        end_time={"after_": committed},
    )
    ended = sorted(filter(_is_try, ended), key=lambda run: (run.end_time or run.created, run.id), reverse=True)
    failed = list(takewhile(lambda run: run.state_type != "COMPLETED", ended))
    is_dead = bool(failed) and failed[0].state_type == "CRASHED"
    if not is_dead and _is_seen(dataset, deployment, [] if failed else ended, committed):
        if not whole or not _lacks_published(layout, dataset, deployment, note):
            return None
        by_name = [run for run in ended if (run.idempotency_key or "").startswith(NAME)]
        if len(by_name) > FEW_TRIES:
            raise InvalidInput(
                f"a part of what version {version} of the event table published is missing, and {len(by_name)}"
                " retrainings of the schedule did not make it again: see their logs, and give `dyformer retrain` by"
                f" hand, with the settings of the schedule of {dataset}"
            )
        if by_name and datetime.now(UTC) < (by_name[0].end_time or committed) + pause_after(len(by_name) - 1):
            return None
    elif failed and datetime.now(UTC) < (failed[0].end_time or committed) + pause_after(len(failed)):
        if len(failed) < FEW_TRIES:
            return None
        raise InvalidInput(
            f"{len(failed)} retrainings after version {version} of the event table failed or were cancelled: see their"
            f" logs; the next one is tried {pause_after(len(failed))} after the last"
        )
    # Prefect returns the run of a used name, so that two looks at once start one run.
    name = f"{NAME}{deployment.id}-{arrival}-{ended[0].id if ended else 'first'}"
    run = client.create_flow_run_from_deployment(deployment.id, idempotency_key=name)
    return None if run.state_type in FINAL else f"{dataset}, version {version} of the event table"


def _lacks_published(
    layout: Layout, dataset: str, deployment: "DeploymentResponse", note: Callable[[str], None]
) -> bool:
    """Whether a part of what the newest report of the schedule's settings published is missing."""
    experiment = Experiment().changed(deployment.parameters.get("changes") or {})
    return lacks_published(layout, dataset, experiment, deployment.parameters.get("seed", 0), note)


def _is_try(run: "FlowRun") -> bool:
    """Whether a run did something, or was to: the server refuses one that comes while another one goes on."""
    return run.state is None or run.state.message != REFUSED


def _is_seen(dataset: str, deployment: "DeploymentResponse", ended: "list[FlowRun]", committed: datetime) -> bool:
    """Whether one of these runs began after a commit and completed, or the newest complete windows have a report."""
    completed = (run for run in ended if run.state_type == "COMPLETED")
    if any(run.start_time is not None and run.start_time >= committed for run in completed):
        return True
    snapshots = complete_snapshots(dataset, deployment.parameters.get("as_of"))
    return snapshots is None or has_report(snapshots)
