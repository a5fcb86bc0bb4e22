"""S3 addresses -> objects in stores, with the user's keys and named errors.

S3 is reached through obstore, because it shares its options with Polars and can write conditionally.
"""

import configparser
import functools
import io
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from dyformer import DyformerError

if TYPE_CHECKING:
    from obstore import ObjectMeta

BUFFER_BYTES = 1 << 22  # of an object that is read
CONNECT_SECONDS = 5.0
REQUEST_SECONDS = 30.0  # of one request with its response, of BUFFER_BYTES on a slow line
RETRY_SECONDS = 45.0  # a server that is started again is away for half a minute
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.1, 3.0
MOST_RETRIES = 1000  # the seconds are the limit
PAGE_ENTRIES = 1000  # of a listing, in every response but the last
NO_NAME = "no-object-has-this-name"
METADATA_SERVER = "http://169.254."  # of cloud machines, which have a role instead of keys
NO_KEYS = "no credentials found: none in the environment, in the profile, or as a role of this machine"
KEYS_ADVICE = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
ADVICE = "check AWS_ENDPOINT_URL, AWS_REGION and the access keys"
Entry = TypeVar("Entry")
Result = TypeVar("Result")
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


def is_remote(address: str) -> bool:
    """Whether the address is an object of a store rather than a file of this machine."""
    return address.startswith("s3://")


def s3_options(address: str) -> dict[str, str]:
    """Options with which obstore and Polars reach the address; empty for a local one.

    Keys come from the environment, else from the user's AWS profile, which obstore does not read.
    """
    if not is_remote(address):
        return {}
    options = {"AWS_REGION": os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        options |= {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": str(endpoint.startswith("http://")).lower()}
    return options | ({key: os.environ[key] for key in KEYS if os.environ.get(key)} or _profile_keys())


class ObjectMissing(DyformerError, FileNotFoundError):
    """An object store has no object at an address."""


class StoreUnreachable(DyformerError, OSError):
    """An object store refuses a request, or sends no response that can be understood."""

    def __init__(self, address: str, reason: str):
        if METADATA_SERVER in reason:  # the last place where the client looks for keys
            reason, advice = NO_KEYS, KEYS_ADVICE
        else:
            advice = ADVICE
        super().__init__(f"{address} cannot be reached ({reason}); {advice}")
        self.address, self.reason = address, reason

    def __reduce__(self) -> tuple[type["StoreUnreachable"], tuple[str, str]]:
        """Say how a copy is made, in another process too."""
        return type(self), (self.address, self.reason)


class ObjectStream(io.RawIOBase):
    """An object as a Python file: gzip, zipfile and pyarrow need `readinto` and `closed`."""

    def __init__(self, address: str):
        """Open an object; FileNotFoundError when there is none."""
        self._address, self._position = address, 0
        self._store, self._key = object_at(address)
        self._size, _ = requested(address, lambda: stamp_of(address, obstore.head(self._store, self._key)))

    def readable(self) -> bool:
        """Whether it is: always."""
        return True

    def seekable(self) -> bool:
        """Whether it is: always."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a position; returns it from the first byte."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(start + offset, 0)
        return self._position

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Read to a buffer; returns the number of bytes."""
        length = min(len(buffer), BUFFER_BYTES, self._size - self._position)
        if length <= 0:
            return 0
        one = {"start": self._position, "length": length}
        part = requested(self._address, lambda: obstore.get_range(self._store, self._key, **one))
        buffer[: len(part)] = memoryview(part)
        self._position += len(part)
        return len(part)

    def readall(self) -> bytes:
        """Read the rest; Python's own function makes a request for every 8 KiB."""
        parts = []
        while (length := min(BUFFER_BYTES, self._size - self._position)) > 0:
            part = bytearray(length)
            parts.append(memoryview(part)[: self.readinto(part)])
        return b"".join(parts)


def requested(address: str, request: Callable[[], Result]) -> Result:
    """Do a request that may be repeated; the library repeats none whose response ends in the middle.

    Raises:
        ObjectMissing: there is no such object.
        StoreUnreachable: the message has the address and, on one line, the reason.
    """
    started = time.monotonic()
    try:
        try:
            return request()
        except (BaseError, StoreUnreachable):
            if time.monotonic() - started > RETRY_SECONDS:
                raise
            return request()
    except FileNotFoundError as error:
        raise ObjectMissing(f"there is no object {address}") from error
    except BaseError as error:
        raise StoreUnreachable(address, str(error).partition("\n")[0]) from error


def stamp_of(address: str, meta: "ObjectMeta") -> tuple[int, str]:
    """Size and ETag of an object.

    Every S3 server sends an ETag. A page that a network sends in its place, for a login, has none; it must not be taken
    for damage, which is repaired.
    """
    if meta["e_tag"] is None:
        raise StoreUnreachable(address, "the response is not from an S3 server")
    return meta["size"], meta["e_tag"]


def listed(address: str, request: Callable[[], Sequence[Entry]]) -> Sequence[Entry]:
    """Entries of a listing. One that may lack its end is requested again, once the server has shown that it is one.

    A page that a network sends for a login is taken for an empty last page of a listing: whatever ends with a whole
    page may go on.
    """
    entries = requested(address, request)
    if len(entries) % PAGE_ENTRIES:
        return entries
    with suppress(FileNotFoundError):
        requested(address, lambda: stamp_of(address, obstore.head(*object_at(f"{address}/{NO_NAME}"))))
    return requested(address, request)


def bucket_of(address: str) -> str:
    """Name of the bucket of an address."""
    return address.removeprefix("s3://").partition("/")[0]


def object_at(address: str) -> tuple[S3Store, str]:
    """Open the store of an address; returns it and the object's key."""
    store = _store(bucket_of(address), tuple(s3_options(address).items()))
    return store, address.removeprefix("s3://").partition("/")[2]


@functools.lru_cache(maxsize=4)
def _store(bucket: str, options: tuple[tuple[str, str], ...]) -> S3Store:
    limits = {"connect_timeout": timedelta(seconds=CONNECT_SECONDS), "timeout": timedelta(seconds=REQUEST_SECONDS)}
    pauses = {"init_backoff": FIRST_PAUSE_SECONDS, "max_backoff": MOST_PAUSE_SECONDS}
    retries = {
        "max_retries": MOST_RETRIES,
        "retry_timeout": timedelta(seconds=RETRY_SECONDS),
        "backoff": {name: timedelta(seconds=seconds) for name, seconds in pauses.items()},
    }
    return S3Store(bucket, config=dict(options), client_options=limits, retry_config=retries)  # pyright: ignore[reportArgumentType]


def _profile_keys() -> dict[str, str]:
    profiles = configparser.ConfigParser()
    profiles.read(Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser())
    name = os.environ.get("AWS_PROFILE") or "default"
    values = {key: profiles.get(name, key.lower(), fallback="") for key in KEYS}
    return {key: value for key, value in values.items() if value}
