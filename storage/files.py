"""Bytes under an address, local or S3: written whole or not at all."""

import functools
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem


def is_remote(address: str) -> bool:
    """Whether the address is an object of a store rather than a file of this machine."""
    return address.startswith("s3://")


def read_bytes(address: str) -> bytes:
    """Content of a file or an object; FileNotFoundError when there is none."""
    if not is_remote(address):
        return Path(address).read_bytes()
    while True:
        with _s3().open_input_file(_key(address)) as stream:
            content = stream.read()
        # The length is asked first and the content read after it: between the two the object may be replaced.
        if len(content) == size(address):
            return content


def write_bytes(address: str, content: bytes) -> None:
    """Replace the content in one move: a reader sees the old or the new, and so does who comes after a crash."""
    if is_remote(address):
        with _s3().open_output_stream(_key(address), compression=None) as stream:
            stream.write(content)
        return
    path = Path(address)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(temporary_name(path.name))
    write_synced(temporary, content)
    temporary.replace(path)
    sync_folder(path.parent)


def size(address: str) -> int | None:
    """Length in bytes, None when there is no such file."""
    if not is_remote(address):
        try:
            return Path(address).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None
    return _s3().get_file_info(_key(address)).size


def remove(address: str) -> None:
    """Delete a file; one that is not there is fine."""
    if not is_remote(address):
        Path(address).unlink(missing_ok=True)
    elif size(address) is not None:
        _s3().delete_file(_key(address))


def find(folder: str, name: str) -> Iterator[str]:
    """Addresses of all files called `name` below a folder, sorted; hidden folders (unfinished writes) left out."""
    if not is_remote(folder):
        found = (path for path in Path(folder).rglob(name) if path.is_file())
        yield from sorted(str(path) for path in found if not _hidden(path.relative_to(folder)))
        return
    from pyarrow.fs import FileSelector

    infos = _s3().get_file_info(FileSelector(_key(folder), recursive=True, allow_not_found=True))
    yield from sorted(f"s3://{info.path}" for info in infos if info.base_name == name)


def children(folder: str) -> list[str]:
    """Names directly below a folder, sorted; none when the folder does not exist."""
    if not is_remote(folder):
        path = Path(folder)
        return sorted(child.name for child in path.iterdir()) if path.is_dir() else []
    from pyarrow.fs import FileSelector

    infos = _s3().get_file_info(FileSelector(_key(folder), allow_not_found=True))
    return sorted(info.base_name for info in infos)


def object_store_options(address: str) -> dict[str, str]:
    """What Polars and deltalake must be told to reach the address; empty for a local one."""
    if not is_remote(address):
        return {}
    options = {"AWS_REGION": _region()}
    endpoint = _endpoint()
    if endpoint:
        options |= {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": str(endpoint.startswith("http://")).lower()}
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    return options | {key: os.environ[key] for key in keys if os.environ.get(key)}


def temporary_name(name: str) -> str:
    """Hidden sibling name that no other writer has."""
    return f".{name}.{uuid.uuid4().hex}"


def write_synced(path: Path, content: bytes) -> None:
    """Write a local file and wait until the disk has it."""
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the folder's names, without which a rename may be lost in a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _key(address: str) -> str:
    return address.removeprefix("s3://")


def _endpoint() -> str:
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")


def _region() -> str:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def _s3() -> "S3FileSystem":
    return _s3_at(_endpoint(), _region())


@functools.lru_cache(maxsize=4)
def _s3_at(endpoint: str, region: str) -> "S3FileSystem":
    from pyarrow.fs import S3FileSystem

    if not endpoint:
        return S3FileSystem(region=region)
    scheme, _, host = endpoint.rpartition("://")
    return S3FileSystem(region=region, endpoint_override=host, scheme=scheme or "https")
