"""The transactional event table: one atomic commit for each ingested source, and permanent node numbers.

One Delta table holds the accepted and the quarantined rows (partition column `accepted`), so that both appear in one
commit. A row carries the version of its commit (`ingest`), hence every version can be read from the newest table. A
writer numbers new nodes itself, and starts again if another writer has committed since it read the table.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl
from deltalake import DeltaTable

from dyformer.logs.events import ReadResult
from storage import files
from storage.events import delta, rows
from storage.events.disk_rows import SpilledRows
from storage.events.rows import ACCEPTED, QUARANTINE_COLUMNS, QUARANTINED, STORED_COLUMNS, HeldRows
from storage.layout import Layout


class DatasetNotIngested(ValueError):
    """The store does not hold a log, or a version of it."""


class TableBusy(ValueError):
    """Other writers committed first on every try."""


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
class _Source:
    """A source that `append` commits, and the options of the commit."""

    dataset: str
    rows: HeldRows | SpilledRows
    batch: str
    target_side: int
    drop_known: bool


def append(
    layout: Layout,
    dataset: str,
    result: ReadResult | SpilledRows,
    source_sha256: str,
    *,
    bipartite: bool = False,
    drop_known: bool = False,
    max_retries: int = 100,
) -> Ingest:
    """Commit the rows of one source, unless the table has a source of the same bytes.

    Args:
        layout: the store.
        dataset: name of the log.
        result: the rows, accepted and rejected, with their counts.
        source_sha256: checksum of the source's bytes.
        bipartite: sources and targets are two id spaces; fixed by the first ingest of a log.
        drop_known: leave out events that another source already stored, and count them as dropped.
        max_retries: number of new tries after another writer committed first.

    Raises:
        ValueError: wrong columns, missing or infinite values, counts that do not add up, or no event.
        TableBusy: every try met another writer's commit.
    """
    source = _Source(
        dataset=dataset,
        rows=result if isinstance(result, SpilledRows) else HeldRows.checked(dataset, result),
        batch=source_sha256,
        target_side=int(bipartite),
        drop_known=drop_known,
    )
    for attempt in range(max_retries + 1):
        ingest = _try_append(layout, source)
        if ingest is not None:
            return ingest
        time.sleep(min(0.01 * (attempt + 1), 0.5))
    raise TableBusy(
        f"dataset {dataset!r}: other writers committed first {max_retries + 1} times; ingest it again later"
    )


def read_events(layout: Layout, dataset: str, version: int | None = None) -> pl.DataFrame:
    """Events of a version (the newest by default) in log order: by commit, file and line.

    Columns: source, target (permanent node numbers, Int64), source_side, target_side (Int8), time, weight, label.

    Raises:
        DatasetNotIngested: the store lacks the log or the version.
    """
    events = scan_events(layout, dataset, version).select(
        "ingest",
        "row",
        pl.col("source_node").alias("source"),
        pl.col("target_node").alias("target"),
        pl.lit(0, pl.Int8).alias("source_side"),
        *("target_side", "time", "weight", "label"),
    )
    return events.sort("ingest", "row").drop("ingest", "row").collect()


def scan_events(layout: Layout, dataset: str, version: int | None = None) -> pl.LazyFrame:
    """All columns of the events of a version; the columns `ingest` and `row` give their order."""
    return _scan(layout, dataset, version, ACCEPTED).drop("reason", "raw")


def scan_quarantine(layout: Layout, dataset: str, version: int | None = None) -> pl.LazyFrame:
    """Rejected rows of a version: ingest, row, file, line, reason, raw, arrival."""
    columns = ("ingest", "row", *QUARANTINE_COLUMNS, "arrival")
    return _scan(layout, dataset, version, QUARANTINED).select(columns)


def node_dictionary(layout: Layout, dataset: str, version: int | None = None) -> pl.DataFrame:
    """The permanent dictionary of a version: node (0, 1, ... by first appearance), side, id."""
    table = _opened(layout, dataset)
    wanted = _checked_version(table, dataset, version)
    return rows.known_nodes(layout.nodes(dataset), table, wanted).select("node", "side", "id")


def newest_version(layout: Layout, dataset: str) -> int:
    """Version of the last commit that added events."""
    return _newest(_opened(layout, dataset))


def max_event_time(layout: Layout, dataset: str, version: int | None = None) -> int:
    """Time of the latest event of a version."""
    return scan_events(layout, dataset, version).select(pl.col("time").max()).collect().item()


def history(layout: Layout, dataset: str) -> pl.DataFrame:
    """One row for each ingest: version, batch, arrival, five counts, first_time and last_time of its events."""
    table = _opened(layout, dataset)
    columns = ("version", "batch", "arrival", *_COUNTS, "first_time", "last_time")
    rows = [{name: commit[name] for name in columns} for commit in _commits(table)]
    return pl.DataFrame(rows).with_columns(pl.exclude("batch").cast(pl.Int64)).sort("version")


def ingested_datasets(layout: Layout) -> list[str]:
    """Names of the logs that have events."""
    return [name for name in layout.dataset_names(files.children(layout.datasets)) if _has_events(layout, name)]


_COUNTS = ("num_read", "num_accepted", "num_quarantined", "num_dropped", "num_duplicates")


def _try_append(layout: Layout, source: _Source) -> Ingest | None:
    address = layout.interactions(source.dataset)
    table = delta.opened_or_created(address, STORED_COLUMNS, partition_by=["accepted"])
    version = table.transaction_version(_application(source))
    nodes = None
    if version is None:
        ingest, nodes = _commit(layout, table, source)
    else:
        ingest = _ingest_of(table, version)
    if ingest is not None:
        rows.extend_dictionary(layout.nodes(source.dataset), table, nodes)
    return ingest


def _commit(layout: Layout, table: DeltaTable, source: _Source) -> tuple[Ingest | None, pl.DataFrame | None]:
    """Commit a source; returns its record and the new nodes, or (None, None) if another writer committed first."""
    known = rows.known_nodes(layout.nodes(source.dataset), table, table.version())
    _check_sides(known, source)
    read = source.rows
    if source.drop_known and table.version() > 0:
        read = read.without(delta.scan(table, ACCEPTED))
    ingest = _counted(source, read, table)
    if not ingest.changed:
        return ingest, None
    numbered, nodes = read.numbered(known, source.target_side)
    arrival = time.time_ns() // 1000
    first_time, last_time = read.time_range()
    metadata = asdict(ingest) | {"arrival": arrival, "first_time": first_time, "last_time": last_time}
    stored = delta.stream(_stored(numbered, source, ingest.version, arrival), STORED_COLUMNS)
    committed = delta.commit_if_unchanged(table, stored, _application(source), ingest.version, metadata)
    return (ingest, nodes) if committed else (None, None)


def _counted(source: _Source, read: HeldRows | SpilledRows, table: DeltaTable) -> Ingest:
    changed = read.num_events > 0
    return Ingest(
        version=table.version() + 1 if changed else _newest(table),
        changed=changed,
        batch=source.batch,
        num_read=read.num_read,
        num_accepted=read.num_events,
        num_quarantined=read.quarantine.height,
        num_dropped=read.num_dropped,
        num_duplicates=read.num_duplicates,
    )


def _stored(events: Iterable[pl.DataFrame], source: _Source, version: int, arrival: int) -> Iterator[pl.DataFrame]:
    """Yield rows as the table stores them, block by block, because all their texts may not fit in memory."""
    rejected = rows.in_log_order(source.rows.quarantine.select(QUARANTINE_COLUMNS.keys()))
    for accepted, blocks in ((True, events), (False, rejected.iter_slices(rows.BLOCK_ROWS))):
        first = 0
        for block in blocks:
            block = block.with_columns(
                accepted=pl.lit(accepted),
                row=pl.int_range(first, first + block.height),
                ingest=pl.lit(version),
                target_side=pl.lit(source.target_side),
                arrival=pl.lit(arrival),
            )
            yield block.select(
                pl.col(name).cast(dtype) if name in block.columns else pl.lit(None, dtype).alias(name)
                for name, dtype in STORED_COLUMNS.items()
            )
            first += block.height


def _application(source: _Source) -> str:
    return f"ingest:{source.dataset}:{source.batch}"


def _commits(table: DeltaTable, newest: int | None = None) -> list[dict[str, Any]]:
    return [commit for commit in table.history(newest) if "num_read" in commit]


def _ingest_of(table: DeltaTable, version: int) -> Ingest:
    commit = next(commit for commit in _commits(table, table.version() - version + 1) if commit["version"] == version)
    counts = {name: int(commit[name]) for name in _COUNTS}
    return Ingest(version=version, changed=False, batch=commit["batch"], **counts)


def _opened(layout: Layout, dataset: str) -> DeltaTable:
    table = delta.opened(layout.interactions(dataset))
    if table is None or not table.version():
        ingested = ", ".join(ingested_datasets(layout)) or "none"
        raise DatasetNotIngested(
            f"no events of {dataset!r} in {layout.root}: run `dyformer ingest {dataset}` first (ingested: {ingested})"
        )
    return table


def _has_events(layout: Layout, dataset: str) -> bool:
    table = delta.opened(layout.interactions(dataset))
    return table is not None and table.version() > 0


def _newest(table: DeltaTable) -> int:
    # Not table.version(), because compaction and other maintenance make versions without events.
    added = pl.DataFrame(table.get_add_actions(flatten=True))
    return max(added["max.ingest"].drop_nulls(), default=0) if added.width else 0


def _checked_version(table: DeltaTable, dataset: str, version: int | None) -> int:
    newest = _newest(table)
    if version is None:
        return newest
    if not 1 <= version <= newest:
        raise DatasetNotIngested(f"dataset {dataset!r} has the table versions 1 to {newest}, not {version}")
    return version


def _scan(layout: Layout, dataset: str, version: int | None, partition: str) -> pl.LazyFrame:
    table = _opened(layout, dataset)
    wanted = _checked_version(table, dataset, version)
    stored = delta.scan(table, partition)
    if not stored.collect_schema():
        stored = pl.LazyFrame(schema={name: dtype for name, dtype in STORED_COLUMNS.items() if name != "accepted"})
    return stored.filter(pl.col("ingest") <= wanted)


def _check_sides(nodes: pl.DataFrame, source: _Source) -> None:
    if nodes.height and int(1 in nodes["side"]) != source.target_side:
        kinds = ("one id space", "two id spaces (bipartite)")
        raise ValueError(
            f"dataset {source.dataset!r} was ingested with {kinds[1 - source.target_side]}, but this source has "
            f"{kinds[source.target_side]}: read both in the same way, or ingest this source under another name"
        )
