"""A task is tried again after an outage, with growing delays, and after no error of a user."""

from itertools import pairwise

import pytest
from obstore.exceptions import GenericError, PermissionDeniedError
from prefect import Task, flow

from flows.service import managed
from flows.service.managed import DELAYS, JITTER, is_outage, stored_task
from storage.bytes.objects import StoreUnreachable
from storage.locks import LeaseBusy


def unreachable(cause: Exception | None) -> StoreUnreachable:
    error = StoreUnreachable("s3://bucket/key", "reason")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (unreachable(GenericError("connection refused")), True),
        (unreachable(None), True),  # the page of a network's login
        (LeaseBusy("held by others"), True),
        (unreachable(PermissionDeniedError("wrong key")), False),
        (FileNotFoundError("no object"), False),
        (ValueError("a user's"), False),
        (OSError(28, "No space left on device"), False),
    ],
)
def test_only_what_passes_by_itself_is_an_outage(error: Exception, expected: bool) -> None:
    assert is_outage(error) is expected


def test_the_delays_of_a_task_outlast_two_minutes_and_grow() -> None:
    assert sum(DELAYS) > 120
    assert [later / earlier for earlier, later in pairwise(DELAYS)] == [2.0] * (len(DELAYS) - 1)


@pytest.mark.parametrize(("error", "tries"), [(unreachable(None), 3), (ValueError("a user's"), 1)])
def test_a_task_is_tried_again_after_an_outage_alone(server: str, error: Exception, tries: int) -> None:
    calls: list[int] = []

    def away_twice() -> str:
        calls.append(len(calls))
        if len(calls) < 3:
            raise error
        return "done"

    one = stored_task(name="away")(away_twice).with_options(retry_delay_seconds=0)

    @flow(name="outage")
    def outage() -> str:
        return one()

    state = outage(return_state=True)
    assert len(calls) == tries
    assert state.is_completed() is (tries == 3)


def test_every_task_that_uses_the_store_is_one_of_these() -> None:
    import flows.benchmark
    import flows.retrain
    import flows.stages
    import flows.trials

    modules = (flows.benchmark, flows.retrain, flows.stages, flows.trials)
    tasks = {name: each for module in modules for name, each in vars(module).items() if isinstance(each, Task)}
    assert len(tasks) > 18
    for name, each in tasks.items():
        assert each.retries == len(DELAYS), name
        assert each.retry_condition_fn is managed._passes, name
        assert each.retry_jitter_factor == JITTER, name
