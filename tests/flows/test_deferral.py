"""SIGTERM waits for a training's checkpoint, but not for ever, and never lets the process go on."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from flows.tasks.train import sigterm_deferred


class Ended(BaseException):
    """Raised by the handler that was there before, as Prefect's is."""


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    def end(number: int, frame: object) -> None:
        raise Ended

    before = signal.signal(signal.SIGTERM, end)
    yield
    signal.signal(signal.SIGTERM, before)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def block(most_seconds: float, num_signals: int, seconds: float, error: type[Exception] | None = None) -> list[bool]:
    """Receive signals in a block of some seconds; returns whether one was seen at its beginning and at its end."""
    seen: list[bool] = []
    with suppress(Ended), sigterm_deferred(most_seconds) as is_ending:
        seen.append(is_ending())
        for _ in range(num_signals):
            terminate()
        time.sleep(seconds)
        seen.append(is_ending())
        if error is not None:
            raise error
    return seen


def test_it_comes_at_the_end_of_the_block_and_again_the_handler_of_before() -> None:
    assert block(20, num_signals=1, seconds=0.05) == [False, True]
    with pytest.raises(Ended):
        terminate()


@pytest.mark.parametrize(("most_seconds", "num_signals"), [(0.2, 1), (20, 2)])
def test_it_comes_in_a_block_that_is_too_long_and_at_the_second_time(most_seconds: float, num_signals: int) -> None:
    began = time.monotonic()
    assert block(most_seconds, num_signals, seconds=20) == [False]
    assert time.monotonic() - began < 5


def test_an_error_of_the_block_does_not_swallow_it() -> None:
    assert block(20, num_signals=1, seconds=0, error=ValueError) == [False, True]
    with pytest.raises(ZeroDivisionError):
        block(20, num_signals=0, seconds=0, error=ZeroDivisionError)


def test_without_it_a_block_is_a_block() -> None:
    with sigterm_deferred() as is_ending:
        assert not is_ending()
    threads: list[bool] = []

    def in_thread() -> None:
        with sigterm_deferred() as is_ending:
            threads.append(is_ending())

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    assert threads == [False]


@pytest.mark.parametrize(("usual", "code"), [("SIG_DFL", -signal.SIGTERM), ("SIG_IGN", 7)])
def test_a_process_with_the_usual_handler_dies_of_it_and_one_that_ignores_it_goes_on(usual: str, code: int) -> None:
    source = (
        f"import os, signal; signal.signal(signal.SIGTERM, signal.{usual})\n"
        "from flows.tasks.train import sigterm_deferred\n"
        "with sigterm_deferred():\n    os.kill(os.getpid(), signal.SIGTERM)\n"
        "raise SystemExit(7)"
    )
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == code


def test_a_handler_that_does_nothing_does_not_let_the_process_go_on() -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    with pytest.raises(SystemExit) as ending, sigterm_deferred():
        terminate()
    assert ending.value.code == 143
