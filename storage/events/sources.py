"""New sources of an ingest -> their records, and the blocks of rows as the event table stores them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from storage.events import delta, rows
from storage.events.delta import Table
from storage.events.disk_rows import SpilledRows
from storage.events.rows import ACCEPTED, QUARANTINE_COLUMNS, STORED_COLUMNS, HeldRows

COUNTS = ("num_read", "num_accepted", "num_quarantined", "num_dropped", "num_duplicates")


@dataclass(frozen=True, kw_only=True)
class Ingest:
    """One source in the table: `num_accepted + num_quarantined + num_dropped = num_read`.

    `changed` is whether this call committed it. It is False when the table had the same bytes before, and when all
    rows were known and dropped.
    """

    version: int
    changed: bool
    batch: str
    num_read: int
    num_accepted: int
    num_quarantined: int
    num_dropped: int
    num_duplicates: int


@dataclass(frozen=True, kw_only=True)
class Source:
    """A source that `append_all` commits."""

    batch: str
    rows: Any  # HeldRows or SpilledRows, the same for all sources of a call


def about(read: HeldRows | SpilledRows) -> dict[str, Any]:
    """Times and files of a source, for the record of its commit."""
    if not read.num_events:
        return {}
    first_time, last_time = read.time_range()
    return {"first_time": first_time, "last_time": last_time, "files": read.files}


def without_known(table: Table, sources: list[Source]) -> list[Source]:
    """Leave out the events that the table or an earlier one of the sources has."""
    stored = delta.scan(table, ACCEPTED)
    stored = stored if stored.collect_schema() else pl.LazyFrame(schema=STORED_COLUMNS)
    left: list[Source] = []
    for source in sources:
        if table.version > 0 or left:
            source = replace(source, rows=source.rows.without(stored, [other.rows for other in left]))
        left.append(source)
    return left


def counted(source: Source, next_version: int, newest: int) -> Ingest:
    """Count a source's rows; its version is the newest one if it has no event to commit."""
    read = source.rows
    changed = read.num_events > 0
    return Ingest(
        version=next_version if changed else newest,
        changed=changed,
        batch=source.batch,
        num_read=read.num_read,
        num_accepted=read.num_events,
        num_quarantined=read.quarantine.height,
        num_dropped=read.num_dropped,
        num_duplicates=read.num_duplicates,
    )


def stored_blocks(
    sources: list[Source], known: pl.DataFrame, new_nodes: list[pl.DataFrame], same: Mapping[str, Any]
) -> Iterator[pl.DataFrame]:
    """Yield rows as the table stores them, block by block, because all their texts may not fit in memory.

    The accepted rows come first. Their new nodes are added to `new_nodes`.
    """
    rejected = (rows.in_log_order(source.rows.quarantine.select(QUARANTINE_COLUMNS.keys())) for source in sources)
    parts = {
        True: _numbered(sources, known, new_nodes, same["target_side"]),
        False: (block for each in rejected for block in each.iter_slices(rows.BLOCK_ROWS)),
    }
    for accepted, blocks in parts.items():
        first = 0
        for block in blocks:
            block = block.with_columns(
                accepted=pl.lit(accepted),
                row=pl.int_range(first, first + block.height),
                **{name: pl.lit(value) for name, value in same.items()},
            )
            yield block.select(
                pl.col(name).cast(dtype) if name in block.columns else pl.lit(None, dtype).alias(name)
                for name, dtype in STORED_COLUMNS.items()
            )
            first += block.height


def _numbered(
    sources: list[Source], known: pl.DataFrame, new_nodes: list[pl.DataFrame], target_side: int
) -> Iterator[pl.DataFrame]:
    """Yield the events with the numbers of their nodes; those of a source continue those of the earlier ones."""
    known = known.select("node", "side", "id")
    for source in sources:
        events, nodes = source.rows.numbered(known, target_side)
        new_nodes.append(nodes)
        yield from events
        known = pl.concat([known, nodes.select(known.columns)], how="vertical_relaxed")
