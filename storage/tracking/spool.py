"""Records that could not be sent to MLflow -> one folder for each run, replayed exactly once.

A record is a plain dictionary with an `id` and a `kind`; it may carry a folder of files. A writer locks its run's
folder until its process ends, so a replay never reads a run that is still being written.
"""

import errno
import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from storage.checksums import Damaged, file_sha256, opened, sealed
from storage.disk import make_folder, sync_folder, write_synced
from storage.kinds import wrong_in_spool

Record = Mapping[str, Any]
Apply = Callable[[Record, Path | None], object]
CHECKSUMS = "checksums"  # of a record's files, by their paths
RECORDS, DONE, REFUSED, FILES, LOCK = "records.jsonl", "done", "refused.jsonl", "files", "lock"
WRITTEN = "written"  # the ids of complete records, by which a lost end is noticed
REPLAYED, SET_ASIDE = "replayed.jsonl", "damaged.jsonl"
REMEDY = "`dyformer verify --repair` sets the run aside; its results are in the store"


class SpoolDamaged(Damaged):
    """A spooled record, or a file of one, differs from the one that was written."""


class Refused(ValueError):
    """A record that MLflow will never accept."""


@dataclass(frozen=True, kw_only=True)
class SpoolWriter:
    """The spool of one run, locked by the process that runs it."""

    folder: Path
    lock: FileLock

    def append(self, record: Record, files: Path | None = None) -> None:
        """Store a record and a copy of its files; after a crash it is stored completely or not at all."""
        if files is not None:
            record = {**record, CHECKSUMS: _copied(files, self.folder / FILES / record["id"])}
        _append_line(self.folder / RECORDS, sealed(record, indent=None).decode())
        _append_line(self.folder / WRITTEN, record["id"])

    def close(self) -> None:
        """Release the run for a replay."""
        self.lock.release()


def open_spool(spool: Path, start: Record) -> SpoolWriter:
    """Make and lock a folder for the run of a start record; a run that is spooled twice has two folders."""
    folder = spool / f"{start['run_key']}-{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True)
    lock = FileLock(folder / LOCK, thread_local=False)  # another thread may close the run
    lock.acquire()
    writer = SpoolWriter(folder=folder, lock=lock)
    try:
        writer.append(start)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()
        raise
    return writer


def _copied(source: Path, target: Path) -> dict[str, str]:
    """Copy a folder, wait until the disk has it, and return the checksums of its files."""
    found = {path.relative_to(source).as_posix(): path for path in sorted(source.rglob("*")) if path.is_file()}
    for name, path in found.items():
        make_folder((target / name).parent)
        write_synced(target / name, path)
        sync_folder((target / name).parent)
    return {name: file_sha256(str(path)) for name, path in found.items()}


def _append_line(path: Path, line: str) -> None:
    """Append a line, or leave the file as it was."""
    with path.open("ab", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        content = f"{line}\n".encode()
        try:
            if file.write(content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(file.fileno())
        except OSError:
            file.truncate(before)
            raise


def spooled_runs(spool: Path) -> list[Path]:
    """Folders of runs that wait for a replay, oldest first."""
    written = {}
    for path in spool.glob(f"*/{RECORDS}"):
        with suppress(FileNotFoundError):  # another process has sent it since
            written[path.parent] = path.stat().st_ctime_ns
    return sorted(written, key=lambda folder: written[folder])


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Read a run's records, without a last line that its process did not finish; raises SpoolDamaged."""
    path, written = folder / RECORDS, _ids(folder / WRITTEN)  # first, because a writer adds to it last
    records = []
    for number, line in enumerate(path.read_bytes().splitlines(keepends=True), start=1):
        record = opened(line)
        if record is None and not line.endswith(b"\n") and _is_unfinished(line):
            break
        problem = "was changed after it was written" if record is None else wrong_in_spool(record)
        if record is None or problem is not None:
            raise SpoolDamaged(f"{path}, line {number},", str(problem), REMEDY)
        records.append(record)
    lost = written - {record["id"] for record in records}
    if lost:
        raise SpoolDamaged(str(path), f"lacks {len(lost)} of its records", REMEDY)
    return records


def check_run(folder: Path) -> None:
    """Read a run's records and their files; raises SpoolDamaged."""
    for record in read_records(folder):
        _check_files(folder, record)


def faults_of_spool(spool: Path) -> list[tuple[Path, SpoolDamaged]]:
    """Folders of damaged runs, and what is wrong with each; a run that is being written is left out."""
    found = []
    for folder in sorted(path for path in spool.glob("*/") if path.is_dir()):
        damage = None
        with suppress(Timeout):
            try:
                with FileLock(folder / LOCK, blocking=False):
                    damage = _damage_of(folder)
            except IsADirectoryError:
                damage = SpoolDamaged(str(folder / LOCK), "is a folder", f"remove the folder {folder}")
        if damage is not None:
            found.append((folder, damage))
    return found


def _damage_of(folder: Path) -> SpoolDamaged | None:
    try:
        if (folder / RECORDS).exists():
            check_run(folder)
        elif not any((folder / name).exists() for name in (REPLAYED, SET_ASIDE)) and any(
            (folder / name).exists() for name in (DONE, FILES, WRITTEN)
        ):
            return SpoolDamaged(str(folder / RECORDS), "is missing", REMEDY)
    except SpoolDamaged as error:
        return error
    except OSError as error:
        return SpoolDamaged(str(folder), f"cannot be read ({error.strerror or error})", REMEDY)
    return None


def set_aside(folder: Path) -> None:
    """Keep a damaged run's records for the user to read, where no replay finds them; a run in use stays."""
    with suppress(Timeout), FileLock(folder / LOCK, blocking=False):
        if _damage_of(folder) is None:
            return
        if (folder / RECORDS).exists():
            (folder / RECORDS).rename(folder / SET_ASIDE)
        else:
            (folder / SET_ASIDE).touch()


def _is_unfinished(line: bytes) -> bool:
    """Whether the line is the beginning of a record, rather than a whole one with other bytes after it."""
    try:
        json.JSONDecoder().raw_decode(line.decode())
    except ValueError as error:
        return isinstance(error, UnicodeDecodeError) is False
    return False


def _check_files(folder: Path, record: Record) -> None:
    for name, checksum in record.get(CHECKSUMS, {}).items():
        path = folder / FILES / record["id"] / name
        if not path.is_file() or file_sha256(str(path)) != checksum:
            raise SpoolDamaged(str(path), "is missing or was changed after it was written", REMEDY)


def replay_run(folder: Path, begin: Callable[[Record], Apply]) -> None:
    """Apply the records of one run that were not applied yet, in order, and remove its folder; skip a locked run.

    `begin` takes the run's first record and returns the function that applies the records. A record for which it
    raises Refused goes to `refused.jsonl` with the reason, and the folder stays. Any other error ends the replay, and
    the next replay continues after the last applied record.
    """
    with suppress(Timeout), FileLock(folder / LOCK, blocking=False):
        if not (folder / RECORDS).exists():
            return
        if records := read_records(folder):
            _replay(folder, records, begin(records[0]))
        else:  # its process ended while writing the first
            shutil.rmtree(folder)


def _replay(folder: Path, records: list[dict[str, Any]], apply: Apply) -> None:
    done = _ids(folder / DONE)
    for record in [*records, *_missing_end(records)]:
        if record["id"] not in done:
            _apply_one(folder, record, apply)
    _close_run(folder)


def _missing_end(records: list[dict[str, Any]]) -> list[Record]:
    """Make the finish record of a run whose process died before writing it."""
    if records[-1]["kind"] == "finish":
        return []
    return [{"id": "end", "kind": "finish", "status": "KILLED", "time": records[-1]["time"]}]


def _ids(path: Path) -> set[str]:
    return set(path.read_text(encoding="utf-8", errors="replace").split()) if path.exists() else set()


def _apply_one(folder: Path, record: Record, apply: Apply) -> None:
    files = folder / FILES / record["id"]
    _check_files(folder, record)
    try:
        apply(record, files if files.exists() else None)
    except Refused as error:
        _append_line(folder / REFUSED, json.dumps({**record, "reason": str(error)}))
    _append_line(folder / DONE, record["id"])


def _close_run(folder: Path) -> None:
    if (folder / REFUSED).exists():
        (folder / RECORDS).rename(folder / REPLAYED)  # for the user to read; it is never replayed again
    else:
        shutil.rmtree(folder)
