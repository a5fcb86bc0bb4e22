"""Ctrl-C, SIGTERM, the end of a terminal -> whether to stop, for a process that has others to stop first."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


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
        before = {each: signal.signal(each, self._receive) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        descriptor = signal.set_wakeup_fd(-1)  # a command ends two seconds after Ctrl-C; this one stops its servers
        try:
            yield
        finally:
            signal.set_wakeup_fd(descriptor)
            for each, handler in before.items():
                signal.signal(each, handler)
