"""A flow -> the same flow, made for a service.

It skips a run that comes too late, sends first what MLflow lacks, and is due again after SIGTERM or an outage.
"""

import functools
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.exceptions import Pause, TerminationSignal
from prefect.states import AwaitingRetry, Cancelled
from rich.console import Console

from flows.service import SKIPPED
from flows.service.dead_runs import runs_where
from flows.service.outages import is_outage
from flows.tasks.tracking.projection import project
from storage.layout import Layout

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun, State

Given = ParamSpec("Given")
Result = TypeVar("Result")
MOST_TRIES = 5  # of a run whose store is away


def managed(body: Callable[Given, Result]) -> Callable[Given, Result]:
    """Wrap the function of a flow. Called as a plain function or by another flow it stays as it was."""

    @functools.wraps(body)
    def run(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        context = FlowRunContext.get()
        if context is None or context.flow_run is None or context.flow_run.parent_task_run_id is not None:
            return body(*args, **kwargs)
        reason = overtaken(context.flow_run)
        if reason is not None:  # Prefect takes a returned state for the run's own
            return cast("Result", Cancelled(name=SKIPPED, message=reason))
        outlive_worker()
        with handing_back(context.flow_run):
            project(Layout.from_environment())
            return body(*args, **kwargs)

    return run


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


def seconds_until_next(num_tries: int) -> float:
    """Seconds until a run is tried again: 30, 60, 120, ..., with a random part, because runs fail together."""
    return 30.0 * 2 ** (num_tries - 1) * random.uniform(1.0, 1.5)  # noqa: S311


def overtaken(run: "FlowRun") -> str | None:
    """Say why a scheduled run is not needed: it was due while an earlier one of its deployment still ran.

    Prefect's server cancels such a run itself, unless the earlier one ends within about 15 seconds.
    """
    if not run.auto_scheduled or run.deployment_id is None or run.expected_start_time is None:
        return None
    with get_client(sync_client=True) as client:
        found = runs_where(
            client,
            deployment_id={"any_": [run.deployment_id]},
            start_time={"before_": run.expected_start_time},
            end_time={"after_": run.expected_start_time},
            state={"name": {"not_any_": [SKIPPED]}},
        )
    earlier = [each.name for each in found if each.id != run.id]
    if not earlier:
        return None
    return (
        f"skipped: {earlier[0]} was still running when this run was due at {run.expected_start_time:%Y-%m-%d %H:%M:%S};"
        " the schedule is more frequent than a run is long"
    )


@contextmanager
def handing_back(run: "FlowRun") -> Iterator[None]:
    """Make a run due again that SIGTERM ends, or an outage, so that a worker resumes it; the store has what it did.

    A run without a deployment, and one that a user cancels, end as they always did; so does the MOST_TRIES-th try.
    """
    try:
        yield
    except OSError as error:
        state = None
        if is_outage(error) and run.run_count < MOST_TRIES:
            state = _handed_back(run, f"tried again, because {error}", seconds_until_next(run.run_count))
        if state is None:
            raise
        raise Pause(state=state) from error
    except TerminationSignal as ending:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a worker that stops sends it to its runs once more
        state = _handed_back(run, "stopped by SIGTERM; a worker resumes it")
        if state is None:
            raise
        raise Pause(state=state) from ending  # the engine's way to leave a run that is not over, with exit code 0


def _handed_back(run: "FlowRun", message: str, seconds: float = 0.0) -> "State | None":
    with get_client(sync_client=True) as client:
        current = client.read_flow_run(run.id)
        if current.deployment_id is None or current.state is None or not current.state.is_running():
            return None
        due = datetime.now(UTC) + timedelta(seconds=seconds)
        client.set_flow_run_state(run.id, AwaitingRetry(message=message, scheduled_time=due))
        state = client.read_flow_run(run.id).state
    return state if state is not None and state.is_scheduled() else None
