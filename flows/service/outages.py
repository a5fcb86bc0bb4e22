"""An error -> whether it is an outage that passes; tasks that are tried again after one, and after nothing else.

Requests to S3 are repeated for some time already where they are made, what MLflow lacks is sent later, and Prefect's
client repeats its own calls: see PREFECT_CLIENT_MAX_RETRIES in `flows.environment`.
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from obstore.exceptions import (
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from prefect import Task, task
from prefect.cache_policies import NO_CACHE

from storage.leases import LeaseBusy
from storage.objects import StoreUnreachable

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
        task_run_name=task_run_name,
        cache_policy=NO_CACHE,
        retries=len(DELAYS),
        retry_delay_seconds=DELAYS,
        retry_jitter_factor=JITTER,
        retry_condition_fn=_passes,
    )
