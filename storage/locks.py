"""Locks between the processes of one machine: a second process waits for the first."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from filelock import FileLock, ReadWriteLock, Timeout

from storage.disk import named_write
from storage.layout import Layout


class DatasetInUse(ValueError):
    """A dataset is being ingested or trained on."""


def alone(layout: Layout, name: str) -> FileLock:
    """Lock `name` during a `with` block; the end of the process releases it, even if it was killed."""
    return FileLock(_path(layout, name))


def in_use(layout: Layout, dataset: str) -> ReadWriteLock:
    """Lock a dataset: `read_lock()` for each process that ingests or trains; see also `not_in_use`."""
    return ReadWriteLock(_path(layout, f"dataset-{dataset}"))


@contextmanager
def not_in_use(layout: Layout, dataset: str, action: str) -> Iterator[None]:
    """Lock a dataset for the one process that drops or repairs it; raises DatasetInUse at once if others use it."""
    with ExitStack() as lock:
        try:
            lock.enter_context(in_use(layout, dataset).write_lock(blocking=False))
        except Timeout as error:
            raise DatasetInUse(
                f"dataset {dataset!r} is being ingested or trained on: {action} it after that process has ended"
            ) from error
        yield


def _path(layout: Layout, name: str) -> Path:
    path = Path(layout.lock(name))
    with named_write(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    return path
