"""Flow: the store and the servers -> nothing that is dead runs, nothing that is due is missing."""

from collections.abc import Callable
from typing import Any

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run

from flows.artifacts import show_page
from flows.retention import KEEP, prune_published
from flows.service.dead_runs import end_dead_runs, end_orphans, ended_among, resubmit_unbegun, skip_late
from flows.service.missing_runs import start_missing
from flows.tasks.tracking.projection import project
from storage.layout import Layout
from storage.tracking.dead_runs import end_dead_runs as end_tracked
from storage.tracking.mlflow_client import reason
from storage.tracking.runs import open_tracker

Duty = Callable[[], tuple[list[str], list[str]]]
TITLES = {
    "dead": "runs without a heartbeat, ended",
    "orphans": "tasks and subflows of ended runs, ended",
    "unbegun": "runs that a worker had taken and not begun, due again",
    "late": "late runs of this flow, skipped",
    "tracked": "runs of MLflow whose flow is dead, ended",
    "sent": "results that MLflow lacked, sent",
    "started": "retrainings that were missing, started",
    "pruned": "old versions, removed",
    "problems": "to be looked at",
}


@flow(flow_run_name="reconcile")
def reconcile(keep: int | None = KEEP) -> dict[str, Any]:
    """End what is dead, start what is missing, send what MLflow lacks, and remove old versions.

    Args:
        keep: number of versions that stay of each dataset that publishes forecasts; None: all.

    Returns:
        A list of lines for each key of TITLES.
    """
    layout = Layout.from_environment()
    with get_client(sync_client=True) as client:
        own = flow_run.get_id()
        duties = {
            "dead": lambda: (end_dead_runs(client, own), []),
            "orphans": lambda: (end_orphans(client), []),
            "unbegun": lambda: (resubmit_unbegun(client), []),
            "late": lambda: (skip_late(client, own), []),
            "tracked": lambda: (end_tracked(open_tracker(layout), lambda ids: ended_among(client, ids)), []),
            "sent": lambda: project(layout, whole=True),
            "started": lambda: start_missing(client, layout),
            "pruned": lambda: ([], []) if keep is None else prune_published(layout, keep),
        }
        done: dict[str, list[str]] = {}
        problems: list[str] = []
        for name, duty in duties.items():
            done[name], found = _tried(TITLES[name], duty)
            problems += found
        done["problems"] = problems
    page = [
        f"## {TITLES[name]}\n\n" + "\n".join(f"- {line}" for line in lines) for name, lines in done.items() if lines
    ]
    if page:
        show_page("reconcile", "all", "\n\n".join(page))
    return done


def _tried(title: str, duty: Duty) -> tuple[list[str], list[str]]:
    """Do one duty; its error, such as a store that is away, is a problem: the next duties do not need this one."""
    try:
        return duty()
    except Exception as error:  # noqa: BLE001, because every duty is due again at the next run
        return [], [f"{title}: not done, because of {type(error).__name__}: {reason(error)}"]
