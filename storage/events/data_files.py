"""Blocks of rows <-> the Parquet files of a Delta table, each with its checksum."""

import hashlib
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from storage import disk, files
from storage.events import delta
from storage.events.delta import DataFile, Table
from storage.events.delta_log import REMEDY, TableDamaged
from storage.kinds import is_below

FILE_BYTES = 1 << 26
GROUP_ROWS = 1 << 17  # rows that are encoded together
COMPRESSION = "zstd"
# A third of the bytes of the usual encodings, so that reading a file includes the time to verify its checksum.
IDS = frozenset({"source", "target", "id"})
OF_INTEGERS, OF_IDS = "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY"


def store(
    address: str, blocks: Iterable[pl.DataFrame], columns: Mapping[str, Any], partition_by: str | None = None
) -> list[dict[str, Any]]:
    """Store blocks as files of a table, each with one value of `partition_by`; no reader sees them before a commit.

    Returns:
        The protocol's action `add` of each file, for `delta.commit_if_unchanged`.

    Raises:
        disk.WriteFailed: the disk is full, or fails; nothing is left.
    """
    added: list[dict[str, Any]] = []
    try:
        added.extend(_stored(address, blocks, columns, partition_by))
    except (Exception, KeyboardInterrupt):
        delta.remove_added(address, added)
        raise
    return added


def scan(table: Table, partition: str = "") -> pl.LazyFrame:
    """Rows of a table, or of one partition `key=value` without the key's own column, after a check of their files."""
    # A path that leads out of the folder belongs to no partition, and is refused below.
    own = f"{partition}/" if partition else ""
    wanted = [file for file in table.data_files if file.path.startswith(own) or not is_below(file.path)]
    if not wanted:
        return pl.LazyFrame()
    return pl.scan_parquet([_readable(table, file) for file in wanted], hive_partitioning=False, glob=False)


def _readable(table: Table, file: DataFile) -> str:
    path, problem = delta.readable(table, file)
    if problem is not None:
        raise TableDamaged(f"{table.address}/{file.path}", problem, REMEDY)
    return path


def _stored(
    address: str, blocks: Iterable[pl.DataFrame], columns: Mapping[str, Any], partition_by: str | None
) -> Iterator[dict[str, Any]]:
    """Store file after file, of at most about FILE_BYTES."""
    written = {name: dtype for name, dtype in columns.items() if name != partition_by}
    file = None
    try:
        for partition, rows in _groups(blocks, partition_by):
            if file is not None and (file.partition != partition or file.num_bytes >= FILE_BYTES):
                yield file.published()
                file = None
            file = file or _OpenFile(address, written, partition)
            file.write(rows)
        if file is not None:
            yield file.published()
            file = None
    finally:
        if file is not None:
            file.remove()


def _groups(blocks: Iterable[pl.DataFrame], partition_by: str | None) -> Iterator[tuple[dict[str, str], pl.DataFrame]]:
    """Join small blocks of one partition."""
    partition: dict[str, str] = {}
    waiting: list[pl.DataFrame] = []
    for block in blocks:
        if block.is_empty():
            continue
        own = {partition_by: str(block[partition_by][0]).lower()} if partition_by else {}
        if waiting and (own != partition or sum(each.height for each in waiting) >= GROUP_ROWS):
            yield partition, pl.concat(waiting)
            waiting = []
        partition = own
        waiting.append(block)
    if waiting:
        yield partition, pl.concat(waiting)


class _OpenFile:
    """A Parquet file under a hidden name, to which groups of rows are added."""

    def __init__(self, address: str, columns: Mapping[str, Any], partition: dict[str, str]):
        self.partition = partition
        self._path = f"{''.join(f'{key}={value}/' for key, value in partition.items())}part-{uuid.uuid4()}.parquet"
        self._address = f"{address}/{self._path}"
        self._columns, self._num_rows = list(columns), 0
        encodings = {name: OF_INTEGERS for name, dtype in columns.items() if dtype == pl.Int64}
        encodings |= {name: OF_IDS for name in columns if name in IDS}
        self._temporary = files.temporary_beside(self._address)
        with disk.named_write(Path(self._address)):
            self._stream = self._temporary.open("wb")
            self._writer = pq.ParquetWriter(
                self._stream,
                _arrow(pl.DataFrame(schema=columns)).schema,
                compression=COMPRESSION,
                use_dictionary=[name for name in columns if name not in encodings],  # pyright: ignore[reportArgumentType]
                column_encoding=encodings,
            )

    @property
    def num_bytes(self) -> int:
        return self._temporary.stat().st_size

    def write(self, rows: pl.DataFrame) -> None:
        with disk.named_write(Path(self._address)):
            self._writer.write_table(_arrow(rows.select(self._columns)))
        self._num_rows += rows.height

    def published(self) -> dict[str, Any]:
        """Complete the file and give it its name; returns its action `add`."""
        with disk.named_write(Path(self._address)):
            self._writer.close()
            self._stream.close()
            with self._temporary.open("rb") as stream:
                checksum = hashlib.file_digest(stream, "sha256").hexdigest()
        num_bytes = self.num_bytes
        files.publish(self._temporary, self._address)
        return {
            "path": self._path,
            "partitionValues": self.partition,
            "size": num_bytes,
            "modificationTime": time.time_ns() // 1_000_000,
            "dataChange": True,
            "stats": f'{{"numRecords":{self._num_rows}}}',
            "tags": {"sha256": checksum},
        }

    def remove(self) -> None:
        """Remove the unfinished file."""
        with suppress(OSError):  # closing writes what is left in memory, and a full disk refuses that once more
            self._stream.close()
        self._temporary.unlink(missing_ok=True)


def _arrow(rows: pl.DataFrame) -> pa.Table:
    return rows.to_arrow(compat_level=pl.CompatLevel.oldest())
