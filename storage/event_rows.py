"""What may enter the event table: the columns and checks of the rows that a reader made of a source."""

from collections.abc import Mapping
from typing import Any, Protocol

import polars as pl

EVENT_COLUMNS = {
    "source": pl.String,
    "target": pl.String,
    "time": pl.Int64,
    "weight": pl.Float64,
    "label": pl.Int8,
    "file": pl.String,
    "line": pl.Int64,
}
QUARANTINE_COLUMNS = {"file": pl.String, "line": pl.Int64, "reason": pl.String, "raw": pl.String}
STORED_COLUMNS = {
    "accepted": pl.Boolean,
    "ingest": pl.Int64,  # the table version whose commit brought the row
    "row": pl.Int64,  # position in that commit, by file and line
    **EVENT_COLUMNS,
    "source_node": pl.Int64,
    "target_node": pl.Int64,
    "target_side": pl.Int8,  # 1 when sources and targets are two id spaces
    "reason": pl.String,
    "raw": pl.String,
    "arrival": pl.Int64,  # when it was ingested, microseconds since the epoch
}


class RowsRead(Protocol):
    """What a reader made of a source: `dyformer.events.ReadResult`."""

    @property
    def events(self) -> pl.DataFrame:
        """Accepted rows: EVENT_COLUMNS, texts as String or Categorical."""
        ...

    @property
    def quarantine(self) -> pl.DataFrame:
        """Rejected rows: QUARANTINE_COLUMNS."""
        ...

    @property
    def num_read(self) -> int:
        """Rows of the source."""
        ...

    @property
    def num_dropped(self) -> int:
        """Rows left out on request."""
        ...

    @property
    def num_duplicates(self) -> int:
        """Rows that repeat another one exactly."""
        ...


def check_rows(dataset: str, result: RowsRead) -> None:
    """Raise ValueError for what a reader must not let through: nothing is silently cast or lost."""
    _check_columns(dataset, "events", result.events, EVENT_COLUMNS)
    _check_columns(dataset, "quarantine", result.quarantine, QUARANTINE_COLUMNS)
    if result.events.is_empty():
        raise ValueError(f"dataset {dataset!r}: the source gave no event, nothing is committed")
    nulls = result.events.select(pl.col(name).null_count() for name in EVENT_COLUMNS if name != "label")
    missing = [name for name, count in nulls.row(0, named=True).items() if count]
    if missing:
        raise ValueError(f"dataset {dataset!r}: events without {', '.join(missing)}: such rows belong in quarantine")
    if not result.events.select(pl.col("weight").is_finite().all()).item():
        raise ValueError(f"dataset {dataset!r}: a weight is not finite: such rows belong in quarantine")
    counted = result.events.height + result.quarantine.height + result.num_dropped
    if counted != result.num_read:
        raise ValueError(
            f"dataset {dataset!r}: accepted + quarantined + dropped is {counted}, but {result.num_read} rows were read"
        )


def _check_columns(dataset: str, name: str, frame: pl.DataFrame, columns: Mapping[str, Any]) -> None:
    # Delta casts silently: a wrong type must not get that far. Categorical is one way to hold text.
    schema = frame.schema
    found = {name: pl.String if isinstance(dtype, pl.Categorical) else dtype for name, dtype in schema.items()}
    found = {column: found.get(column) for column in columns}
    wrong = [f"{key} is {found[key]} instead of {dtype}" for key, dtype in columns.items() if found[key] != dtype]
    if wrong:
        raise ValueError(f"dataset {dataset!r}: columns of {name}: {'; '.join(wrong)}")
