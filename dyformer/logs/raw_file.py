"""A file of a raw log as a name and its bytes, with the limits of reading it; and the errors of a log."""

import hashlib
import io
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Protocol

import pydantic.dataclasses
from pydantic import Field

from dyformer import InvalidInput

PARQUET_MAGIC = b"PAR1"
START_BYTES = 4096  # by which the format of a file is known
HELD_BYTES = 1 << 26  # of a Parquet file that cannot be read in place: more of it goes to a temporary file


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class ReadLimits:
    """Limits that keep the memory and the time of reading a file in proportion to its size.

    A row beyond a limit is rejected with this reason; a file of which no row can be cut is refused.
    """

    max_line_bytes: int = Field(
        default=1 << 22, ge=1_000, le=1 << 30, description="bytes of a line, and of a quoted record of several lines"
    )
    max_unpacked_ratio: int = Field(
        default=1_000, ge=2, description="unpacked bytes for each stored byte of a compressed file or an archive"
    )
    max_years_apart: int = Field(
        default=30, ge=1, le=10_000, description="years between a row's time and those of nearly all rows of its file"
    )
    max_json_depth: int = Field(default=100, ge=1, le=500, description="nested objects and lists of a JSON line")


class LogError(InvalidInput):
    """A log that cannot be read as it is; the message names the file, the line and the remedy."""


class LogNotFound(LogError):
    """There is no file at the given address, or reading it is not permitted."""


class LogChanged(LogError):
    """A file that changed while it was read."""


class EmptyLog(LogError):
    """No file, or no row in the files."""


class DamagedLog(LogError):
    """Bytes that break off or are not of the format that they start with."""


class OtherFormat(DamagedLog):
    """A file of another format than those before it."""


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
    limits: ReadLimits = field(default_factory=ReadLimits)
    stamp: Callable[[], tuple[int | str, ...]] | None = None  # differs once the bytes do; None where they never do


def changed(file: RawFile) -> LogChanged:
    """Make the error of a file that changed while it was read."""
    return LogChanged(f"{file.name} changed while it was read, so nothing is stored: ingest it once it is complete")


def exact_file(file: RawFile, sha256: str) -> RawFile:
    """Let the streams of a file raise LogChanged at their end if their bytes have another checksum.

    A Parquet file that can be read in place is left as it is, because its end is read first.
    """

    def opened() -> ByteStream:
        stream = file.open()
        is_parquet = isinstance(stream, io.BufferedReader) and stream.peek(4).startswith(PARQUET_MAGIC)
        return stream if is_parquet else _ExactStream(file, sha256, stream)

    return replace(file, open=opened)


class _ExactStream:
    """A stream whose bytes are compared with a checksum at its end."""

    def __init__(self, file: RawFile, sha256: str, stream: ByteStream):
        self._file, self._sha256, self._stream = file, sha256, stream
        self._digest = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        part = self._stream.read() if size < 0 else self._stream.read(size)
        self._digest.update(part)
        is_end = size < 0 or (size > 0 and not part)
        if is_end and self._digest.hexdigest() != self._sha256:
            raise changed(self._file)
        return part

    def close(self) -> None:
        self._stream.close()


def pieces(stream: ByteStream, size: int = 1 << 20) -> Iterator[bytes]:
    """Read a stream to its end and close it."""
    with closing(stream):
        while part := stream.read(size):
            yield part


def first_bytes(file: RawFile) -> bytes:
    """Read up to START_BYTES bytes of a file."""
    with closing(file.open()) as stream:
        return read_exactly(stream, START_BYTES)


def read_exactly(stream: ByteStream, size: int) -> bytes:
    """Read `size` bytes, fewer only at the end, from a stream that may return them in pieces."""
    parts, missing = [], size
    while missing > 0 and (part := stream.read(missing)):
        parts.append(part)
        missing -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def seekable(stream: ByteStream) -> io.BufferedIOBase:
    """Return a stream in which a Parquet reader can seek: the stream itself, or else a temporary copy."""
    if isinstance(stream, io.BufferedIOBase) and stream.seekable():
        return stream
    copy = tempfile.SpooledTemporaryFile(HELD_BYTES)  # noqa: SIM115, because the caller closes it
    for part in pieces(stream):
        copy.write(part)
    copy.seek(0)
    return copy  # pyright: ignore[reportReturnType]
