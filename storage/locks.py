"""Locks between the processes of one machine: a second process waits for the first."""

from pathlib import Path

from filelock import FileLock, ReadWriteLock

from storage.layout import Layout


def alone(layout: Layout, name: str) -> FileLock:
    """Lock `name` during a `with` block; the end of the process releases it, even if it was killed."""
    return FileLock(_path(layout, name))


def in_use(layout: Layout, dataset: str) -> ReadWriteLock:
    """Lock a dataset: `read_lock()` for each process that ingests or trains, `write_lock()` for the one that drops."""
    return ReadWriteLock(_path(layout, f"dataset-{dataset}"))


def _path(layout: Layout, name: str) -> Path:
    path = Path(layout.lock(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
