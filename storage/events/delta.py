"""Delta tables: a log of checked commits, read in order; a commit counts once every byte of it is on the disk.

The files are those of the Delta protocol, so that other programs can read them. They are not written by the Delta
library, because it never syncs them and cannot verify them. A commit holds the checksums of its data files and of
itself. Commits without a checksum are those of other programs and of earlier versions.
"""

import functools
import json
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import polars as pl

from storage import copies, disk, files
from storage.checksums import fault_of, link_in, no_folder_at
from storage.disk import TEMPORARY, named_write, sync_folder
from storage.events.delta_log import (
    COMMIT_NAME,
    LOG,
    REMEDY,
    Action,
    TableDamaged,
    actions_in,
    commit_name,
    content_of,
)
from storage.kinds import is_below

DELTA_TYPES: dict[Any, str] = {
    pl.Boolean: "boolean",
    pl.Int8: "byte",
    pl.Int64: "long",
    pl.Float64: "double",
    pl.String: "string",
}
OUTSIDE = "leads out of the table's folder, and the store does not follow it"
NUM_FOLDERS = 5  # above a log: table, dataset, 2_events, the store, and the folder that has the store's name
# A training is pinned to a version permanently, so rows are never deleted and the history is never cleaned up.
CONFIGURATION = {"delta.appendOnly": "true", "delta.logRetentionDuration": "interval 36500 days"}


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """A file of rows; the checksum is None if the program that committed it recorded none."""

    path: str
    num_bytes: int
    checksum: str | None


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table after its newest commit."""

    address: str
    commits: tuple[tuple[Action, ...], ...]

    @property
    def version(self) -> int:
        """Number of the newest commit, from 0."""
        return len(self.commits) - 1

    @property
    def data_files(self) -> list[DataFile]:
        """Files whose rows the table has, in the order of their commits."""
        found: dict[str, DataFile] = {}
        for action in (action for commit in self.commits for action in commit):
            if action.get("add"):  # some programs write null for no value
                add = action["add"]
                path, checksum = unquote(add["path"]), (add.get("tags") or {}).get("sha256")
                found[path] = DataFile(path=path, num_bytes=add["size"], checksum=checksum)
            elif action.get("remove"):
                found.pop(unquote(action["remove"]["path"]), None)
        return list(found.values())

    @property
    def infos(self) -> list[dict[str, Any]]:
        """Metadata of each commit."""
        return [
            next((action["commitInfo"] for action in commit if action.get("commitInfo")), {}) for commit in self.commits
        ]

    def transaction_version(self, application: str) -> int | None:
        """Newest version that was recorded for the application, None without one."""
        found = [action["txn"] for commit in self.commits for action in commit if action.get("txn")]
        return max((txn["version"] for txn in found if txn["appId"] == application), default=None)


def opened(address: str) -> Table | None:
    """Newest version of a table, None when there is no table; raises TableDamaged."""
    log = f"{address}/{LOG}"
    stamps = _stamps(address)
    for folder in (address, log):
        if (problem := no_folder_at(folder)) is not None:
            raise TableDamaged(folder, problem, REMEDY)
    if not stamps:
        if files.find(address, "*.parquet"):  # a writer stores no data before the first commit
            raise TableDamaged(f"{log}/{commit_name(0)}", "is missing, though the table has data files", REMEDY)
        return None
    missing = sorted({commit_name(version) for version in range(len(stamps))} - stamps.keys())
    if missing:
        raise TableDamaged(f"{log}/{missing[0]}", "is missing, though later commits exist", REMEDY)
    located = {f"{log}/{name}": stamp for name, stamp in stamps.items()}
    # A request for each commit that was not read before.
    return Table(address=address, commits=tuple(files.read_each(lambda file: _actions(file, located[file]), located)))


def opened_or_created(address: str, columns: Mapping[str, Any], partition_by: str | None = None) -> Table:
    """Newest version of a table; if there is none, an empty one (version 0) is created."""
    table = opened(address)
    if table is None:
        metadata = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": json.dumps({"type": "struct", "fields": [_field(*column) for column in columns.items()]}),
            "partitionColumns": [partition_by] if partition_by else [],
            "configuration": CONFIGURATION,
            "createdTime": _now(),
        }
        protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
        _committed(address, 0, content_of("CREATE TABLE", {}, [{"protocol": protocol}, {"metaData": metadata}], _now()))
        table = opened(address)  # another writer may have made it
    assert table is not None
    return table


def commit_if_unchanged(
    table: Table,
    added: list[dict[str, Any]],
    applications: Iterable[str],
    metadata: Mapping[str, Any],
    *,
    version: int | None = None,
) -> bool:
    """Commit stored files, which other processes see at once and completely; False if another commit came first.

    Args:
        table: the version that the rows were made for.
        added: the protocol's action `add` of each file, from `data_files.store`.
        applications: names whose transaction gets a version.
        metadata: values stored with the commit.
        version: version of the transactions; by default that of the commit.

    Raises:
        disk.WriteFailed: the disk is full, or fails. The files stay, because the commit may be visible then, though
            not on the disk yet.
    """
    new = table.version + 1
    transactions = [{"txn": {"appId": name, "version": version or new}} for name in applications]
    actions = [*({"add": add} for add in added), *transactions]
    committed = _committed(table.address, new, content_of("WRITE", metadata, actions, _now()))
    if not committed:
        remove_added(table.address, added)
    return committed


def sync(table: Table) -> None:
    """Wait until the disk has all that a new commit stands on: earlier commits, and the folders up to the store's own.

    The process that made them may have been killed before it waited.
    """
    if not files.is_remote(table.address):
        log = Path(table.address, LOG)
        with named_write(log):
            for folder in (log, *list(log.parents)[:NUM_FOLDERS]):
                sync_folder(folder)


def readable(table: Table, file: DataFile) -> tuple[str, str | None]:
    """Path from which a data file of a table is read, and what is wrong with the file; None for a sound one."""
    location = f"{table.address}/{file.path}"
    if not is_below(file.path):
        return location, OUTSIDE
    return copies.readable(location, file.num_bytes, file.checksum)


def _data_fault(table: Table, file: DataFile) -> str | None:
    location = f"{table.address}/{file.path}"
    return fault_of(location, file.num_bytes, file.checksum) if is_below(file.path) else OUTSIDE


def faults(address: str) -> list[tuple[str, str]]:
    """Damaged files of a table, and what is wrong with each; every byte is read."""
    try:
        table = opened(address)
    except TableDamaged as error:
        found = [_fault_in(f"{address}/{LOG}/{name}", stamp) for name, stamp in _stamps(address).items()]
        return [each for each in found if each is not None] or [(error.address, error.problem)]
    if table is None:
        return []
    found = [(f"{address}/{file.path}", _data_fault(table, file)) for file in table.data_files]
    return [(location, problem) for location, problem in found if problem is not None]


def _fault_in(location: str, stamp: files.Stamp) -> tuple[str, str] | None:
    try:
        _actions(location, stamp)
    except TableDamaged as error:
        return error.address, error.problem
    return None


def _stamps(address: str) -> dict[str, files.Stamp]:
    found = files.stamps(f"{address}/{LOG}")
    return {name: found[name] for name in sorted(found) if COMMIT_NAME.fullmatch(name)}


def leftovers(table: Table) -> list[str]:
    """Addresses of files that no commit has and that writers which were killed, or are at work, have made."""
    known = {file.path for file in table.data_files}
    removed = (action["remove"] for commit in table.commits for action in commit if action.get("remove"))
    known |= {unquote(each["path"]) for each in removed}  # other programs may still read older versions
    prefix = f"{table.address}/"
    found = [path.removeprefix(prefix) for path in files.find(table.address, hidden=True)]
    return [f"{prefix}{path}" for path in found if path not in known and _is_leftover(path)]


def _is_leftover(path: str) -> bool:
    """Whether a file that no commit has is of a writer of this program, or of the Delta library (`...parquet#1`)."""
    folder, _, name = path.rpartition("/")
    return bool(TEMPORARY.fullmatch(name)) or "#" in name or (name.endswith(".parquet") and folder != LOG)


def remove_added(address: str, added: list[dict[str, Any]]) -> None:
    """Remove stored files that are not committed."""
    for add in added:
        with suppress(OSError):  # the next ingest removes it
            files.remove(f"{address}/{add['path']}")


def _committed(address: str, version: int, content: bytes) -> bool:
    return files.create_bytes(f"{address}/{LOG}/{commit_name(version)}", content)


@functools.lru_cache(maxsize=1 << 12)
def _actions(location: str, stamp: files.Stamp) -> tuple[Action, ...]:
    """Read the actions of a commit, once in a process for each content of the file."""
    _check_links(location)
    try:
        content = files.read_bytes(location)
    except disk.ReadFailed as error:
        raise TableDamaged(location, error.problem, REMEDY) from error
    return actions_in(location, content)


def _check_links(location: str) -> None:
    if (problem := link_in(location)) is not None:
        raise TableDamaged(location, problem, REMEDY)


def _field(name: str, dtype: Any) -> dict[str, Any]:
    return {"name": name, "type": DELTA_TYPES[dtype], "nullable": True, "metadata": {}}


def _now() -> int:
    return time.time_ns() // 1_000_000
