"""A lease is held by one process of all machines, and a killed process loses it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage import locks
from storage.bytes import files
from storage.locks import LeaseBusy, leased

# A process that raises a number in the store, with a pause in which others may read it.
PROCESS = """
import sys, time
from storage.bytes import files
from storage.locks import leased

for _ in range(6):
    with leased(sys.argv[1] + "/lease"):
        number = int(files.read_bytes(sys.argv[1] + "/number"))
        time.sleep(0.02)
        files.write_bytes(sys.argv[1] + "/number", str(number + 1).encode())
"""
HOLDER = """
import sys, time
from storage.locks import leased

with leased(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def folder(s3_bucket: str, tmp_path: Path) -> str:
    return f"{s3_bucket}/{tmp_path.name}"


def test_one_process_at_a_time_holds_a_lease(folder: str):
    files.write_bytes(f"{folder}/number", b"0")
    processes = [subprocess.Popen([sys.executable, "-c", PROCESS, folder], env=os.environ) for _ in range(3)]
    assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    assert files.read_bytes(f"{folder}/number") == b"18"


def test_a_killed_process_loses_its_lease(folder: str, monkeypatch: pytest.MonkeyPatch):
    with subprocess.Popen([sys.executable, "-c", HOLDER, folder], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        monkeypatch.setattr(locks, "MOST_SECONDS", 0.5)
        with pytest.raises(LeaseBusy, match=f"{folder} is held by other processes"), leased(folder):
            pass
        holder.kill()
    monkeypatch.setattr(locks, "MOST_SECONDS", 60)
    monkeypatch.setattr(locks, "LEASE_SECONDS", 1)
    started = time.monotonic()
    with leased(folder):
        assert time.monotonic() - started > 1


def test_a_process_that_lost_its_lease_does_not_end_that_of_another(folder: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(locks, "LEASE_SECONDS", 0.2)
    with leased(folder):
        files.write_bytes(folder, b"other")
        time.sleep(0.5)  # in which a lease of its own would be renewed
    assert files.read_bytes(folder) == b"other"


def test_a_lease_is_renewed_while_it_is_held(folder: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(locks, "LEASE_SECONDS", 1.5)  # the server of a busy machine may not respond for a moment
    with leased(folder):
        started = time.monotonic()
        with pytest.raises(LeaseBusy), leased(folder, 4.0):
            pass
        assert time.monotonic() - started > 2 * locks.LEASE_SECONDS
    assert files.read_bytes(folder) == locks.FREE
    with leased(folder):
        pass


def test_a_lease_ends_with_an_error_in_its_block(folder: str):
    for _ in range(2):
        with pytest.raises(RuntimeError, match="boom"), leased(folder):
            raise RuntimeError("boom")
