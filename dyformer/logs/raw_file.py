"""A file of a raw log, plain, compressed or in an archive -> its decompressed bytes; and the errors of a log.

gzip, zstd, bz2, zip and tar are recognised by their magic bytes, not by the file's name.
"""

import bz2
import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Protocol

TAR_MAGIC = b"ustar"
TAR_MAGIC_AT = 257
UNREADABLE = {
    b"\xfd7zXZ\x00": ("xz", "xz -d"),
    b"7z\xbc\xaf": ("7z", "7z x"),
    b"Rar!": ("rar", "unrar x"),
}
BROKEN_STREAM = (EOFError, OSError, zlib.error, zipfile.BadZipFile, tarfile.TarError)


class LogError(ValueError):
    """A log that cannot be read as it is; the message names the file, the line and the remedy."""


class LogNotFound(LogError):
    """There is no file at the given address, or reading it is not permitted."""


class EmptyLog(LogError):
    """No file, or no row in the files."""


class DamagedLog(LogError):
    """Bytes that break off or are not of the format that they start with."""


class OneColumn(LogError):
    """Rows without separate source and target."""


class WrongSeparator(LogError):
    """A declared separator that does not separate."""


class ColumnNotFound(LogError):
    """A declared column that the log does not have."""


class SameColumn(LogError):
    """One column declared for two of source, target and time."""


class AmbiguousLog(LogError):
    """More than one reading fits; the user has to choose."""


class UnreadableTime(LogError):
    """No time of the log can be read."""


class NoUsableRows(LogError):
    """Every row was rejected."""


class TooManyBadRows(LogError):
    """More rejected rows than the user allows."""


class ByteStream(Protocol):
    """The part of a binary file that reading a log needs."""

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes, none at the end."""
        ...

    def close(self) -> None:
        """Release the file."""
        ...


@dataclass(frozen=True, kw_only=True)
class RawFile:
    """One file of a log; `open` gives its decompressed bytes from the first on."""

    name: str  # as in messages and in the event table
    open: Callable[[], ByteStream]


class CheckedStream:
    """A stream that raises DamagedLog with the file's name; closing it closes the streams below it too."""

    def __init__(self, name: str, stream: ByteStream, *below: ByteStream):
        self._name = name
        self._stream = stream
        self._below = below

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes; raises DamagedLog where the compressed data breaks off or is broken."""
        try:
            # Arrow's zstd stream takes no negative size
            return self._stream.read() if size < 0 else self._stream.read(size)
        except BROKEN_STREAM as error:
            raise _damaged(self._name, error) from error

    def close(self) -> None:
        """Release the files."""
        for stream in (self._stream, *self._below):
            stream.close()


def local_file(path: str | Path, member: str | None = None) -> RawFile:
    """Make a file of this machine a file of a log; its `open` raises the errors of `decompressed`."""
    return RawFile(name=str(path), open=partial(decompressed, str(path), partial(Path(path).open, "rb"), member))


def decompressed(name: str, open_stored: Callable[[], BinaryIO], member: str | None = None) -> ByteStream:
    """Give the stream of a stored file's decompressed bytes.

    Args:
        name: as in messages.
        open_stored: opens the stored bytes anew at each call; for a zip archive the stream must be seekable.
        member: name of the file to read from an archive; by default the archive's only file.

    Raises:
        LogNotFound: the file cannot be opened.
        DamagedLog: the compression is broken or not supported, or the archive has no single such member.
    """
    try:
        start = _start(open_stored())
    except OSError as error:
        raise LogNotFound(f"{name} cannot be opened ({error}); check its name, and that you may read it") from error
    for magic, (kind, command) in UNREADABLE.items():
        if start.startswith(magic):
            raise DamagedLog(f"{name} is {kind}-compressed, which is not supported: unpack it first ({command} FILE)")
    if start.startswith(b"PK\x03\x04"):
        return _zip_member(name, open_stored(), member)
    if _is_tar(_start(_unpacked(name, open_stored(), start))):
        return _tar_member(name, _unpacked(name, open_stored(), start), member)
    return _unpacked(name, open_stored(), start)


def pieces(stream: ByteStream, size: int = 1 << 20) -> Iterator[bytes]:
    """Read a stream to its end and close it."""
    with closing(stream):
        while part := stream.read(size):
            yield part


def first_bytes(file: RawFile, size: int) -> bytes:
    """Read up to `size` bytes of a file."""
    with closing(file.open()) as stream:
        return read_exactly(stream, size)


def read_exactly(stream: ByteStream, size: int) -> bytes:
    """Read `size` bytes, fewer only at the end, from a stream that may return them in pieces."""
    parts, missing = [], size
    while missing > 0 and (part := stream.read(missing)):
        parts.append(part)
        missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def seekable(stream: ByteStream) -> io.BufferedIOBase:
    """Return a stream in which a Parquet reader can seek: the stream itself, or else its content in memory."""
    if isinstance(stream, io.BufferedIOBase) and stream.seekable():
        return stream
    return io.BytesIO(b"".join(pieces(stream)))


def _start(stream: ByteStream) -> bytes:
    with closing(stream):
        return stream.read(512)


def _is_tar(start: bytes) -> bool:
    return start[TAR_MAGIC_AT : TAR_MAGIC_AT + len(TAR_MAGIC)] == TAR_MAGIC


def _unpacked(name: str, stored: BinaryIO, start: bytes) -> ByteStream:
    if start.startswith(b"\x1f\x8b"):
        return CheckedStream(name, gzip.GzipFile(fileobj=stored), stored)
    if start.startswith(b"BZh"):
        return CheckedStream(name, bz2.BZ2File(stored), stored)
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        import pyarrow as pa

        return CheckedStream(name, pa.CompressedInputStream(stored, "zstd"), stored)
    return stored


def _zip_member(name: str, stored: BinaryIO, member: str | None) -> ByteStream:
    with ExitStack() as unless_opened:
        unless_opened.callback(stored.close)
        try:
            archive = zipfile.ZipFile(stored)
            names = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
            found = archive.open(_wanted(names, member, name))
        except BROKEN_STREAM as error:
            raise _damaged(name, error) from error
        unless_opened.pop_all()
    return CheckedStream(name, found, stored)


def _tar_member(name: str, stream: ByteStream, member: str | None) -> ByteStream:
    content = io.BytesIO(b"".join(pieces(stream)))
    try:
        with tarfile.open(fileobj=content) as archive:
            names = [entry.name for entry in archive.getmembers() if entry.isfile()]
            found = archive.extractfile(_wanted(names, member, name))
            assert found is not None
            return io.BytesIO(found.read())
    except BROKEN_STREAM as error:
        raise _damaged(name, error) from error


def _wanted(names: list[str], member: str | None, archive: str) -> str:
    if member is None and len(names) == 1:
        return names[0]
    found = [name for name in names if PurePosixPath(name).name == member]
    if len(found) == 1:
        return found[0]
    wanted = f"no single {member}" if member else "more than one file, or none"
    raise DamagedLog(
        f"the archive {archive} holds {wanted} ({', '.join(names[:10])}): unpack it and name the log itself"
    )


def _damaged(name: str, error: BaseException) -> DamagedLog:
    return DamagedLog(f"{name} breaks off or is damaged ({error}): copy or download it again")
