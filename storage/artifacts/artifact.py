"""Tables, other files and the record of their inputs -> an immutable folder with a manifest."""

import contextlib
import dataclasses
import errno
import hashlib
import io
import json
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import BaseModel

from dyformer import InvalidInput
from storage.artifacts.code import code_version
from storage.bytes import checksums, files
from storage.bytes.checksums import (
    CHANGED,
    Count,
    Damaged,
    Whole,
    fault_of,
    is_below,
    link_in,
    readable,
    sha256,
    wrong_kind,
)

MANIFEST = files.MANIFEST
MARK = "tracked.json"  # beside a finished result that is in MLflow
TRACKED_KINDS = ("training", "report", "benchmark", "study", "audit", "outcomes", "rollback")  # of these results
PENDING = "pending"  # folder of the store with a file for each result that is not yet known to be in MLflow
MOST_LETTERS = 100  # of a name in a message
TAKEN = (errno.ENOTEMPTY, errno.EEXIST)  # errors of a rename: an artifact has the name
REMEDY = "delete its folder (or run `dyformer verify --repair`) and run the command that makes it again"
REPLACED = "was replaced by another process, which has made its artifact anew, while this one read it"
RUN_AGAIN = "run the same command again"
CONTENT = (".parquet", "/weights.safetensors")
LAST_KEY = re.compile("(settings|seed|commit)=.+")
WRITING_SECONDS = 3600.0  # a writer needs minutes, and the clock of an object store may be another one


class ArtifactMissing(InvalidInput):
    """No complete artifact, or no such file in it, under an address."""


class ArtifactDamaged(Damaged):
    """A file differs from the record in its artifact's manifest."""


class StoredFile(BaseModel, strict=True):
    """A file of an artifact."""

    path: str
    bytes: Count
    sha256: str


class StoredLineage(BaseModel, strict=True):
    """What an artifact depends on."""

    kind: str
    dataset: str
    table_version: Whole
    until: Whole | None = None
    settings: dict[str, Any] = {}
    settings_hash: str = ""
    code_version: str = ""
    max_event_time: Whole | None = None
    inputs: dict[str, str] = {}


class Manifest(BaseModel, strict=True):
    """The files of an artifact by their names, and its lineage."""

    digest: str
    lineage: StoredLineage
    files: dict[str, StoredFile]


def settings_hash(settings: Mapping[str, Any]) -> str:
    """SHA-256 of the settings' canonical JSON, which is the same for any order of keys, and for a tuple or a list."""
    return sha256(_canonical(dict(settings)))


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """Everything an artifact depends on; `until` is the last step it may use, None for the whole table."""

    kind: str
    dataset: str
    table_version: int
    until: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    settings_hash: str = ""
    code_version: str = ""
    max_event_time: int | None = None  # latest event that was read
    inputs: dict[str, str] = field(default_factory=dict)  # address -> digest of each artifact read

    def __post_init__(self) -> None:
        # Through JSON, so that a record read back equals the one that was written.
        object.__setattr__(self, "settings", json.loads(_canonical(self.settings)))
        expected = settings_hash(self.settings)
        if self.settings_hash not in ("", expected):
            raise InvalidInput(f"lineage of {self.kind}: settings hash {self.settings_hash}, expected {expected}")
        object.__setattr__(self, "settings_hash", expected)
        object.__setattr__(self, "code_version", self.code_version or code_version())


def write_artifact(address: str, contents: Mapping[str, pl.DataFrame | bytes], lineage: Lineage) -> str:
    """Write all contents under an address and return it; visible only when complete.

    A DataFrame `edges` becomes `edges.parquet`, bytes keep their name. A complete artifact of the same lineage stays
    as it is, so the first of two writers wins. An artifact of another lineage is replaced.
    """
    if is_current(address, lineage):
        return address
    encoded = {_file_name(name, content): _encoded(content) for name, content in contents.items()}
    note_pending(address)
    publish = _publish_remote if files.is_remote(address) else _publish_local
    publish(address, encoded, lineage)
    return address


def note_pending(address: str) -> None:
    """Note a result for MLflow before it is finished, so that no kill leaves one that the next look misses."""
    if (noted := pending_note(address)) is not None:
        files.write_bytes(*noted)


def pending_note(address: str) -> tuple[str, bytes] | None:
    """Give the address and the content of the note that a result waits for MLflow; None for another artifact."""
    head, _, keys = address.rpartition("/dataset=")
    root, _, kind = head.rpartition("/")
    if kind not in TRACKED_KINDS:
        return None
    root, _, folder = root.rpartition("/")
    relative = f"{folder}/{kind}/dataset={keys}".encode()
    return f"{root}/{PENDING}/{sha256(relative)[:32]}", relative


@dataclass(frozen=True)
class Artifact:
    """An artifact as its manifest describes it: opened once, it stays what it was, whatever replaces it.

    Equal ones have the same content. A file that was removed or changed since is noticed when it is read.
    """

    address: str
    digest: str  # SHA-256 over the lineage and the checksums of all files; a later lineage records it as its input
    lineage: Lineage = field(compare=False)
    entries: Mapping[str, Mapping[str, Any]] = field(compare=False)  # path, bytes and sha256 of each file, by name

    @property
    def is_whole(self) -> bool:
        """Whether every file that the manifest lists is there."""
        return all(files.size(f"{self.address}/{entry['path']}") == entry["bytes"] for entry in self.entries.values())

    @property
    def locations(self) -> set[str]:
        """Addresses of the manifest and of the files that it lists."""
        return {f"{self.address}/{name}" for name in (MANIFEST, *(entry["path"] for entry in self.entries.values()))}

    def tables(self) -> dict[str, pl.DataFrame]:
        """Read all tables by their names."""
        names = [file.removesuffix(".parquet") for file in sorted(self.entries) if file.endswith(".parquet")]
        return {name: self.table(name) for name in names}

    def table(self, name: str) -> pl.DataFrame:
        """Read a table and verify its checksum."""
        return pl.read_parquet(io.BytesIO(self.content(f"{name}.parquet")))

    def content(self, name: str) -> bytes:
        """Read a file and verify its checksum."""
        location, entry = self._listed(name)
        content, problem = checksums.content_of(location, entry["bytes"], entry["sha256"])
        if problem is not None:
            raise self._fault(location, problem)
        return content

    def scan(self, name: str) -> pl.LazyFrame:
        """Read a table lazily, after a check of its checksum, which is computed once in a process."""
        location, entry = self._listed(f"{name}.parquet")
        path, problem = readable(location, entry["bytes"], entry["sha256"])
        if problem is not None:
            raise self._fault(location, problem)
        return pl.scan_parquet(path, hive_partitioning=False, glob=False)

    def _fault(self, location: str, problem: str) -> ArtifactDamaged:
        """Give the error of a wrong file: damage, or that another process has made another artifact here since."""
        present = find_artifact(self.address)
        if present is None or present.digest == self.digest:
            return ArtifactDamaged(location, problem, REMEDY)
        return ArtifactDamaged(location, REPLACED, RUN_AGAIN)

    def _listed(self, name: str) -> tuple[str, Mapping[str, Any]]:
        entry = self.entries.get(name)
        if entry is None:
            listed = ", ".join(sorted(self.entries))
            raise ArtifactMissing(f"the artifact {self.address} has no {name!r}; it has {listed}")
        return f"{self.address}/{entry['path']}", entry


def manifest(address: str) -> Lineage | None:
    """Lineage of a complete artifact, else None; ArtifactDamaged when the manifest was changed."""
    artifact = find_artifact(address)
    return artifact.lineage if artifact is not None and artifact.is_whole else None


def lineage_of(address: str) -> Lineage:
    """Lineage of an artifact; raises ArtifactMissing where it is not complete."""
    artifact = open_artifact(address)
    if not artifact.is_whole:
        raise ArtifactMissing(f"{address} lacks files that its manifest lists: run the command that makes it again")
    return artifact.lineage


def is_complete(address: str) -> bool:
    """Whether the manifest and every file it lists are there."""
    return manifest(address) is not None


def is_current(address: str, lineage: Lineage) -> bool:
    """Whether a complete artifact of exactly this lineage exists, so that nothing has to be made."""
    artifact = find_artifact(address)
    return artifact is not None and artifact.lineage == lineage and artifact.is_whole


def digest(address: str) -> str:
    """SHA-256 over the lineage and the checksums of all files; a later lineage records it as its input."""
    return open_artifact(address).digest


def read_table(address: str, name: str) -> pl.DataFrame:
    """Read a table and verify its checksum."""
    return open_artifact(address).table(name)


def read_bytes(address: str, name: str) -> bytes:
    """Read a file and verify its checksum."""
    return open_artifact(address).content(name)


class Draft:
    """A new artifact, whose files are written to a local folder one after the other, because memory may hold none."""

    def __init__(self, address: str, folder: Path):
        """Start an artifact without files; `drafted` makes the folder and removes it."""
        self.address, self.folder = address, folder
        self.entries: dict[str, dict[str, Any]] = {}
        # In an object store no writer touches the files of another one, even if they have the same content.
        self._suffix = f"-{uuid.uuid4().hex[:12]}" if files.is_remote(address) else ""

    def path(self, name: str) -> Path:
        """Where a file is written; `add` follows once it is complete."""
        stem, dot, suffix = name.rpartition(".")
        return self.folder / f"{stem}{self._suffix}{dot}{suffix}"

    def add(self, name: str) -> dict[str, Any]:
        """Wait until the disk has a complete file; return its entry in the manifest: path, bytes, sha256."""
        path = self.path(name)
        with files.named_write(Path(self.address, name)), path.open("rb") as stream:
            os.fsync(stream.fileno())
            checksum = hashlib.file_digest(stream, "sha256").hexdigest()
        self.entries[name] = {"path": path.name, "bytes": path.stat().st_size, "sha256": checksum}
        return self.entries[name]

    def published(self, lineage: Lineage) -> bool:
        """Give the files their address unless an artifact has it; returns whether this call did.

        Of several writers one succeeds, also on several machines. After an error the files may be visible, though not
        on the disk yet.
        """
        content = _manifest_of(lineage, self.entries)
        return self._uploaded(content) if files.is_remote(self.address) else self._renamed(content)

    def _renamed(self, manifest_bytes: bytes) -> bool:
        final = Path(self.address)
        with files.named_write(final):
            files.write_synced(self.folder / MANIFEST, manifest_bytes)
            files.sync_folder(self.folder)
            try:
                self.folder.rename(final)
            except OSError as error:
                if error.errno not in TAKEN:
                    raise
                return False
            files.sync_folder(final.parent)
        return True

    def _uploaded(self, manifest_bytes: bytes) -> bool:
        locations = [f"{self.address}/{entry['path']}" for entry in self.entries.values()]
        try:
            for location, entry in zip(locations, self.entries.values(), strict=True):
                files.write_bytes(location, self.folder / entry["path"])
        except (Exception, KeyboardInterrupt):
            _remove_each(locations)
            raise
        if files.create_bytes(f"{self.address}/{MANIFEST}", manifest_bytes):
            return True
        _remove_each(locations)
        return False


@contextmanager
def drafted(address: str) -> Iterator[Draft]:
    """Start an artifact beside its address, or in the temporary folder for S3; what is not published is removed."""
    final = Path(address)
    if files.is_remote(address):
        folder = Path(tempfile.mkdtemp(prefix="dyformer-"))
    else:
        folder = final.with_name(files.temporary_name(final.name))
        with files.named_write(final):
            files.make_folder(folder)
    try:
        yield Draft(address, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_each(locations: list[str]) -> None:
    for location in locations:
        with contextlib.suppress(OSError):  # a later writer removes it
            files.remove(location)


def _publish_local(address: str, encoded: dict[str, bytes], lineage: Lineage) -> None:
    if (problem := link_in(address)) is not None:
        raise ArtifactDamaged(address, problem, REMEDY)
    final = Path(address)
    temporary = final.with_name(files.temporary_name(final.name))
    try:
        with files.named_write(final):
            files.make_folder(temporary)
            for name, content in encoded.items():
                files.write_synced(temporary / name, content)
            manifest_bytes = _manifest_bytes(lineage, encoded, {name: name for name in encoded})
            files.write_synced(temporary / MANIFEST, manifest_bytes)
            files.sync_folder(temporary)
            _rename(temporary, final, lineage)
            files.sync_folder(final.parent)
    except (Exception, KeyboardInterrupt):
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _rename(temporary: Path, final: Path, lineage: Lineage) -> None:
    while True:
        try:
            temporary.rename(final)
        except OSError as error:
            if error.errno not in TAKEN:
                raise
        else:
            return
        if is_current(str(final), lineage):
            shutil.rmtree(temporary)
            return
        stale = final.with_name(files.temporary_name(final.name))
        with contextlib.suppress(FileNotFoundError):  # another writer was quicker
            final.rename(stale)
            shutil.rmtree(stale)


def _publish_remote(address: str, encoded: dict[str, bytes], lineage: Lineage) -> None:
    # An object store has no rename. The files carry their checksum in the name, so that no writer touches the files
    # of another writer, and the manifest is written last.
    stored = {name: _with_checksum(name, content) for name, content in encoded.items()}
    replaced = _replaced_long_ago(address)
    for name, content in encoded.items():
        files.write_bytes(f"{address}/{stored[name]}", content)
    if not _has_manifest(address, _manifest_bytes(lineage, encoded, stored), lineage):
        return
    for location in replaced - {f"{address}/{name}" for name in stored.values()}:
        files.remove_old(location)


def _replaced_long_ago(address: str) -> set[str]:
    """List the files that the present artifact has replaced, if it was written more than a day ago.

    Others may be reading them until then, or writing the same names. Without an artifact they are of killed writers.
    """
    location = f"{address}/{MANIFEST}"
    try:
        if time.time() - files.modified(location) < files.LEFTOVER_SECONDS:
            return set()
        present = find_artifact(address)
    except FileNotFoundError:
        present = None
    except ArtifactDamaged:
        return set()
    return set(files.find(address)) - ({location} if present is None else present.locations)


def _has_manifest(address: str, content: bytes, lineage: Lineage) -> bool:
    """Write a manifest where there is none, or in place of a stale one; False if another writer was first."""
    location = f"{address}/{MANIFEST}"
    while not files.create_bytes(location, content):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            stale = files.stamp(location)
            if is_current(address, lineage):
                return False
            files.remove(f"{address}/{MARK}")  # before, so that no crash leaves the mark of the replaced artifact
            if files.replace_bytes(location, content, stale):
                return True
    return True


def _with_checksum(name: str, content: bytes) -> str:
    stem, dot, suffix = name.rpartition(".")
    short = sha256(content)[:12]
    return f"{stem}-{short}.{suffix}" if dot else f"{name}-{short}"


def _manifest_bytes(lineage: Lineage, encoded: Mapping[str, bytes], stored: Mapping[str, str]) -> bytes:
    listed = {
        name: {"path": stored[name], "bytes": len(content), "sha256": sha256(content)}
        for name, content in encoded.items()
    }
    return _manifest_of(lineage, listed)


def _manifest_of(lineage: Lineage, listed: Mapping[str, Mapping[str, Any]]) -> bytes:
    record: dict[str, Any] = {"lineage": dataclasses.asdict(lineage), "files": dict(listed)}
    record["digest"] = _digest(record)
    return json.dumps(record, indent=1, sort_keys=True).encode()


def _digest(record: Mapping[str, Any]) -> str:
    checksums = {name: entry["sha256"] for name, entry in record["files"].items()}
    return sha256(_canonical({"lineage": record["lineage"], "files": checksums}))


def faults(address: str) -> list[tuple[str, str]]:
    """Damaged files of an artifact, and what is wrong with each; every byte is read."""
    try:
        artifact = open_artifact(address)
    except Damaged as error:
        return [(error.address, error.problem)]
    problems = [
        (f"{address}/{entry['path']}", fault_of(f"{address}/{entry['path']}", entry["bytes"], entry["sha256"]))
        for entry in artifact.entries.values()
    ]
    return [(location, problem) for location, problem in problems if problem is not None]


def open_artifact(address: str) -> Artifact:
    """Open an artifact; raises ArtifactMissing where there is none, and ArtifactDamaged."""
    artifact = find_artifact(address)
    if artifact is None:
        raise ArtifactMissing(f"there is no finished artifact under {address}: run the command that makes it")
    return artifact


def find_artifact(address: str) -> Artifact | None:
    """Open an artifact by its checked manifest, None where there is none; raises ArtifactDamaged."""
    location = f"{address}/{MANIFEST}"
    try:
        content = files.read_bytes(location)
    except FileNotFoundError:
        return None
    except files.ReadFailed as error:
        raise ArtifactDamaged(location, error.problem, REMEDY) from error
    if (problem := link_in(location)) is not None:
        raise ArtifactDamaged(location, problem, REMEDY)
    record = _whole(content)
    if record is None:
        raise ArtifactDamaged(location, CHANGED, REMEDY)
    problem = wrong_kind(Manifest, record) or _elsewhere(address, record["lineage"])
    if problem is None:
        paths = [entry["path"] for entry in record["files"].values()]
        outside = [path for path in paths if "/" in path or not is_below(path)]
        problem = f"lists {outside[0][:MOST_LETTERS]!r}, which is not in the artifact's folder" if outside else None
    if problem is not None:
        raise ArtifactDamaged(location, problem, REMEDY)
    lineage = Lineage(**record["lineage"])
    return Artifact(address=address, digest=record["digest"], lineage=lineage, entries=record["files"])


def _elsewhere(address: str, lineage: Mapping[str, Any]) -> str | None:
    """Say that an artifact was copied to an address of another dataset."""
    named = [part.partition("=")[2] for part in address.split("/") if part.startswith("dataset=")]
    if named and named[-1] != lineage["dataset"]:
        return f"is of the dataset {lineage['dataset'][:MOST_LETTERS]!r}, and was copied here"
    return None


def _whole(content: bytes) -> dict[str, Any] | None:
    """Parse a manifest, None for one that differs from its digest."""
    try:
        record = json.loads(content)
        Lineage(**record["lineage"])
        is_whole = record["digest"] == _digest(record)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return record if is_whole else None


def _file_name(name: str, content: pl.DataFrame | bytes) -> str:
    return f"{name}.parquet" if isinstance(content, pl.DataFrame) else name


def _encoded(content: pl.DataFrame | bytes) -> bytes:
    if isinstance(content, bytes):
        return content
    buffer = io.BytesIO()
    content.write_parquet(buffer)
    return buffer.getvalue()


def _canonical(value: Any) -> bytes:
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()
    except TypeError as error:
        raise InvalidInput(f"settings must be plain values (text, numbers, lists, dictionaries): {error}") from error


def without_manifest(locations: list[str]) -> list[str]:
    """Folders of artifacts that have tables or weights but no manifest, which no writer leaves on a local disk.

    Only the last folder of an address is one: a file that a user put above belongs to no artifact. In an object store a
    writer that is at work leaves the same, so that only folders are listed in which nothing was written for long.
    """
    folders = {location.rpartition("/")[0] for location in locations if location.endswith(CONTENT)}
    whole = {location.rpartition("/")[0] for location in locations if location.endswith(f"/{MANIFEST}")}
    lost = {folder for folder in folders - whole if LAST_KEY.fullmatch(folder.rpartition("/")[2])}
    above = {folder for folder in lost if any(other.startswith(f"{folder}/") for other in whole)}
    return sorted(folder for folder in lost - above if not _may_be_in_writing(folder, locations))


def _may_be_in_writing(folder: str, locations: list[str]) -> bool:
    if not files.is_remote(folder):
        return False
    try:
        newest = max(files.modified(location) for location in locations if location.startswith(f"{folder}/"))
    except FileNotFoundError:  # removed meanwhile
        return True
    return time.time() - newest < WRITING_SECONDS
