"""Records that a tracker could not take -> files of folders, replayed exactly once.

A record is a plain dictionary with an `id` and a `kind`; it may carry a folder of files. The writer keeps a lock on
its run's folder while it lives, so a replay never meets a run that is still being written, and the kernel frees the
lock of a process that died.
"""

import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

Record = Mapping[str, Any]
Apply = Callable[[Record, Path | None], object]
RECORDS, DONE, REFUSED, FILES, LOCK = "records.jsonl", "done", "refused.jsonl", "files", "lock"


class Refused(ValueError):
    """A record that the tracker will never take, however often it is tried."""


@dataclass(frozen=True, kw_only=True)
class SpoolWriter:
    """The spool of one run, held by the process that runs it."""

    folder: Path
    lock: FileLock

    def append(self, record: Record, files: Path | None = None) -> None:
        """Keep a record and a copy of its files; after a crash it is there completely or not at all."""
        if files is not None:
            shutil.copytree(files, self.folder / FILES / record["id"], dirs_exist_ok=True)
        _append_line(self.folder / RECORDS, json.dumps(record))

    def close(self) -> None:
        """Let a replay have the run."""
        self.lock.release()


def open_spool(spool: Path, run_key: str) -> SpoolWriter:
    """Make a folder for the run and hold its lock; a run that is spooled twice has two folders."""
    folder = spool / f"{run_key}-{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True)
    lock = FileLock(folder / LOCK, thread_local=False)  # the thread that closes the run may be another one
    lock.acquire()
    return SpoolWriter(folder=folder, lock=lock)


def _append_line(path: Path, line: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def spooled_runs(spool: Path) -> list[Path]:
    """List the folders of runs that wait, oldest first."""
    found = [path.parent for path in spool.glob(f"*/{RECORDS}")]
    return sorted(found, key=lambda folder: (folder / RECORDS).stat().st_ctime_ns)


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Read a run's records; a last line without its end was being written when the process died, and is left out."""
    text = (folder / RECORDS).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def replay_run(folder: Path, begin: Callable[[Record], Apply]) -> int:
    """Apply the records of one run that were not applied yet, in order, and remove the run's folder at the end.

    `begin` gets the run's first record and gives the function that applies the others. A record that this function
    raises Refused for is set aside in `refused.jsonl` with the reason, and the folder stays. Any
    other error ends the replay; the next one continues behind the last applied record.

    Returns:
        The number of records applied; 0 as well when another process holds the run.
    """
    try:
        with FileLock(folder / LOCK, blocking=False):
            return _replay(folder, begin) if (folder / RECORDS).exists() else 0
    except Timeout:
        return 0


def _replay(folder: Path, begin: Callable[[Record], Apply]) -> int:
    done = _done_ids(folder)
    records = read_records(folder)
    if not records:  # its process died while it wrote the first one
        return 0
    apply = begin(records[0])
    waiting = [record for record in [*records, *_missing_end(records)] if record["id"] not in done]
    applied = sum(_apply_one(folder, record, apply) for record in waiting)
    _close_run(folder)
    return applied


def _missing_end(records: list[dict[str, Any]]) -> list[Record]:
    """Give the end of a run whose process died before it could write one."""
    if records[-1]["kind"] == "finish":
        return []
    return [{"id": "end", "kind": "finish", "status": "KILLED", "time": records[-1]["time"]}]


def _done_ids(folder: Path) -> set[str]:
    path = folder / DONE
    return set(path.read_text(encoding="utf-8").split()) if path.exists() else set()


def _apply_one(folder: Path, record: Record, apply: Apply) -> bool:
    files = folder / FILES / record["id"]
    problem = None
    try:
        apply(record, files if files.exists() else None)
    except Refused as error:
        problem = str(error)
        _append_line(folder / REFUSED, json.dumps({**record, "reason": problem}))
    _append_line(folder / DONE, record["id"])
    return problem is None


def _close_run(folder: Path) -> None:
    if (folder / REFUSED).exists():
        (folder / RECORDS).rename(folder / "replayed.jsonl")  # kept to be looked at, never replayed again
    else:
        shutil.rmtree(folder)
