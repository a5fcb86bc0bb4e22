"""Locks of one machine: the second to come waits."""

from pathlib import Path

from filelock import FileLock

from storage.layout import Layout


def alone(layout: Layout, name: str) -> FileLock:
    """Lock `name` for the length of a `with` block; the end of a process, even a killed one, releases it."""
    path = Path(layout.lock(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path)
