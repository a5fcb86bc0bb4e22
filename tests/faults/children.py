"""A function -> its end in a child of this process, which has everything imported already.

A process that has started threads of its own cannot be forked, so whatever computes runs in a child.
"""

import json
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

SECONDS_TO_END = 120.0


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a child ended: its exit code (negative: the signal that killed it), its result, its output, its seconds."""

    code: int
    value: Any
    output: str
    seconds: float


@dataclass(kw_only=True)
class Child:
    """A child at work."""

    process: int
    result: int  # a pipe's end, from which its result is read
    output: IO[str]
    started: float

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.process, number)

    def ended(self, kill_after: float | None = None) -> Ended:
        """Wait for the end; with `kill_after`, kill it after so many seconds from its start."""
        try:
            return self._ended(kill_after)
        except KeyboardInterrupt:  # of the sweep, whose folder is removed then
            self.kill()
            os.waitpid(self.process, 0)
            raise

    def _ended(self, kill_after: float | None) -> Ended:
        limit = SECONDS_TO_END if kill_after is None else kill_after
        chunks = []
        with os.fdopen(self.result, "rb", buffering=0) as result:
            while True:
                left = self.started + limit - time.monotonic()
                if not select.select([result], [], [], max(left, 0))[0]:
                    self.kill()
                    break
                chunk = result.read(1 << 16)
                if not chunk:
                    break
                chunks.append(chunk)
        _, status = os.waitpid(self.process, 0)
        seconds = time.monotonic() - self.started
        self.output.seek(0)
        with self.output:
            text = self.output.read()
        value = json.loads(b"".join(chunks)) if chunks else None
        return Ended(code=os.waitstatus_to_exitcode(status), value=value, output=text, seconds=seconds)


def started(function: Callable[[], Any], **environment: str) -> Child:
    """Start a child that calls the function; its exit code is 0, that of SystemExit, or 70 after another error."""
    sys.stdout.flush()
    reader, writer = os.pipe()
    output = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115, closed by its reader
    begun, process = time.monotonic(), os.fork()
    if process:
        os.close(writer)
        return Child(process=process, result=reader, output=output, started=begun)
    code = 70
    try:
        os.close(reader)
        os.environ.update(environment)
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
        value = function()
        sys.stdout.flush()
        with os.fdopen(writer, "wb") as result:
            result.write(json.dumps(value).encode())
        code = 0
    except SystemExit as ending:
        code = ending.code if isinstance(ending.code, int) else 1
    except BaseException:  # noqa: BLE001, because a fork of the sweep must never go on as the sweep
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(function: Callable[[], Any], *, kill_after: float | None = None, **environment: str) -> Ended:
    """Run a function in a child to its end."""
    return started(function, **environment).ended(kill_after)
