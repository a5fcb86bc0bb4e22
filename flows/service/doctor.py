"""The installation, the store and the servers -> what is wrong with each, and what to do about it."""

import importlib.metadata
import os
import shutil
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from ctypes.util import find_library
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from packaging.requirements import Requirement

from dyformer.experiments.extras import MissingExtra
from dyformer.logs.counts import counted
from flows.cluster import ClusterUnusable, node_checks
from flows.service.dead_runs import PAGE, active_runs, all_pages, ended_among, late_runs, silent_runs
from flows.service.deployments import ENDING, GPU_POOL, JOB_TEMPLATE, POOL
from flows.service.running import LOCK, is_held
from flows.service.schedules import SCHEDULED, dataset_of, scheduled
from flows.service.server import ServerUnreachable, server_in_use
from storage.artifacts.artifact import MANIFEST
from storage.bytes import files
from storage.layout import Layout
from storage.tracking.addresses import without_password
from storage.tracking.marks import due
from storage.tracking.mlflow_client import failures, reason
from storage.tracking.runs import open_tracker
from storage.tracking.upkeep import running_flows

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun
    from prefect.client.schemas.responses import DeploymentResponse

LEAST_FREE_BYTES = 2 << 30
OLDEST_DUE_SECONDS = 3600.0
LATE_MINUTES = 15
ENDED_BY_ITSELF = ("COMPLETED", "FAILED", "CRASHED")
EXCEPTION = "Flow run encountered an exception: "  # at the beginning of the server's message


class Finding(NamedTuple):
    """One thing that was looked at; `remedy` is empty where nothing is wrong."""

    check: str
    outcome: Literal["ok", "wrong"]
    detail: str
    remedy: str = ""


def findings(cluster: str | None = None) -> Iterator[Finding]:
    """Look at everything, and at the nodes of a Ray cluster; what cannot be looked at is a finding, too."""
    layout = Layout.from_environment()
    if cluster:
        yield from _cluster(cluster, layout)
    yield _versions()
    yield from _storage(layout)
    yield _tracking(layout)
    yield _gpu()
    yield from _mlflow(layout)
    yield from _prefect(layout)


def _ok(check: str, detail: str) -> Finding:
    return Finding(check, "ok", detail)


def _versions() -> Finding:
    """Compare what is installed with what the package allows; an optional part is compared if it is there."""
    wrong = []
    for line in importlib.metadata.requires("dyformer") or []:
        one = Requirement(line)
        try:
            version = importlib.metadata.version(one.name)
        except importlib.metadata.PackageNotFoundError:
            wrong += [] if one.marker is not None else [f"{one.name} is missing"]
            continue
        if not one.specifier.contains(version, prereleases=True):
            wrong.append(f"{one.name} {version} is not {one.specifier}")
    python = f"Python {sys.version.split()[0]}"
    if wrong:
        return Finding("versions", "wrong", f"{python}; {'; '.join(wrong)}", "pip install --upgrade dyformer")
    versions = (f"{name} {importlib.metadata.version(name)}" for name in ("dyformer", "prefect", "mlflow", "torch"))
    return _ok("versions", f"{python}, {', '.join(versions)}")


def _cluster(address: str, layout: Layout) -> Iterator[Finding]:
    """Check each node of a cluster as before its work."""
    try:
        for name, check in node_checks(address, layout):
            yield _node(name, check)
    except MissingExtra as error:
        detail, _, remedy = str(error).rpartition(": ")
        yield Finding("Ray", "wrong", detail, remedy)
    except (OSError, ValueError) as error:
        yield _unusable(error)


def _node(name: str, check: Callable[[], None]) -> Finding:
    try:
        check()
    except (OSError, ValueError) as error:
        return _unusable(error)
    return _ok("Ray", f"{name}: the same code, libraries, kind of CPU and store as here")


def _unusable(error: Exception) -> Finding:
    """Name an error of a cluster, which has its remedy, or of the store."""
    if isinstance(error, ClusterUnusable):
        return Finding("Ray", "wrong", error.problem, error.remedy)
    return Finding("Ray", "wrong", str(error), "check DYFORMER_STORAGE and that it may be written")


def _storage(layout: Layout) -> Iterator[Finding]:
    try:
        names = layout.dataset_names(files.children(layout.datasets))
        yield _ok("storage", f"{layout.root}: {counted(len(names), 'dataset')}")
    except (OSError, ValueError) as error:
        yield Finding("storage", "wrong", str(error), "check DYFORMER_STORAGE and that it may be read")
    folder = Path(layout.state)
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    detail = f"{free / 2**30:.1f} GiB free at {layout.state}"
    if not os.access(folder, os.W_OK):
        detail = f"{folder} may not be written"
        yield Finding("disk", "wrong", detail, "mount it for writing, or correct its owner and mode")
    elif free < LEAST_FREE_BYTES:
        yield Finding("disk", "wrong", detail, "free some space, or set DYFORMER_STATE to another disk")
    else:
        yield _ok("disk", detail)


def _tracking(layout: Layout) -> Finding:
    try:
        waiting = due(layout)
        oldest = max((time.time() - files.modified(f"{address}/{MANIFEST}") for address in waiting[:1]), default=0.0)
    except (OSError, ValueError) as error:
        return Finding("tracking", "wrong", str(error), "check DYFORMER_STORAGE and that it may be read")
    detail = "1 result is not in MLflow" if len(waiting) == 1 else f"{len(waiting)} results are not in MLflow"
    if oldest > OLDEST_DUE_SECONDS:
        detail += f", one for {oldest / 3600:.0f} h"
        return Finding("tracking", "wrong", detail, "`dyformer track` sends them, or says why it cannot")
    return _ok("tracking", detail)


def _gpu() -> Finding:
    has_driver = shutil.which("nvidia-smi") is not None
    if not has_driver and not Path("/dev/kfd").exists() and find_library("cuda") is None:
        return _ok("GPU", "none: trainings use the processor")  # without the seconds of importing torch
    import torch

    if torch.cuda.is_available():
        return _ok("GPU", ", ".join(torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())))
    if has_driver:
        remedy = "install a build of torch for CUDA: see pytorch.org"
        return Finding("GPU", "wrong", f"the driver is there, but torch {torch.__version__} sees none", remedy)
    return _ok("GPU", "none: trainings use the processor")


def _mlflow(layout: Layout) -> Iterator[Finding]:
    tracker = open_tracker(layout)
    address = without_password(tracker.uri)
    try:
        running = running_flows(tracker)
    except failures() as error:
        remedy = "start it, or unset MLFLOW_TRACKING_URI; until then results wait in the store"
        yield Finding("MLflow", "wrong", f"{address}: {reason(error)}", remedy)
        return
    yield _ok("MLflow", f"{address}: {counted(len(running), 'flow')} {'is' if len(running) == 1 else 'are'} running")


def _prefect(layout: Layout) -> Iterator[Finding]:
    from httpx import HTTPError
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL

    if not PREFECT_API_URL.value():
        yield _no_server(layout)
        return
    try:
        yield _ok("Prefect", server_in_use())
    except ServerUnreachable as error:
        detail, _, remedy = str(error).partition(": ")
        yield Finding("Prefect", "wrong", detail, remedy)
        return
    try:
        with get_client(sync_client=True) as client:
            for look in (_workers, _pools, _automation, _dead, _tracked, _slots, _late, _failing):
                yield look(client)
    except HTTPError as error:  # such as of a server whose disk is full
        detail = str(error).partition(" for url ")[0]
        yield Finding("Prefect", "wrong", detail, "see the server's log, and whether its disk has space")


def _no_server(layout: Layout) -> Finding:
    """Name the schedules that start nothing while `dyformer up` of this store does not run."""
    waiting = _stopped_schedules(Path(layout.service) / "prefect" / "prefect.db")
    if waiting and not is_held(Path(layout.service) / LOCK):
        detail = f"`dyformer up` does not run, so that these schedules start nothing: {', '.join(waiting)}"
        return Finding("Prefect", "wrong", detail, "start `dyformer up`")
    return _ok("Prefect", "none is configured: commands start a temporary one; `dyformer up` starts one that stays")


def _stopped_schedules(database: Path) -> list[str]:
    """Return the deployments with an active schedule in the database of a stopped server; none if it cannot be read."""
    query = (
        "select distinct d.name from deployment d join deployment_schedule s on s.deployment_id = d.id"
        " where s.active and d.tags like ? order by d.name"
    )
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            return [name for (name,) in connection.execute(query, (f'%"{SCHEDULED}"%',))]
    except sqlite3.Error:  # such as no file, because `up` never ran
        return []


def _workers(client: "SyncPrefectClient") -> Finding:
    from prefect.exceptions import ObjectNotFound

    pools = {
        str(deployment.work_pool_name)
        for deployment in scheduled(client)
        if any(when.active for when in deployment.schedules)
    }
    online: dict[str, list[str]] = {}
    for pool in sorted({POOL, *pools}):
        try:
            workers = client.read_workers_for_work_pool(pool)
        except ObjectNotFound:
            return Finding("workers", "wrong", f"there is no work pool {pool}", "`dyformer deploy` makes it")
        online[pool] = [worker.name for worker in workers if worker.status == "ONLINE"]
    empty = [pool for pool, names in online.items() if not names]
    if empty:
        remedy = f"python -m flows.service.worker --pool {empty[0]}"
        return Finding("workers", "wrong", f"none is online in {' and '.join(empty)}: its runs wait", remedy)
    return _ok("workers", "; ".join(f"{', '.join(names)} online in {pool}" for pool, names in online.items()))


def _pools(client: "SyncPrefectClient") -> Finding:
    pools = [pool for pool in client.read_work_pools() if pool.name in (POOL, GPU_POOL)]
    wrong = [pool.name for pool in pools if pool.base_job_template != JOB_TEMPLATE]
    if wrong:
        detail = f"runs of {' and '.join(wrong)} could choose what their processes execute"
        return Finding("work pools", "wrong", detail, "`dyformer deploy` corrects it")
    return _ok("work pools", "no run chooses what its process executes")


def _automation(client: "SyncPrefectClient") -> Finding:
    if not any(automation.enabled for automation in client.read_automations_by_name(ENDING)):
        remedy = "`dyformer deploy` makes it; switch it on on Prefect's page"
        return Finding("automation", "wrong", f"missing or off: {ENDING}", remedy)
    return _ok("automation", "runs without a heartbeat are ended")


def _dead(client: "SyncPrefectClient") -> Finding:
    names = [run.name for run in silent_runs(client)]
    if names:
        remedy = "`prefect deployment run reconcile/any` ends them"
        return Finding("zombies", "wrong", f"running without a heartbeat: {', '.join(names)}", remedy)
    return _ok("zombies", "every running run reports")


def _tracked(client: "SyncPrefectClient") -> Finding:
    try:
        running = running_flows(open_tracker(Layout.from_environment()))
    except failures():
        return _ok("MLflow's runs", "not looked at")
    dead = ended_among(client, dict(running.values()))
    if dead:
        remedy = "`prefect deployment run reconcile/any` ends them"
        return Finding("MLflow's runs", "wrong", f"{len(dead)} are running, whose flow has ended", remedy)
    return _ok("MLflow's runs", "every running one has a flow that runs")


def _slots(client: "SyncPrefectClient") -> Finding:
    """Compare the slots that are taken with the runs that are active."""
    active = active_runs(client)
    leaked = [
        f"{str(deployment.entrypoint).rpartition('.')[2]}/{deployment.name}"
        for deployment in all_pages(lambda number: client.read_deployments(offset=number))
        if (limit := deployment.global_concurrency_limit) is not None
        and limit.active_slots > sum(run.deployment_id == deployment.id for run in active)
    ]
    if leaked:
        remedy = "they are free when their lease ends, within five minutes"
        return Finding("slots", "wrong", f"taken without a run: {', '.join(leaked)}", remedy)
    return _ok("slots", f"{counted(len(active), 'active run')}, no slot without one")


def _late(client: "SyncPrefectClient") -> Finding:
    late = [run.name for run in late_runs(client, LATE_MINUTES)]
    schedules = scheduled(client)
    if late:
        detail = (
            f"{counted(len(late), 'run')} {'is' if len(late) == 1 else 'are'} more than {LATE_MINUTES} minutes late"
        )
        return Finding("schedules", "wrong", detail, "start another worker, or make schedules less frequent")
    return _ok("schedules", f"{len(schedules)} of your own, nothing is late")


def _failing(client: "SyncPrefectClient") -> Finding:
    """Find the active schedules whose newest run that came to an end by itself failed or died.

    A paused schedule is left out, and so is a run that was cancelled.
    """
    active = [deployment for deployment in scheduled(client) if any(when.active for when in deployment.schedules)]
    failing = {dataset_of(deployment): failed for deployment in active if (failed := _failed_last(client, deployment))}
    if not failing:
        return _ok("retrainings", f"the last one of each of {counted(len(active), 'active schedule')} did not fail")
    detail = "; ".join(f"{dataset}: {_named(failed)}" for dataset, failed in failing.items())
    return Finding("retrainings", "wrong", detail, "correct what the message names; the logs are on Prefect's page")


def _failed_last(client: "SyncPrefectClient", deployment: "DeploymentResponse") -> "list[FlowRun]":
    """Return the newest runs of a schedule up to the last one that completed, a page at most; the newest first."""
    from prefect.client.schemas.filters import FlowRunFilter
    from prefect.client.schemas.sorting import FlowRunSort

    conditions = {"deployment_id": {"any_": [deployment.id]}, "state": {"type": {"any_": list(ENDED_BY_ITSELF)}}}
    run_filter = FlowRunFilter.model_validate(conditions)
    runs = client.read_flow_runs(flow_run_filter=run_filter, sort=FlowRunSort.END_TIME_DESC, limit=PAGE)
    return list(takewhile(lambda run: run.state_type != "COMPLETED", runs))


def _named(failed: "list[FlowRun]") -> str:
    newest = failed[0]
    message = ((newest.state.message if newest.state is not None else None) or "no message").splitlines()[0]
    number = "the last retraining" if len(failed) == 1 else f"the last {len(failed)} retrainings"
    return f"{number} failed, the newest at {str(newest.end_time)[:16]} UTC: {message.removeprefix(EXCEPTION)}"
