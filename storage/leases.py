"""An address in an object store -> the right to change what it stands for, held by one process of all machines.

Locks of files reach the processes of one machine only. A lease is for actions of seconds: a process that is killed
holds it until others have seen it unchanged for LEASE_SECONDS, so no clocks are compared. A thread of a live holder
changes it more often.
"""

import random
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count

from storage import files
from storage.files import Stamp

LEASE_SECONDS = 20.0
MOST_SECONDS = 45.0
RENEWALS = 4  # while a lease would end
PAUSE_SECONDS = 0.1
FREE = b"free"


class LeaseBusy(OSError):
    """Other processes held a lease all the time."""


@contextmanager
def leased(address: str, seconds: float | None = None) -> Iterator[None]:
    """Hold the lease of an address during a `with` block; raises LeaseBusy after so many seconds, or MOST_SECONDS."""
    own, ended = uuid.uuid4().hex.encode(), threading.Event()
    _acquire(address, own, MOST_SECONDS if seconds is None else seconds)
    renewal = threading.Thread(target=_renew, args=(address, own, ended), daemon=True)
    renewal.start()
    try:
        yield
    finally:
        ended.set()
        renewal.join()
        with suppress(OSError):  # it ends by itself
            _is_changed(address, own, FREE)


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
