"""Bytes at a local or S3 address: a write is complete or has no effect.

S3 is reached through obstore, because it shares its options with Polars and can write conditionally. Local files are
written without obstore, because it never syncs them to disk.
"""

import configparser
import fnmatch
import functools
import io
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from storage.local_files import named_write, sync_folder, temporary_file, temporary_name

if TYPE_CHECKING:
    from obstore import ReadableFile

BUFFER_BYTES = 1 << 22  # of an object that is read
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
Stamp = tuple[int, int | str]
"""Size and time of the last write (in an object store: ETag) of a file; another content has another stamp."""


class ReadFailed(OSError):
    """A local file exists and cannot be read."""


def is_remote(address: str) -> bool:
    """Whether the address is an object of a store rather than a file of this machine."""
    return address.startswith("s3://")


def read_bytes(address: str) -> bytes:
    """Content of a file or an object; FileNotFoundError when there is none."""
    if not is_remote(address):
        try:
            return Path(address).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise ReadFailed(f"{address} cannot be read ({error.strerror}): check the disk and your rights") from error
    with _named_errors(address):
        return bytes(obstore.get(*_object(address)).bytes())


def open_stream(address: str) -> io.BufferedReader:
    """Open a file or an object at its first byte, to read and to seek; FileNotFoundError when there is none."""
    if not is_remote(address):
        return Path(address).open("rb")
    with _named_errors(address):
        reader = obstore.open_reader(*_object(address), buffer_size=BUFFER_BYTES)
    return io.BufferedReader(_ObjectStream(address, reader), BUFFER_BYTES)


def write_bytes(address: str, content: bytes | Path) -> None:
    """Replace the content atomically with bytes or with a copy of a local file.

    A reader gets the old content or the new, even after a crash.
    """
    if is_remote(address):
        store, key = _object(address)
        with _named_errors(address):
            obstore.put(store, key, content)
        return
    path = Path(address)
    with named_write(path), temporary_file(path, content) as temporary:
        temporary.replace(path)
        sync_folder(path.parent)


def create_bytes(address: str, content: bytes) -> bool:
    """Write a file unless there is one; returns whether this call wrote it.

    Of several writers one succeeds, also on several machines. A reader gets the whole content or no file, even after a
    crash.
    """
    if is_remote(address):
        store, key = _object(address)
        with _named_errors(address):
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
        with _named_errors(address):
            return obstore.head(*_object(address))["size"]
    except (FileNotFoundError, NotADirectoryError):
        return None


def modified(address: str) -> float:
    """Time of the last write, in seconds since 1970; FileNotFoundError when there is no such file."""
    if not is_remote(address):
        return Path(address).stat().st_mtime
    with _named_errors(address):
        return obstore.head(*_object(address))["last_modified"].timestamp()


def stamp(address: str) -> Stamp:
    """What distinguishes the present content of a file from others; FileNotFoundError when there is no such file."""
    if not is_remote(address):
        status = Path(address).stat()
        return status.st_size, status.st_mtime_ns
    with _named_errors(address):
        found = obstore.head(*_object(address))
    return found["size"], found["e_tag"] or ""


def stamps(folder: str) -> dict[str, Stamp]:
    """Names and stamps of the files directly in a folder; none when there is no folder."""
    if not is_remote(folder):
        path = Path(folder)
        found = {child.name: child.stat() for child in path.iterdir() if child.is_file()} if path.is_dir() else {}
        return {name: (status.st_size, status.st_mtime_ns) for name, status in found.items()}
    with _named_errors(folder):
        objects = obstore.list_with_delimiter(*_object(folder))["objects"]
    return {entry["path"].rpartition("/")[2]: (entry["size"], entry["e_tag"] or "") for entry in objects}


def remove(address: str) -> None:
    """Delete a file; a missing file is no error."""
    if not is_remote(address):
        Path(address).unlink(missing_ok=True)
        return
    with _named_errors(address):
        obstore.delete(*_object(address))


def remove_folder(folder: str) -> None:
    """Delete a folder and all below it; a local one disappears in one rename. A missing folder is no error."""
    if is_remote(folder):
        for address in find(folder):
            remove(address)
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
    with _named_errors(folder):
        keys = [entry["path"] for entries in obstore.list(*_object(folder)) for entry in entries]
    fitting = (key for key in keys if fnmatch.fnmatchcase(key.rpartition("/")[2], pattern))
    return sorted(f"s3://{_bucket(folder)}/{key}" for key in fitting)


def links(folder: str) -> list[str]:
    """Addresses of the symbolic links below a folder, which `find` does not follow; an object store has none."""
    return [] if is_remote(folder) else sorted(str(path) for path in Path(folder).rglob("*") if path.is_symlink())


def children(folder: str) -> list[str]:
    """Names directly below a folder, sorted; none when the folder does not exist."""
    if not is_remote(folder):
        path = Path(folder)
        return sorted(child.name for child in path.iterdir()) if path.is_dir() else []
    with _named_errors(folder):
        found = obstore.list_with_delimiter(*_object(folder))
    keys = [*found["common_prefixes"], *(entry["path"] for entry in found["objects"])]
    return sorted(key.rpartition("/")[2] for key in keys)


def s3_options(address: str) -> dict[str, str]:
    """Options with which obstore, Polars and deltalake reach the address; empty for a local one.

    Keys come from the environment, else from the user's AWS profile, which deltalake and obstore do not read.
    """
    if not is_remote(address):
        return {}
    options = {"AWS_REGION": os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        options |= {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": str(endpoint.startswith("http://")).lower()}
    return options | ({key: os.environ[key] for key in KEYS if os.environ.get(key)} or _profile_keys())


class _ObjectStream(io.RawIOBase):
    """An obstore reader as a Python file object: gzip, zipfile and pyarrow need `readinto` and `closed`."""

    def __init__(self, address: str, reader: "ReadableFile"):
        self._address = address
        self._reader = reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return self._reader.seek(offset, whence)

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        with _named_errors(self._address):
            part = self._reader.read(len(buffer))
        buffer[: len(part)] = memoryview(part)
        return len(part)


@contextmanager
def _named_errors(address: str) -> Iterator[None]:
    """Raise obstore's errors as OSError with the address and one line that gives the reason."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no object {address}") from error
    except BaseError as error:
        reason, advice = str(error).partition("\n")[0], "AWS_ENDPOINT_URL, AWS_REGION and the access keys"
        raise OSError(f"{address} cannot be reached ({reason}); check {advice}") from error


def _bucket(address: str) -> str:
    return address.removeprefix("s3://").partition("/")[0]


def _object(address: str) -> tuple[S3Store, str]:
    store = _store(_bucket(address), tuple(s3_options(address).items()))
    return store, address.removeprefix("s3://").partition("/")[2]


@functools.lru_cache(maxsize=4)
def _store(bucket: str, options: tuple[tuple[str, str], ...]) -> S3Store:
    return S3Store(bucket, config=dict(options))  # pyright: ignore[reportArgumentType]


def _profile_keys() -> dict[str, str]:
    profiles = configparser.ConfigParser()
    profiles.read(Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser())
    name = os.environ.get("AWS_PROFILE") or "default"
    found = {key: profiles.get(name, key.lower(), fallback="") for key in KEYS}
    return {key: value for key, value in found.items() if value}
