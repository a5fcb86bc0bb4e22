"""Processes that track the runs of one experiment -> one at a time, where MLflow would create a thing twice.

MLflow has no name that only one of two writers can create, for runs, points of a curve and versions of a model. A
writer searches for them and creates what is missing, alone: on one machine by the lock of a file, on several machines
by a lease in the object store that they share. A machine that is slower than a lease lasts may double a run, which the
next writer of that run removes.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from filelock import FileLock

from storage.bytes.checksums import sha256
from storage.layout import Layout
from storage.locks import MOST_SECONDS, leased
from storage.tracking.addresses import database_of


@contextmanager
def turn(layout: Layout, uri: str, experiment: str, seconds: float | None = None) -> Iterator[None]:
    """Wait until no other process has its turn, for at most so many seconds, or MOST_SECONDS; raises OSError then.

    The lock of a SQLite database lies beside it, because processes with other state folders may use it, and its first
    writer makes its tables. The lease is used if the store is in an object store and MLflow is a server.
    """
    database, lease = database_of(uri), lease_of(layout, uri, experiment)
    path = Path(layout.lock(_name(uri, experiment)) if database is None else f"{database}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        FileLock(path, timeout=MOST_SECONDS if seconds is None else seconds),
        nullcontext() if lease is None else leased(lease, seconds),
    ):
        yield


def lease_of(layout: Layout, uri: str, experiment: str) -> str | None:
    """Address of the lease for an experiment of a server; None where one machine alone can be the writer."""
    if layout.is_local or database_of(uri) is not None:
        return None
    return layout.lease(_name(uri, experiment))


def _name(uri: str, experiment: str) -> str:
    return f"tracking-{sha256(f'{uri} {experiment}'.encode())[:16]}"
