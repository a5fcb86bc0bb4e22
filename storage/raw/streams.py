"""A stored file -> its decompressed bytes: gzip, zstd and bz2 by their magic bytes, one member of a zip or tar."""

import bz2
import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import PurePosixPath
from typing import BinaryIO

from dyformer.logs.log_file import ByteStream, DamagedLog, LogNotFound
from storage import files

TAR_MAGIC = b"ustar"
TAR_MAGIC_AT = 257
UNREADABLE = {
    b"\xfd7zXZ\x00": ("xz", "xz -d"),
    b"7z\xbc\xaf": ("7z", "7z x"),
    b"Rar!": ("rar", "unrar x"),
}
BROKEN_STREAM = (EOFError, OSError, zlib.error, zipfile.BadZipFile, tarfile.TarError)


class CheckedStream:
    """A stream whose damage is told by the file's name; it closes what it was made from too."""

    def __init__(self, name: str, stream: ByteStream, *below: ByteStream):
        self._name = name
        self._stream = stream
        self._below = below

    def read(self, size: int = -1, /) -> bytes:
        """Give the next bytes; raises DamagedLog where the compressed data breaks off or is not what it claims."""
        try:
            # Arrow's zstd stream takes no negative size
            return self._stream.read() if size < 0 else self._stream.read(size)
        except BROKEN_STREAM as error:
            raise _damaged(self._name, error) from error

    def close(self) -> None:
        """Let the file go."""
        for stream in (self._stream, *self._below):
            stream.close()


def open_raw(address: str, member: str | None = None) -> ByteStream:
    """Open a local file or an S3 object at its first decompressed byte.

    Of an archive it opens the file called `member`, without one the only file there is.
    Raises DamagedLog for broken or unknown compression.
    """
    start = _start(_stored(address))
    for magic, (kind, command) in UNREADABLE.items():
        if start.startswith(magic):
            raise DamagedLog(f"{address} is {kind}-compressed, which is not read: unpack it first ({command} FILE)")
    if start.startswith(b"PK\x03\x04"):
        return _zip_member(address, member)
    if _is_tar(_start(_decompressed(address, start))):
        return _tar_member(address, start, member)
    return _decompressed(address, start)


def pieces(stream: ByteStream, size: int = 1 << 20) -> Iterator[bytes]:
    """Read a stream to its end and close it."""
    with closing(stream):
        while part := stream.read(size):
            yield part


def _stored(address: str) -> BinaryIO:
    try:
        return files.open_stream(address)
    except OSError as error:
        raise LogNotFound(f"{address} cannot be opened ({error}); check its name, and that you may read it") from error


def _start(stream: ByteStream) -> bytes:
    with closing(stream):
        return stream.read(512)


def _is_tar(start: bytes) -> bool:
    return start[TAR_MAGIC_AT : TAR_MAGIC_AT + len(TAR_MAGIC)] == TAR_MAGIC


def _decompressed(address: str, start: bytes) -> ByteStream:
    stored = _stored(address)
    if start.startswith(b"\x1f\x8b"):
        return CheckedStream(address, gzip.GzipFile(fileobj=stored), stored)
    if start.startswith(b"BZh"):
        return CheckedStream(address, bz2.BZ2File(stored), stored)
    if start.startswith(b"\x28\xb5\x2f\xfd"):
        import pyarrow as pa

        return CheckedStream(address, pa.CompressedInputStream(stored, "zstd"), stored)
    return stored


def _zip_member(address: str, member: str | None) -> ByteStream:
    stored = _stored(address)
    with ExitStack() as unless_opened:
        unless_opened.callback(stored.close)
        try:
            archive = zipfile.ZipFile(stored)
            names = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
            found = archive.open(_wanted(names, member, address))
        except BROKEN_STREAM as error:
            raise _damaged(address, error) from error
        unless_opened.pop_all()
    return CheckedStream(address, found, stored)


def _tar_member(address: str, start: bytes, member: str | None) -> ByteStream:
    content = io.BytesIO(b"".join(pieces(_decompressed(address, start))))
    try:
        with tarfile.open(fileobj=content) as archive:
            names = [entry.name for entry in archive.getmembers() if entry.isfile()]
            found = archive.extractfile(_wanted(names, member, address))
            assert found is not None
            return io.BytesIO(found.read())
    except BROKEN_STREAM as error:
        raise _damaged(address, error) from error


def _wanted(names: list[str], member: str | None, address: str) -> str:
    if member is None and len(names) == 1:
        return names[0]
    found = [name for name in names if PurePosixPath(name).name == member]
    if len(found) == 1:
        return found[0]
    wanted = f"no single {member}" if member else "more than one file, or none"
    raise DamagedLog(
        f"the archive {address} holds {wanted} ({', '.join(names[:10])}): unpack it and name the log itself"
    )


def _damaged(name: str, error: BaseException) -> DamagedLog:
    return DamagedLog(f"{name} breaks off or is damaged ({error}): copy or download it again")
