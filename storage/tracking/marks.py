"""A store -> the finished results that MLflow lacks, by a mark that each one gets beside its files once it is there.

MLflow is a view of the store: what has no mark is due, whatever happened to the process that made it or sent it.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from storage import files
from storage.artifacts.artifact import MANIFEST, MARK, digest
from storage.checksums import Damaged, create_record, read_record, write_record
from storage.layout import Layout

TRACKED_KINDS = ("training", "report", "benchmark", "study", "audit", "outcomes", "rollback")
REMEDY = "`dyformer verify --repair` removes it, and the next run sends the result to MLflow again"


def due(layout: Layout, *, again: bool = False) -> list[str]:
    """Addresses of the results without a mark, or with `again` of all, in the order in which they were made."""
    found = []
    for kind in TRACKED_KINDS:
        there = files.find(layout.all_artifacts(kind), "*.json")
        marked = {address.rpartition("/")[0] for address in there if address.endswith(f"/{MARK}") and not again}
        found += [address for address in there if address.endswith(f"/{MANIFEST}") and _folder(address) not in marked]
    moments: dict[str, float] = {}
    for address in found:
        with suppress(FileNotFoundError):  # another process has removed it since
            moments[_folder(address)] = files.modified(address)
    return sorted(moments, key=lambda address: moments[address])


def is_removed(address: str) -> bool:
    """Whether a result is there no more."""
    return files.size(f"{address}/{MANIFEST}") is None


def has_mark(address: str) -> bool:
    """Whether a result has a mark, sound or damaged."""
    return files.size(f"{address}/{MARK}") is not None


def mark(layout: Layout, address: str, where: Mapping[str, Any]) -> None:
    """Note where in MLflow a result is; the address in the mark is relative, because a store may be moved."""
    record = {"artifact": layout.relative(address), "digest": digest(address), **where}
    if not create_record(f"{address}/{MARK}", record):
        write_record(f"{address}/{MARK}", record)


def marked(address: str) -> dict[str, Any] | None:
    """Read a result's mark; None without one. Raises RecordDamaged."""
    return read_record(f"{address}/{MARK}", REMEDY)


def mark_problem(location: str) -> str | None:
    """Say what is wrong with a mark."""
    try:
        read_record(location, REMEDY)
    except Damaged as error:
        return error.problem
    return None


def _folder(address: str) -> str:
    return address.rpartition("/")[0]
