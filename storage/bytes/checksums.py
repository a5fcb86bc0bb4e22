"""Stored bytes -> the same bytes, or Damaged: checksums of files, and JSON records that carry their own.

A checksum finds accidents. A record that another program wrote may be whole and hold a list for a text all the same, so
the kinds of its values are checked, too.

Polars has an S3 client of its own. Its errors name no object, and it would read an object again after its checksum was
computed. An object of a store is never changed, so each that it scans is copied once in a process, to the temporary
folder, and a copy whose checksum is known is read without a request. Copies of the rows of a log, which each night and
each command reads again, are also stored in a folder of this machine, for later processes.
"""

import functools
import hashlib
import io
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from cachetools import LRUCache, cached
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from dyformer import InvalidInput
from storage.bytes import files
from storage.bytes.files import COPY_BYTES, named_write
from storage.bytes.objects import StoreUnreachable

DIGEST, RECORD = "digest", "record"
CHANGED = "was changed after it was written"

Wrong = Callable[[dict[str, Any]], str | None]
MAKING = threading.Lock()  # two threads would make two folders, of which one is removed while it is used
MOST_NAME_BYTES = 255
MOST_BYTES = 1 << 26  # of the contents of objects in memory
FREE_FRACTION = 0.1  # of a disk that copies for later processes leave to others
UNUSED_SECONDS = 30 * 24 * 3600  # after which a copy for later processes is removed


class Damaged(InvalidInput):
    """A stored part differs from the one that was written."""

    def __init__(self, address: str, problem: str, remedy: str):
        super().__init__(address, problem, remedy)  # all of them, so that a copy of the error can be made
        self.address, self.problem, self.remedy = address, problem, remedy

    def __str__(self) -> str:
        return f"{self.address} {self.problem}: {self.remedy}"


class RecordDamaged(Damaged):
    """A JSON record of the store differs from the one that was written."""


def sha256(content: bytes) -> str:
    """SHA-256 of bytes, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def file_sha256(address: str, stamp: files.Stamp | None = None) -> str:
    """SHA-256 of a file. It is read once in a process, and again if its stamp has changed."""
    return _file_sha256(address, stamp or files.stamp(address))


@functools.lru_cache(maxsize=1 << 16)
def _file_sha256(address: str, stamp: files.Stamp) -> str:
    with files.open_stream(address) as stream, files.named_read(address):
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fault_of(address: str, num_bytes: int, checksum: str | None) -> str | None:
    """What is wrong with a file; None for a file of this size and this checksum, where one was recorded.

    A store that cannot be reached says nothing about its files: StoreUnreachable is raised.
    """
    if (problem := link_in(address)) is not None:
        return problem
    try:
        stamp = files.stamp(address)
    except (FileNotFoundError, NotADirectoryError):
        return "is missing"
    except StoreUnreachable:
        raise
    except (OSError, ValueError) as error:  # such as a name that no disk has
        return f"cannot be read ({error.strerror if isinstance(error, OSError) else error})"
    if stamp[0] != num_bytes:
        return f"has {stamp[0]} bytes instead of {num_bytes}"
    try:
        is_same = checksum is None or file_sha256(address, stamp) == checksum
    except files.ReadFailed as error:
        return error.problem
    return None if is_same else CHANGED


def content_of(address: str, num_bytes: int, checksum: str) -> tuple[bytes, str | None]:
    """Give the bytes of a file, and what is wrong with them: None for so many bytes of this checksum.

    An object is read by one request, and stays in memory while it is among those of MOST_BYTES that were read last.
    """
    if not files.is_remote(address) and (problem := fault_of(address, num_bytes, None)) is not None:
        return b"", problem
    try:
        return (_object if files.is_remote(address) else _verified)(address, num_bytes, checksum), None
    except FileNotFoundError:
        return b"", "is missing"
    except Damaged as error:
        return b"", error.problem


def _verified(address: str, num_bytes: int, checksum: str) -> bytes:
    content = files.read_bytes(address)
    if (problem := _difference(len(content), sha256(content), num_bytes, checksum)) is not None:
        raise Damaged(address, problem, "")
    return content


_object = cached(LRUCache(MOST_BYTES, getsizeof=len), lock=threading.Lock())(_verified)


def _difference(size: int, found: str, num_bytes: int, checksum: str) -> str | None:
    if size != num_bytes:
        return f"has {size} bytes instead of {num_bytes}"
    return None if found == checksum else CHANGED


def link_in(address: str) -> str | None:
    """Where a symbolic link leads from a local address; None without one, because the store follows no link."""
    if files.is_remote(address) or os.path.realpath(address) == os.path.abspath(address):  # noqa: PTH100
        return None
    return f"is reached over a symbolic link to {os.path.realpath(address)}, and the store follows none"


def no_folder_at(folder: str) -> str | None:
    """What is wrong with a local folder of the store that is a link or a plain file."""
    if (problem := link_in(folder)) is None and not files.is_remote(folder) and os.path.isfile(folder):  # noqa: PTH113
        return "is a file, and the store has a folder there"
    return problem


def write_record(address: str, record: Mapping[str, Any]) -> None:
    """Replace a JSON record and its checksum atomically."""
    files.write_bytes(address, checksummed(record))


def create_record(address: str, record: Mapping[str, Any]) -> bool:
    """Write a JSON record unless there is one; returns whether this call wrote it."""
    return files.create_bytes(address, checksummed(record))


def replace_record(address: str, record: Mapping[str, Any], expected: files.Stamp | None) -> bool:
    """Write a JSON record if the file still has the expected stamp; returns whether this call wrote it."""
    return files.replace_bytes(address, checksummed(record), expected)


def read_record(address: str, remedy: str, wrong: Wrong = lambda record: None) -> dict[str, Any] | None:
    """Read a JSON record, None where there is none.

    `wrong` says what is wrong with the kinds of its values.

    Raises:
        RecordDamaged: the file is a link, no record, wrong, or differs from its checksum, or has none; the message has
            the remedy.
    """
    return read_stamped_record(address, remedy, wrong)[0]


def read_stamped_record(
    address: str, remedy: str, wrong: Wrong = lambda record: None
) -> tuple[dict[str, Any], files.Stamp] | tuple[None, None]:
    """Read a JSON record as `read_record` does, and the stamp that `replace_record` expects."""
    try:
        content, stamp = files.read_stamped(address)
    except FileNotFoundError:
        return None, None
    except files.ReadFailed as error:
        raise RecordDamaged(address, error.problem, remedy) from error
    problem = link_in(address)
    record = _whole(content)
    if problem is None and record is None:
        problem = "is empty" if not content.strip(b"\0 \n") else "is no record, or was changed after it was written"
    if problem is None and record is not None:
        problem = wrong(record)
    if problem is not None:
        raise RecordDamaged(address, problem, remedy)
    assert record is not None
    return record, stamp


def checksummed(record: Mapping[str, Any]) -> bytes:
    """JSON of a record beside its checksum."""
    return json.dumps({DIGEST: _digest(record), RECORD: record}, indent=1, sort_keys=True).encode()


def _whole(content: bytes) -> dict[str, Any] | None:
    """Record in a text beside its checksum; None for a text that has another checksum, or none."""
    parsed = _parsed(content)
    if parsed is None or parsed.keys() != {DIGEST, RECORD}:
        return None
    record = parsed[RECORD]
    return record if isinstance(record, dict) and parsed[DIGEST] == _digest(record) else None


def _parsed(content: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _digest(record: Mapping[str, Any]) -> str:
    return sha256(json.dumps(record, sort_keys=True, separators=(",", ":")).encode())


def readable(address: str, num_bytes: int, checksum: str, cache: str | None = None) -> tuple[str, str | None]:
    """Give the path of a file, and what is wrong with the file: None for one of this size and this checksum.

    An object that was copied with this checksum needs no further request: in this process, and with `cache`, a folder
    of this machine, in an earlier one.
    """
    if not files.is_remote(address):
        return address, fault_of(address, num_bytes, checksum)
    name = sha256(f"{address} {checksum}".encode())
    copy = Path(_folder().name, name).with_suffix(".parquet")
    stored = None if cache is None else Path(cache, copy.name)
    try:
        if copy.exists() or (stored is not None and _is_reused(stored, num_bytes, checksum, copy)):
            return str(copy), None
        with files.open_of_size(address, num_bytes) as source:
            problem = _copied(source, num_bytes, checksum, copy)
    except FileNotFoundError:
        return address, "is missing"
    if problem is None and stored is not None:
        _store(copy, stored)
    return str(copy), problem


def _copied(source: io.BufferedIOBase, num_bytes: int, checksum: str, copy: Path) -> str | None:
    """Copy a stream unless it differs from its checksum; returns how it differs."""
    digest, size = hashlib.sha256(), 0
    temporary = copy.with_name(files.temporary_name(copy.name))
    try:
        with named_write(temporary):
            with temporary.open("wb") as target:
                while part := source.read(COPY_BYTES):
                    digest.update(part)
                    size += len(part)
                    target.write(part)
            problem = _difference(size, digest.hexdigest(), num_bytes, checksum)
            if problem is None:  # a copy has its name once it is whole, because another thread may look for it
                temporary.replace(copy)
    finally:
        temporary.unlink(missing_ok=True)
    return problem


def _is_reused(stored: Path, num_bytes: int, checksum: str, copy: Path) -> bool:
    """Whether an earlier process has stored a whole copy, which this one has now, too."""
    try:
        if not stored.is_file():  # the read of a pipe would never end
            return copy.exists()
        with stored.open("rb") as source:
            problem = _copied(source, num_bytes, checksum, copy)
        os.utime(stored)
    except OSError:  # there is none, or another process has removed it
        return copy.exists()
    return problem is None


def _store(copy: Path, stored: Path) -> None:
    """Store a copy for later processes, unless the disk of the folder is nearly full, because none needs it."""
    folder = stored.parent
    with suppress(OSError):
        files.make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)  # nobody else may read the rows
        _remove_unused(folder.parent)
        space = shutil.disk_usage(folder)
        if space.free - copy.stat().st_size > FREE_FRACTION * space.total:
            files.write_bytes(str(stored), copy)


@functools.lru_cache(maxsize=64)  # once in a process
def _remove_unused(folders: Path) -> None:
    """Remove the copies of any dataset that no process has used for UNUSED_SECONDS."""
    for path in folders.glob("*/*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > UNUSED_SECONDS:
                path.unlink()


def _folder() -> "tempfile.TemporaryDirectory[str]":
    """Give the folder of the copies, a new one where that was removed: some systems clear their temporary folder."""
    with MAKING:
        if not Path(_made().name).is_dir():
            _made().cleanup()
            _made.cache_clear()
        return _made()


@functools.lru_cache(maxsize=1)
def _made() -> "tempfile.TemporaryDirectory[str]":
    """Make a folder, which is removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="dyformer-", ignore_cleanup_errors=True)


def remove_copies() -> None:
    """Remove the folder of the copies before the process ends without Python's own end, which would remove it."""
    if _made.cache_info().currsize:
        _made().cleanup()


def is_below(path: str) -> bool:
    """Whether a relative path stays below the folder that it is appended to, and a disk can have it."""
    try:
        parts = path.encode().split(b"/")
    except UnicodeEncodeError:  # half of a pair of code units, which JSON can hold
        return False
    is_name = all(0 < len(part) <= MOST_NAME_BYTES for part in parts)
    return is_name and "://" not in path and not {"\\", "\0"} & set(path) and not {b".", b".."} & set(parts)


def _below(path: str) -> str:
    if not is_below(path):
        raise InvalidInput("expected a path below the folder")
    return path


Whole = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
PathBelow = Annotated[str, AfterValidator(_below)]


def wrong_kind(model: type[BaseModel], record: Any) -> str | None:
    """Say which value of a record is wrong in kind, and why."""
    try:
        model.model_validate(record)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"]))[:80]
        return f"is wrong in kind: {where or 'the record'}: {fault['msg']}".encode("ascii", "backslashreplace").decode()
    return None
