"""A managed flow skips a run that comes too late, sends first what MLflow lacks, and hands itself back at SIGTERM."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import Pause, TerminationSignal
from prefect.flow_engine import run_flow
from prefect.states import Cancelling, Completed, Running

from flows.service import managed as module
from flows.service.managed import SKIPPED, managed, overtaken
from storage.objects import StoreUnreachable

calls: list[str] = []


@flow(name="managed")
@managed
def body(end: str = "") -> str:
    calls.append(end)
    if end == "sigterm":
        os.kill(os.getpid(), signal.SIGTERM)
    if end == "away":
        raise StoreUnreachable("s3://bucket/key", "connection refused")
    if end == "cancelled":
        with get_client(sync_client=True) as client:
            [run] = [run for run in client.read_flow_runs() if run.name == end]
            client.set_flow_run_state(run.id, Cancelling(), force=True)
        os.kill(os.getpid(), signal.SIGTERM)
    return "done"


@pytest.fixture
def client(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncPrefectClient]:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path))
    calls.clear()
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)  # Prefect sends it again to the one before it
    with get_client(sync_client=True) as client:
        yield client
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def new_run(client: SyncPrefectClient) -> Iterator[Callable[..., FlowRun]]:
    """Make a run of a deployment, as a worker takes it."""
    deployment = client.create_deployment(flow_id=client.create_flow(body), name="managed")

    def make(end: str) -> FlowRun:
        return client.create_flow_run_from_deployment(deployment, parameters={"end": end}, name=end or None)

    yield make
    client.delete_deployment(deployment)


def test_a_run_that_sigterm_ends_is_due_again_and_completes_then(
    client: SyncPrefectClient, new_run: Callable[..., FlowRun]
) -> None:
    run = new_run("sigterm")
    with pytest.raises(Pause):
        run_flow(body, flow_run=run, parameters={"end": "sigterm"})
    state = client.read_flow_run(run.id).state
    assert state is not None
    assert (state.is_scheduled(), state.name) == (True, "AwaitingRetry")
    assert run_flow(body, flow_run=client.read_flow_run(run.id), parameters={"end": ""}) == "done"
    state = client.read_flow_run(run.id).state
    assert state is not None
    assert state.is_completed()


def test_a_run_that_a_user_cancels_is_not_handed_back(
    client: SyncPrefectClient, new_run: Callable[..., FlowRun]
) -> None:
    run = new_run("cancelled")
    with pytest.raises(TerminationSignal):
        run_flow(body, flow_run=run, parameters={"end": "cancelled"})
    state = client.read_flow_run(run.id).state
    assert state is not None
    assert not state.is_scheduled()


def test_a_run_whose_store_is_away_is_due_again_later_and_fails_at_last(
    client: SyncPrefectClient, new_run: Callable[..., FlowRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = new_run("away")
    with pytest.raises(Pause):
        run_flow(body, flow_run=run, parameters={"end": "away"})
    state = client.read_flow_run(run.id).state
    assert state is not None
    assert (state.is_scheduled(), state.name) == (True, "AwaitingRetry")
    assert "s3://bucket/key" in str(state.message)
    due = state.state_details.scheduled_time
    assert due is not None
    assert 20 < due.timestamp() - time.time() < 46
    monkeypatch.setattr(module, "MOST_TRIES", 1)
    last = new_run("away")
    with pytest.raises(StoreUnreachable):
        run_flow(body, flow_run=last, parameters={"end": "away"})
    state = client.read_flow_run(last.id).state
    assert state is not None
    assert state.is_failed()


def test_a_run_without_a_deployment_ends_as_it_always_did(client: SyncPrefectClient) -> None:
    with pytest.raises(TerminationSignal):
        body("sigterm")
    found = [run for run in client.read_flow_runs() if run.parameters == {"end": "sigterm"}]
    [run] = [run for run in found if run.deployment_id is None]
    assert run.state is not None
    assert run.state.is_crashed()


def overlapping(client: SyncPrefectClient, deployment: object) -> datetime:
    """Make a run that began now and ended a moment later; returns a time in between."""
    run = client.create_flow_run_from_deployment(deployment)  # pyright: ignore[reportArgumentType]
    client.set_flow_run_state(run.id, Running(), force=True)
    between = datetime.now(UTC) + timedelta(milliseconds=1)
    client.set_flow_run_state(run.id, Completed(), force=True)
    return between


def test_a_scheduled_run_that_was_due_during_another_one_is_skipped_and_says_so(
    client: SyncPrefectClient, new_run: Callable[..., FlowRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    due = overlapping(client, new_run("late").deployment_id)
    late = new_run("late").model_copy(update={"auto_scheduled": True, "expected_start_time": due})
    reason = overtaken(late)
    assert reason is not None
    assert "was still running when this run was due" in reason
    assert overtaken(late.model_copy(update={"expected_start_time": due + timedelta(seconds=5)})) is None
    assert overtaken(late.model_copy(update={"auto_scheduled": False})) is None  # a person wanted it
    monkeypatch.setattr(module, "overtaken", lambda run: reason)
    state: Any = run_flow(body, flow_run=new_run("late"), parameters={"end": "late"}, return_type="state")
    assert calls == []
    assert (state.is_cancelled(), state.name, state.message) == (True, SKIPPED, reason)


def test_what_mlflow_lacks_is_sent_before_the_run_does_anything(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "project", lambda layout: calls.append(f"project {layout.root}"))
    assert body() == "done"
    assert calls == [f"project {tmp_path}", ""]


@flow(name="managed caller")
@managed
def caller() -> str:
    return body("inner")


@pytest.mark.usefixtures("client")
def test_a_flow_that_another_one_calls_looks_no_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "project", lambda layout: calls.append("project"))
    assert caller() == "done"
    assert calls == ["project", "inner"]


def test_called_without_prefect_it_is_a_plain_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "project", lambda layout: calls.append("project"))
    calls.clear()
    assert body.fn("plain") == "done"
    assert calls == ["plain"]


# A run writes a line, its worker dies, and the run writes more, as Prefect does and by itself.
ORPHAN = """
import os, pathlib, sys
from rich.console import Console
from flows.service.managed import outlive_worker
if "managed" in sys.argv:
    outlive_worker()
console = Console(file=sys.stderr)
console.print("begun")
sys.stdin.read()
for _ in range(3):
    console.print("epoch")
    print("epoch", flush=True)
pathlib.Path(sys.argv[1]).touch()
"""


@pytest.mark.parametrize("is_managed", [False, True])
def test_a_run_goes_on_without_the_pipe_of_a_killed_worker(tmp_path: Path, is_managed: bool) -> None:
    reader, writer = os.pipe()
    command = [sys.executable, "-c", ORPHAN, str(tmp_path / "done"), *(["managed"] if is_managed else [])]
    run = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=writer, stderr=writer)
    os.close(writer)
    assert os.read(reader, 6) == b"begun\n"
    os.close(reader)
    run.communicate()
    assert (tmp_path / "done").exists() == is_managed
    assert (run.returncode == 0) == is_managed
