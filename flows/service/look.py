"""The store and the servers -> nothing that is dead runs, nothing that is due is missing."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.exceptions import ObjectNotFound

from flows.service.dead_runs import end_dead_runs, end_orphans, ended_among, resubmit_unbegun
from flows.service.environment import TEMPORARY, ServerUnreachable, server_in_use
from flows.service.missing_runs import start_missing
from flows.tasks.retention import KEEP, prune_published
from flows.tasks.tracking.projection import project
from storage.bytes.files import make_folder
from storage.layout import Layout
from storage.tracking.mlflow_client import reason
from storage.tracking.runs import open_tracker
from storage.tracking.upkeep import end_dead_runs as end_tracked

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient

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
