"""SIGTERM -> held back until a training has saved its checkpoint."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

MOST_SECONDS = 20.0  # a worker kills a run 30 s after SIGTERM


@contextmanager
def sigterm_deferred(most_seconds: float = MOST_SECONDS) -> Iterator[Callable[[], bool]]:
    """Hold SIGTERM back until the end of a `with` block, for at most some seconds; a second one is not held back.

    Then it does what it did before the block, and the process never goes on behind it.

    Yields:
        A function that says whether it has come.
    """
    before, received = signal.getsignal(signal.SIGTERM), threading.Event()
    if threading.current_thread() is not threading.main_thread() or before is signal.SIG_IGN:
        yield received.is_set
        return
    timer = threading.Timer(most_seconds, _send)
    timer.daemon = True

    def receive(number: int, frame: FrameType | None) -> None:
        if received.is_set():
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
            _send()
        else:
            received.set()
            timer.start()

    signal.signal(signal.SIGTERM, receive)
    try:
        yield received.is_set
    finally:
        timer.cancel()
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
        if received.is_set():
            _send()
            raise SystemExit(128 + signal.SIGTERM)  # whatever the handler did: the block did not reach its end


def _send() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
