"""A flow -> the same flow, made for a service: after an outage of the store it goes on, after SIGTERM it is due again.

Requests to S3 are repeated for some time already where they are made, what MLflow lacks is sent later, and Prefect's
client repeats its own calls: see PREFECT_CLIENT_MAX_RETRIES in `flows.service.environment`. A task is tried again
after an outage, and after nothing else, and a flow whose tasks gave up begins again.
"""

import functools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from obstore.exceptions import (
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import Pause, TerminationSignal
from prefect.states import AwaitingRetry
from rich.console import Console

from storage.bytes.objects import StoreUnreachable
from storage.locks import LeaseBusy

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun, State

Given = ParamSpec("Given")
Result = TypeVar("Result")
DELAYS = [5.0 * 2**number for number in range(5)]  # seconds; together 155, beside those of each try itself
JITTER = 0.5  # of a delay, because tasks of several runs fail together
# A user's errors: they are there at the next try, too.
PERMANENT = (
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)


def managed(body: Callable[Given, Result]) -> Callable[Given, Result]:
    """Wrap the function of a flow. Without a deployment, and called by another flow, it stays as it was."""

    @functools.wraps(body)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        context = FlowRunContext.get()
        run = None if context is None else context.flow_run
        if run is None or run.deployment_id is None:
            return body(*args, **kwargs)
        outlive_worker()
        with handing_back(run):
            return outlasting(lambda: body(*args, **kwargs))

    return run


def is_outage(error: BaseException) -> bool:
    """Whether the object store is away, or others hold what is needed: the same call may succeed later."""
    is_away = isinstance(error, StoreUnreachable) and not isinstance(error.__cause__, PERMANENT)
    return is_away or isinstance(error, LeaseBusy)


def _passes(called: Any, run: Any, state: Any) -> bool:
    """Whether the failure of a task is an outage."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, BaseException) and is_outage(error)


def stored_task(
    name: str, task_run_name: str | None = None
) -> Callable[[Callable[Given, Result]], Task[Given, Result]]:
    """Make a task of a function that reads or writes the store.

    Prefect's cache is not used, because the lineage of an artifact decides whether it is current.
    """
    return task(
        name=name,
        task_run_name=task_run_name or name,  # without one Prefect adds a random part
        cache_policy=NO_CACHE,
        retries=len(DELAYS),
        retry_delay_seconds=DELAYS,
        retry_jitter_factor=JITTER,
        retry_condition_fn=_passes,
    )


def outlive_worker() -> None:
    """Let a run go on whose worker was killed: with the worker goes the pipe that the run's log lines go to.

    Prefect writes them by rich, which by default ends the program when the pipe is closed.
    """
    Console.on_broken_pipe = _write_nowhere


def _write_nowhere(self: Console) -> None:
    self.quiet = True
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):  # the interpreter writes to both at its end
        os.dup2(nowhere, number)


def outlasting(body: Callable[[], Result]) -> Result:
    """Call a function again while the store is away, because what the call before it has made is in the store."""
    for delay in DELAYS:
        try:
            return body()
        except OSError as error:
            if not is_outage(error):
                raise
            print(f"tried again, because {error}", flush=True)
        time.sleep(delay * random.uniform(1.0, 1.0 + JITTER))  # noqa: S311, because runs fail together
    return body()


@contextmanager
def handing_back(run: "FlowRun") -> Iterator[None]:
    """Make a run due again that SIGTERM ends, so that a worker resumes it; the store has what it did.

    One that a user cancels ends as it always did.
    """
    try:
        yield
    except TerminationSignal as ending:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a worker that stops sends it to its runs once more
        state = _handed_back(run)
        if state is None:
            raise
        raise Pause(state=state) from ending  # the engine's way to leave a run that is not over, with exit code 0


def _handed_back(run: "FlowRun") -> "State | None":
    with get_client(sync_client=True) as client:
        current = client.read_flow_run(run.id)
        if current.state is None or not current.state.is_running():
            return None
        client.set_flow_run_state(run.id, AwaitingRetry(message="stopped by SIGTERM; a worker resumes it"))
        state = client.read_flow_run(run.id).state
    return state if state is not None and state.is_scheduled() else None
