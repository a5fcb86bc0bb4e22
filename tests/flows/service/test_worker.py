"""A worker that is stopped stops its runs first, takes no other one meanwhile, and leaves no process."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

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


def beats(folder: Path) -> list[str]:
    return (folder / "beats").read_text().splitlines()


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError
