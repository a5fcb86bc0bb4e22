"""A stored file, plain, compressed or in an archive -> its decompressed bytes.

gzip, zstd, bz2, zip and tar are recognised by their magic bytes, not by the file's name. Every part is read as a
stream, so that no file and no member of an archive is held in memory.
"""

import bz2
import gzip
import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from dyformer.logs.raw_file import ByteStream, DamagedLog, LogError, LogNotFound, RawFile, ReadLimits

GZIP, BZ2, ZSTD, ZIP, EMPTY_ZIP = b"\x1f\x8b", b"BZh", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"PK\x05\x06"
TAR_MAGIC = b"ustar"
TAR_MAGIC_AT = 257
TAR_END = bytes(512)
PACKED = {
    b"\xfd7zXZ\x00": ("xz", "xz -d"),
    b"7z\xbc\xaf": ("7z", "7z x"),
    b"Rar!": ("rar", "unrar x"),
    b"\x04\x22\x4d\x18": ("lz4", "lz4 -d"),
    b"\xff\x06\x00\x00sNaPpY": ("snappy", "snzip -d"),
    b"\x1f\x9d": ("compress", "uncompress"),
}
BROKEN_STREAM = (EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError)
BROKEN_ARCHIVE = (*BROKEN_STREAM, ValueError, struct.error)  # forged numbers and names of the headers
HEADER_BYTES = 1 << 20  # of a tar archive's headers between two members
MAX_NAMES = 10  # of an archive's files, in a message
FREE_BYTES = 1 << 28  # below this size the ratio is not checked, because a small file is read quickly in any case


class CheckedStream:
    """A stream that raises DamagedLog with the file's name; closing it closes the streams below it too."""

    def __init__(self, name: str, max_bytes: int, stream: ByteStream, *below: ByteStream):
        self._name = name
        self._max_bytes = self._left = max_bytes
        self._stream = stream
        self._below = below

    def read(self, size: int = -1, /) -> bytes:
        """Return the next bytes; raises DamagedLog where the data is broken, breaks off or unpacks to too much."""
        try:
            # Arrow's zstd stream takes no negative size
            part = self._stream.read() if size < 0 else self._stream.read(size)
        except BROKEN_STREAM as error:
            raise _damaged(self._name, error) from error
        self._left -= len(part)
        if self._left < 0:
            raise _too_large(self._name, self._max_bytes)
        return part

    def close(self) -> None:
        """Release the files."""
        for stream in (self._stream, *self._below):
            stream.close()


def local_file(path: str | Path, member: str | None = None, limits: ReadLimits | None = None) -> RawFile:
    """Make a file of this machine a file of a log; its `open` raises the errors of `decompressed`."""
    limits = limits or ReadLimits()
    name = os.fsencode(path).decode("utf-8", "backslashreplace")  # a name need not be text, but a message is
    open_content = partial(decompressed, name, partial(Path(path).open, "rb"), member, limits)
    return RawFile(name=name, open=open_content, limits=limits, stamp=partial(_stamp, Path(path)))


def _stamp(path: Path) -> tuple[int, ...]:
    """Size, times, inode and device of a file; the second time is that of the last change, which nobody can set."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev


def decompressed(
    name: str, open_stored: Callable[[], BinaryIO], member: str | None = None, limits: ReadLimits | None = None
) -> ByteStream:
    """Give the stream of a stored file's decompressed bytes.

    Args:
        name: as in messages.
        open_stored: opens the stored bytes anew at each call, as a seekable stream.
        member: name of the file to read from an archive; by default the archive's only file.
        limits: for the number of unpacked bytes.

    Raises:
        LogNotFound: the file cannot be opened.
        DamagedLog: the compression is broken or not supported, or the archive has no single such member.
    """
    try:
        with closing(open_stored()) as stored:
            start = stored.read(512)
            size = stored.seek(0, os.SEEK_END)
    except OSError as error:
        raise LogNotFound(f"{name} cannot be opened ({error}); check its name, and that you may read it") from error
    _check_packing(name, start)
    if not start.startswith((GZIP, BZ2, ZSTD, ZIP, EMPTY_ZIP)) and not _is_tar(start):
        return open_stored()
    max_bytes = max(FREE_BYTES, size * (limits or ReadLimits()).max_unpacked_ratio)

    def opened() -> ByteStream:
        if start.startswith((ZIP, EMPTY_ZIP)):
            return _zip_member(name, max_bytes, open_stored(), member)
        return _unpacked(name, max_bytes, open_stored(), start)

    inner = _start(opened())
    if _is_tar(inner):
        return _tar_member(name, size if _is_tar(start) else max_bytes, opened, member)
    _check_packing(name, inner)
    if inner.startswith((GZIP, BZ2, ZSTD, ZIP)):
        raise DamagedLog(f"{name} is compressed twice, or holds another archive: unpack it once, and read the result")
    return opened()


def _check_packing(name: str, start: bytes) -> None:
    for magic, (kind, command) in PACKED.items():
        if start.startswith(magic):
            raise DamagedLog(f"{name} is {kind}-compressed, which is not supported: unpack it first ({command} FILE)")


def _start(stream: ByteStream) -> bytes:
    with closing(stream):
        return stream.read(512)


def _is_tar(start: bytes) -> bool:
    return start[TAR_MAGIC_AT : TAR_MAGIC_AT + len(TAR_MAGIC)] == TAR_MAGIC


def _unpacked(name: str, max_bytes: int, stored: BinaryIO, start: bytes) -> ByteStream:
    if start.startswith(GZIP):
        return CheckedStream(name, max_bytes, gzip.GzipFile(fileobj=stored), stored)
    if start.startswith(BZ2):
        return CheckedStream(name, max_bytes, bz2.BZ2File(stored), stored)
    if start.startswith(ZSTD):
        import pyarrow as pa

        return CheckedStream(name, max_bytes, pa.CompressedInputStream(stored, "zstd"), stored)
    return stored


def _zip_member(name: str, max_bytes: int, stored: BinaryIO, member: str | None) -> ByteStream:
    with ExitStack() as unless_opened:
        unless_opened.callback(stored.close)
        try:
            archive = zipfile.ZipFile(stored)
            names = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
            stream = archive.open(_wanted(names, member, name))
        except LogError:
            raise
        except BROKEN_ARCHIVE as error:
            raise _damaged(name, error) from error
        except (RuntimeError, NotImplementedError) as error:  # zipfile's own errors for these two
            raise DamagedLog(f"{name} cannot be unpacked ({error}): unpack it first, with another program") from error
        unless_opened.pop_all()
    return CheckedStream(name, max_bytes, stream, stored)


def _tar_member(name: str, max_bytes: int, opened: Callable[[], ByteStream], member: str | None) -> ByteStream:
    """Find the member in a first pass, because it must be the only one; give its stream in a second."""
    with closing(_Headers(opened())) as headers:
        files = (entry.name for _, entry in _entries(name, max_bytes, headers) if entry.isfile())
        names = list(files if member else islice(files, MAX_NAMES))
    entry_name = _wanted(names, member, name)
    headers = _Headers(opened())
    for archive, entry in _entries(name, max_bytes, headers):
        if entry.isfile() and entry.name == entry_name:
            headers.left = max_bytes
            stream = archive.extractfile(entry)
            assert stream is not None
            return CheckedStream(name, max_bytes, stream, headers)
    raise DamagedLog(f"{name} changed while it was read: read it again")


class _Headers:
    """The stream of a tar archive, of which only `left` bytes may be read: a forged header would fill the memory."""

    def __init__(self, stream: ByteStream):
        self._stream = stream
        self._last = b""
        self.left = HEADER_BYTES

    @property
    def has_ended(self) -> bool:
        """Whether the mark of an archive's end was read; tarfile takes any broken header for the end."""
        return TAR_END in self._last

    def read(self, size: int = -1, /) -> bytes:
        part = self._stream.read(size)
        self._last = part or self._last
        self.left -= len(part)
        if self.left < 0:
            raise tarfile.ReadError(f"headers of more than {HEADER_BYTES:,} bytes")
        return part

    def close(self) -> None:
        self._stream.close()


def _entries(name: str, max_bytes: int, headers: _Headers) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    try:
        archive = tarfile.open(fileobj=headers, mode="r|")  # noqa: SIM115  # pyright: ignore[reportArgumentType, reportCallIssue]
        while (entry := archive.next()) is not None:
            archive.members.clear()  # they would be kept for a second pass
            if entry.size > max_bytes:  # tarfile would look for its end long after that of the archive
                raise tarfile.ReadError(
                    f"it holds a file of {entry.size:,} bytes, and at most {max_bytes:,} are expected"
                )
            headers.left = entry.size + HEADER_BYTES
            yield archive, entry
        if not headers.has_ended:
            raise tarfile.ReadError("it has no end")
        headers.left = max_bytes
        while headers.read(HEADER_BYTES):  # the checksum of a compressed archive stands after its last file
            pass
    except LogError:
        raise
    except BROKEN_ARCHIVE as error:
        raise _damaged(name, error) from error


def _wanted(names: list[str], member: str | None, archive: str) -> str:
    if member is None and len(names) == 1:
        return names[0]
    fitting = [name for name in names if PurePosixPath(name).name == member]
    if len(fitting) == 1:
        return fitting[0]
    expected = f"no single {member}" if member else "more than one file, or none"
    raise DamagedLog(
        f"the archive {archive} holds {expected} ({', '.join(names[:MAX_NAMES])}): unpack it and name the log itself"
    )


def _too_large(name: str, max_bytes: int) -> DamagedLog:
    return DamagedLog(
        f"{name} unpacks to more than {max_bytes:,} bytes, which is far more than a log does: check it, and unpack it"
        " first if it is sound, or raise DYFORMER_MAX_UNPACKED_RATIO"
    )


def _damaged(name: str, error: BaseException) -> DamagedLog:
    return DamagedLog(f"{name} breaks off or is damaged ({error}): copy or download it again")
