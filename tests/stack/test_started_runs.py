"""What starts a retraining: a commit, also one while the server is away, two commands at once; each is done once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from compose_stack import Stack, ends
from retrainings import SETTINGS, assert_sound, reconciled
from stack_processes import wait_until

from flows.service.look import NAME
from storage.events.table import ingested_datasets
from storage.layout import Layout

pytestmark = [pytest.mark.stack, pytest.mark.usefixtures("idle")]

OPTIONS = ["--source", "user", "--target", "item", "--time", "created_at", "--window", "7d"]


def scheduled_once_a_year(stack: Stack, log: Path, dataset: str) -> dict[str, Any]:
    """Make a schedule whose runs something else has to start; returns the condition of its runs that have begun."""
    settings = [text for name, value in SETTINGS.items() for text in ("--set", f"{name}={str(value).lower()}")]
    made = stack.command("schedule", dataset, "--cron", "0 0 1 1 *", "--log", str(log), *OPTIONS, *settings)
    assert made.returncode == 0, made.stderr
    deployment = stack.request(f"/deployments/name/retrain/{dataset}-schedule")
    return {"deployments": {"id": {"any_": [deployment["id"]]}}, "flow_runs": {"start_time": {"is_null_": False}}}


def committed(stack: Stack, store: Layout, log: Path, dataset: str) -> None:
    done = stack.command("ingest", dataset, "--log", str(log), *OPTIONS)
    assert done.returncode == 0, done.stderr
    assert dataset in ingested_datasets(store)


def test_a_commit_is_retrained_on_by_the_next_look(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any]
) -> None:
    of_this = scheduled_once_a_year(stack, log, "by-look")
    committed(stack, store, log, "by-look")
    [run] = wait_until(lambda: stack.request("/flow_runs/filter", of_this), 120, "no retraining was started")
    assert run["idempotency_key"].startswith(NAME)
    ends(stack, run["id"])
    reconciled(stack, store)
    assert len(stack.request("/flow_runs/filter", of_this)) == 1
    assert_sound(stack, store, "by-look", undisturbed)


def test_rows_that_came_while_the_server_was_away_are_retrained_on(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any]
) -> None:
    of_this = scheduled_once_a_year(stack, log, "event-lost")
    stack.stop("prefect-server")
    committed(stack, store, log, "event-lost")
    stack.restart("prefect-server")
    reconciled(stack, store)
    [run] = wait_until(lambda: stack.request("/flow_runs/filter", of_this), 60, "no retraining was started")
    ends(stack, run["id"])
    reconciled(stack, store)
    assert len(stack.request("/flow_runs/filter", of_this)) == 1
    assert_sound(stack, store, "event-lost", undisturbed)


def test_two_retrainings_at_once_with_states_of_their_own_double_nothing(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any], tmp_path: Path
) -> None:
    settings = [text for name, value in SETTINGS.items() for text in ("--set", f"{name}={str(value).lower()}")]
    arguments = ["retrain", "at-once", "--log", str(log), *OPTIONS, *settings]
    with ThreadPoolExecutor(2) as pool:
        ended = list(
            pool.map(lambda name: stack.command(*arguments, DYFORMER_STATE=str(tmp_path / name)), ("one", "two"))
        )
    assert {each.returncode for each in ended} <= {0, 3}, [each.stderr for each in ended]
    again = stack.command("track", DYFORMER_STATE=str(tmp_path / "two"))
    assert again.returncode == 0, again.stderr
    assert_sound(stack, store, "at-once", undisturbed)


def test_deploying_twice_at_once_and_again_makes_nothing_twice(stack: Stack) -> None:
    def counts() -> dict[str, int]:
        found = {
            "deployments": "/deployments/filter",
            "pools": "/work_pools/filter",
            "automations": "/automations/filter",
        }
        return {name: len(stack.request(path, {})) for name, path in found.items()}

    before = counts()
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(lambda _: stack.command("deploy"), range(2)))
    ended.append(stack.command("deploy"))
    assert [each.returncode for each in ended] == [0, 0, 0], [each.stderr for each in ended]
    assert all("made" not in each.stdout for each in ended)
    assert counts() == before
