"""New sources of an ingest -> one atomic commit to their log, and permanent numbers for their nodes.

The writers of one machine wait for each other. One that finds a commit of another machine starts again, because its
nodes may have other numbers then.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import dyformer
from dyformer import InvalidInput
from dyformer.logs.events import ReadResult
from storage.artifacts.artifact import Draft, Lineage, drafted, find_artifact
from storage.bytes import files
from storage.events import rows, versions
from storage.events.disk_rows import SpilledRows
from storage.events.rows import NODE_COLUMNS, QUARANTINE_COLUMNS, REJECTED_COLUMNS, STORED_COLUMNS, HeldRows
from storage.events.versions import COMMIT, COUNTS, HIDDEN_COMMIT, INTERACTIONS, NODES, QUARANTINE, Version
from storage.layout import Layout
from storage.locks import alone

NUM_FOLDERS = 4  # above the commits: the dataset, 2_events, the store, and the folder that has the store's name
NUM_FILES = 6  # of a commit
MOST_RETRIES = 100  # after another machine's writer committed first
GROUP_ROWS = 1 << 17  # rows that are encoded together
COMPRESSION = "zstd"
# A third of the bytes of the usual encodings, so that reading a file includes the time to verify its checksum.
IDS = frozenset({"source", "target", "id"})
OF_INTEGERS, OF_IDS = "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY"
ENGINE = f"dyformer {dyformer.__version__}"


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
class TakenBack:
    """A commit whose events and rejected rows no version has from `version` on."""

    version: int
    commit: int
    batches: tuple[str, ...]  # SHA-256 of the bytes of its sources
    files: tuple[str, ...]  # names
    num_accepted: int
    num_quarantined: int


@dataclass(frozen=True, kw_only=True)
class _Source:
    """A source that `append_all` commits."""

    batch: str
    rows: Any  # HeldRows or SpilledRows, the same for all sources of a call


def append_all(
    layout: Layout,
    dataset: str,
    results: "Mapping[str, ReadResult | SpilledRows]",
    *,
    bipartite: bool = False,
    drop_known: bool = False,
) -> list[Ingest]:
    """Commit the rows of sources in one commit, except those of which the table has a source of the same bytes.

    Args:
        layout: the store.
        dataset: name of the log.
        results: rows, accepted and rejected, with their counts, by the checksum of the source's bytes. Nodes are
            numbered source by source.
        bipartite: sources and targets are two id spaces; fixed by the first ingest of a log.
        drop_known: leave out events that another source already stored, and count them as dropped.

    Raises:
        ValueError: wrong columns, missing or infinite values, counts that do not add up, or no event.
        ValueError: every try met another writer's commit.
        TableDamaged: a file of the table is missing or was changed.
        WriteFailed: the disk is full or fails. A commit that was renamed before is there; a rerun adds nothing to it.
    """
    sources = [
        _Source(batch=batch, rows=result if isinstance(result, SpilledRows) else HeldRows.checked(dataset, result))
        for batch, result in results.items()
    ]
    with alone(layout, f"events-{dataset}"):
        for attempt in range(MOST_RETRIES + 1):
            ingests = _try_append(layout, dataset, sources, int(bipartite), drop_known)
            if ingests is not None:
                return ingests
            time.sleep(min(0.01 * (attempt + 1), 0.5))
    raise InvalidInput(
        f"dataset {dataset!r}: other writers committed first {MOST_RETRIES + 1} times; ingest it again later"
    )


def take_back(layout: Layout, dataset: str) -> TakenBack:
    """Commit that the newest commit with events counts no longer: its events and rejected rows leave the log.

    Versions before stay as they are. The new nodes of the commit keep their numbers, so that a number never means
    another node; they have no events until a file brings some. A source of the same bytes may be committed again.

    Raises:
        ValueError: no other commit has events.
        ValueError: another machine's writer committed first.
        TableDamaged: a file of the table is missing or was changed.
    """
    with alone(layout, f"events-{dataset}"):
        before = versions.newest(layout, dataset)
        numbers = sorted({source["version"] for source in before.sources})
        if len(numbers) < 2:
            raise InvalidInput(
                f"dataset {dataset!r} has {len(numbers) or 'no'} commit with events, and the last one left is not taken"
                f" back: `dyformer drop {dataset}` removes the dataset"
            )
        _sync(before.folder)
        taken, remaining = _without_commit(before, numbers[-1])
        same = {"ingest": before.number + 1, "target_side": 0, "arrival": time.time_ns() // 1000}

        def write(draft: Draft) -> list[dict[str, Any]]:
            return _written(draft, [], pl.DataFrame(schema=NODE_COLUMNS), same)

        if not _published(layout, dataset, remaining, [], write, {"takes_back": numbers[-1]}):
            raise InvalidInput(f"dataset {dataset!r}: another writer committed first; look at its rows, then try again")
    return TakenBack(
        version=before.number + 1,
        commit=numbers[-1],
        batches=tuple(source["batch"] for source in taken),
        files=tuple(name for source in taken for name in source["files"]),
        num_accepted=sum(source["num_accepted"] for source in taken),
        num_quarantined=sum(source["num_quarantined"] for source in taken),
    )


def _without_commit(before: Version, number: int) -> tuple[list[versions.Row], Version]:
    """Split off the sources of a commit; the version that is left has the nodes of all commits."""
    taken = [source for source in before.sources if source["version"] == number]
    remaining = replace(
        before,
        sources=tuple(source for source in before.sources if source["version"] != number),
        parts=tuple(part for part in before.parts if part["version"] != number or part["name"] == NODES),
    )
    return taken, remaining


def _try_append(
    layout: Layout, dataset: str, sources: list[_Source], target_side: int, drop_known: bool
) -> list[Ingest] | None:
    """Commit the sources that the log lacks; None if another machine's writer committed first."""
    before = versions.newest(layout, dataset)
    _sync(before.folder)
    _remove_leftovers(layout, before)
    source_of = {source["batch"]: source for source in before.sources}
    fresh = [source for source in sources if source.batch not in source_of]
    ingests = _commit(layout, dataset, before, fresh, target_side, drop_known) if fresh else []
    if ingests is None:
        return None
    ingest_of = {ingest.batch: ingest for ingest in ingests}
    return [ingest_of.get(source.batch) or _ingest_of(source_of[source.batch]) for source in sources]


def _commit(
    layout: Layout, dataset: str, before: Version, sources: list[_Source], target_side: int, drop_known: bool
) -> list[Ingest] | None:
    """Commit sources and return their records, None if another writer committed first."""
    nodes_before = pl.DataFrame(schema=NODE_COLUMNS)
    if before.number:
        nodes_before = before.rows(NODES, NODE_COLUMNS).sort("node").collect()
    _check_sides(dataset, nodes_before, target_side)
    sources = _without_known(before, sources) if drop_known else sources
    number = before.number + 1
    ingests = [_counted(source, number, before.number) for source in sources]
    changed = [source for source, ingest in zip(sources, ingests, strict=True) if ingest.changed]
    if not changed:
        return ingests
    same = {"ingest": number, "target_side": target_side, "arrival": time.time_ns() // 1000}
    listed = [
        asdict(ingest) | {"arrival": same["arrival"]} | _about(source.rows)
        for source, ingest in zip(sources, ingests, strict=True)
        if ingest.changed
    ]

    def write(draft: Draft) -> list[dict[str, Any]]:
        return _written(draft, changed, nodes_before, same)

    return ingests if _published(layout, dataset, before, listed, write) else None


def _published(
    layout: Layout,
    dataset: str,
    before: Version,
    listed: list[dict[str, Any]],
    write: Callable[[Draft], list[dict[str, Any]]],
    settings: Mapping[str, Any] | None = None,
) -> bool:
    """Write the commit that adds sources to a version; returns False if another writer's came first."""
    number = before.number + 1
    with drafted(layout.commit(dataset, number)) as draft:
        parts = write(draft)
        versions.write_lists(draft, before, listed, parts)
        lineage = Lineage(
            kind="events",
            dataset=dataset,
            table_version=number,
            settings=dict(settings or {}),
            code_version=ENGINE,
            max_event_time=max(source["last_time"] for source in (*before.sources, *listed)),
            inputs={layout.relative(layout.commit(dataset, before.number)): before.digest} if before.number else {},
        )
        return draft.published(lineage)


def _written(
    draft: Draft, sources: list[_Source], known: pl.DataFrame, same: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Write the rows and the new nodes of a commit, block by block, because all their texts may not fit in memory."""
    new_nodes: list[pl.DataFrame] = []
    rejected = (rows.in_log_order(source.rows.quarantine.select(QUARANTINE_COLUMNS.keys())) for source in sources)
    tables = {
        INTERACTIONS: (_numbered(sources, known, new_nodes, same["target_side"]), STORED_COLUMNS),
        QUARANTINE: ((block for frame in rejected for block in frame.iter_slices(rows.BLOCK_ROWS)), REJECTED_COLUMNS),
        NODES: ((nodes for nodes in new_nodes), NODE_COLUMNS),  # read once the rows before are written
    }
    parts = []
    for name, (blocks, columns) in tables.items():
        num_rows = write_rows(draft, name, _stored_blocks(blocks, columns, same), columns)
        parts.append(versions.part_of(draft, same["ingest"], name, num_rows))
    return parts


def write_rows(draft: Draft, name: str, blocks: Iterable[pl.DataFrame], columns: Mapping[str, Any]) -> int:
    """Write blocks of rows as a table of a commit; returns the number of rows. Memory holds some blocks of them."""
    path = draft.path(f"{name}.parquet")
    encodings = {name: OF_INTEGERS for name, dtype in columns.items() if dtype == pl.Int64}
    encodings |= {name: OF_IDS for name in columns if name in IDS}
    num_rows = 0
    with files.named_write(Path(draft.address, path.name)), path.open("wb") as stream:
        writer = pq.ParquetWriter(
            stream,
            _arrow(pl.DataFrame(schema=columns)).schema,
            compression=COMPRESSION,
            use_dictionary=[name for name in columns if name not in encodings],  # pyright: ignore[reportArgumentType]
            column_encoding=encodings,
        )
        for rows in _groups(blocks):
            writer.write_table(_arrow(rows.select(columns.keys())))
            num_rows += rows.height
        writer.close()
    return num_rows


def _stored_blocks(
    blocks: Iterable[pl.DataFrame], columns: Mapping[str, Any], same: Mapping[str, Any]
) -> Iterator[pl.DataFrame]:
    """Give blocks the columns of their table: their place in the commit, and the values that are the same in it."""
    first = 0
    for block in blocks:
        row_B = pl.int_range(first, first + block.height, dtype=pl.Int64)
        block = block.with_columns(row=row_B, **{name: pl.lit(value) for name, value in same.items()})
        yield block.select(pl.col(name).cast(dtype) for name, dtype in columns.items())
        first += block.height


def _ingest_of(source: Mapping[str, Any]) -> Ingest:
    counts = {name: int(source[name]) for name in COUNTS}
    return Ingest(version=int(source["version"]), changed=False, batch=source["batch"], **counts)


def _about(read: HeldRows | SpilledRows) -> dict[str, Any]:
    """Times and files of a source, for the record of its commit."""
    first_time, last_time = read.time_range()
    return {"first_time": first_time, "last_time": last_time, "files": read.files}


def _without_known(before: Version, sources: list[_Source]) -> list[_Source]:
    """Leave out the events that the log or an earlier one of the sources has."""
    stored = before.rows(INTERACTIONS, STORED_COLUMNS)
    left: list[_Source] = []
    for source in sources:
        if before.number > 0 or left:
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


def _numbered(
    sources: list[_Source], nodes_before: pl.DataFrame, new_nodes: list[pl.DataFrame], target_side: int
) -> Iterator[pl.DataFrame]:
    """Yield the events with the numbers of their nodes; those of a source continue those of the earlier ones."""
    stored = nodes_before.select("node", "side", "id")
    for source in sources:
        events, nodes = source.rows.numbered(stored, target_side)
        new_nodes.append(nodes)
        yield from events
        stored = pl.concat([stored, nodes.select(stored.columns)], how="vertical_relaxed")


def _sync(folder: str) -> None:
    """Wait until the disk has all that a new commit stands on: earlier commits, and the folders up to the store's own.

    The process that made them may have been killed before it waited.
    """
    if not files.is_remote(folder):
        path = Path(folder)
        with files.named_write(path):
            for above in (path, *list(path.parents)[: NUM_FOLDERS - 1]):
                if above.exists():
                    files.sync_folder(above)


def _remove_leftovers(layout: Layout, before: Version) -> None:
    """Remove the files of killed writers: at once where all writers take the lock that is held, else after a day."""
    remove = files.remove_folder if layout.state == layout.root else files.remove_old
    if layout.is_local:
        for name in files.children(before.folder):
            if HIDDEN_COMMIT.fullmatch(name):
                remove(f"{before.folder}/{name}")
        return
    commits: dict[str, list[str]] = {}
    for location in files.find(before.folder):
        commits.setdefault(location.rpartition("/")[0], []).append(location)
    for address, locations in commits.items():
        if COMMIT.fullmatch(address.rpartition("/")[2]) and len(locations) != NUM_FILES:
            for location in set(locations) - _listed(address):
                files.remove_old(location)


def _listed(address: str) -> set[str]:
    """Addresses of the files of a commit; none of one that no writer has completed."""
    commit = find_artifact(address)
    return set() if commit is None else commit.locations


def _groups(blocks: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Join small blocks."""
    waiting: list[pl.DataFrame] = []
    for block in blocks:
        if waiting and sum(frame.height for frame in waiting) >= GROUP_ROWS:
            yield pl.concat(waiting)
            waiting = []
        waiting.append(block)
    if waiting:
        yield pl.concat(waiting)


def _arrow(rows: pl.DataFrame) -> pa.Table:
    return rows.to_arrow(compat_level=pl.CompatLevel.oldest())


def _check_sides(dataset: str, nodes: pl.DataFrame, target_side: int) -> None:
    if nodes.height and int(1 in nodes["side"]) != target_side:
        kinds = ("one id space", "two id spaces (bipartite)")
        raise InvalidInput(
            f"dataset {dataset!r} was ingested with {kinds[1 - target_side]}, but this source has "
            f"{kinds[target_side]}: read both in the same way, or ingest this source under another name"
        )
