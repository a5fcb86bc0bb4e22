"""The store and the servers -> nothing that is dead runs, nothing that is due is missing.

A retraining is due if rows were committed that no run has seen and that no report counts, if the last run died, or if
a repair has removed what a run of the schedule's settings published. Every stage resumes, so that it goes on where the
one before it stopped.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.exceptions import ObjectNotFound

from dyformer import InvalidInput
from dyformer.experiments.settings import Experiment
from flows.service import TAG
from flows.service.dead_runs import FINAL, end_dead_runs, end_orphans, ended_among, resubmit_unbegun, runs_where
from flows.service.schedules import dataset_of, scheduled
from flows.service.server import TEMPORARY, ServerUnreachable, server_in_use
from flows.tasks.complete_windows import complete_snapshots, has_report
from flows.tasks.finished import lacks_published
from flows.tasks.retention import KEEP, prune_published
from flows.tasks.tracking.projection import pause_after, project
from storage.bytes.files import make_folder
from storage.bytes.objects import StoreUnreachable
from storage.events.table import history, ingested_datasets
from storage.layout import Layout
from storage.tracking.mlflow_client import reason
from storage.tracking.runs import open_tracker
from storage.tracking.upkeep import end_dead_runs as end_tracked

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import DeploymentResponse

Duty = Callable[[], tuple[list[str], list[str]]]
TITLES = {
    "dead": "runs without a heartbeat, ended",
    "orphans": "tasks of ended runs, ended",
    "unbegun": "runs that a worker had taken and not begun, due again",
    "tracked": "runs of MLflow whose flow is dead, ended",
    "started": "retrainings that were missing, started",
    "sent": "results that MLflow lacked, sent",
    "pruned": "old versions, removed",
    "problems": "to be looked at",
}
DEPLOYMENT = "reconcile/any"
WHOLE_LOOK, WHOLE_SECONDS = "whole-look", 3600.0
RETRY_SECONDS = 600.0  # until the next look at everything, where a duty of this one failed
HOURLY = ("tracked", "pruned")  # and MLflow's runs at once, if something has died
NAME = "reconcile-"  # at the beginning of the names of retrainings that a look starts
FEW_TRIES = 3  # of one commit; after more a person has to look
REFUSED = "Deployment concurrency limit reached."  # the server's message of a run that came while another one went on
ACTIVE = ("SCHEDULED", "PENDING", "RUNNING", "PAUSED", "CANCELLING")


def look_by_itself() -> None:
    """Look as each minute; once an hour at all results, at MLflow's runs and for old versions, too.

    Nothing is looked at while the configured Prefect server is away, because whether a run goes on is known there.
    """
    try:
        if server_in_use() == TEMPORARY:  # which nobody uses but its own process
            return
    except ServerUnreachable as error:
        print(f"nothing is looked at, because {error}", flush=True)
        return
    layout = Layout.from_environment()
    is_whole = is_whole_due(layout)
    with get_client(sync_client=True) as client:
        look(client, layout, num_versions(client) if is_whole else None, is_whole=is_whole, is_patient=True)


def look(
    client: "SyncPrefectClient",
    layout: Layout,
    keep: int | None,
    *,
    is_whole: bool = True,
    is_patient: bool = False,
    own: "UUID | None" = None,
) -> dict[str, Any]:
    """End what is dead, start what is missing, send what MLflow lacks, and remove old versions.

    Args:
        client: of Prefect's server.
        layout: of the store.
        keep: number of versions that stay of each dataset that publishes forecasts; None: all.
        is_whole: whether to look at all results, at MLflow's runs and for old versions, which takes longer.
        is_patient: whether a result that MLflow refuses is tried after longer and longer pauses.
        own: the run that looks, if one does.

    Returns:
        A list of lines for each key of TITLES.
    """
    # What may take long comes last: a look that takes too long is ended, and the next one sends the rest.
    duties = {
        "dead": lambda: (end_dead_runs(client, own), []),
        "orphans": lambda: (end_orphans(client), []),
        "unbegun": lambda: (resubmit_unbegun(client), []),
        "tracked": lambda: (end_tracked(open_tracker(layout), lambda ids: ended_among(client, ids)), []),
        "started": lambda: start_missing(client, layout, whole=is_whole),
        "sent": lambda: project(layout, whole=is_whole, patient=is_patient),
        "pruned": lambda: ([], []) if keep is None else prune_published(layout, keep),
    }
    done: dict[str, list[str]] = {}
    problems: list[str] = []
    failed: set[str] = set()
    for name, duty in duties.items():
        has_died = name == "tracked" and bool(done["dead"] or done["orphans"])
        is_due = is_whole or has_died or name not in HOURLY
        done[name], found = _tried(name, duty, failed) if is_due else ([], [])
        problems += found
    if is_whole:
        note_whole(layout, is_soon=bool(failed))
    lines = {**done, "problems": problems}
    if is_whole or any(done.values()):  # a fault that stays has one page an hour
        show_lines(client, lines, own)
    for name, duty_lines in lines.items():
        for line in duty_lines:
            print(f"{TITLES[name]}: {line}", flush=True)
    return lines


def show_lines(client: "SyncPrefectClient", lines: dict[str, list[str]], own: "UUID | None") -> None:
    """Show what was done on a page of Prefect, if anything was."""
    sections = [
        f"## {TITLES[name]}\n\n" + "\n".join(f"- {line}" for line in duty_lines)
        for name, duty_lines in lines.items()
        if duty_lines
    ]
    if sections:
        outcome = "; ".join(f"{TITLES[name]}: {len(duty_lines)}" for name, duty_lines in lines.items() if duty_lines)
        page = "\n\n".join(sections)
        client.create_artifact(
            ArtifactCreate(key="reconcile-all", type="markdown", data=page, description=outcome, flow_run_id=own)
        )


def num_versions(client: "SyncPrefectClient") -> int | None:
    """Number of versions that stay, by the deployment, whose parameter a person may have set."""
    try:
        return client.read_deployment_by_name(DEPLOYMENT).parameters.get("keep", KEEP)
    except ObjectNotFound:  # not deployed yet, or deleted
        return KEEP


def is_whole_due(layout: Layout) -> bool:
    """Whether the last look at everything by a process of this machine ended more than an hour ago, or never."""
    try:
        age = time.time() - (Path(layout.service) / WHOLE_LOOK).stat().st_mtime
    except OSError:
        return True
    return not 0 <= age < WHOLE_SECONDS  # the clock may have been set back


def note_whole(layout: Layout, *, is_soon: bool = False) -> None:
    """Note that everything was looked at now; `is_soon` makes the next such look due in RETRY_SECONDS."""
    with suppress(OSError):  # such as of a full disk, which a duty has named
        make_folder(Path(layout.service))
        note = Path(layout.service) / WHOLE_LOOK
        note.touch()
        if is_soon:
            then = time.time() - WHOLE_SECONDS + RETRY_SECONDS
            os.utime(note, (then, then))


def _tried(name: str, duty: Duty, failed: set[str]) -> tuple[list[str], list[str]]:
    """Do one duty, or add its name to those that failed.

    Its error, such as a store that is away, is a problem: the next duties do not need this one.
    """
    try:
        return duty()
    except Exception as error:  # noqa: BLE001, because every duty is due again at the next look
        failed.add(name)
        return [], [f"{TITLES[name]}: not done, because of {type(error).__name__}: {reason(error)}"]


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
