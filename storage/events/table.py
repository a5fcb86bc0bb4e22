"""The transactional event table: one atomic commit for the new sources of an ingest, and permanent node numbers.

One Delta table holds the accepted and the quarantined rows (partition column `accepted`), so that both appear in one
commit. A row carries the version of its commit (`ingest`), hence every version can be read from the newest table. The
writers of one machine wait for each other; one that finds a commit of another machine starts again.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import polars as pl

from dyformer.logs.events import ReadResult
from storage import files
from storage.checksums import Damaged
from storage.events import delta, rows
from storage.events.delta import Table
from storage.events.delta_log import LOG, REMEDY, TableDamaged, commit_name
from storage.events.disk_rows import SpilledRows
from storage.events.rows import ACCEPTED, QUARANTINE_COLUMNS, QUARANTINED, STORED_COLUMNS, HeldRows
from storage.events.sources import COUNTS, Ingest, Source, about, counted, stored_blocks, without_known
from storage.layout import Layout
from storage.locks import alone

LEFTOVER_SECONDS = 24 * 3600  # in an object store, where writers of other machines may be at work


class DatasetNotIngested(ValueError):
    """The store does not hold a log, or a version of it."""


class TableBusy(ValueError):
    """Other writers committed first on every try."""


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
        Source(batch=batch, rows=result if isinstance(result, SpilledRows) else HeldRows.checked(dataset, result))
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
    """One row for each source: version, batch, arrival, five counts, first_time and last_time of its events."""
    columns = ("version", "batch", "arrival", *COUNTS, "first_time", "last_time")
    found = [{name: source[name] for name in columns} for source in sources_of(_opened(layout, dataset))]
    return pl.DataFrame(found).with_columns(pl.exclude("batch").cast(pl.Int64)).sort("version", maintain_order=True)


def sources_of(table: Table) -> list[dict[str, Any]]:
    """Records of the sources that a table has, in the order of their commits.

    They have the columns of `history`, and `files` (names) unless a version up to 0.2.0 committed them.
    """
    found = []
    for info in table.infos:
        same = {key: info[key] for key in ("version", "arrival") if key in info}
        found += [{**source, **same} for source in info.get("sources", [info] if "num_read" in info else [])]
    return found


def ingested_datasets(layout: Layout) -> list[str]:
    """Names of the logs that have events, damaged ones among them."""
    return [name for name in layout.dataset_names(files.children(layout.datasets)) if _has_events(layout, name)]


def table_of(layout: Layout, dataset: str) -> Table | None:
    """Open the event table of a dataset, None where there is none; raises TableDamaged."""
    # The dictionary comes first, because a writer commits to it last.
    covered = rows.covered(delta.opened(layout.nodes(dataset)))
    table = delta.opened(layout.interactions(dataset))
    if covered and (table is None or table.version < covered):
        lost = f"{layout.interactions(dataset)}/{LOG}/{commit_name(table.version + 1 if table else 0)}"
        raise TableDamaged(f"{lost} is missing, though the node dictionary has its nodes: {REMEDY}")
    return table


def _try_append(
    layout: Layout, dataset: str, sources: list[Source], target_side: int, drop_known: bool
) -> list[Ingest] | None:
    """Commit the sources that the table lacks; None if another machine's writer committed first."""
    table_of(layout, dataset)
    address = layout.interactions(dataset)
    table = delta.opened_or_created(address, STORED_COLUMNS, partition_by="accepted")
    delta.sync(table)
    _remove_leftovers(table)
    known = {source["batch"]: source for source in sources_of(table)}
    fresh = [source for source in sources if source.batch not in known]
    made, nodes = _commit(layout, dataset, table, fresh, target_side, drop_known) if fresh else ([], None)
    if made is None:
        return None
    rows.extend_dictionary(layout.nodes(dataset), delta.opened(address) or table, nodes)
    ingests = {ingest.batch: ingest for ingest in made}
    return [ingests.get(source.batch) or _ingest_of(known[source.batch]) for source in sources]


def _commit(
    layout: Layout, dataset: str, table: Table, sources: list[Source], target_side: int, drop_known: bool
) -> tuple[list[Ingest] | None, pl.DataFrame | None]:
    """Commit sources; returns their records and the new nodes, or (None, None) if another writer committed first."""
    known = rows.known_nodes(layout.nodes(dataset), table, table.version)
    _check_sides(dataset, known, target_side)
    sources = without_known(table, sources) if drop_known else sources
    ingests = [counted(source, table.version + 1, _newest(table)) for source in sources]
    changed = [source for source, ingest in zip(sources, ingests, strict=True) if ingest.changed]
    if not changed:
        return ingests, None
    arrival = time.time_ns() // 1000
    records = [asdict(ingest) | about(source.rows) for source, ingest in zip(sources, ingests, strict=True)]
    metadata = {
        "version": table.version + 1,
        "arrival": arrival,
        "sources": [each for each in records if each["changed"]],
    }
    same = {"ingest": table.version + 1, "target_side": target_side, "arrival": arrival}
    new_nodes: list[pl.DataFrame] = []
    blocks = stored_blocks(changed, known, new_nodes, same)
    applications = [f"ingest:{dataset}:{source.batch}" for source in changed]
    if delta.commit_if_unchanged(table, blocks, STORED_COLUMNS, applications, metadata, partition_by="accepted"):
        return ingests, pl.concat(new_nodes)
    return None, None


def _ingest_of(source: dict[str, Any]) -> Ingest:
    counts = {name: int(source[name]) for name in COUNTS}
    return Ingest(version=int(source["version"]), changed=False, batch=source["batch"], **counts)


def _opened(layout: Layout, dataset: str) -> Table:
    table = table_of(layout, dataset)
    if table is None or not table.version:
        ingested = ", ".join(ingested_datasets(layout)) or "none"
        raise DatasetNotIngested(
            f"no events of {dataset!r} in {layout.root}: run `dyformer ingest {dataset}` first (ingested: {ingested})"
        )
    return table


def _has_events(layout: Layout, dataset: str) -> bool:
    try:
        table = table_of(layout, dataset)
    except Damaged:
        return True
    return table is not None and table.version > 0


def _newest(table: Table) -> int:
    # Not table.version, because compaction and other maintenance make versions without events.
    return max((int(source["version"]) for source in sources_of(table)), default=0)


def _checked_version(table: Table, dataset: str, version: int | None) -> int:
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


def _remove_leftovers(table: Table) -> None:
    """Remove the files of killed writers; the lock of the writers is held, which other machines do not know."""
    oldest = time.time() - LEFTOVER_SECONDS if files.is_remote(table.address) else float("inf")
    for address in delta.leftovers(table):
        if files.modified(address) < oldest:
            files.remove(address)


def _check_sides(dataset: str, nodes: pl.DataFrame, target_side: int) -> None:
    if nodes.height and int(1 in nodes["side"]) != target_side:
        kinds = ("one id space", "two id spaces (bipartite)")
        raise ValueError(
            f"dataset {dataset!r} was ingested with {kinds[1 - target_side]}, but this source has "
            f"{kinds[target_side]}: read both in the same way, or ingest this source under another name"
        )
