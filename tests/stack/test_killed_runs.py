"""What is killed or stopped in the middle of a retraining: it ends like an undisturbed one, and nothing hangs."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from compose_stack import Stack, ends
from retrainings import assert_sound, in_training, reconciled, started
from stack_processes import wait_until

from flows.service.processes import marked
from storage.bytes.files import find
from storage.layout import Layout

pytestmark = [pytest.mark.stack, pytest.mark.usefixtures("idle")]

SLOT_SECONDS = 120.0


def prefect_worker(stack: Stack) -> int:
    """Process of Prefect's worker, which the service's own process started."""
    [worker] = [
        each
        for each in marked(f"{stack.mark}-worker-cpu")
        if b"worker\0start" in Path(f"/proc/{each}/cmdline").read_bytes()
    ]
    return worker


def state_type(stack: Stack, run: str) -> str:
    return stack.request(f"/flow_runs/{run}")["state_type"]


def names_of_states(stack: Stack, run: str) -> list[str]:
    return [each["name"] for each in stack.request(f"/flow_run_states/?flow_run_id={run}")]


def test_a_killed_flow_ends_and_the_next_one_goes_on(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any]
) -> None:
    run = started(stack, log, "flow-killed")
    for process in in_training(stack, store, run, "flow-killed"):
        os.kill(process, signal.SIGKILL)
    ends(stack, run, SLOT_SECONDS, "Crashed")
    ends(stack, started(stack, log, "flow-killed"))
    reconciled(stack, store)
    assert_sound(stack, store, "flow-killed", undisturbed)


def test_a_run_that_a_person_cancels_ends_without_an_error_and_frees_its_slot(
    stack: Stack, store: Layout, log: Path
) -> None:
    run = started(stack, log, "cancelled")
    in_training(stack, store, run, "cancelled")
    stack.request(f"/flow_runs/{run}/set_state", {"state": {"type": "CANCELLING", "name": "Cancelling"}})  # as the page
    wait_until(lambda: stack.state(run) == "Cancelled", SLOT_SECONDS, "the run is not cancelled")
    assert stack.processes_of(run) == []
    assert stack.request("/deployments/name/retrain/any")["global_concurrency_limit"]["active_slots"] == 0
    lines = stack.request("/logs/filter", {"logs": {"flow_run_id": {"any_": [run]}}})
    assert lines
    assert [line["message"] for line in lines if "Traceback" in line["message"]] == []


def test_the_run_of_a_killed_worker_completes_and_is_not_repeated(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any]
) -> None:
    run = started(stack, log, "worker-killed")
    [*_, process] = in_training(stack, store, run, "worker-killed")
    os.kill(stack.processes["worker-cpu"].pid, signal.SIGKILL)
    os.kill(prefect_worker(stack), signal.SIGKILL)
    stack.processes["worker-cpu"].wait()
    stack.restart("worker-cpu")
    assert Path(f"/proc/{process}").exists()
    ends(stack, run)
    assert stack.request(f"/flow_runs/{run}")["run_count"] == 1
    assert_sound(stack, store, "worker-killed", undisturbed)


def test_a_run_that_is_killed_with_its_worker_frees_its_slot_and_is_resumed_by_the_next(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any]
) -> None:
    run = started(stack, log, "both-killed")
    in_training(stack, store, run, "both-killed")
    stack.stop("worker-cpu", signal.SIGKILL)
    killed = time.monotonic()
    assert stack.processes_of(run) == []
    assert stack.state(run) == "Running"
    stack.restart("worker-cpu")
    ends(stack, run, SLOT_SECONDS - (time.monotonic() - killed), "Crashed")
    print(f"ended {time.monotonic() - killed:.0f} s after the kill")
    following = started(stack, log, "both-killed")
    left = SLOT_SECONDS - (time.monotonic() - killed)
    wait_until(lambda: state_type(stack, following) in ("PENDING", "RUNNING"), left, "the slot is not free")
    ends(stack, following)
    reconciled(stack, store)
    assert_sound(stack, store, "both-killed", undisturbed)


def test_a_run_whose_worker_gets_sigterm_saves_is_handed_back_and_completes(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any]
) -> None:
    run = started(stack, log, "sigterm")
    in_training(stack, store, run, "sigterm")
    folder = f"{store.root}/5_checkpoints/finetune/dataset=sigterm"
    assert find(folder) == []
    stack.stop("worker-cpu")
    assert find(folder) != []
    stack.restart("worker-cpu")
    ends(stack, run)
    assert stack.request(f"/flow_runs/{run}")["run_count"] == 2
    assert "AwaitingRetry" in names_of_states(stack, run)
    assert "Crashed" not in names_of_states(stack, run)
    assert_sound(stack, store, "sigterm", undisturbed)


def test_a_run_that_was_being_submitted_at_sigterm_is_due_again(
    stack: Stack, store: Layout, log: Path, undisturbed: dict[str, Any]
) -> None:
    run = started(stack, log, "submitted")
    until = time.monotonic() + 60
    while state_type(stack, run) != "PENDING":
        assert time.monotonic() < until
    stack.stop("worker-cpu")
    stopped = time.monotonic()
    assert state_type(stack, run) in ("PENDING", "SCHEDULED")
    stack.restart("worker-cpu")
    wait_until(lambda: state_type(stack, run) != "PENDING", SLOT_SECONDS, "the run holds its slot")
    wait_until(lambda: stack.state(run) in ("Running", "Completed"), SLOT_SECONDS, "the run did not begin")
    print(f"began {time.monotonic() - stopped:.0f} s after the stop")
    ends(stack, run)
    assert_sound(stack, store, "submitted", undisturbed)
