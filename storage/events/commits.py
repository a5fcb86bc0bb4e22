"""New sources of an ingest -> one atomic commit to the event table, and permanent numbers for their nodes.

The writers of one machine wait for each other. One that finds a commit of another machine starts again, because its
nodes may have other numbers then.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import polars as pl

from dyformer.logs.events import ReadResult
from storage import files
from storage.events import data_files, delta, rows
from storage.events.delta import Table
from storage.events.disk_rows import SpilledRows
from storage.events.rows import ACCEPTED, QUARANTINE_COLUMNS, STORED_COLUMNS, HeldRows
from storage.events.table import COUNTS, newest_in, sources_of, table_of
from storage.layout import Layout
from storage.locks import alone


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
    """A source that `append_all` commits."""

    batch: str
    rows: Any  # HeldRows or SpilledRows, the same for all sources of a call


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
    """Commit the rows of one source as `append_all` does."""
    options = {"bipartite": bipartite, "drop_known": drop_known, "max_retries": max_retries}
    (ingest,) = append_all(layout, dataset, {source_sha256: result}, **options)
    return ingest


def append_all(
    layout: Layout,
    dataset: str,
    results: "Mapping[str, ReadResult | SpilledRows]",
    *,
    bipartite: bool = False,
    drop_known: bool = False,
    max_retries: int = 100,
) -> list[Ingest]:
    """Commit the rows of sources in one commit, except those of which the table has a source of the same bytes.

    Args:
        layout: the store.
        dataset: name of the log.
        results: rows, accepted and rejected, with their counts, by the checksum of the source's bytes. Nodes are
            numbered source by source.
        bipartite: sources and targets are two id spaces; fixed by the first ingest of a log.
        drop_known: leave out events that another source already stored, and count them as dropped.
        max_retries: number of new tries after another machine's writer committed first.

    Raises:
        ValueError: wrong columns, missing or infinite values, counts that do not add up, or no event.
        TableBusy: every try met another writer's commit.
        TableDamaged: a file of the table is missing or was changed.
        WriteFailed: the disk is full or fails; nothing was committed.
    """
    sources = [
        _Source(batch=batch, rows=result if isinstance(result, SpilledRows) else HeldRows.checked(dataset, result))
        for batch, result in results.items()
    ]
    with alone(layout, f"events-{dataset}"):
        for attempt in range(max_retries + 1):
            ingests = _try_append(layout, dataset, sources, int(bipartite), drop_known)
            if ingests is not None:
                return ingests
            time.sleep(min(0.01 * (attempt + 1), 0.5))
    raise TableBusy(
        f"dataset {dataset!r}: other writers committed first {max_retries + 1} times; ingest it again later"
    )


def _try_append(
    layout: Layout, dataset: str, sources: list[_Source], target_side: int, drop_known: bool
) -> list[Ingest] | None:
    """Commit the sources that the table lacks; None if another machine's writer committed first."""
    table_of(layout, dataset)
    address = layout.interactions(dataset)
    table = delta.opened_or_created(address, STORED_COLUMNS, partition_by="accepted")
    delta.sync(table)
    for each in (table, delta.opened(layout.nodes(dataset))):
        _remove_leftovers(each)
    known = {source["batch"]: source for source in sources_of(table)}
    fresh = [source for source in sources if source.batch not in known]
    made, nodes = _commit(layout, dataset, table, fresh, target_side, drop_known) if fresh else ([], None)
    if made is None:
        return None
    rows.extend_dictionary(layout.nodes(dataset), delta.opened(address) or table, nodes)
    ingests = {ingest.batch: ingest for ingest in made}
    return [ingests.get(source.batch) or _ingest_of(known[source.batch]) for source in sources]


def _commit(
    layout: Layout, dataset: str, table: Table, sources: list[_Source], target_side: int, drop_known: bool
) -> tuple[list[Ingest] | None, pl.DataFrame | None]:
    """Commit sources; returns their records and the new nodes, or (None, None) if another writer committed first."""
    known = rows.known_nodes(layout.nodes(dataset), table, table.version)
    _check_sides(dataset, known, target_side)
    sources = _without_known(table, sources) if drop_known else sources
    ingests = [_counted(source, table.version + 1, newest_in(table)) for source in sources]
    changed = [source for source, ingest in zip(sources, ingests, strict=True) if ingest.changed]
    if not changed:
        return ingests, None
    arrival = time.time_ns() // 1000
    records = [asdict(ingest) | _about(source.rows) for source, ingest in zip(sources, ingests, strict=True)]
    metadata = {
        "version": table.version + 1,
        "arrival": arrival,
        "sources": [each for each in records if each["changed"]],
    }
    same = {"ingest": table.version + 1, "target_side": target_side, "arrival": arrival}
    new_nodes: list[pl.DataFrame] = []
    blocks = _stored_blocks(changed, known, new_nodes, same)
    applications = [f"ingest:{dataset}:{source.batch}" for source in changed]
    added = data_files.store(table.address, blocks, STORED_COLUMNS, partition_by="accepted")
    committed = delta.commit_if_unchanged(table, added, applications, metadata)
    return (ingests, pl.concat(new_nodes)) if committed else (None, None)


def _ingest_of(source: dict[str, Any]) -> Ingest:
    counts = {name: int(source[name]) for name in COUNTS}
    return Ingest(version=int(source["version"]), changed=False, batch=source["batch"], **counts)


def _about(read: HeldRows | SpilledRows) -> dict[str, Any]:
    """Times and files of a source, for the record of its commit."""
    if not read.num_events:
        return {}
    first_time, last_time = read.time_range()
    return {"first_time": first_time, "last_time": last_time, "files": read.files}


def _without_known(table: Table, sources: list[_Source]) -> list[_Source]:
    """Leave out the events that the table or an earlier one of the sources has."""
    stored = data_files.scan(table, ACCEPTED)
    stored = stored if stored.collect_schema() else pl.LazyFrame(schema=STORED_COLUMNS)
    left: list[_Source] = []
    for source in sources:
        if table.version > 0 or left:
            source = replace(source, rows=source.rows.without(stored, [other.rows for other in left]))
        left.append(source)
    return left


def _counted(source: _Source, next_version: int, newest: int) -> Ingest:
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


def _stored_blocks(
    sources: list[_Source], known: pl.DataFrame, new_nodes: list[pl.DataFrame], same: Mapping[str, Any]
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
    sources: list[_Source], known: pl.DataFrame, new_nodes: list[pl.DataFrame], target_side: int
) -> Iterator[pl.DataFrame]:
    """Yield the events with the numbers of their nodes; those of a source continue those of the earlier ones."""
    known = known.select("node", "side", "id")
    for source in sources:
        events, nodes = source.rows.numbered(known, target_side)
        new_nodes.append(nodes)
        yield from events
        known = pl.concat([known, nodes.select(known.columns)], how="vertical_relaxed")


def _remove_leftovers(table: Table | None) -> None:
    """Remove the files of killed writers; the lock of the writers is held, which other machines do not know."""
    if table is None:
        return
    for address in delta.leftovers(table):
        files.remove_old(address) if files.is_remote(address) else files.remove(address)


def _check_sides(dataset: str, nodes: pl.DataFrame, target_side: int) -> None:
    if nodes.height and int(1 in nodes["side"]) != target_side:
        kinds = ("one id space", "two id spaces (bipartite)")
        raise ValueError(
            f"dataset {dataset!r} was ingested with {kinds[1 - target_side]}, but this source has "
            f"{kinds[target_side]}: read both in the same way, or ingest this source under another name"
        )
