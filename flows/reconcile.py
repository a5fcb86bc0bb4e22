"""Flow: the store and the servers -> nothing that is dead runs, nothing that is due is missing."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext

from flows.service.dead_runs import end_dead_runs, end_orphans, ended_among, forget_old, resubmit_unbegun, skip_late
from flows.service.missing_runs import start_missing
from flows.tasks.retention import KEEP, prune_published
from flows.tasks.tracking.projection import project
from storage.files import make_folder
from storage.layout import Layout
from storage.tracking.mlflow_client import reason
from storage.tracking.runs import open_tracker
from storage.tracking.upkeep import end_dead_runs as end_tracked

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

Duty = Callable[[], tuple[list[str], list[str]]]
TITLES = {
    "dead": "runs without a heartbeat, ended",
    "orphans": "tasks of ended runs, ended",
    "unbegun": "runs that a worker had taken and not begun, due again",
    "late": "late runs of this flow, skipped",
    "tracked": "runs of MLflow whose flow is dead, ended",
    "sent": "results that MLflow lacked, sent",
    "started": "retrainings that were missing, started",
    "forgotten": "runs of this flow that ended a day ago, deleted",
    "pruned": "old versions, removed",
    "problems": "to be looked at",
}
WHOLE_LOOK, WHOLE_SECONDS = "whole-look", 3600.0
RETRY_SECONDS = 600.0  # until the next look at everything, where a duty of this one failed
HOURLY = ("tracked", "forgotten", "pruned")  # and MLflow's runs at once, if something has died


@flow(flow_run_name="reconcile")
def reconcile(keep: int | None = KEEP) -> dict[str, Any]:
    """End what is dead, start what is missing, send what MLflow lacks, and remove old versions.

    The look of each minute is cheap. One an hour, and one that a person starts, also looks at all results, at MLflow's
    runs and for old runs and versions.

    Args:
        keep: number of versions that stay of each dataset that publishes forecasts; None: all.

    Returns:
        A list of lines for each key of TITLES.
    """
    layout, context = Layout.from_environment(), FlowRunContext.get()
    run = None if context is None else context.flow_run
    is_scheduled = is_by_schedule(run)
    is_whole = not is_scheduled or is_whole_due(layout)
    with get_client(sync_client=True) as client:
        duties = {
            "dead": lambda: (end_dead_runs(client, run), []),
            "orphans": lambda: (end_orphans(client), []),
            "unbegun": lambda: (resubmit_unbegun(client), []),
            "late": lambda: (skip_late(client, run), []),
            "tracked": lambda: (end_tracked(open_tracker(layout), lambda ids: ended_among(client, ids)), []),
            "sent": lambda: project(layout, whole=is_whole, patient=is_scheduled),
            "started": lambda: start_missing(client, layout, whole=is_whole),
            "forgotten": lambda: (forget_old(client, run), []),
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
    worth_a_page = {name: lines for name, lines in done.items() if name != "forgotten"}
    if is_whole or any(worth_a_page.values()):  # a fault that stays has one page an hour
        show_lines({**worth_a_page, "problems": problems})
    for problem in problems:
        print(problem, flush=True)
    return {**done, "problems": problems}


def show_lines(done: dict[str, list[str]]) -> None:
    """Show what was done on a page of Prefect, if anything was."""
    sections = [f"## {TITLES[name]}\n\n" + "\n".join(f"- {line}" for line in done[name]) for name in done if done[name]]
    if sections:
        from flows.artifacts import show_page  # with all that trains and evaluates, and most looks have no page

        show_page("reconcile", "all", "\n\n".join(sections))


def is_by_schedule(run: "FlowRun | None") -> bool:
    """Whether a run is one of the schedule's, and none that a person started."""
    return run is not None and bool(run.auto_scheduled)


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
