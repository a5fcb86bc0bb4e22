"""prefect.yaml -> work pools, queues, an automation and deployments on the configured Prefect server.

Prefect ignores unknown keys of the file silently and stops half-way at a wrong deployment. The whole file is therefore
validated before anything is sent.
"""

import importlib
import inspect
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dyformer import InvalidInput
from dyformer.logs.counts import counted
from flows.service import TAG

if TYPE_CHECKING:
    from uuid import UUID

    from prefect import Flow
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.events.schemas.automations import AutomationCore

POOL, GPU_POOL = "dyformer-cpu", "dyformer-gpu"
ANCHOR = datetime(2024, 1, 1, tzinfo=UTC)  # of intervals; without one each deployment would move its runs
CONCURRENT_TRAININGS = 1  # of all datasets, in each pool
HEARTBEAT = "prefect.flow-run.heartbeat"
SILENT_SECONDS = 90  # a live run reports every 30 s
ENDING = "dyformer: end runs without a heartbeat"
SILENT_MESSAGE = f"no heartbeat for {SILENT_SECONDS} s: its process was killed or its machine is gone"
# The events by which a run stops reporting without being dead.
NOT_RUNNING = ("Completed", "Failed", "Cancelled", "Crashed", "AwaitingRetry", "Paused", "Suspended", "Scheduled")
# Prefect's own lets each run choose the command, the environment and the folder of its process. Here they have no
# place for a value: a part that is missing is the worker's own, and one that stood here could still be changed by
# `env`, which Prefect merges. A run that brings a value is refused by the server.
JOB_TEMPLATE: dict[str, Any] = {
    "job_configuration": {"stream_output": True},
    "variables": {"type": "object", "properties": {}, "additionalProperties": False},
}
PARAMETERS = {
    "dataset": "name of a log: a known one, one of the store (`dyformer datasets` lists both), or a new one",
    "reading": "how new rows are read, by the options of `dyformer ingest`, such as"
    ' {"log": ["/srv/incoming/"], "window": "7d"}; none: as before',
    "changes": "settings that differ from the usual ones, by their names in `dyformer settings`, such as"
    ' {"finetune.epochs": 20}',
    "seed": "seed of the split and of the training",
    "as_of": 'the time by which windows are complete: "now", "2024-03-01T00:00" (UTC), or a step as a text; none: that'
    " of the newest row",
    "version": "version of the event table; none: the newest",
    "until": "the newest step that is read; none: the last but one",
    "from_scratch": "train from random weights instead of the champion's",
}
"""What several flows take, as Prefect's form describes it; what one flow takes is described in its docstring."""


class Strict(BaseModel):
    """A part of the file; a key that it does not name is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class WorkPool(Strict):
    """The pool, and its queue, whose workers run a deployment."""

    name: Literal["dyformer-cpu", "dyformer-gpu"]
    work_queue_name: Literal["train"] | None = None


class Concurrency(Strict):
    """The number of runs of a deployment at a time; another one waits, or is cancelled."""

    limit: int = Field(ge=1)
    collision_strategy: Literal["ENQUEUE", "CANCEL_NEW"]


class Schedule(Strict):
    """When a deployment runs by itself: a cron line or an interval."""

    cron: str | None = None
    interval: timedelta | None = Field(default=None, gt=timedelta(0))
    timezone: str | None = None
    active: bool = True
    slug: str = Field(min_length=1)

    @model_validator(mode="after")
    def _is_one(self) -> "Schedule":
        if (self.cron is None) == (self.interval is None):
            raise InvalidInput(f"expected either `cron` or `interval`, found {'none' if self.cron is None else 'both'}")
        self.created()  # a cron line or a timezone that nobody knows is refused here
        return self

    def created(self) -> "DeploymentScheduleCreate":
        """Return the schedule as Prefect's client sends it."""
        from prefect.client.schemas.actions import DeploymentScheduleCreate
        from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule

        if self.cron is not None:
            schedule = CronSchedule(cron=self.cron, timezone=self.timezone)
        else:
            assert self.interval is not None
            schedule = IntervalSchedule(interval=self.interval, anchor_date=ANCHOR, timezone=self.timezone)
        return DeploymentScheduleCreate(schedule=schedule, active=self.active, slug=self.slug)


class Deployment(Strict):
    """A flow with its parameters, where it runs and when."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str
    entrypoint: str = Field(pattern=r"^flows\.\w+\.\w+$")  # a module path, because a file would be imported twice
    parameters: dict[str, Any] = {}
    tags: list[str] = Field(min_length=1)
    work_pool: WorkPool
    concurrency_limit: Concurrency | None = None
    schedules: list[Schedule] = []
    pull: list[Any] = Field(max_length=0)  # `null` would store the folder from which it was deployed

    @property
    def full_name(self) -> str:
        """The name by which Prefect knows it: flow/deployment."""
        return f"{self.flow().name}/{self.name}"

    def flow(self) -> "Flow[..., Any]":
        """Import the flow; raises ValueError if there is none, or if it does not take the parameters."""
        from prefect import Flow

        module, _, name = self.entrypoint.rpartition(".")
        try:
            entrypoint = getattr(importlib.import_module(module), name, None)
        except ModuleNotFoundError as error:
            raise InvalidInput(f"deployment {self.name!r}: there is no module {module}") from error
        if not isinstance(entrypoint, Flow):
            raise InvalidInput(f"deployment {self.name!r}: {self.entrypoint} is no flow")
        unknown = sorted(self.parameters.keys() - inspect.signature(entrypoint.fn).parameters.keys())
        if unknown:
            raise InvalidInput(
                f"deployment {self.name!r}: flow {entrypoint.name} has no parameter {', '.join(unknown)}"
            )
        return entrypoint


class PrefectFile(Strict):
    """All deployments of the project; `definitions` are YAML's own aliases."""

    name: str
    definitions: dict[str, Any] = {}
    deployments: list[Deployment]


def file_of_deployments() -> Path:
    """Path of the project's prefect.yaml: inside the installed package, or above it in a checkout."""
    package = Path(__file__).parents[1]
    installed = package / "prefect.yaml"
    return installed if installed.exists() else package.parent / "prefect.yaml"


def read_deployments(path: Path) -> list[Deployment]:
    """Read and validate a file; raises ValueError that names the place of the fault."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read ({error.strerror}); nothing was deployed") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: other bytes than UTF-8, or no such date
        raise InvalidInput(f"{path} is no YAML: {str(error).splitlines()[0]}") from error
    try:
        definitions = PrefectFile.model_validate(content).deployments
    except ValidationError as error:
        raise InvalidInput(f"{path}: {_first_fault(error, content)}; nothing was deployed") from error
    names = [deployment.full_name for deployment in definitions]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise InvalidInput(f"{path} names {', '.join(doubled)} twice; nothing was deployed")
    return definitions


def _first_fault(error: ValidationError, content: Any) -> str:
    fault = error.errors()[0]
    where = [str(part) for part in fault["loc"]]
    if len(where) > 1 and where[0] == "deployments" and where[1].isdecimal():
        entry = content["deployments"][int(where[1])]
        where[:2] = [f"deployment {entry.get('name') if isinstance(entry, dict) else where[1]!r}"]
    return f"{', '.join(where)}: {fault['msg']}"


def deploy(deployments: Iterable[Deployment], *, gpu: bool = False) -> list[str]:
    """Make pools, queues, the automation and the deployments that are missing, and update the others.

    A second call changes nothing. A limit or a pause that a user set on the server stays. The deployments of the GPU
    pool that do not exist are left out without `gpu`: Prefect shows those of a pool that has no worker as not ready.

    Returns:
        One line for each thing, with what was done.
    """
    from prefect.client.orchestration import get_client

    all_deployments = list(deployments)
    with get_client(sync_client=True) as client:
        sent = [
            deployment
            for deployment in all_deployments
            if gpu or deployment.work_pool.name != GPU_POOL or _exists(client, deployment)
        ]
        done = [
            _ensure_pool(client, name) for name in sorted({deployment.work_pool.name for deployment in all_deployments})
        ]
        queues = {(deployment.work_pool.name, deployment.work_pool.work_queue_name) for deployment in all_deployments}
        done += [_ensure_queue(client, pool, name) for pool, name in sorted(queues, key=str) if name is not None]
        done += [_ensure_automation(client)]
        done += [_deployed(client, deployment) for deployment in sent]
    left = len(all_deployments) - len(sent)
    return (
        [*done, f"{counted(left, 'deployment')} for a GPU: --gpu sends {'it' if left == 1 else 'them'}"]
        if left
        else done
    )


def _exists(client: "SyncPrefectClient", deployment: Deployment) -> bool:
    from prefect.exceptions import ObjectNotFound

    try:
        client.read_deployment_by_name(deployment.full_name)
    except ObjectNotFound:
        return False
    return True


def _deployed(client: "SyncPrefectClient", deployment: Deployment) -> str:
    """Make or update a deployment; a schedule of it that was paused on the server stays paused."""
    from prefect.exceptions import ObjectNotFound

    try:
        present = client.read_deployment_by_name(deployment.full_name)
    except ObjectNotFound:
        send_deployment(client, deployment)
        return f"deployment {deployment.full_name}: made"
    paused = {schedule.slug for schedule in present.schedules if not schedule.active}
    schedules = [
        schedule.model_copy(update={"active": False}) if schedule.slug in paused else schedule
        for schedule in deployment.schedules
    ]
    send_deployment(client, deployment.model_copy(update={"schedules": schedules}))
    return f"deployment {deployment.full_name}: up to date"


def _ensure_pool(client: "SyncPrefectClient", name: str) -> str:
    from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
    from prefect.exceptions import ObjectAlreadyExists

    try:
        client.create_work_pool(WorkPoolCreate(name=name, type="process", base_job_template=JOB_TEMPLATE))
    except ObjectAlreadyExists:
        if client.read_work_pool(name).base_job_template == JOB_TEMPLATE:
            return f"work pool {name}: as it was"
        client.update_work_pool(name, WorkPoolUpdate(base_job_template=JOB_TEMPLATE))
        return f"work pool {name}: corrected, because its runs could choose what their processes execute"
    return f"work pool {name}: made"


def _ensure_queue(client: "SyncPrefectClient", pool: str, name: str) -> str:
    from prefect.exceptions import ObjectAlreadyExists

    try:
        client.create_work_queue(name, work_pool_name=pool, concurrency_limit=CONCURRENT_TRAININGS)
    except ObjectAlreadyExists:
        return f"queue {pool}/{name}: as it was"
    return f"queue {pool}/{name}: made, {CONCURRENT_TRAININGS} run at a time"


def _ensure_automation(client: "SyncPrefectClient") -> str:
    """Make the automation if it is missing, and update it if not; one that a user switched off stays off."""
    wanted = _ending()
    present = client.read_automations_by_name(ENDING)
    if not present:
        client.create_automation(wanted)
    # Two deployments at once make it twice: both leave the same one.
    [first, *others] = sorted(client.read_automations_by_name(ENDING), key=lambda automation: automation.id)
    for other in others:
        _delete(client, other.id)
    if not present:
        return f"automation {ENDING!r}: made"
    client.update_automation(first.id, wanted.model_copy(update={"enabled": first.enabled}))
    return f"automation {ENDING!r}: as it was"


def _ending() -> "AutomationCore":
    """Change the state of a run after a heartbeat, unless another one or its end follows in time."""
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    trigger = EventTrigger(
        after={HEARTBEAT},
        expect={HEARTBEAT, *(f"prefect.flow-run.{state}" for state in NOT_RUNNING)},
        match={"prefect.resource.id": "prefect.flow-run.*"},  # pyright: ignore[reportArgumentType], coerced
        match_related={  # pyright: ignore[reportArgumentType]
            "prefect.resource.role": "tag",
            "prefect.resource.id": f"prefect.tag.{TAG}",
        },
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(seconds=SILENT_SECONDS),
    )
    return AutomationCore(
        name=ENDING,
        description="Ends runs whose process was killed, so that their slots are free within two minutes.",
        trigger=trigger,
        actions=[ChangeFlowRunState(name=None, state=StateType.CRASHED, message=SILENT_MESSAGE, force=False)],
    )


def _delete(client: "SyncPrefectClient", automation: "UUID") -> None:
    """Delete an automation; one that is gone already, because another program deleted it, is no error."""
    from prefect.exceptions import PrefectHTTPStatusError

    try:
        client.delete_automation(automation)
    except PrefectHTTPStatusError as error:
        if error.response.status_code != HTTPStatus.NOT_FOUND:
            raise


def send_deployment(client: "SyncPrefectClient", deployment: Deployment) -> None:
    """Make or replace one deployment."""
    from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions
    from prefect.utilities.callables import parameter_schema

    flow, limit, options = deployment.flow(), deployment.concurrency_limit, None
    schema = parameter_schema(flow)
    for name, described in schema.properties.items():
        described.setdefault("description", PARAMETERS.get(name, ""))
    if limit is not None:
        options = ConcurrencyOptions(collision_strategy=ConcurrencyLimitStrategy(limit.collision_strategy))
    client.create_deployment(
        flow_id=client.create_flow_from_name(flow.name),
        name=deployment.name,
        description=deployment.description,
        entrypoint=deployment.entrypoint,
        parameters=deployment.parameters,
        tags=deployment.tags,
        work_pool_name=deployment.work_pool.name,
        work_queue_name=deployment.work_pool.work_queue_name or "default",
        pull_steps=[],
        concurrency_limit=limit and limit.limit,
        concurrency_options=options,
        schedules=[schedule.created() for schedule in deployment.schedules],
        parameter_openapi_schema=schema.model_dump_for_openapi(),
        enforce_parameter_schema=True,
    )
