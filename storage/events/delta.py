"""Delta tables under optimistic concurrency: open, create, scan, and commit unless another writer has committed."""

import os
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

import polars as pl
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.schema import PrimitiveType

from storage import files

DELTA_TYPES: dict[Any, str] = {
    pl.Boolean: "boolean",
    pl.Int8: "byte",
    pl.Int64: "long",
    pl.Float64: "double",
    pl.String: "string",
}
FILE_BYTES = 1 << 26  # a file is in memory while it is written
ONE_WRITER = ("DELTARS_MAX_CONCURRENT_WRITERS", "1")  # finished files stay in memory until they are stored
# A training is pinned to a version permanently, so rows are never deleted and the history is never cleaned up.
CONFIGURATION: dict[str, str | None] = {
    "delta.appendOnly": "true",
    "delta.logRetentionDuration": "interval 36500 days",
}


def opened(address: str) -> DeltaTable | None:
    """Newest version of a table, None when there is no table."""
    try:
        return DeltaTable(address, storage_options=files.s3_options(address))
    except TableNotFoundError:
        return None


def opened_or_created(address: str, columns: Mapping[str, Any], partition_by: list[str] | None = None) -> DeltaTable:
    """Newest version of a table; if there is none, an empty one (version 0) is created."""
    table = opened(address)
    if table is not None:
        return table
    schema = Schema([Field(name, PrimitiveType(DELTA_TYPES[dtype])) for name, dtype in columns.items()])
    options = files.s3_options(address)
    try:
        return DeltaTable.create(
            address, schema, partition_by=partition_by, configuration=CONFIGURATION, storage_options=options
        )
    except DeltaError:  # another writer has made it
        return DeltaTable(address, storage_options=options)


def stream(blocks: Iterable[pl.DataFrame], columns: Mapping[str, Any]) -> pa.RecordBatchReader:
    """Rows of the columns, block by block, so that a table larger than memory can be written."""
    level = pl.CompatLevel.oldest()
    schema = pl.DataFrame(schema=columns).to_arrow(compat_level=level).schema
    batches = (batch for block in blocks for batch in block.to_arrow(compat_level=level).to_batches())
    return pa.RecordBatchReader.from_batches(schema, batches)


def commit_if_unchanged(
    table: DeltaTable,
    rows: pl.DataFrame | pa.RecordBatchReader,
    application: str,
    version: int,
    metadata: Mapping[str, Any],
) -> bool:
    """Append all rows in one commit and record `version` for the application; False when another writer committed.

    Delta records an application's version without checking it, and its retries would append after the other commit.
    No retry is allowed here, so a writer that read an older table must read again.
    """
    os.environ.setdefault(*ONE_WRITER)
    properties = CommitProperties(
        custom_metadata={key: str(value) for key, value in metadata.items()},
        max_commit_retries=0,
        app_transactions=[Transaction(application, version)],
    )
    try:
        write_deltalake(table, rows, mode="append", commit_properties=properties, target_file_size=FILE_BYTES)
    except CommitFailedError:
        return False
    return True


def scan(table: DeltaTable, partition: str = "") -> pl.LazyFrame:
    """Rows of a table, or of one partition `key=value` without the key's own column."""
    locations = [unquote(uri) for uri in table.file_uris() if f"/{partition}/" in uri or not partition]
    if not locations:
        return pl.LazyFrame()
    options = files.s3_options(locations[0])
    return pl.scan_parquet(locations, storage_options=options or None, hive_partitioning=False, glob=False)
