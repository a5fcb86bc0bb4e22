"""Bytes at a local or S3 address: a write is complete and on the disk, or has no effect.

Local files are written without obstore, because it never syncs them to disk.
"""

import errno
import fnmatch
import io
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import obstore
from obstore.exceptions import AlreadyExistsError

from storage import objects
from storage.objects import BUFFER_BYTES, is_remote

WRITE_REMEDIES = {
    errno.ENOSPC: "free space on the disk",
    errno.EDQUOT: "free space, because your quota is used up",
    errno.EROFS: "the disk is read-only: mount it for writing",
    errno.EACCES: "check that you may write there",
    errno.EIO: "check the disk",
}

Stamp = tuple[int, int | str]
"""Size and time of the last write (in an object store: ETag) of a file; another content has another stamp."""


class WriteFailed(OSError):
    """A local file cannot be written; the file has its old content or none."""


class ReadFailed(OSError):
    """A local file exists and cannot be read."""


def read_bytes(address: str) -> bytes:
    """Content of a file or an object; FileNotFoundError when there is none."""
    if not is_remote(address):
        with named_read(address):
            return Path(address).read_bytes()
    with objects.named_errors(address):
        return bytes(obstore.get(*objects.object_at(address)).bytes())


def open_stream(address: str) -> io.BufferedReader:
    """Open a file or an object at its first byte, to read and to seek; FileNotFoundError when there is none."""
    if not is_remote(address):
        return Path(address).open("rb")
    with objects.named_errors(address):
        reader = obstore.open_reader(*objects.object_at(address), buffer_size=BUFFER_BYTES)
    return io.BufferedReader(objects.ObjectStream(address, reader), BUFFER_BYTES)


def write_bytes(address: str, content: bytes | Path) -> None:
    """Replace the content atomically with bytes or with a copy of a local file.

    A reader gets the old content or the new, even after a crash.
    """
    if is_remote(address):
        store, key = objects.object_at(address)
        with objects.named_errors(address):
            obstore.put(store, key, content)
        return
    path = Path(address)
    with named_write(path), temporary_file(path, content) as temporary:
        temporary.replace(path)
        sync_folder(path.parent)


def temporary_beside(address: str) -> Path:
    """Hidden local file for content that `publish` gives this address: beside it, or in the temporary folder for S3."""
    if is_remote(address):
        descriptor, name = tempfile.mkstemp(prefix="dyformer-")
        os.close(descriptor)
        return Path(name)
    path = Path(address)
    with named_write(path):
        make_folder(path.parent)
    return path.with_name(temporary_name(path.name))


def publish(temporary: Path, address: str) -> None:
    """Give a complete file of `temporary_beside` its address, once the disk has its content."""
    if is_remote(address):
        write_bytes(address, temporary)
        temporary.unlink()
        return
    path = Path(address)
    with named_write(path):
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        temporary.replace(path)
        sync_folder(path.parent)


def create_bytes(address: str, content: bytes) -> bool:
    """Write a file unless there is one; returns whether this call wrote it.

    Of several writers one succeeds, also on several machines. A reader gets the whole content or no file, even after a
    crash.
    """
    if is_remote(address):
        store, key = objects.object_at(address)
        with objects.named_errors(address):
            try:
                obstore.put(store, key, content, mode="create")
            except AlreadyExistsError:
                return False
        return True
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


def size(address: str) -> int | None:
    """Length in bytes, None when there is no such file."""
    try:
        if not is_remote(address):
            return Path(address).stat().st_size
        with objects.named_errors(address):
            return obstore.head(*objects.object_at(address))["size"]
    except (FileNotFoundError, NotADirectoryError):
        return None


def modified(address: str) -> float:
    """Time of the last write, in seconds since 1970; FileNotFoundError when there is no such file."""
    if not is_remote(address):
        return Path(address).stat().st_mtime
    with objects.named_errors(address):
        return obstore.head(*objects.object_at(address))["last_modified"].timestamp()


def stamp(address: str) -> Stamp:
    """What distinguishes the present content of a file from others; FileNotFoundError when there is no such file."""
    if not is_remote(address):
        status = Path(address).stat()
        return status.st_size, status.st_mtime_ns
    with objects.named_errors(address):
        found = obstore.head(*objects.object_at(address))
    return found["size"], found["e_tag"] or ""


def stamps(folder: str) -> dict[str, Stamp]:
    """Names and stamps of the files directly in a folder; none when there is no folder."""
    if not is_remote(folder):
        path = Path(folder)
        found = {child.name: child.stat() for child in path.iterdir() if child.is_file()} if path.is_dir() else {}
        return {name: (status.st_size, status.st_mtime_ns) for name, status in found.items()}
    with objects.named_errors(folder):
        found = obstore.list_with_delimiter(*objects.object_at(folder))["objects"]
    return {entry["path"].rpartition("/")[2]: (entry["size"], entry["e_tag"] or "") for entry in found}


def remove(address: str) -> None:
    """Delete a file; a missing file is no error."""
    if not is_remote(address):
        Path(address).unlink(missing_ok=True)
        return
    with objects.named_errors(address):
        obstore.delete(*objects.object_at(address))


def remove_folder(folder: str) -> None:
    """Delete a folder and all below it; a local one disappears in one rename. A missing folder is no error.

    Of a symbolic link only the link is deleted.
    """
    if is_remote(folder):
        for address in find(folder):
            remove(address)
    elif Path(folder).is_symlink():  # its target is no part of the store
        Path(folder).unlink()
    elif Path(folder).is_dir():
        hidden = Path(folder).with_name(temporary_name(Path(folder).name))
        Path(folder).rename(hidden)
        shutil.rmtree(hidden)


def find(folder: str, pattern: str = "*", *, hidden: bool = False) -> list[str]:
    """Addresses of all files below a folder whose names match the pattern, sorted.

    Hidden local files and folders hold unfinished writes; they are left out unless they are wanted.
    """
    if not is_remote(folder):
        found = (path for path in Path(folder).rglob(pattern) if path.is_file())
        return sorted(str(path) for path in found if hidden or "/." not in f"/{path.relative_to(folder)}")
    with objects.named_errors(folder):
        keys = [entry["path"] for entries in obstore.list(*objects.object_at(folder)) for entry in entries]
    fitting = (key for key in keys if fnmatch.fnmatchcase(key.rpartition("/")[2], pattern))
    return sorted(f"s3://{objects.bucket_of(folder)}/{key}" for key in fitting)


def links(folder: str) -> list[str]:
    """Addresses of the symbolic links below a folder, which `find` does not follow; an object store has none."""
    return [] if is_remote(folder) else sorted(str(path) for path in Path(folder).rglob("*") if path.is_symlink())


def children(folder: str) -> list[str]:
    """Names directly below a folder, sorted; none when the folder does not exist."""
    if not is_remote(folder):
        path = Path(folder)
        return sorted(child.name for child in path.iterdir()) if path.is_dir() else []
    with objects.named_errors(folder):
        found = obstore.list_with_delimiter(*objects.object_at(folder))
    keys = [*found["common_prefixes"], *(entry["path"] for entry in found["objects"])]
    return sorted(key.rpartition("/")[2] for key in keys)


def temporary_name(name: str) -> str:
    """Hidden name beside the file that no other writer uses."""
    return f".{name}.{uuid.uuid4().hex}"


@contextmanager
def named_read(address: str) -> Iterator[None]:
    """Raise the errors of a local read as ReadFailed, with the path and the reason; a missing file is no such error."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise ReadFailed(f"{address} cannot be read ({reason}): check the disk and your rights") from error


@contextmanager
def named_write(path: Path) -> Iterator[None]:
    """Raise the errors of a local write as WriteFailed, with the path, the reason and a remedy."""
    try:
        yield
    except WriteFailed:
        raise
    except OSError as error:
        remedy = WRITE_REMEDIES.get(error.errno or 0, "check the disk")
        reason = error.strerror or str(error)
        raise WriteFailed(f"{path} cannot be written ({reason}): {remedy}, then run the same command again") from error


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
        shutil.copyfileobj(source, stream, BUFFER_BYTES)
        stream.flush()
        os.fsync(stream.fileno())


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
