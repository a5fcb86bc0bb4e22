"""A function -> its end in a child of this process, which has everything imported already.

A process that has started threads of its own cannot be forked, so whatever computes runs in a child.
"""

import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
    output: int  # a pipe's end, too, because a limit of files, such as of a full disk, does not hold for it
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
        chunks: dict[int, list[bytes]] = {self.result: [], self.output: []}
        open_ends = {self.result, self.output}
        while self.result in open_ends:  # a process that the child has started may have its output open for longer
            left = self.started + limit - time.monotonic()
            ready = select.select(open_ends, [], [], max(left, 0))[0]
            if not ready:
                self.kill()
                break
            for end in ready:
                chunk = os.read(end, 1 << 16)
                chunks[end].append(chunk)
                open_ends -= set() if chunk else {end}
        _, status = os.waitpid(self.process, 0)
        seconds = time.monotonic() - self.started
        while select.select([self.output], [], [], 0)[0] and (chunk := os.read(self.output, 1 << 16)):
            chunks[self.output].append(chunk)
        for end in chunks:
            os.close(end)
        result, output = (b"".join(parts) for parts in chunks.values())
        value = json.loads(result) if result else None
        text = output.decode(errors="replace")
        return Ended(code=os.waitstatus_to_exitcode(status), value=value, output=text, seconds=seconds)


def started(function: Callable[[], Any], **environment: str) -> Child:
    """Start a child that calls the function; its exit code is 0, that of SystemExit, or 70 after another error."""
    sys.stdout.flush()
    reader, writer = os.pipe()
    output, written = os.pipe()
    begun, process = time.monotonic(), os.fork()
    if process:
        os.close(writer)
        os.close(written)
        return Child(process=process, result=reader, output=output, started=begun)
    code = 70
    try:
        os.close(reader)
        os.close(output)
        os.environ.update(environment)
        for stream in (1, 2):
            os.dup2(written, stream)
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
