"""The right to change a thing -> held by one process: of one machine by a lock, of all machines by a lease.

A lock is that of a file: the end of a process releases it. A lease is an object in the store that the machines share,
for actions of seconds: a process that is killed holds it until others have seen it unchanged for LEASE_SECONDS, so no
clocks are compared. A thread of a live holder changes it more often.
"""

import random
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

from filelock import FileLock, ReadWriteLock, Timeout

from dyformer import DyformerError, InvalidInput
from storage.bytes import files
from storage.bytes.files import Stamp, named_write
from storage.layout import Layout

LEASE_SECONDS = 20.0
MOST_SECONDS = 45.0
RENEWALS = 4  # while a lease would end
PAUSE_SECONDS = 0.1
FREE = b"free"


class DatasetInUse(InvalidInput):
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


class LeaseBusy(DyformerError, OSError):
    """Other processes held a lease all the time."""


@contextmanager
def leased(address: str, seconds: float | None = None) -> Iterator[None]:
    """Hold the lease of an address during a `with` block; raises LeaseBusy after so many seconds, or MOST_SECONDS."""
    token, ended = uuid.uuid4().hex.encode(), threading.Event()
    _acquire(address, token, MOST_SECONDS if seconds is None else seconds)
    renewal = threading.Thread(target=_renew, args=(address, token, ended), daemon=True)
    renewal.start()
    try:
        yield
    finally:
        ended.set()
        renewal.join()
        with suppress(OSError):  # it ends by itself
            _is_changed(address, token, FREE)


def _renew(address: str, own: bytes, ended: threading.Event) -> None:
    """Change a lease until its end, so that no other process takes it over; an error is tried again."""
    for number in count(1):
        if ended.wait(LEASE_SECONDS / RENEWALS):
            return
        with suppress(OSError):
            if not _is_changed(address, own, own + f" {number}".encode()):
                return


def _is_changed(address: str, own: bytes, content: bytes) -> bool:
    """Write the content of a lease unless another process has taken it over; returns whether it was written."""
    current, stamp = _current(address)
    return current.startswith(own) and files.replace_bytes(address, content, stamp)


def _acquire(address: str, own: bytes, seconds: float) -> None:
    started = time.monotonic()
    seen, since = None, started
    while time.monotonic() - started < seconds:
        content, stamp = _current(address)
        if content == own:
            return
        if stamp != seen:
            seen, since = stamp, time.monotonic()
        if content == FREE or time.monotonic() - since > LEASE_SECONDS:
            files.replace_bytes(address, own, stamp)
        else:
            time.sleep(PAUSE_SECONDS * (0.5 + random.random()))  # noqa: S311, for processes that began together
    raise LeaseBusy(f"{address} is held by other processes for more than {seconds:.0f} s")


def _current(address: str) -> tuple[bytes, Stamp | None]:
    try:
        return files.read_stamped(address)
    except FileNotFoundError:
        return FREE, None
