"""Locks of one machine: the second to come waits."""

from pathlib import Path

from filelock import FileLock, ReadWriteLock

from storage.layout import Layout


def alone(layout: Layout, name: str) -> FileLock:
    """Lock `name` for the length of a `with` block; the end of a process, even a killed one, releases it."""
    return FileLock(_path(layout, name))


def in_use(layout: Layout, dataset: str) -> ReadWriteLock:
    """Lock a dataset: `read_lock()` for each process that ingests or trains, `write_lock()` for the one that drops."""
    return ReadWriteLock(_path(layout, f"dataset-{dataset}"))


def _path(layout: Layout, name: str) -> Path:
    path = Path(layout.lock(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
