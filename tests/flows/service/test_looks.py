"""Looks come one at a time, each in a process of its own, whatever happens to one; and end with who wants them."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import wait_for

from flows.service import looks
from flows.service.looks import look_each_minute
from flows.service.worker import LOOKS, Looks

# Of Python 3.12 and later: the process of the tests has threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


def looked(
    look: Callable[[], object], monkeypatch: pytest.MonkeyPatch, *, num: int, longest: float = 60.0
) -> list[float]:
    """Look so often; give the seconds from the beginning of a look to that of the next one."""
    monkeypatch.setattr(looks, "SECONDS_BETWEEN", 0.2)
    begun: list[float] = []

    def is_over(seconds: float) -> bool:
        time.sleep(seconds)
        begun.append(time.monotonic())
        return len(begun) > num

    look_each_minute(look, is_over, longest)
    return [later - earlier for earlier, later in itertools.pairwise(begun)]


def test_each_look_is_a_process_that_begins_as_the_first_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes: list[int] = []

    def look() -> None:
        processes.append(os.getpid())
        (tmp_path / str(os.getpid())).write_text(f"{os.getppid()} {len(processes)}")

    assert min(looked(look, monkeypatch, num=3)) >= 0.2
    assert [each.read_text().split() for each in tmp_path.iterdir()] == [[str(os.getpid()), "1"]] * 3


@pytest.mark.parametrize(
    ("end", "longest"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGKILL), 60.0),
        (lambda: 1 / 0, 60.0),
        (lambda: time.sleep(600), 1.0),  # in which a process begins on a busy machine, too
    ],
    ids=["killed", "fails", "hangs"],
)
def test_a_look_that_is_killed_fails_or_hangs_is_followed_by_the_next(
    end: Callable[[], object], longest: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look() -> None:
        (tmp_path / f"begun-{os.getpid()}").touch()
        end()
        (tmp_path / f"done-{os.getpid()}").touch()

    began = time.monotonic()
    looked(look, monkeypatch, num=2, longest=longest)
    assert time.monotonic() - began < 30
    begun = [each.name.partition("-")[2] for each in tmp_path.iterdir()]
    assert len(begun) == 2
    assert not any(Path(f"/proc/{number}").exists() for number in begun)


# The real program, whose look is another one.
PROGRAM = """
import os, pathlib, sys, time, types
from flows.service import looks
def look():
    with open(sys.argv[1], "a") as file:
        print(os.getppid(), os.getpid(), file=file, flush=True)
    time.sleep(float(sys.argv[2]))
sys.modules["flows.service.look"] = types.SimpleNamespace(look_by_itself=look)
looks.SECONDS_BETWEEN = looks.SECONDS_BETWEEN_TRIES = 0.2
looks.main()
"""


def process_of(looks: Looks) -> "subprocess.Popen[bytes]":
    assert looks.process is not None
    return looks.process


@pytest.fixture
def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Looks]:
    monkeypatch.setenv("DYFORMER_STORAGE", str(tmp_path / "store"))
    monkeypatch.delenv("DYFORMER_STATE", raising=False)

    def start(seconds: float) -> Looks:
        started = Looks([sys.executable, "-P", "-c", PROGRAM, str(tmp_path / "looks"), str(seconds)])
        started.keep_up()
        return started

    return start


def lines(folder: Path) -> list[list[int]]:
    path = folder / "looks"
    return [[int(each) for each in line.split()] for line in path.read_text().splitlines()] if path.exists() else []


def is_gone(number: int) -> bool:
    path = Path(f"/proc/{number}/stat")
    return not path.exists() or path.read_text().rpartition(")")[2].split()[0] == "Z"


def test_one_process_of_a_machine_looks_and_another_one_when_it_is_killed(
    begun: Callable[[float], Looks], tmp_path: Path
) -> None:
    first = begun(0.0)
    wait_for(lambda: len(lines(tmp_path)) > 0)
    second = begun(0.0)
    num = len(lines(tmp_path))
    wait_for(lambda: len(lines(tmp_path)) > num + 5)
    assert {each[0] for each in lines(tmp_path)} == {process_of(first).pid}
    process_of(first).kill()
    wait_for(lambda: lines(tmp_path)[-1][0] == process_of(second).pid)
    process_of(first).wait()
    first.started = 0.0
    first.keep_up()  # as a worker does whose looks have ended
    second.end()
    assert process_of(second).poll() is not None
    wait_for(lambda: lines(tmp_path)[-1][0] == process_of(first).pid)
    first.end()


def test_a_look_ends_with_its_worker_and_a_look_without_one_is_the_last(
    begun: Callable[[float], Looks], tmp_path: Path
) -> None:
    stopped = begun(600.0)
    wait_for(lambda: len(lines(tmp_path)) == 1)
    stopped.end()
    wait_for(lambda: all(is_gone(each) for each in lines(tmp_path)[0]))
    left = begun(1.0)
    pipe = process_of(left).stdin
    assert pipe is not None
    wait_for(lambda: len(lines(tmp_path)) == 2)
    pipe.close()  # as the kernel does when the worker is killed
    assert process_of(left).wait(30) == 0
    assert len(lines(tmp_path)) == 2


def test_a_worker_starts_looks_again_that_end_but_not_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"open({str(tmp_path / 'starts')!r}, 'a').write('x')"]
    short = Looks(command)
    for _ in range(3):
        short.keep_up()
        process_of(short).wait()
    assert (tmp_path / "starts").read_text() == "x"
    short.started -= 60
    short.keep_up()
    process_of(short).wait()
    short.end()
    assert (tmp_path / "starts").read_text() == "xx"
    assert Looks().command == LOOKS
