"""A dataset and a cron line or an interval -> a deployment of its own on the configured Prefect server."""

import glob
import itertools
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from dyformer import InvalidInput
from dyformer.logs.datasets import DATASETS, OWN_LOG_WINDOW
from dyformer.logs.time_windows import Window
from flows.service import TAG
from flows.service.dead_runs import all_pages
from flows.service.deployments import GPU_POOL, POOL, Concurrency, Deployment, Schedule, WorkPool, send_deployment
from flows.service.running import running_stack
from storage.events.declarations import declaration
from storage.events.table import ingested_datasets
from storage.layout import SAFE_NAME, Layout

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import DeploymentSchedule, FlowRun
    from prefect.client.schemas.responses import DeploymentResponse

SCHEDULED = "dyformer-schedule"  # the tag of these deployments
SLUG = "own"
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
NOT_GIVEN = "not given"
SHORTEST = timedelta(seconds=60)
LONGEST = timedelta(weeks=520)


class BadSchedule(InvalidInput):
    """A dataset's name, a cron line, an interval or a timezone that is none, or a schedule that does not exist."""


def schedule_of(cron: str | None, interval: str | None, timezone: str | None = None) -> Schedule:
    """Return the schedule of a cron line ("0 3 * * *") or of an interval ("6h"); raises BadSchedule."""
    try:
        return Schedule(cron=cron, interval=_duration(interval), timezone=timezone, slug=SLUG)
    except ValidationError as error:
        text = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise BadSchedule(f'{text}: write --cron "0 3 * * *" or --interval 6h, and --timezone Europe/Berlin') from error


def _duration(text: str | None) -> timedelta | None:
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d{1,8})\s*([smhdw])\s*", text)  # more digits overflow
    length = timedelta(**{UNITS[match[2]]: int(match[1])}) if match else timedelta()
    if not SHORTEST <= length <= LONGEST:
        raise BadSchedule(f"interval {text!r}: write a number of m, h, d or w, such as 6h, from 1m to 520w")
    return length


def absolute_logs(reading: dict[str, Any]) -> dict[str, Any]:
    """Make the paths of a log absolute, because a worker starts its runs in a folder of their own."""
    if not reading.get("log"):
        return reading
    paths = [path if "://" in path else str(Path.cwd() / Path(path).expanduser()) for path in reading["log"]]
    return {**reading, "log": paths}


def check_logs(dataset: str, reading: dict[str, Any]) -> list[str]:
    """Return the paths of a log that are not on this machine, because workers of another one may have them.

    A folder may be empty, and a pattern may match nothing yet. If the workers are those of `dyformer up` on this
    machine, raises BadSchedule for such a path, and for a dataset that is not known, without a log.
    """
    layout = Layout.from_environment()
    paths = [path for path in absolute_logs(reading).get("log", []) if "://" not in path]
    missing = [path for path in paths if not _unmagical(Path(path)).exists()]
    stack = running_stack(layout)
    if stack is None or stack["prefect"] != os.environ.get("PREFECT_API_URL"):
        return missing
    if not reading.get("log") and dataset not in DATASETS and declaration(layout, dataset) is None:
        raise BadSchedule(
            f"{dataset} is no known dataset and none of {layout.root}, and no log is given, so that every run would"
            f" fail: pass `log`, or correct the name (ingested: {', '.join(ingested_datasets(layout)) or 'none'})"
        )
    if missing:
        raise BadSchedule(
            f"{dataset}: expected a file or a folder at {missing[0]}, and there is none, so that every run would fail:"
            " make the folder, into which files may come later, or correct `log`"
        )
    return missing


def _unmagical(path: Path) -> Path:
    """Return the part of a path before its first pattern."""
    parts = itertools.takewhile(lambda part: not glob.has_magic(part), path.parts)
    return Path(*parts)


def make_schedule(
    dataset: str,
    schedule: Schedule,
    reading: dict[str, Any],
    changes: dict[str, Any],
    seed: int,
    *,
    as_of: str | None = None,
    gpu: bool = False,
) -> str:
    """Make or replace the schedule of a dataset; returns its deployment.

    Of a run that is due while the one before it still runs, nothing is done but its end as Cancelled, with the reason.
    With `as_of` "now", its only other value, a window is also complete when its time has passed, though no later row
    has come.
    With `gpu` its runs wait for a worker of the GPU pool. Raises BadSchedule if the store cannot have a dataset of this
    name, if new rows would move its windows, or if the log has no clock.
    """
    from prefect.client.orchestration import get_client

    if not SAFE_NAME.fullmatch(dataset):
        allowed = "letters, digits, '.', '_' and '-', beginning with a letter or a digit"
        raise BadSchedule(f"dataset {dataset!r} cannot have a schedule: use {allowed}")
    _check_windows(dataset, reading, as_of)
    parameters = {
        "dataset": dataset,
        "reading": absolute_logs(reading),
        "changes": changes,
        "seed": seed,
        "as_of": as_of,
    }
    deployment = Deployment(
        name=f"{dataset}-schedule",
        description=f"{dataset}, from new interactions to evaluated forecasts, by itself.",
        entrypoint="flows.retrain.retrain",
        parameters={name: value for name, value in parameters.items() if value},
        tags=[TAG, SCHEDULED, *(["gpu"] if gpu else [])],
        work_pool=WorkPool(name=GPU_POOL if gpu else POOL, work_queue_name="train"),
        concurrency_limit=Concurrency(limit=1, collision_strategy="CANCEL_NEW"),
        schedules=[schedule],
        pull=[],
    )
    with get_client(sync_client=True) as client:
        send_deployment(client, deployment)
    return deployment.full_name


def _check_windows(dataset: str, reading: dict[str, Any], as_of: str | None) -> None:
    """Raise BadSchedule for a number of windows, which a log that grows cannot have, and for a log without a clock.

    A dataset that is not in this store, and of which nothing is given, may have its windows in the workers' store.
    """
    declared = declaration(Layout.from_environment(), dataset) or {}
    if as_of not in (None, "now"):
        raise BadSchedule(f'`as_of` {as_of!r}: expected "now", because the time of a schedule goes on')
    if as_of is not None and reading.get("time_unit", declared.get("time_unit")) == "step":
        raise BadSchedule(f"{dataset}: this log has integer steps and no clock: leave `as_of` out")
    if reading.get("finished", declared.get("finished")):
        return
    usual = DATASETS[dataset].window if dataset in DATASETS else OWN_LOG_WINDOW if "log" in reading else None
    window = reading.get("window") or declared.get("window") or usual
    if window is not None and Window.parse(str(window)).count is not None:
        raise BadSchedule(
            f"{dataset}: the window {str(window)!r} divides the whole log, so that new rows move all windows and every"
            ' run but the first would be refused: choose windows of fixed length, as in `window="7d"`, or declare'
            " that no more rows will come (`finished=True`)"
        )


def replace_schedule(
    dataset: str, schedule: Schedule, reading: dict[str, Any], changes: dict[str, Any], seed: int, **options: Any
) -> tuple[str, list[str]]:
    """Make or replace the schedule of a dataset; returns its deployment and what differs from an earlier schedule.

    `options` are those of `make_schedule`, which raises BadSchedule.
    """
    before = _described(dataset)
    name = make_schedule(dataset, schedule, reading, changes, seed, **options)
    changed = differences(before, _described(dataset)) if before else []
    title = "it replaces an earlier schedule as a whole, and differs from it in these options:"
    return name, [title, *(f"  {line}" for line in changed)] if changed else []


def differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Name each option that differs between two schedules, or that one of them lacks."""
    return [
        f"{name}: {before.get(name, NOT_GIVEN)} before, now {after.get(name, NOT_GIVEN)}"
        for name in dict.fromkeys([*before, *after])
        if before.get(name) != after.get(name)
    ]


def _described(dataset: str) -> dict[str, str]:
    """Describe the schedule of a dataset by its options, each as a text; empty if it has none."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        deployment = next((deployment for deployment in scheduled(client) if dataset_of(deployment) == dataset), None)
    if deployment is None:
        return {}
    return {
        "when": ", ".join(_when(schedule.schedule) for schedule in deployment.schedules),
        "paused": "no" if any(schedule.active for schedule in deployment.schedules) else "yes",
        "pool": str(deployment.work_pool_name),
        **options_of(deployment.parameters),
    }


def options_of(parameters: Mapping[str, Any]) -> dict[str, str]:
    """Give the options of a schedule with these parameters, each as a text by its name."""
    others = {name: value for name, value in parameters.items() if name not in ("dataset", "reading", "changes")}
    reading, changes = parameters.get("reading") or {}, parameters.get("changes") or {}
    return {
        **{name.replace("_", "-"): _written(value) for name, value in (reading | others).items()},
        **{f"set {name}": _written(value) for name, value in changes.items()},
    }


def _written(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def schedules(dataset: str | None = None) -> list[dict[str, Any]]:
    """List the schedules: dataset, when, whether it is active, the next and the last run, the parameters.

    A deployment to which schedules were added on Prefect's page has a row for each; one without any has a row as well.
    With a dataset they are those of it alone; raises BadSchedule if there is none.
    """
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        deployments = scheduled(client) if dataset is None else [_of_dataset(client, dataset)]
        return [row for deployment in deployments for row in _rows(client, deployment)]


def scheduled(client: "SyncPrefectClient") -> "list[DeploymentResponse]":
    """Return the deployments of the schedules, by dataset."""
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags

    ours = DeploymentFilter(tags=DeploymentFilterTags(all_=[SCHEDULED]))
    deployments = all_pages(lambda number: client.read_deployments(deployment_filter=ours, offset=number))
    return sorted(deployments, key=dataset_of)


def dataset_of(deployment: "DeploymentResponse") -> str:
    """Return the dataset of a schedule; an empty text where a person has removed this parameter on Prefect's page."""
    return str(deployment.parameters.get("dataset", ""))


def remove_schedule(dataset: str) -> None:
    """Remove the schedule of a dataset; a run that has begun goes on. Raises BadSchedule if there is none."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        client.delete_deployment(_of_dataset(client, dataset).id)


def set_active(dataset: str, *, is_active: bool) -> None:
    """Pause or resume the schedule of a dataset. Raises BadSchedule if there is none."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        deployment = _of_dataset(client, dataset)
        for schedule in deployment.schedules:
            client.update_deployment_schedule(deployment.id, schedule.id, active=is_active)


def _of_dataset(client: "SyncPrefectClient", dataset: str) -> "DeploymentResponse":
    of_dataset = [deployment for deployment in scheduled(client) if dataset_of(deployment) == dataset]
    if not of_dataset:
        raise BadSchedule(f"{dataset} has no schedule: `dyformer schedule --list` shows those that there are")
    return of_dataset[0]


def _rows(client: "SyncPrefectClient", deployment: "DeploymentResponse") -> list[dict[str, Any]]:
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId
    from prefect.client.schemas.sorting import FlowRunSort

    of_this = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[deployment.id]))
    runs = client.read_flow_runs(flow_run_filter=of_this, sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=200)
    return [_row(deployment, schedule, runs) for schedule in deployment.schedules or [None]]


def _row(
    deployment: "DeploymentResponse", schedule: "DeploymentSchedule | None", runs: "list[FlowRun]"
) -> dict[str, Any]:
    due = [run for run in runs if run.state is not None and run.state.is_scheduled() and _is_of(run, schedule)]
    begun = [run for run in runs if run.run_count and run.start_time is not None]  # not what the server cancelled
    return {
        "dataset": dataset_of(deployment),
        "schedule": None if schedule is None else _when(schedule.schedule),
        "active": schedule is not None and schedule.active,
        "next run": _in_utc(due[-1].expected_start_time) if due else None,
        "last run": f"{begun[0].state_name} {_in_utc(begun[0].start_time)}" if begun else None,
        "parameters": {name: value for name, value in deployment.parameters.items() if name != "dataset"},
    }


def _in_utc(time: datetime | None) -> str | None:
    """Write a time to the minute with its zone, which may be another one than that of the schedule."""
    return None if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _is_of(run: "FlowRun", schedule: "DeploymentSchedule | None") -> bool:
    """Return whether a run was not made by another schedule of the deployment."""
    return not run.auto_scheduled or (
        schedule is not None and run.created_by is not None and run.created_by.id == schedule.id
    )


def _when(schedule: Any) -> str:
    zone = f" ({schedule.timezone})" if schedule.timezone else ""
    return f"{getattr(schedule, 'cron', None) or f'every {_length(schedule.interval)}'}{zone}"


def _length(interval: timedelta) -> str:
    """Write an interval as `--interval` reads it, in the largest unit of which it is a whole number."""
    lengths = {unit: timedelta(**{name: 1}) for unit, name in reversed(UNITS.items())}
    return next((f"{interval // one}{unit}" for unit, one in lengths.items() if not interval % one), str(interval))
