"""Events that a server has received -> files of JSON lines in the store, which the next ingest reads as raw files.

An event is on the disk before it is acknowledged. The server appends to a hidden file. An ingest gives it a name, and
nobody appends to it any more, so that its bytes are read once.
"""

import io
import json
import os
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.json
from filelock import FileLock

from dyformer import InvalidInput
from storage.bytes import files
from storage.layout import Layout
from storage.locks import alone

OPEN, CLOSED, REPEATED = ".open-", "received-", "repeated-"
ENDING = ".jsonl"
COLUMNS = ("source", "target", "time", "weight")

# That the state is made of.
FIELDS = {"source": str, "target": str, "moment": int, "weight": int | float}
SCHEMA = pa.schema({"source": pa.string(), "target": pa.string(), "moment": pa.int64(), "weight": pa.float64()})
READING = pyarrow.json.ParseOptions(explicit_schema=SCHEMA, unexpected_field_behavior="ignore")

Record = Mapping[str, Any]


@dataclass(kw_only=True)
class ReceivedEvents:
    """The file to which one server appends; its events stay in the order in which they came."""

    layout: Layout
    dataset: str
    _path: Path | None = field(default=None, init=False)
    _num_events: int = field(default=0, init=False)
    _token: str = field(default_factory=lambda: uuid.uuid4().hex, init=False)

    def append(self, events: Iterable[Record]) -> None:
        """Write events and wait until the disk has them. Raises WriteFailed, and then none of them is in the file."""
        folder = Path(self.layout.received(self.dataset))
        with files.named_write(folder), _lock(self.layout, self.dataset):
            if self._path is None or not self._path.exists():  # an ingest took it
                self._path = _new_file(folder)
            with files.named_write(self._path):
                self._write(self._path, events)

    def _write(self, path: Path, events: Iterable[Record]) -> None:
        lines = []
        for event in events:
            # Equal events of different files must differ in their bytes, because an ingest knows files by these.
            self._num_events += 1
            lines.append(json.dumps({**event, "server": self._token, "number": self._num_events}))
        content = "".join(f"{line}\n" for line in lines).encode()
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            size = os.fstat(descriptor).st_size
            try:
                if os.write(descriptor, content) != len(content):
                    raise OSError(28, "No space left on device")
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)


def _new_file(folder: Path) -> Path:
    """Make an empty file whose name the disk has, so that a name that fails leaves no event."""
    files.make_folder(folder)
    # The time first, because several servers may have left files before the next ingest.
    path = folder / f"{OPEN}{time.time_ns():020}-{uuid.uuid4().hex}{ENDING}"
    with files.named_write(path):
        path.touch(0o644)
        files.sync_folder(folder)
    return path


def close_received(layout: Layout, dataset: str) -> None:
    """Give the files that servers append to a name, after which they begin others.

    A line that a killed server has not finished was not acknowledged: it is cut off.
    """
    folder = Path(layout.received(dataset))
    if not folder.is_dir():
        return
    with _lock(layout, dataset):
        for path in sorted(folder.glob(f"{OPEN}*{ENDING}")):
            with files.named_write(path):
                _cut_unfinished(path)
                if path.stat().st_size == 0:
                    path.unlink()
                else:
                    token = path.name.removeprefix(OPEN)
                    path.rename(folder / f"{CLOSED}{time.time_ns():020}-{token}")
        files.sync_folder(folder)


def received_files(layout: Layout, dataset: str) -> list[str]:
    """Paths of the files that have a name, in the order in which they got it."""
    return sorted(map(str, Path(layout.received(dataset)).glob(f"{CLOSED}*{ENDING}")))


def set_aside(layout: Layout, dataset: str, paths: Iterable[str]) -> None:
    """Rename files of which an ingest has left out every event as a repeat, so that none comes again or waits."""
    with _lock(layout, dataset):
        for path in map(Path, paths):
            with files.named_write(path):
                path.rename(path.with_name(path.name.replace(CLOSED, REPEATED, 1)))
                files.sync_folder(path.parent)


@dataclass(kw_only=True)
class WaitingEvents:
    """A reader of the events that no commit has; each call of `read` gives those that came since the call before."""

    layout: Layout
    dataset: str
    committed: frozenset[str]  # names of files that a commit has
    _num_read: dict[str, int] = field(default_factory=dict, init=False)  # bytes of each file

    def read(self) -> pl.DataFrame:
        """Give whole events, file by file, those of files without a name last, with the times that the state has.

        The columns are source, target, time and weight. Raises ValueError.
        """
        folder = Path(self.layout.received(self.dataset))
        with _lock(self.layout, self.dataset):
            paths = [*map(Path, received_files(self.layout, self.dataset)), *sorted(folder.glob(f"{OPEN}*{ENDING}"))]
            contents = [(path, self._newest(path)) for path in paths if path.name not in self.committed]
        tables = [_table(content, path) for path, content in contents if content]
        return pl.DataFrame(pl.from_arrow(pa.concat_tables([SCHEMA.empty_table(), *tables]))).rename({"moment": "time"})

    def _newest(self, path: Path) -> bytes:
        token = path.name.rpartition("-")[2]  # stays when the file gets a name
        with path.open("rb") as stream:
            stream.seek(self._num_read.get(token, 0))
            content = stream.read()
        content = content[: content.rfind(b"\n") + 1]
        self._num_read[token] = self._num_read.get(token, 0) + len(content)
        return content


def _table(content: bytes, path: Path) -> pa.Table:
    with suppress(pa.ArrowInvalid):  # Arrow lets requests go on meanwhile; what it refuses is named below
        table = pyarrow.json.read_json(io.BytesIO(content), parse_options=READING)
        is_whole = table.num_rows == content.count(b"\n")  # Arrow reads two objects of a line, and skips an empty one
        if is_whole and not any(column.null_count for column in table.columns):
            return table
    return pa.Table.from_pylist([_record(line, path) for line in content.splitlines()], schema=SCHEMA)


def _record(line: bytes, path: Path) -> Record:
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    if not isinstance(record, dict) or not all(isinstance(record.get(name), kind) for name, kind in FIELDS.items()):
        raise InvalidInput(
            f"{path} has the line {line[:60].decode(errors='replace')!r}, which no server has written: remove it;"
            " events from elsewhere are a file of their own for `dyformer ingest`"
        )
    return record


def _lock(layout: Layout, dataset: str) -> FileLock:
    return alone(layout, f"received-{dataset}")


def _cut_unfinished(path: Path) -> None:
    with path.open("rb+") as stream:
        content = stream.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            stream.truncate(whole)
        stream.flush()
        os.fsync(stream.fileno())
