"""The transactional event table, read: events, rejected rows, nodes and sources of each of its versions.

One Delta table holds the accepted and the quarantined rows (partition column `accepted`), so that both appear in one
commit. A row carries the version of its commit (`ingest`), hence every version can be read from the newest table.
"""

from typing import Any

import polars as pl

from storage import files
from storage.checksums import Damaged
from storage.events import data_files, delta, rows
from storage.events.delta import Table
from storage.events.delta_log import LOG, REMEDY, TableDamaged, commit_name
from storage.events.rows import ACCEPTED, QUARANTINE_COLUMNS, QUARANTINED, STORED_COLUMNS
from storage.layout import Layout

COUNTS = ("num_read", "num_accepted", "num_quarantined", "num_dropped", "num_duplicates")


class DatasetNotIngested(ValueError):
    """The store does not hold a log, or a version of it."""


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
    return newest_in(_opened(layout, dataset))


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

    They have the columns of `history`, and `files` (names) unless an earlier version committed them.
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
    # What is made of a commit comes first, because a writer makes it last.
    used = newest_used(layout, dataset)
    covered = rows.covered(delta.opened(layout.nodes(dataset)))
    table = delta.opened(layout.interactions(dataset))
    version = table.version if table else 0
    if version < max(covered, used):
        lost = f"{layout.interactions(dataset)}/{LOG}/{commit_name(version + 1 if table else 0)}"
        witness = "the node dictionary has its nodes" if version < covered else f"snapshots of version {used} exist"
        raise TableDamaged(lost, f"is missing, though {witness}", REMEDY)
    return table


def newest_used(layout: Layout, dataset: str) -> int:
    """Newest version of which snapshots were made; 0 without snapshots."""
    folder = layout.artifacts("snapshots", dataset)
    versions = [name.removeprefix("version=") for name in files.children(folder) if name.startswith("version=")]
    found = sorted((int(version) for version in versions if version.isdecimal()), reverse=True)
    # S3 may list empty folders, and a killed writer leaves one.
    return next((version for version in found if files.find(f"{folder}/version={version}")), 0)


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


def newest_in(table: Table) -> int:
    """Version of the last commit that added events; 0 for an empty table."""
    # Not table.version, because compaction and other maintenance make versions without events.
    return max((int(source["version"]) for source in sources_of(table)), default=0)


def _checked_version(table: Table, dataset: str, version: int | None) -> int:
    newest = newest_in(table)
    if version is None:
        return newest
    if not 1 <= version <= newest:
        raise DatasetNotIngested(f"dataset {dataset!r} has the table versions 1 to {newest}, not {version}")
    return version


def _scan(layout: Layout, dataset: str, version: int | None, partition: str) -> pl.LazyFrame:
    table = _opened(layout, dataset)
    wanted = _checked_version(table, dataset, version)
    stored = data_files.scan(table, partition)
    if not stored.collect_schema():
        stored = pl.LazyFrame(schema={name: dtype for name, dtype in STORED_COLUMNS.items() if name != "accepted"})
    return stored.filter(pl.col("ingest") <= wanted)
