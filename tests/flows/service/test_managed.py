"""A managed flow outlasts an outage of the store, and hands itself back at SIGTERM."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import Pause, TerminationSignal
from prefect.flow_engine import run_flow
from prefect.states import Cancelling

from flows.service import managed as module
from flows.service.managed import DELAYS, managed
from storage.bytes.objects import StoreUnreachable

calls: list[str] = []
store_is_away = True


@flow(name="managed")
@managed
def body(end: str = "") -> str:
    calls.append(end)
    if end == "sigterm":
        os.kill(os.getpid(), signal.SIGTERM)
    if end == "away" and store_is_away:
        raise StoreUnreachable("s3://bucket/key", "connection refused")
    if end == "full":
        raise OSError(28, "No space left on device")
    if end == "cancelled":
        with get_client(sync_client=True) as client:
            [run] = [run for run in client.read_flow_runs() if run.name == end]
            client.set_flow_run_state(run.id, Cancelling(), force=True)
        os.kill(os.getpid(), signal.SIGTERM)
    return "done"


@pytest.fixture
def client(server: str) -> Iterator[SyncPrefectClient]:
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


def test_a_run_whose_store_is_away_begins_again_and_fails_at_last(
    new_run: Callable[..., FlowRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    delays: list[float] = []
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=delays.append))
    with pytest.raises(StoreUnreachable):
        run_flow(body, flow_run=new_run("away"), parameters={"end": "away"})
    assert calls == ["away"] * (len(DELAYS) + 1)
    assert all(least <= delay <= 1.5 * least for least, delay in zip(DELAYS, delays, strict=True))
    back = SimpleNamespace(sleep=lambda _: monkeypatch.setitem(globals(), "store_is_away", False))
    monkeypatch.setattr(module, "time", back)
    assert run_flow(body, flow_run=new_run("away"), parameters={"end": "away"}) == "done"


def test_an_error_that_stays_ends_a_run_at_once(new_run: Callable[..., FlowRun]) -> None:
    with pytest.raises(OSError, match="No space left"):
        run_flow(body, flow_run=new_run("full"), parameters={"end": "full"})
    assert calls == ["full"]


def test_a_run_without_a_deployment_ends_as_it_always_did(client: SyncPrefectClient) -> None:
    with pytest.raises(TerminationSignal):
        body("sigterm")
    found = [run for run in client.read_flow_runs() if run.parameters == {"end": "sigterm"}]
    [run] = [run for run in found if run.deployment_id is None]
    assert run.state is not None
    assert run.state.is_crashed()


def test_called_without_prefect_it_is_a_plain_function() -> None:
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
