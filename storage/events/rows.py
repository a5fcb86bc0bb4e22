"""Rows of one source in memory -> rows for the event table: checked, compared with its rows, with numbered nodes.

Node numbers are permanent and append-only, by first appearance: commit, time, file, line, source before target. No
later event of a source changes the number of a node that appeared before it. The numbers are committed with the
events, and the new nodes as a table of their own, because reading it is faster than reading all events.

R rows    K known nodes    N new nodes    V codes of ids, those of the second side after the first
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.graphs.windows import time_keys
from dyformer.logs.events import ReadResult
from dyformer.logs.ids import ENDS, ID, are_integers, as_texts, dense

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
    "ingest": pl.Int64,  # the version whose commit brought the row
    "row": pl.Int64,  # position in that commit, by file and line
    **EVENT_COLUMNS,
    "source_node": pl.Int64,
    "target_node": pl.Int64,
    "target_side": pl.Int8,  # 1 when sources and targets are two id spaces
    "arrival": pl.Int64,  # time of the ingest, microseconds since the epoch
}
REJECTED_COLUMNS = {"ingest": pl.Int64, "row": pl.Int64, **QUARANTINE_COLUMNS, "arrival": pl.Int64}
NODE_COLUMNS = {"node": pl.Int64, "side": pl.Int8, "id": pl.String, "ingest": pl.Int64}
SAME = ("source", "target", "time", "weight", "label")  # equal in events that are repeats of each other
BLOCK_ROWS = 1 << 17
TABLE_SIZE = 1 << 24  # ids below this limit are always used as their own codes
UNNUMBERED = -1
NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True)
class HeldRows:
    """Rows of one source in memory."""

    events: pl.DataFrame
    quarantine: pl.DataFrame
    num_read: int
    num_dropped: int
    num_duplicates: int

    @classmethod
    def checked(cls, dataset: str, result: ReadResult) -> "HeldRows":
        """Take the rows of a reader; raises ValueError for rows that must not enter the table."""
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

    @property
    def files(self) -> list[str]:
        """Names of the files that the rows come from."""
        return self.events["file"].unique().sort().to_list()

    def without(self, known: pl.LazyFrame, earlier: "Iterable[HeldRows]" = ()) -> "HeldRows":
        """Remove the events that another source has with equal values: rows of the table, or rows in memory."""
        others = pl.concat([frame.select(SAME) for frame in (known, *(source.as_texts() for source in earlier))])
        rows = self.as_texts()
        events = rows.join(others, on=SAME, how="anti", nulls_equal=True, maintain_order="left").collect()
        return replace(self, events=events, num_dropped=self.num_dropped + self.num_events - events.height)

    def as_texts(self) -> pl.LazyFrame:
        """Events with ids as the table stores them."""
        return self.events.lazy().with_columns(pl.col("source", "target").cast(pl.String))

    def numbered(self, known: pl.DataFrame, target_side: int) -> tuple[Iterator[pl.DataFrame], pl.DataFrame]:
        """Number the nodes; returns the events in log order, block by block, and the new nodes."""
        events, nodes = numbered(self.events, known, target_side)
        return events.iter_slices(BLOCK_ROWS), nodes


def shared_rows(known: pl.LazyFrame, sources: Sequence[pl.DataFrame]) -> list[tuple[int, int]]:
    """Count the distinct events of each source that another one or `known` has too, and all its distinct events."""
    texts = (events.lazy().with_columns(pl.col(ENDS).cast(pl.String)) for events in sources)
    frames = [frame.select(*SAME, of=pl.lit(index)) for index, frame in enumerate((known, *texts))]
    distinct = pl.concat(frames).unique().select("of", is_shared=pl.len().over(SAME) > 1)
    counts = distinct.group_by("of").agg(pl.sum("is_shared"), pl.len()).sort("of").collect()
    return [(num_shared, num_rows) for of, num_shared, num_rows in counts.rows() if of > 0]


def in_log_order(rows: pl.DataFrame) -> pl.DataFrame:
    """Sort by file and line, unless they are in that order, because sorting texts is expensive."""
    one_file = rows.select((pl.col("file").min() == pl.col("file").max()).fill_null(True)).item()
    return rows if one_file and rows["line"].is_sorted() else rows.sort("file", "line")


def check_rows(dataset: str, result: ReadResult) -> None:
    """Raise ValueError for wrong types, missing values and wrong counts, which a table would cast and drop silently."""
    _check_columns(dataset, "events", result.events, EVENT_COLUMNS)
    _check_columns(dataset, "quarantine", result.quarantine, QUARANTINE_COLUMNS)
    if result.events.is_empty():
        raise InvalidInput(f"dataset {dataset!r}: the source has no event, so nothing is committed")
    nulls = result.events.select(pl.col(name).null_count() for name in EVENT_COLUMNS if name != "label")
    missing = [name for name, count in nulls.row(0, named=True).items() if count]
    if missing:
        raise InvalidInput(
            f"dataset {dataset!r}: events without {', '.join(missing)}: move such rows to the quarantine"
        )
    if not result.events.select(pl.col("weight").is_finite().all()).item():
        raise InvalidInput(f"dataset {dataset!r}: a weight is not finite: move such rows to the quarantine")
    counted = result.events.height + result.quarantine.height + result.num_dropped
    if counted != result.num_read:
        raise InvalidInput(
            f"dataset {dataset!r}: accepted + quarantined + dropped is {counted}, but {result.num_read} rows were read"
        )


def _check_columns(dataset: str, name: str, frame: pl.DataFrame, columns: Mapping[str, Any]) -> None:
    types = {column: _stored_as(column, frame.schema.get(column)) for column in columns}
    wrong = [f"{key} is {types[key]} instead of {dtype}" for key, dtype in columns.items() if types[key] != dtype]
    if wrong:
        raise InvalidInput(f"dataset {dataset!r}: columns of {name}: {'; '.join(wrong)}")


def _stored_as(column: str, dtype: pl.DataType | None) -> Any:
    """Return a column's type in the table, which stores Categorical texts and integer ids as text."""
    if isinstance(dtype, pl.Categorical) or (column in ENDS and dtype is not None and dtype.is_integer()):
        return pl.String
    return dtype


def numbered(events: pl.DataFrame, known: pl.DataFrame, target_side: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Number the nodes of events in log order; the numbers of new nodes continue the known ones.

    Returns:
        The events with `source_node` and `target_node` (UInt32), and the new nodes by number: node, side, id.
    """
    ends = _ends(events)
    source, target, known_K = _coded(ends, known)
    num_codes = 1 + max(int(code.to_numpy().max(initial=0)) for code in (source, target, known_K["code"]))
    number_V = np.full(num_codes * (1 + target_side), UNNUMBERED, dtype=np.int64)
    number_V[known_K["code"].to_numpy() + known_K["side"].to_numpy() * np.int64(num_codes)] = known_K["node"].to_numpy()
    key_R, row_bits = time_keys(events["time"].to_numpy())
    first_V = np.full(len(number_V), NEVER, dtype=np.int64)
    _set_first(first_V, source.to_numpy(), key_R, is_target=False)
    _set_first(first_V[target_side * num_codes :], target.to_numpy(), key_R, is_target=True)
    new_N = np.flatnonzero((first_V != NEVER) & (number_V == UNNUMBERED))
    new_N = new_N[np.argsort(first_V[new_N])]
    number_V[new_N] = known.height + np.arange(len(new_N))
    row_N, is_target_N = first_V[new_N] >> 1 & (1 << row_bits) - 1, first_V[new_N] % 2 == 1
    source_N, target_N = (ids.gather(row_N) for ids in ends)
    id_N = target_N.zip_with(pl.Series(is_target_N), source_N).cast(pl.String)
    nodes = {"node": number_V[new_N], "side": (is_target_N * target_side).astype(np.int8), "id": id_N}
    number = pl.Series(number_V.astype(np.uint32))
    return events.with_columns(
        source_node=number.gather(source), target_node=number.slice(target_side * num_codes).gather(target)
    ), pl.DataFrame(nodes)


def ids_are_integers(nodes: pl.DataFrame) -> bool:
    """Whether every id is the usual text of a 64-bit integer, so that an export can cast them without loss."""
    return nodes.select(
        (pl.col("id").cast(pl.Int64, strict=False).cast(pl.String) == pl.col("id")).fill_null(False).all()
    ).item()


def _ends(events: pl.DataFrame) -> list[pl.Series]:
    """Return the sources and the targets, both as integers or both as Categorical."""
    ends = [events[name].rechunk() for name in ENDS]
    return ends if are_integers(*ends) else [as_texts(ids) for ids in ends]


def _coded(ends: list[pl.Series], known: pl.DataFrame) -> tuple[pl.Series, pl.Series, pl.DataFrame]:
    """Replace ids by small codes (UInt32): sources, targets, and the known nodes that may be among them (`code`)."""
    source, target = ends
    if source.dtype == ID:
        code = pl.Series("code", as_texts(known["id"])).to_physical()
        return source.to_physical(), target.to_physical(), known.with_columns(code)
    largest = max(int(ids.to_numpy().max(initial=0)) for ids in ends)
    integers = known.with_columns(code=pl.col("id").cast(pl.Int64, strict=False))
    integers = integers.filter((pl.col("code").cast(pl.String) == pl.col("id")) & pl.col("code").is_between(0, largest))
    if largest < max(TABLE_SIZE, source.len()):
        return source.cast(pl.UInt32), target.cast(pl.UInt32), integers
    code = dense(pl.concat([ids.cast(pl.Int64) for ids in (*ends, integers["code"])]))
    source, target = code.head(source.len()), code.slice(source.len(), target.len())
    return source, target, integers.with_columns(code=code.tail(integers.height))


def _set_first(
    first_V: NDArray[np.int64], code_R: NDArray[np.uint32], key_R: NDArray[np.int64], *, is_target: bool
) -> None:
    """Lower each id's key to its first row's, doubled so that a target follows its source."""
    for first in range(0, len(key_R), BLOCK_ROWS):
        rows = slice(first, first + BLOCK_ROWS)
        np.minimum.at(first_V, code_R[rows].astype(np.intp), 2 * key_R[rows] + is_target)
