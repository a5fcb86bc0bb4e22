"""A command -> a process with its log, its health and its end, and all processes that it started.

Every process of a stack has a mark in its environment, which its children inherit. What is left over is found by it,
because the runs that a worker starts lead sessions of their own. Ctrl-C, SIGTERM and the end of a terminal are noted,
because others have to be stopped first.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from dyformer import InvalidInput
from flows.ending import ended_by_itself

MARK = "DYFORMER_STACK"
SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_TO_END = 3.0  # of a server whose parent has ended


class Stopping:
    """Whether the stack shall stop: Ctrl-C, SIGTERM or the end of the terminal; a second signal hurries."""

    def __init__(self) -> None:
        self._event, self._num = threading.Event(), 0

    def __call__(self) -> bool:
        """Whether a signal has come."""
        return self._event.is_set()

    def is_hurried(self) -> bool:
        """Whether two have come."""
        return self._num > 1

    def wait(self, seconds: float) -> bool:
        """Wait for a signal; returns whether one came."""
        return self._event.wait(seconds)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._num += 1
        self._event.set()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take these signals during a `with` block.

        Children then have the usual handlers, even where this process was started to ignore Ctrl-C.
        """
        before = {
            number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        try:
            with ended_by_itself():
                yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class ServiceFailed(InvalidInput):
    """A server or a worker ended, or did not become ready."""


@dataclass(kw_only=True)
class Service:
    """A server or a worker: a Python module with its arguments."""

    name: str
    arguments: list[str]
    environment: Mapping[str, str]
    folder: Path  # of its log, and its working folder
    is_ready: Callable[[], bool]
    listener: socket.socket | None = None  # at which a server listens; this process has it too
    process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    @property
    def log(self) -> Path:
        """File of its output."""
        return self.folder / f"{self.name}.log"

    def start(self) -> None:
        """Start it in a session of its own, because a terminal sends Ctrl-C to all processes of one."""
        command = [sys.executable, "-P", "-m", *self.arguments]  # -P: nothing is imported from the working folder
        inherited = [] if self.listener is None else [self.listener.fileno()]
        command += [f"--socket={number}" for number in inherited]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603, made here
                command,
                env={**os.environ, **self.environment},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=inherited,
            )

    def terminate(self) -> None:
        """Send SIGTERM, if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def check(self) -> None:
        """Raise ServiceFailed if it has ended."""
        if self.process is None or self.process.poll() is not None:
            code = None if self.process is None else self.process.returncode
            raise ServiceFailed(f"{self.name} ended with code {code}: its log is {self.log}")

    def wait_until_ready(self, seconds: float, is_stopping: Callable[[], bool]) -> None:
        """Wait until it is healthy; raises ServiceFailed if it ends or takes longer."""
        until = time.monotonic() + seconds
        while not is_stopping() and not self.is_ready():
            self.check()
            if time.monotonic() > until:
                raise ServiceFailed(f"{self.name} was not ready after {seconds:.0f} s: its log is {self.log}")
            time.sleep(SECONDS_BETWEEN_LOOKS)


def end_with(parent: int, seconds: float | None = SECONDS_TO_END) -> None:
    """Send this process SIGTERM soon after its parent has ended, and end it some seconds later; None leaves it that."""
    threading.Thread(target=_end_with, args=(parent, seconds), daemon=True).start()


def _end_with(parent: int, seconds: float | None) -> None:
    while os.getppid() == parent:  # another process adopts the children of one that ended
        time.sleep(SECONDS_BETWEEN_LOOKS)
    os.kill(os.getpid(), signal.SIGTERM)
    if seconds is not None:
        time.sleep(seconds)
        os._exit(1)


def marked(mark: str, variable: str = MARK) -> list[int]:
    """Processes of this user whose mark begins with these characters; one that has ended but was not read is none."""
    start, processes = f"{variable}={mark}".encode(), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if any(
                    variable_text.startswith(start) for variable_text in (entry / "environ").read_bytes().split(b"\0")
                ):
                    processes.append(int(entry.name))
    return processes


def called_with(*parts: str) -> list[int]:
    """Processes of this machine whose command line has each of these parts, whose words follow one another."""
    patterns, processes = ["\0".join(["", *part.split(), ""]).encode() for part in parts], []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                line = b"\0" + (entry / "cmdline").read_bytes()
                processes += [int(entry.name)] if all(part in line for part in patterns) else []
    return processes


def end_marked(mark: str, seconds: float, is_hurried: Callable[[], bool] = lambda: False) -> None:
    """Send SIGTERM to all processes of a mark, and after some seconds SIGKILL to those that are left."""
    end_all(lambda: marked(mark), seconds, is_hurried)


def end_all(processes: Callable[[], list[int]], seconds: float, is_hurried: Callable[[], bool]) -> None:
    """Send SIGTERM to all processes, which are listed again and again, and later SIGKILL to those that are left."""
    _signal(processes(), signal.SIGTERM)
    wait_for_end(processes, seconds, is_hurried)
    while left := processes():
        _signal(left, signal.SIGKILL)
        time.sleep(SECONDS_BETWEEN_LOOKS)


def wait_for_end(processes: Callable[[], list[int]], seconds: float, is_hurried: Callable[[], bool]) -> None:
    """Wait until none of the processes is left, or the seconds have passed."""
    until = time.monotonic() + seconds
    while processes() and time.monotonic() < until and not is_hurried():
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _signal(processes: list[int], number: int) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)
