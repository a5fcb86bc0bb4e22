"""Waiting for what another process does."""

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; fails after half a minute."""
    for _ in range(600):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError
