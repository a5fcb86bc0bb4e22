"""Blocks of rows -> the Parquet files of a commit, one after the other, each with its checksum."""

import hashlib
import io
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

FILE_BYTES = 1 << 26  # a file is in memory until it is complete
GROUP_ROWS = 1 << 17  # rows that are encoded together
COMPRESSION = "zstd"
# A third of the bytes of the usual encodings, so that reading a file includes the time to verify its checksum.
IDS = frozenset({"source", "target", "id"})
OF_INTEGERS, OF_IDS = "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY"


@dataclass(frozen=True, kw_only=True)
class EncodedFile:
    """One Parquet file, and the path that it gets below the table's folder."""

    path: str
    content: bytes
    num_rows: int
    partition: dict[str, str]

    def action(self, milliseconds: int) -> dict[str, Any]:
        """Give the values of the protocol's action `add`."""
        return {
            "path": self.path,
            "partitionValues": self.partition,
            "size": len(self.content),
            "modificationTime": milliseconds,
            "dataChange": True,
            "stats": f'{{"numRecords":{self.num_rows}}}',
            "tags": {"sha256": hashlib.sha256(self.content).hexdigest()},
        }


def encoded_files(
    blocks: Iterable[pl.DataFrame], columns: Mapping[str, Any], partition_by: str | None = None
) -> Iterator[EncodedFile]:
    """Encode blocks as files of at most about FILE_BYTES, each with one value of the column `partition_by`."""
    file = None
    for partition, rows in _groups(blocks, partition_by):
        if file is not None and (file.partition != partition or file.num_bytes >= FILE_BYTES):
            yield file.encoded()
            file = None
        file = file or _OpenFile({name: columns[name] for name in columns if name != partition_by}, partition)
        file.write(rows)
    if file is not None:
        yield file.encoded()


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
    """A Parquet file in memory, to which groups of rows are added."""

    def __init__(self, columns: Mapping[str, Any], partition: dict[str, str]):
        self.partition = partition
        self._columns = list(columns)
        self._sink = io.BytesIO()
        encodings = {name: OF_INTEGERS for name, dtype in columns.items() if dtype == pl.Int64}
        encodings |= {name: OF_IDS for name in columns if name in IDS}
        self._writer = pq.ParquetWriter(
            self._sink,
            _arrow(pl.DataFrame(schema=columns)).schema,
            compression=COMPRESSION,
            use_dictionary=[name for name in columns if name not in encodings],  # pyright: ignore[reportArgumentType]
            column_encoding=encodings,
        )
        self._num_rows = 0

    @property
    def num_bytes(self) -> int:
        return self._sink.getbuffer().nbytes

    def write(self, rows: pl.DataFrame) -> None:
        self._writer.write_table(_arrow(rows.select(self._columns)))
        self._num_rows += rows.height

    def encoded(self) -> EncodedFile:
        self._writer.close()
        folder = "".join(f"{key}={value}/" for key, value in self.partition.items())
        path = f"{folder}part-{uuid.uuid4()}.parquet"
        content = self._sink.getvalue()
        return EncodedFile(path=path, content=content, num_rows=self._num_rows, partition=self.partition)


def _arrow(rows: pl.DataFrame) -> pa.Table:
    return rows.to_arrow(compat_level=pl.CompatLevel.oldest())
