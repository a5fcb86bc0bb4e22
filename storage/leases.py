"""An address in an object store -> the right to change what it stands for, held by one process of all machines.

Locks of files reach the processes of one machine only. A lease is for actions of seconds: a process that is killed
holds it until others have seen it unchanged for LEASE_SECONDS, so no clocks are compared.
"""

import random
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from storage import files
from storage.files import Stamp

LEASE_SECONDS = 20.0
MOST_SECONDS = 45.0
PAUSE_SECONDS = 0.1
FREE = b"free"


class LeaseBusy(OSError):
    """Other processes held a lease all the time."""


@contextmanager
def leased(address: str, seconds: float | None = None) -> Iterator[None]:
    """Hold the lease of an address during a `with` block; raises LeaseBusy after so many seconds, or MOST_SECONDS."""
    stamp = _acquired(address, MOST_SECONDS if seconds is None else seconds)
    try:
        yield
    finally:
        files.replace_bytes(address, FREE, stamp)  # no effect on a lease that another process has taken over


def _acquired(address: str, seconds: float) -> Stamp:
    own, started = uuid.uuid4().hex.encode(), time.monotonic()
    seen, since = None, started
    while time.monotonic() - started < seconds:
        content, stamp = _current(address)
        if content == own and stamp is not None:
            return stamp
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
