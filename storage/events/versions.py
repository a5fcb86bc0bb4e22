"""Commits of a log, each an immutable artifact -> a version: its sources, its files and their rows.

A commit has the tables `interactions`, `quarantine` and `nodes` of its own rows, which any program reads as
`commit=*/interactions*.parquet`. Beside these it has `sources` and `parts`, which list what the whole version has, so
that a version is opened by one listing and one manifest, however many commits came before.

The first commit makes version 1, and version N is that of the N-th commit.
"""

import functools
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from storage.artifacts.artifact import MANIFEST, Artifact, ArtifactDamaged, Draft, find_artifact
from storage.bytes import checksums, files
from storage.bytes.checksums import CHANGED, Damaged, is_below, link_in, no_folder_at, sha256
from storage.layout import Layout

Row = Mapping[str, Any]
COMMIT = re.compile(r"commit=([1-9]\d*)")
HIDDEN_COMMIT = re.compile(r"\.commit=\d+\.[0-9a-f]{32}")  # of a writer that is at work, or was killed
EARLIER = ("interactions", "nodes")  # folders of the event tables of earlier versions of this program
REMEDY = "`dyformer verify` says what can be done"
INTERACTIONS, QUARANTINE, NODES = "interactions", "quarantine", "nodes"
SOURCES, PARTS = "sources", "parts"
COUNTS = ("num_read", "num_accepted", "num_quarantined", "num_dropped", "num_duplicates")
SOURCE_COLUMNS = {
    "version": pl.Int64,  # whose commit brought the source
    "batch": pl.String,  # SHA-256 of the source's bytes
    "arrival": pl.Int64,  # time of the ingest, microseconds since the epoch
    **dict.fromkeys(COUNTS, pl.Int64),
    "first_time": pl.Int64,  # of its events
    "last_time": pl.Int64,
    "files": pl.List(pl.String),  # names
}
PART_COLUMNS = {
    "version": pl.Int64,  # whose commit has the file
    "name": pl.String,  # of the table
    "path": pl.String,  # below the commit's folder
    "bytes": pl.Int64,
    "sha256": pl.String,
    "num_rows": pl.Int64,
}
COUNTED = pl.col("^(version|bytes|num_.*)$")


class TableDamaged(Damaged):
    """A file of a log's commits is missing, or differs from the one that was written."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """A log after a commit; number 0 is a log without commits."""

    folder: str
    number: int
    digest: str  # of the commit
    sources: tuple[Row, ...]  # all that it has, with SOURCE_COLUMNS
    parts: tuple[Row, ...]  # all files of rows, with PART_COLUMNS
    cache: str | None = None  # folder of this machine for copies of these files

    def rows(self, name: str, schema: Mapping[str, Any]) -> pl.LazyFrame:
        """Rows of one of its tables, after a check of the files."""
        parts = [part for part in self.parts if part["name"] == name and part["num_rows"]]
        if not parts:
            return pl.LazyFrame(schema=schema)
        located = {self.location(part): part for part in parts}
        paths = files.read_each(lambda location: _readable(location, located[location], self.cache), located)
        return pl.scan_parquet(paths, schema=dict(schema), hive_partitioning=False, glob=False)

    def location(self, part: Row) -> str:
        """Address of a file of rows."""
        return f"{self.folder}/commit={part['version']}/{part['path']}"


def newest(layout: Layout, dataset: str) -> Version:
    """Open the newest version of a log; raises TableDamaged, also for a log of an earlier version of this program."""
    used = newest_used(layout, dataset)  # first, because it is made after the commit
    folder = layout.commits(dataset)
    numbers = commit_numbers(layout, dataset)
    for number in reversed(numbers):
        version = find(layout, dataset, number)
        if version is not None:
            break
        if not files.is_remote(folder):  # there it is of a writer that is at work, or was killed
            raise TableDamaged(f"{folder}/commit={number}/{MANIFEST}", "is missing", REMEDY)
    else:
        version = without_commits(folder)
    missing = sorted(set(range(1, version.number)) - set(numbers))
    if missing:
        raise TableDamaged(f"{folder}/commit={missing[0]}", "is missing, though later commits exist", REMEDY)
    if version.number < used:
        lost = f"{folder}/commit={version.number + 1}"
        raise TableDamaged(lost, f"is missing, though snapshots of version {used} exist", REMEDY)
    return version


def opened(layout: Layout, dataset: str, number: int) -> Version:
    """Open a version that a log has; raises TableDamaged."""
    version = find(layout, dataset, number)
    if version is None:
        raise TableDamaged(f"{layout.commit(dataset, number)}/{MANIFEST}", "is missing", REMEDY)
    return version


def without_commits(folder: str) -> Version:
    """Give the version before the first commit."""
    return Version(folder=folder, number=0, digest="", sources=(), parts=())


def commit_numbers(layout: Layout, dataset: str) -> list[int]:
    """Numbers of the folders of commits, in their order; raises TableDamaged for a log of an earlier version."""
    folder = layout.commits(dataset)
    names = files.children(folder)
    if (problem := no_folder_at(folder)) is not None:
        raise TableDamaged(folder, problem, REMEDY)
    earlier = [name for name in EARLIER if name in names and files.find(f"{folder}/{name}")]  # S3 lists empty folders
    if earlier:
        raise TableDamaged(
            f"{folder}/{earlier[0]}",
            "is an event table of an earlier version of dyformer, which this one does not read",
            f"make it anew with `dyformer drop {dataset} --yes && dyformer ingest {dataset} --log FILES`, and the"
            " options of before",
        )
    return sorted(int(match[1]) for match in map(COMMIT.fullmatch, names) if match)


def has_commits(layout: Layout, dataset: str) -> bool:
    """Whether a log has commits, damaged ones among them."""
    numbers = commit_numbers(layout, dataset)
    if layout.is_local:
        return bool(numbers)
    return any(files.size(f"{layout.commit(dataset, number)}/{MANIFEST}") is not None for number in reversed(numbers))


def newest_used(layout: Layout, dataset: str) -> int:
    """Newest version of which snapshots were made; 0 without snapshots."""
    folder = layout.artifacts("snapshots", dataset)
    versions = [name.removeprefix("version=") for name in files.children(folder) if name.startswith("version=")]
    numbers = sorted((int(version) for version in versions if version.isdecimal()), reverse=True)
    # S3 may list empty folders, and a killed writer leaves one.
    return next((version for version in numbers if files.find(f"{folder}/version={version}")), 0)


def part_of(draft: Draft, version: int, name: str, num_rows: int) -> dict[str, Any]:
    """Complete a table of a commit that was written; returns its row among the parts."""
    return {"version": version, "name": name, **draft.add(f"{name}.parquet"), "num_rows": num_rows}


def write_lists(draft: Draft, before: Version, sources: list[dict[str, Any]], parts: list[dict[str, Any]]) -> None:
    """Write what the version of a commit has: that of the version before, and what the commit adds."""
    tables = {
        SOURCES: pl.DataFrame([*before.sources, *sources], schema=SOURCE_COLUMNS),
        PARTS: pl.DataFrame([*before.parts, *parts], schema=PART_COLUMNS),
    }
    for name, table in tables.items():
        with files.named_write(Path(draft.address, f"{name}.parquet")):
            buffer = io.BytesIO()
            table.write_parquet(buffer)
            draft.path(f"{name}.parquet").write_bytes(buffer.getvalue())
        draft.add(f"{name}.parquet")


def _readable(location: str, part: Mapping[str, Any], cache: str | None) -> str:
    path, problem = checksums.readable(location, part["bytes"], part["sha256"], cache)
    if problem is not None:
        raise TableDamaged(location, problem, REMEDY)
    return path


def find(layout: Layout, dataset: str, number: int) -> Version | None:
    """Open the version of a commit, None where it has no manifest."""
    address = layout.commit(dataset, number)
    if (problem := no_folder_at(address)) is not None:
        raise TableDamaged(address, problem, REMEDY)
    try:
        commit = find_artifact(address)
    except ArtifactDamaged as error:
        raise TableDamaged(error.address, error.problem, REMEDY) from error
    if commit is None:
        return None
    if (recorded := commit.lineage.table_version) != number:
        raise TableDamaged(f"{address}/{MANIFEST}", f"is that of commit {recorded}", REMEDY)
    sources = _list_of(commit, SOURCES, SOURCE_COLUMNS)
    parts = _list_of(commit, PARTS, PART_COLUMNS)
    return Version(
        folder=layout.commits(dataset),
        number=number,
        digest=commit.digest,
        sources=sources,
        parts=parts,
        cache=layout.copies(dataset),
    )


def _list_of(commit: Artifact, name: str, schema: Mapping[str, Any]) -> tuple[Row, ...]:
    entry = commit.entries.get(f"{name}.parquet")
    if entry is None:
        raise TableDamaged(f"{commit.address}/{MANIFEST}", f"lists no {name}", REMEDY)
    location = f"{commit.address}/{entry['path']}"
    # The content of an object with a checksum in the manifest is read once in a process; a local file may be damaged.
    stamp = None if files.is_remote(location) else _stamp(location)
    rows = _checked_list(location, entry["sha256"], stamp, tuple(schema.items()))
    if rows is None or (name == PARTS and any("/" in row["path"] or not is_below(row["path"]) for row in rows)):
        raise TableDamaged(location, "is wrong in kind", REMEDY)
    return rows


def _stamp(location: str) -> files.Stamp:
    if (problem := link_in(location)) is not None:
        raise TableDamaged(location, problem, REMEDY)
    try:
        return files.stamp(location)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise TableDamaged(location, "is missing", REMEDY) from error


@functools.lru_cache(maxsize=64)
def _checked_list(
    location: str, checksum: str, stamp: files.Stamp | None, schema: tuple[tuple[str, Any], ...]
) -> tuple[Row, ...] | None:
    """Read the rows of a list, None for a table of another schema or with missing or negative values."""
    try:
        content = files.read_bytes(location)
    except FileNotFoundError as error:
        raise TableDamaged(location, "is missing", REMEDY) from error
    except files.ReadFailed as error:
        raise TableDamaged(location, error.problem, REMEDY) from error
    if sha256(content) != checksum:
        raise TableDamaged(location, CHANGED, REMEDY)
    try:
        table = pl.read_parquet(io.BytesIO(content))
    except pl.exceptions.PolarsError as error:
        raise TableDamaged(location, "is no table", REMEDY) from error
    if (
        table.schema != dict(schema)
        or any(table.null_count().row(0))
        or not all(table.select(COUNTED.ge(0).all()).row(0))
    ):
        return None
    return tuple(table.to_dicts())
