"""What may enter the event table: the columns, checks and counts of the rows that a reader made of a source."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import polars as pl

from dyformer.logs.ids import ENDS
from storage.events import node_numbers

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

BLOCK_ROWS = 1 << 17


class RowsRead(Protocol):
    """What a reader made of a source: `dyformer.logs.events.ReadResult`."""

    @property
    def events(self) -> pl.DataFrame:
        """Accepted rows: EVENT_COLUMNS; texts as String or Categorical, ids also as integers that stand for texts."""
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


@dataclass(frozen=True, kw_only=True)
class HeldRows:
    """Rows of one source in memory, to be compared with the table's and numbered."""

    events: pl.DataFrame
    quarantine: pl.DataFrame
    num_read: int
    num_dropped: int
    num_duplicates: int

    @classmethod
    def checked(cls, dataset: str, result: RowsRead) -> "HeldRows":
        """Take over what a reader made; raises ValueError for what must not enter the table."""
        check_rows(dataset, result)
        return cls(
            events=in_log_order(result.events.select(EVENT_COLUMNS.keys())),
            quarantine=result.quarantine,
            num_read=result.num_read,
            num_dropped=result.num_dropped,
            num_duplicates=result.num_duplicates,
        )

    @property
    def num_events(self) -> int:
        """Accepted rows."""
        return self.events.height

    def time_range(self) -> tuple[Any, Any]:
        """Time of the first and of the last event."""
        return self.events["time"].min(), self.events["time"].max()

    def without(self, known: pl.LazyFrame) -> "HeldRows":
        """Leave out the events that others have, by content."""
        same = ["source", "target", "time", "weight", "label"]
        rows = self.events.cast({"source": pl.String, "target": pl.String}).lazy()
        events = rows.join(known.select(same), on=same, how="anti", nulls_equal=True, maintain_order="left").collect()
        return replace(self, events=events, num_dropped=self.num_dropped + self.num_events - events.height)

    def numbered(self, known: pl.DataFrame, target_side: int) -> tuple[Iterator[pl.DataFrame], pl.DataFrame]:
        """Number the nodes: the events in log order, block by block, and the new nodes."""
        events, nodes = node_numbers.numbered(self.events, known, target_side)
        return events.iter_slices(BLOCK_ROWS), nodes


def in_log_order(rows: pl.DataFrame) -> pl.DataFrame:
    """By file and line; a reader gives them so, and sorting texts is dear."""
    one_file = rows.select((pl.col("file").min() == pl.col("file").max()).fill_null(True)).item()
    return rows if one_file and rows["line"].is_sorted() else rows.sort("file", "line")


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
    # Delta casts silently: a wrong type must not get that far.
    found = {column: _stored_as(column, frame.schema.get(column)) for column in columns}
    wrong = [f"{key} is {found[key]} instead of {dtype}" for key, dtype in columns.items() if found[key] != dtype]
    if wrong:
        raise ValueError(f"dataset {dataset!r}: columns of {name}: {'; '.join(wrong)}")


def _stored_as(column: str, dtype: pl.DataType | None) -> Any:
    """Give the type that a column has in the table: Categorical, and integers for ids, are ways to hold text."""
    if isinstance(dtype, pl.Categorical) or (column in ENDS and dtype is not None and dtype.is_integer()):
        return pl.String
    return dtype
