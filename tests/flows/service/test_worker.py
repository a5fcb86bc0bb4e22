"""A worker that is stopped stops its runs first, takes no other one meanwhile, and leaves no process."""

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from waiting import wait_for

from flows.service import worker as worker_module
from flows.service.processes import marked
from flows.service.worker import RUNS, stop_worker

# A worker that writes its beats, and a run in a session of its own, which saves for a second at SIGTERM.
RUN = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
def save(number, frame):
    time.sleep(1.0)
    (folder / "saved").touch()
    raise SystemExit
signal.signal(signal.SIGTERM, save)
(folder / "run").touch()
time.sleep(600)
"""
WORKER = f"""
import pathlib, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {RUN!r}, sys.argv[1]], start_new_session=True)
with (pathlib.Path(sys.argv[1]) / "beats").open("a") as beats:
    while True:
        print("beat", file=beats, flush=True)
        time.sleep(0.02)
"""


@pytest.mark.parametrize("is_hurried", [False, True])
def test_runs_end_before_the_worker_which_is_frozen_meanwhile(tmp_path: Path, is_hurried: bool) -> None:
    mark = uuid.uuid4().hex
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    worker = subprocess.Popen(command, env={**os.environ, RUNS: mark}, start_new_session=True)
    wait_for(lambda: (tmp_path / "run").exists())
    before = len(beats(tmp_path))
    wait_for(lambda: len(beats(tmp_path)) > before)
    began = time.monotonic()
    stop_worker(worker, mark, lambda: is_hurried)
    assert worker.poll() == -signal.SIGTERM
    assert marked(mark, RUNS) == []
    assert (tmp_path / "saved").exists() is not is_hurried
    if not is_hurried:
        assert time.monotonic() - began > 1.0
        assert len(beats(tmp_path)) - before < 40  # of the second it was frozen, in which it would have written 50


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["--pool", "dyformer-cpu", "--limit", "2"]),
        (["--pool", "dyformer-gpu", "--name", "gpu"], ["--pool", "dyformer-gpu", "--name", "gpu", "--limit", "1"]),
        (["--queue", "train", "--limit", "3"], ["--pool", "dyformer-cpu", "--work-queue", "train", "--limit", "3"]),
        (["--health-port", "8080"], ["--with-healthcheck", "--pool", "dyformer-cpu", "--limit", "2"]),
    ],
)
def test_options_are_those_of_prefects_worker(
    options: list[str], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOST", "PORT"):
        monkeypatch.setenv(f"PREFECT_WORKER_WEBSERVER_{name}", "unset")
    given: list[list[str]] = []
    monkeypatch.setattr(worker_module, "run_worker", lambda arguments: given.append(arguments) or 0)
    monkeypatch.setattr(sys, "argv", ["worker", *options])
    with pytest.raises(SystemExit):
        worker_module.main()
    assert given == [expected]
    health = [os.environ[f"PREFECT_WORKER_WEBSERVER_{name}"] for name in ("HOST", "PORT")]
    assert health == (["127.0.0.1", "8080"] if "--health-port" in options else ["unset", "unset"])


def beats(folder: Path) -> list[str]:
    return (folder / "beats").read_text().splitlines()
