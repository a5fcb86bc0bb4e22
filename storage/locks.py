"""Locks of one machine: whoever comes second waits."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.layout import Layout


@contextmanager
def alone(layout: Layout, name: str) -> Iterator[None]:
    """Hold the lock `name` for the length of the block; a killed process lets go of it."""
    path = Path(layout.lock(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
