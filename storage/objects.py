"""S3 addresses -> objects in stores, with the user's keys and named errors.

S3 is reached through obstore, because it shares its options with Polars and can write conditionally.
"""

import configparser
import functools
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from obstore.exceptions import BaseError
from obstore.store import S3Store

if TYPE_CHECKING:
    from obstore import ReadableFile

BUFFER_BYTES = 1 << 22  # of an object that is read
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


class ObjectStream(io.RawIOBase):
    """An obstore reader as a Python file object: gzip, zipfile and pyarrow need `readinto` and `closed`."""

    def __init__(self, address: str, reader: "ReadableFile"):
        self._address = address
        self._reader = reader

    def readable(self) -> bool:
        """Whether it is: always."""
        return True

    def seekable(self) -> bool:
        """Whether it is: always."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Go to a position; returns it from the first byte."""
        return self._reader.seek(offset, whence)

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Read to a buffer; returns the number of bytes."""
        with named_errors(self._address):
            part = self._reader.read(len(buffer))
        buffer[: len(part)] = memoryview(part)
        return len(part)


@contextmanager
def named_errors(address: str) -> Iterator[None]:
    """Raise obstore's errors as OSError with the address and one line that gives the reason."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no object {address}") from error
    except BaseError as error:
        reason, advice = str(error).partition("\n")[0], "AWS_ENDPOINT_URL, AWS_REGION and the access keys"
        raise OSError(f"{address} cannot be reached ({reason}); check {advice}") from error


def bucket_of(address: str) -> str:
    """Name of the bucket of an address."""
    return address.removeprefix("s3://").partition("/")[0]


def object_at(address: str) -> tuple[S3Store, str]:
    """Open the store of an address; returns it and the object's key."""
    store = _store(bucket_of(address), tuple(s3_options(address).items()))
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
