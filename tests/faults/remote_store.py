"""A store in a local S3 server behind a proxy that fails, saved and restored object by object."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from children import run
from flaky_store import Proxy, proxy
from object_store import BUCKET, object_store

NUM_THREADS = 8


@dataclass(frozen=True, kw_only=True)
class RemoteStore:
    """The objects below one prefix; commands reach them through the proxy, and the sweep itself does not."""

    copies: Path
    proxy: Proxy
    keys: dict[str, str]  # of the server, as variables of the environment
    root: str = f"s3://{BUCKET}/store"

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a command."""
        return self.keys | {"DYFORMER_STORAGE": self.root, "AWS_ENDPOINT_URL": self.proxy.address}

    def save(self, name: str) -> None:
        """Copy all objects to files."""

        def copy(address: str) -> None:
            path = self.copies / name / address.removeprefix(f"{self.root}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files.read_bytes(address))

        from storage.bytes import files

        self._in_child(lambda: _for_each(copy, files.find(self.root)))

    def restore(self, name: str) -> None:
        """Make the objects those that were saved; equal ones stay."""
        folder = self.copies / name

        def write(path: Path) -> None:
            address, content = f"{self.root}/{path.relative_to(folder)}", path.read_bytes()
            if files.size(address) != len(content) or files.read_bytes(address) != content:
                files.write_bytes(address, content)

        def restored() -> None:
            wanted = [path for path in folder.rglob("*") if path.is_file()]
            names = {f"{self.root}/{path.relative_to(folder)}" for path in wanted}
            _for_each(files.remove, [address for address in files.find(self.root) if address not in names])
            _for_each(write, wanted)

        from storage.bytes import files

        self._in_child(restored)

    def _in_child(self, function: Callable[[], None]) -> None:
        end = run(function, kill_after=None, **self.keys)
        assert end.code == 0, end.output


def _for_each(function: Callable[[Any], None], items: Iterable[Any]) -> None:
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        list(pool.map(function, items))


@contextmanager
def remote_store(folder: Path) -> Iterator[RemoteStore]:
    """Start the server and the proxy."""
    (folder / "server").mkdir()
    with object_store(folder / "server") as keys, proxy(urlsplit(keys["AWS_ENDPOINT_URL"]).port or 0) as failing:
        yield RemoteStore(copies=folder / "objects", proxy=failing, keys=keys)
