"""A raw log as the reader meets it: named files of decompressed bytes, and what can be wrong with them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class ByteStream(Protocol):
    """The part of a binary file that reading a log needs."""

    def read(self, size: int = -1, /) -> bytes:
        """Give the next bytes, none at the end."""
        ...

    def close(self) -> None:
        """Let the file go."""
        ...


@dataclass(frozen=True, kw_only=True)
class RawFile:
    """One file of a log; `open` starts it from its first byte, decompressed."""

    name: str  # what messages and the event table call it
    open: Callable[[], ByteStream]


class LogError(ValueError):
    """A log that cannot be read as it is; the message names the file, the place and the remedy."""


class LogNotFound(LogError):
    """No file where the log was looked for, or none that may be read."""


class EmptyLog(LogError):
    """No file, or no row in the files."""


class DamagedLog(LogError):
    """Bytes that break off or are not what they claim to be."""


class OneColumn(LogError):
    """Rows without separate source and target."""


class WrongSeparator(LogError):
    """A declared separator that does not separate."""


class ColumnNotFound(LogError):
    """A declared column that the log does not have."""


class AmbiguousLog(LogError):
    """More than one reading fits; the user has to say which."""


class UnreadableTime(LogError):
    """No time of the log can be read."""


class NoUsableRows(LogError):
    """Every row was rejected."""


class TooManyBadRows(LogError):
    """More rejected rows than the user allows."""
