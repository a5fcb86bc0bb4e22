"""Bytes at a local or S3 address: a write is complete and on the disk, or has no effect.

Local files are written without obstore, because it never syncs them to disk.
"""

import errno
import fnmatch
import io
import itertools
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError

from dyformer import DyformerError
from storage.bytes import objects
from storage.bytes.objects import BUFFER_BYTES, ObjectMissing, StoreUnreachable, is_remote

WRITE_REMEDIES = {
    errno.ENOSPC: "free space on the disk",
    errno.EDQUOT: "free space, because your quota is used up",
    errno.EROFS: "the disk is read-only: mount it for writing",
    errno.EACCES: "check that you may write there",
    errno.EIO: "check the disk",
    errno.EISDIR: "a folder has this name: rename it",
    errno.ENOTDIR: "a file has the name of one of its folders: rename it, or name another folder",
}
READ_REMEDY = "check the disk and your rights"
MANIFEST = "manifest.json"  # of an artifact
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}")  # as temporary_name writes them
COPY_BYTES = 1 << 22
REMOTE_READERS = 16
LEFTOVER_SECONDS = 24 * 3600  # writers of other machines may be at work, and others may be reading what was replaced

Stamp = tuple[int, int | str]
"""Size and time of the last write (in an object store: ETag) of a file; another content has another stamp."""


class WriteFailed(DyformerError, OSError):
    """A local file cannot be written; the file has its old content or none."""


class ReadFailed(DyformerError, OSError):
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
    """Raise the errors of a local write as WriteFailed, with the path, the reason and a remedy.

    A store that cannot be reached, or lacks the object, from which a file is copied, is no such error.
    """
    try:
        yield
    except (WriteFailed, StoreUnreachable, ObjectMissing):
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
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for parent in reversed(missing):
        sync_folder(parent.parent)


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


def read_bytes(address: str) -> bytes:
    """Content of a file or an object; FileNotFoundError when there is none."""
    if not is_remote(address):
        with named_read(address):
            return Path(address).read_bytes()
    return read_stamped(address)[0]


def read_each(read: Callable[[str], Any], addresses: Iterable[str]) -> list[Any]:
    """Read what lies under each address, in their order; up to 16 of an object store at the same time."""
    addresses = list(addresses)
    if addresses and is_remote(addresses[0]):
        with ThreadPoolExecutor(REMOTE_READERS) as pool:
            return list(pool.map(read, addresses))
    return [read(address) for address in addresses]


def read_stamped(address: str) -> tuple[bytes, Stamp]:
    """Content of a file and the stamp by which `replace_bytes` knows it; FileNotFoundError when there is none."""
    if not is_remote(address):
        with named_read(address):
            read_stamp = stamp(address)  # first: a record that is replaced meanwhile must not have the newer stamp
            return Path(address).read_bytes(), read_stamp
    return objects.requested(address, lambda: _object_at(address))


def _object_at(address: str) -> tuple[bytes, Stamp]:
    response = obstore.get(*objects.object_at(address))
    return bytes(response.bytes()), objects.stamp_of(address, response.meta)


def open_stream(address: str) -> io.BufferedReader:
    """Open a file or an object at its first byte, to read and to seek; FileNotFoundError when there is none."""
    if not is_remote(address):
        return Path(address).open("rb")
    return io.BufferedReader(objects.ObjectStream(address), BUFFER_BYTES)


def open_of_size(address: str, num_bytes: int) -> io.BufferedIOBase:
    """Open a file that is expected to have so many bytes, to read it to its end; a short object takes one request."""
    if is_remote(address) and num_bytes <= BUFFER_BYTES:
        return io.BytesIO(read_bytes(address))
    return open_stream(address)


def write_bytes(address: str, content: bytes | Path) -> None:
    """Replace the content atomically with bytes or with a copy of a local file.

    A reader gets the old content or the new, even after a crash.
    """
    if is_remote(address):
        objects.requested(address, lambda: obstore.put(*objects.object_at(address), content))
        return
    path = Path(address)
    with named_write(path), temporary_file(path, content) as temporary:
        renamed(temporary, path)


def check_writable(address: str) -> None:
    """Raise WriteFailed where no local file can be written under an address, before what takes minutes is computed.

    Of an object store this is known by a write alone.
    """
    path = Path(address)
    if is_remote(address):
        return
    nearest = next(parent for parent in (path, *path.parents) if parent.exists())
    if nearest.is_dir() and not os.access(nearest, os.W_OK | os.X_OK):
        with named_write(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def write_all(contents: Mapping[str, bytes]) -> None:
    """Replace the contents of several addresses, in their order; a reader gets each old content or new one whole.

    Local files are all written beside their names before the first one is renamed, so that none is replaced where one
    cannot be written, as on a full disk. The renames follow one another, as do the writes to an object store: a crash
    between two of them leaves some contents new and the later ones old.
    """
    written: dict[Path, Path] = {}
    with ExitStack() as stack:
        for address, content in contents.items():
            if is_remote(address):
                write_bytes(address, content)
                continue
            path = Path(address)
            with named_write(path):
                if path.is_dir():  # which a rename would refuse, after those before it
                    raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
                written[path] = stack.enter_context(temporary_file(path, content))
        for path, temporary in written.items():
            with named_write(path):
                renamed(temporary, path)


def create_bytes(address: str, content: bytes) -> bool:
    """Write a file unless there is one; returns whether this call wrote it.

    Of several writers one succeeds, also on several machines. A reader gets the whole content or no file, even after a
    crash.
    """
    if is_remote(address):
        return objects.requested(address, lambda: _put_if(address, content, "create"))
    path = Path(address)
    with named_write(path), temporary_file(path, content) as temporary:
        try:
            path.hardlink_to(temporary)  # unlike a rename, it replaces nothing
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        sync_folder(path.parent)
    return True


def replace_bytes(address: str, content: bytes, expected: Stamp | None) -> bool:
    """Write a file if it still has the expected stamp (None: if there is none); returns whether this call wrote it.

    Of several writers one succeeds, also on several machines that share an object store. The writers of a local file
    need a lock.
    """
    if expected is None:
        return create_bytes(address, content)
    if not is_remote(address):
        if not Path(address).exists() or stamp(address) != expected:
            return False
        write_bytes(address, content)
        return True
    return objects.requested(address, lambda: _put_if(address, content, {"e_tag": str(expected[1])}))


def _put_if(address: str, content: bytes, condition: Any) -> bool:
    """Write an object under a condition; returns whether it has the content of this call.

    A write whose response was lost is repeated, and then refused if the first succeeded: the object shows that.
    """
    try:
        obstore.put(*objects.object_at(address), content, mode=condition)
    except (AlreadyExistsError, PreconditionError, FileNotFoundError):
        return _has(address, content)
    return True


def _has(address: str, content: bytes) -> bool:
    try:
        return read_bytes(address) == content
    except FileNotFoundError:
        return False


def size(address: str) -> int | None:
    """Length in bytes, None when there is no such file."""
    try:
        if not is_remote(address):
            return Path(address).stat().st_size
        return stamp(address)[0]
    except (FileNotFoundError, NotADirectoryError):
        return None


def modified(address: str) -> float:
    """Time of the last write, in seconds since 1970; FileNotFoundError when there is no such file."""
    if not is_remote(address):
        return Path(address).stat().st_mtime
    return objects.requested(address, lambda: _meta(address)["last_modified"].timestamp())


def stamp(address: str) -> Stamp:
    """What distinguishes the present content of a file from others; FileNotFoundError when there is no such file."""
    if not is_remote(address):
        status = Path(address).stat()
        return status.st_size, status.st_mtime_ns
    return objects.requested(address, lambda: objects.stamp_of(address, _meta(address)))


def _meta(address: str) -> "obstore.ObjectMeta":
    return obstore.head(*objects.object_at(address))


def remove(address: str) -> None:
    """Delete a file; a missing file is no error."""
    if not is_remote(address):
        Path(address).unlink(missing_ok=True)
        return
    objects.requested(address, lambda: obstore.delete(*objects.object_at(address)))


def remove_folder(folder: str) -> None:
    """Delete a folder and all below it; a local one disappears in one rename. A missing folder is no error.

    In an object store manifests go before other files, so that a reader finds a whole artifact or none, and those of
    greater numbers last, so that a log whose removal is killed is not taken for a smaller one.
    Of a symbolic link only the link is deleted; a file in place of a folder is deleted.
    """
    if is_remote(folder):
        for address in sorted(find(folder), key=lambda each: (each.rpartition("/")[2] != MANIFEST, len(each), each)):
            remove(address)
    elif Path(folder).is_symlink() or Path(folder).is_file():  # a link's target is no part of the store
        Path(folder).unlink()
    elif Path(folder).is_dir():
        hidden = Path(folder).with_name(temporary_name(Path(folder).name))
        Path(folder).rename(hidden)
        shutil.rmtree(hidden)


def remove_old(address: str) -> None:
    """Delete a file or a folder that a killed writer left, if nothing was written to it for LEFTOVER_SECONDS."""
    try:
        written = modified(address) if is_remote(address) else Path(address).lstat().st_mtime
        if time.time() - written > LEFTOVER_SECONDS:
            remove(address) if is_remote(address) else remove_folder(address)
    except FileNotFoundError:  # its writer has just renamed it, or another process has removed it
        return


def find(folder: str, pattern: str = "*", *, hidden: bool = False) -> list[str]:
    """Addresses of all files below a folder whose names match the pattern, sorted.

    Hidden local files and folders hold unfinished writes; they are left out unless they are wanted.
    """
    if not is_remote(folder):
        paths = (path for path in Path(folder).rglob(pattern) if path.is_file())
        return sorted(str(path) for path in paths if hidden or "/." not in f"/{path.relative_to(folder)}")
    pages = objects.listed(folder, lambda: [*itertools.chain(*obstore.list(*objects.object_at(folder)))])
    keys = [entry["path"] for entry in pages]
    fitting = (key for key in keys if fnmatch.fnmatchcase(key.rpartition("/")[2], pattern))
    return sorted(f"s3://{objects.bucket_of(folder)}/{key}" for key in fitting)


def stamps(folder: str) -> dict[str, Stamp]:
    """Stamps of all files below a folder by their addresses, sorted; of an object store by one listing."""
    if not is_remote(folder):
        local: dict[str, Stamp] = {}
        for address in find(folder):
            with suppress(FileNotFoundError):  # removed since it was listed
                local[address] = stamp(address)
        return local
    entries = objects.listed(folder, lambda: [*itertools.chain(*obstore.list(*objects.object_at(folder)))])
    bucket = objects.bucket_of(folder)
    located = {f"s3://{bucket}/{entry['path']}": entry for entry in entries}
    return {address: objects.stamp_of(address, entry) for address, entry in sorted(located.items())}


def links(folder: str) -> list[str]:
    """Addresses of the symbolic links below a folder, which `find` does not follow; an object store has none."""
    return [] if is_remote(folder) else sorted(str(path) for path in Path(folder).rglob("*") if path.is_symlink())


def children(folder: str) -> list[str]:
    """Names directly below a folder, sorted; none when the folder does not exist."""
    if not is_remote(folder):
        path = Path(folder)
        return sorted(child.name for child in path.iterdir()) if path.is_dir() else []
    return sorted(key.rpartition("/")[2] for key in objects.listed(folder, lambda: _keys(folder)))


def _keys(folder: str) -> list[str]:
    """Prefixes and keys of objects directly below a folder of an object store."""
    listing = obstore.list_with_delimiter(*objects.object_at(folder))
    return [*listing["common_prefixes"], *(entry["path"] for entry in listing["objects"])]
