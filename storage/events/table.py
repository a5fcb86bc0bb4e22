"""The events of a log, read: accepted and rejected rows, nodes and sources of each of its versions.

A row carries the version of its commit (`ingest`), and its place among the rows of that commit (`row`).
"""

from collections.abc import Sequence

import polars as pl

from dyformer import InvalidInput
from storage.bytes import files
from storage.bytes.checksums import Damaged
from storage.events import versions
from storage.events.rows import NODE_COLUMNS, REJECTED_COLUMNS, STORED_COLUMNS
from storage.events.versions import COUNTS, INTERACTIONS, NODES, QUARANTINE, Version
from storage.layout import Layout


class DatasetNotIngested(InvalidInput):
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
    return _opened(layout, dataset, version).rows(INTERACTIONS, STORED_COLUMNS)


def scan_quarantine(layout: Layout, dataset: str, version: int | None = None) -> pl.LazyFrame:
    """Rejected rows of a version: ingest, row, file, line, reason, raw, arrival."""
    return _opened(layout, dataset, version).rows(QUARANTINE, REJECTED_COLUMNS)


def node_dictionary(layout: Layout, dataset: str, version: int | None = None) -> pl.DataFrame:
    """The permanent dictionary of a version: node (0, 1, ... by first appearance), side, id."""
    nodes = _opened(layout, dataset, version).rows(NODES, NODE_COLUMNS)
    return nodes.sort("node").select("node", "side", "id").collect()


def newest_version(layout: Layout, dataset: str) -> int:
    """Number of the newest commit."""
    return _opened(layout, dataset).number


def history(layout: Layout, dataset: str, version: int | None = None) -> pl.DataFrame:
    """One row for each source of a version (the newest by default), not of commits that were taken back.

    Columns: version of its commit, batch, arrival, five counts, first_time and last_time of its events.
    """
    columns = ("version", "batch", "arrival", *COUNTS, "first_time", "last_time")
    sources = pl.DataFrame(_opened(layout, dataset, version).sources, schema=versions.SOURCE_COLUMNS)
    return sources.select(columns)


def taken_back(layout: Layout, dataset: str, numbers: Sequence[int]) -> list[int]:
    """List the versions of these that have a source which the newest one lacks, because its commit was taken back."""
    if not numbers:
        return []
    sources = set(history(layout, dataset)["version"])
    # Only a commit that was taken back, or that took one back, is without sources; versions outside of them are whole.
    without = set(range(1, max(numbers) + 1)) - sources
    between = [number for number in numbers if without and min(without) <= number <= max(without)]
    return [number for number in between if not set(history(layout, dataset, number)["version"]) <= sources]


def first_arrival(layout: Layout, dataset: str) -> int:
    """Return the time of the first commit, by which a dataset differs from a dropped one; 0 if all are taken back."""
    arrivals = history(layout, dataset)["arrival"]
    return int(arrivals[0]) if len(arrivals) else 0


def ingested_datasets(layout: Layout) -> list[str]:
    """Names of the logs that have events, damaged ones among them."""
    return [name for name in layout.dataset_names(files.children(layout.datasets)) if has_events(layout, name)]


def has_events(layout: Layout, dataset: str) -> bool:
    """Whether a log has events, damaged ones among them."""
    try:
        return versions.newest(layout, dataset).number > 0
    except Damaged:
        return True


def _opened(layout: Layout, dataset: str, number: int | None = None) -> Version:
    """Open a version, the newest one by default; raises DatasetNotIngested and TableDamaged.

    A commit never changes, so that no other one is opened for a version that the log has.
    """
    if number is not None and number > 0 and (version := versions.find(layout, dataset, number)) is not None:
        return version
    newest = versions.newest(layout, dataset)
    if not newest.number:
        ingested = ", ".join(ingested_datasets(layout)) or "none"
        raise DatasetNotIngested(
            f"no events of {dataset!r} in {layout.root}: run `dyformer ingest {dataset}` first (ingested: {ingested})"
        )
    if number in (None, newest.number):
        return newest
    if not 1 <= number <= newest.number:
        raise DatasetNotIngested(f"dataset {dataset!r} has the table versions 1 to {newest.number}, not {number}")
    return versions.opened(layout, dataset, number)


def check_dataset(layout: Layout, dataset: str) -> None:
    """Raise DatasetNotIngested, with the names of the stored datasets, if the dataset is not in the store."""
    names = layout.dataset_names(files.children(layout.datasets))
    # S3 may list empty folders.
    names = [name for name in names if files.find(layout.of_dataset(layout.datasets, name))]
    if dataset not in names:
        raise DatasetNotIngested(f"no dataset {dataset!r} in {layout.root}; it has: {', '.join(names) or 'none'}")
