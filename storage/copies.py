"""The file of a table -> a path from which Polars reads it; for an object, that of a copy with the right checksum.

Polars has an S3 client of its own. Its errors name no object, and it would read an object again after its checksum was
computed. An object of a store is never changed, so each is copied once in a process, to the temporary folder.
"""

import functools
import hashlib
import tempfile
import threading
from pathlib import Path

from storage import files
from storage.checksums import CHANGED, fault_of
from storage.disk import COPY_BYTES, named_write

MAKING = threading.Lock()  # two threads would make two folders, of which one is removed while it is used


def readable(address: str, num_bytes: int, checksum: str | None) -> tuple[str, str | None]:
    """Give the path of a file, and what is wrong with the file: None for one of this size and this checksum."""
    if not files.is_remote(address):
        return address, fault_of(address, num_bytes, checksum)
    try:
        stamp = files.stamp(address)
        if stamp[0] != num_bytes:
            return address, f"has {stamp[0]} bytes instead of {num_bytes}"
        path, found = _copied(address, stamp)
    except FileNotFoundError:
        return address, "is missing"
    return path, None if checksum in (None, found) else CHANGED


@functools.lru_cache(maxsize=1 << 16)
def _copied(address: str, stamp: files.Stamp) -> tuple[str, str]:
    """Copy an object; returns the path of the copy and its SHA-256."""
    digest = hashlib.sha256()
    with MAKING:
        folder = _folder()
    path = Path(folder.name, hashlib.sha256(f"{address} {stamp}".encode()).hexdigest()).with_suffix(".parquet")
    with files.open_stream(address) as source, named_write(path), path.open("wb") as target:
        while part := source.read(COPY_BYTES):
            digest.update(part)
            target.write(part)
    return str(path), digest.hexdigest()


@functools.lru_cache(maxsize=1)
def _folder() -> "tempfile.TemporaryDirectory[str]":
    """Make the folder of the copies, which is removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="dyformer-")
