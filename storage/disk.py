"""Writes to the local disk: a file is complete and on the disk, or the write has no effect; errors have names."""

import errno
import io
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from storage.objects import StoreUnreachable

WRITE_REMEDIES = {
    errno.ENOSPC: "free space on the disk",
    errno.EDQUOT: "free space, because your quota is used up",
    errno.EROFS: "the disk is read-only: mount it for writing",
    errno.EACCES: "check that you may write there",
    errno.EIO: "check the disk",
}
READ_REMEDY = "check the disk and your rights"
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}")  # as temporary_name writes them
COPY_BYTES = 1 << 22


class WriteFailed(OSError):
    """A local file cannot be written; the file has its old content or none."""


class ReadFailed(OSError):
    """A local file exists and cannot be read."""

    problem = "cannot be read"


def temporary_name(name: str) -> str:
    """Hidden name beside the file that no other writer uses."""
    return f".{name}.{uuid.uuid4().hex}"


@contextmanager
def named_read(address: str) -> Iterator[None]:
    """Raise the errors of a local read as ReadFailed, with the path and the reason.

    A missing file is no such error, nor is a store that cannot be reached.
    """
    try:
        yield
    except (FileNotFoundError, StoreUnreachable):
        raise
    except (OSError, ValueError) as error:  # ValueError: a name that no disk has
        failed = ReadFailed(f"{address} cannot be read ({_reason(error)}): {READ_REMEDY}")
        failed.problem = f"cannot be read ({_reason(error)}), {READ_REMEDY}"
        raise failed from error


@contextmanager
def named_write(path: Path) -> Iterator[None]:
    """Raise the errors of a local write as WriteFailed, with the path, the reason and a remedy."""
    try:
        yield
    except WriteFailed:
        raise
    except OSError as error:
        remedy = WRITE_REMEDIES.get(error.errno or 0, "check the disk")
        reason = _reason(error)
        raise WriteFailed(f"{path} cannot be written ({reason}): {remedy}, then run the same command again") from error


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


@contextmanager
def temporary_file(path: Path, content: bytes | Path) -> Iterator[Path]:
    """Write the content to a hidden file beside the path, which the block renames or links; removed if it fails."""
    make_folder(path.parent)
    temporary = path.with_name(temporary_name(path.name))
    try:
        write_synced(temporary, content)
        yield temporary
    except (Exception, KeyboardInterrupt):
        temporary.unlink(missing_ok=True)
        raise


def make_folder(folder: Path) -> None:
    """Make a local folder and those above it, and wait until the disk has their names."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for each in reversed(missing):
        sync_folder(each.parent)


def write_synced(path: Path, content: bytes | Path) -> None:
    """Write a local file and wait until the disk has it."""
    with content.open("rb") if isinstance(content, Path) else io.BytesIO(content) as source, path.open("wb") as stream:
        shutil.copyfileobj(source, stream, COPY_BYTES)
        stream.flush()
        os.fsync(stream.fileno())


def renamed(temporary: Path, path: Path) -> None:
    """Give a synced file its name, in place of an older one, and wait until the disk has the name."""
    temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the folder's names, because otherwise a power cut may undo a rename."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # a folder above the store, in which this user makes no names
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
