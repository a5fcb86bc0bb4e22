"""A store -> the finished results that MLflow lacks, by a mark that each one gets beside its files once it is there.

MLflow is a view of the store: what has no mark is due, whatever happened to the process that made it or sent it. A
result is noted in one folder before it is finished, and the note goes once the mark is there, so that one listing finds
what is due. A note may be lost where two processes make and send a result at once: a look at everything finds it.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from storage.artifacts.artifact import MANIFEST, MARK, PENDING, TRACKED_KINDS, digest, note_pending, pending_note
from storage.bytes import files
from storage.bytes.checksums import Damaged, create_record, read_record, write_record
from storage.layout import Layout

REMEDY = "`dyformer verify --repair` removes it, and the next run sends the result to MLflow again"


def due(layout: Layout, *, again: bool = False) -> list[str]:
    """Addresses of the results without a mark, or with `again` of all, in the order in which they were made.

    Everything is looked at, which costs a listing for each kind of results.
    """
    manifests = []
    for kind in TRACKED_KINDS:
        there = files.find(layout.all_artifacts(kind), "*.json")
        marked = {address.rpartition("/")[0] for address in there if address.endswith(f"/{MARK}") and not again}
        manifests += [
            address for address in there if address.endswith(f"/{MANIFEST}") and _folder(address) not in marked
        ]
    return _in_order(_folder(address) for address in manifests)


def noted(layout: Layout) -> list[str]:
    """Addresses of the results without a mark that are noted, in the order in which they were made: one listing.

    A note of a marked result goes, and one of a result that nobody has finished for a day.
    """
    addresses = []
    for name in files.children(layout.absolute(PENDING)):
        note = layout.absolute(f"{PENDING}/{name}")
        with suppress(FileNotFoundError):  # another process has removed it since
            content = files.read_bytes(note)
            address = layout.absolute(content.decode(errors="replace"))
            if pending_note(address) != (note, content) or is_removed(address):  # damaged, or not finished
                files.remove_old(note)
            elif has_mark(address):
                files.remove(note)
            else:
                addresses.append(address)
    return _in_order(addresses)


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
    if (note := pending_note(address)) is not None:
        files.remove(note[0])


def unmark(address: str) -> None:
    """Remove a mark, so that the result is sent again."""
    note_pending(address)
    files.remove(f"{address}/{MARK}")


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


def _in_order(addresses: Iterable[str]) -> list[str]:
    moments: dict[str, float] = {}
    for address in addresses:
        with suppress(FileNotFoundError):  # another process has removed it since
            moments[address] = files.modified(f"{address}/{MANIFEST}")
    return sorted(moments, key=lambda address: moments[address])


def _folder(address: str) -> str:
    return address.rpartition("/")[0]
