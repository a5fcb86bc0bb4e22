"""Processes that track the runs of one experiment -> one at a time, where MLflow would create a thing twice.

MLflow has no name that only one of two writers can create, for runs, points of a curve and versions of a model. A
writer searches for them and creates what is missing, alone: on one machine by the lock of a file, on several machines
by a lease in the object store that they share.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from filelock import FileLock

from storage.checksums import sha256
from storage.layout import Layout
from storage.leases import MOST_SECONDS, leased
from storage.tracking.addresses import database_of

EXCLUSIVE = frozenset({"metrics", "register"})  # kinds of records; other kinds replace what they find


@contextmanager
def turn(uri: str, locks: Path, experiment: str, layout: Layout | None = None) -> Iterator[None]:
    """Wait until no other process has its turn, for at most MOST_SECONDS; raises OSError after that.

    Args:
        uri: MLflow's address. The lock of a SQLite database lies beside it, because processes with other state folders
            may use it, and its first writer makes its tables.
        locks: folder of this machine for the lock of a server.
        experiment: name of the experiment.
        layout: the store; its leases are used if it is in an object store and MLflow is a server.
    """
    database, lease = database_of(uri), lease_of(layout, uri, experiment)
    path = locks / f"{_name(uri, experiment)}.lock" if database is None else Path(f"{database}.lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path, timeout=MOST_SECONDS), nullcontext() if lease is None else leased(lease):
        yield


def lease_of(layout: Layout | None, uri: str, experiment: str) -> str | None:
    """Address of the lease for an experiment of a server; None where one machine alone can be the writer."""
    if layout is None or layout.is_local or database_of(uri) is not None:
        return None
    return layout.lease(_name(uri, experiment))


def _name(uri: str, experiment: str) -> str:
    return f"tracking-{sha256(f'{uri} {experiment}'.encode())[:16]}"
