"""Logs larger than memory -> a DuckDB database on this machine's disk, which is removed on closing.

DYFORMER_MEMORY is the memory to use, in MiB (4096 by default). A log is large if its text takes more than an eighth of
this memory, or if making snapshots of its events would take more than all of it.
"""

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from dyformer import InvalidInput
from storage.layout import Layout
from storage.locks import alone

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MEMORY_VARIABLE = "DYFORMER_MEMORY"
DEFAULT_MEMORY = 4096  # MiB
TEXT_TIMES = 8  # memory of a log read, as a multiple of its text
EVENT_BYTES = 160  # memory of an event while snapshots are cut
DUCKDB_PARTS = 8  # DuckDB may use one part in so many, because the program, the nodes and the result need the rest
NUM_THREADS = 2  # each thread needs its own memory
BATCH_ROWS = 1 << 16
LOCK = "lock"
CREATE = "CREATE OR REPLACE TABLE {table} AS SELECT * FROM block"
INSERT = "INSERT INTO {table} BY NAME SELECT * FROM block"
ROW_COLUMNS = {
    "ingest": "ingest",
    "row": "row",
    "source": "source_node",
    "target": "target_node",
    "side": "target_side",
    "time": "time",
}
ROWS = "CREATE TABLE rows (ingest BIGINT, row BIGINT, source BIGINT, target BIGINT, side TINYINT, time BIGINT)"
IN_TIME = "CREATE TABLE in_time AS SELECT source, target, side, time FROM rows ORDER BY time, ingest, row"


def memory_bytes() -> int:
    """Memory that reading a log may take; raises ValueError unless the variable is a whole number, 512 or more."""
    text = os.environ.get(MEMORY_VARIABLE) or str(DEFAULT_MEMORY)
    if not text.isdecimal() or int(text) < 512:
        raise InvalidInput(f"{MEMORY_VARIABLE}={text!r}: expected a whole number of MiB, 512 or more")
    return int(text) << 20


def is_large(num_bytes: int, num_events: int = 0) -> bool:
    """Whether a log's text, or a number of stored events, is too much for memory."""
    return num_bytes > memory_bytes() // TEXT_TIMES or num_events > memory_bytes() // EVENT_BYTES


@contextmanager
def open_spill(layout: Layout) -> "Iterator[DuckDBPyConnection]":
    """Open an empty database in its own folder below the layout's `spills`; both are removed at the end.

    Folders of killed processes are removed first: a living process holds its folder's lock.
    """
    import duckdb

    with ExitStack() as ending:
        with alone(layout, "spill"):  # no other process sees a folder before it is locked
            Path(layout.spills).mkdir(parents=True, exist_ok=True)
            for left in Path(layout.spills).iterdir():
                _remove_if_left(left)
            folder = ending.enter_context(tempfile.TemporaryDirectory(dir=layout.spills))
            ending.enter_context(FileLock(Path(folder) / LOCK))
        settings = {
            "memory_limit": f"{memory_bytes() // DUCKDB_PARTS >> 20}MiB",
            "threads": NUM_THREADS,
            "temp_directory": f"{folder}/overflow",
        }
        with duckdb.connect(f"{folder}/spill.duckdb", config=settings) as connection:
            yield connection


def _remove_if_left(folder: Path) -> None:
    """Remove a folder whose lock no living process holds."""
    with suppress(Timeout, FileNotFoundError), FileLock(folder / LOCK, blocking=False):
        shutil.rmtree(folder, ignore_errors=True)


def insert(connection: "DuckDBPyConnection", table: str, blocks: Iterable[pl.DataFrame]) -> int:
    """Append blocks of rows to a table, columns by name; returns the number of rows."""
    num_rows = 0
    for block in blocks:
        connection.register("block", block.to_arrow())
        connection.execute(INSERT.format(table=table))
        connection.unregister("block")
        num_rows += block.height
    return num_rows


def create(connection: "DuckDBPyConnection", table: str, rows: pl.DataFrame) -> None:
    """Copy rows to a new table."""
    connection.register("block", rows.head(0).to_arrow())
    connection.execute(CREATE.format(table=table))
    insert(connection, table, rows.iter_slices(BATCH_ROWS))


def batches(connection: "DuckDBPyConnection", query: str) -> Iterator[pl.DataFrame]:
    """Rows of a query, batch by batch; the connection stays free for other queries."""
    for batch in connection.cursor().sql(query).to_arrow_reader(BATCH_ROWS // 4):
        yield pl.DataFrame(batch)


def one_row(connection: "DuckDBPyConnection", query: str) -> tuple[Any, ...]:
    """The one row of a query's result."""
    (row,) = connection.execute(query).fetchall()
    return row


def sorted_times(connection: "DuckDBPyConnection", query: str) -> NDArray[np.int64]:
    """Sort the only column of a query, into an array that is mapped from a file beside the database."""
    (overflow,) = one_row(connection, "SELECT current_setting('temp_directory')")
    path = Path(overflow).with_name("times")
    with path.open("wb") as stream:
        for batch in batches(connection, f"{query} ORDER BY 1"):
            batch.to_series().to_numpy().tofile(stream)
    return np.memmap(path, dtype=np.int64, mode="r")


def rows_in_time(connection: "DuckDBPyConnection", events: pl.LazyFrame) -> NDArray[np.int64]:
    """Copy stored events (`table.scan_events`) to a table `in_time` in the order of their times; return the times."""
    connection.execute(ROWS)
    insert(connection, "rows", events.select(**ROW_COLUMNS).collect_batches(chunk_size=BATCH_ROWS))
    connection.execute(IN_TIME)
    connection.execute("DROP TABLE rows")
    return sorted_times(connection, "SELECT time FROM in_time")
