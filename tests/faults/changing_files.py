"""A raw file that another program changes during its ingest: the rows of one of its states are stored, or none.

`python tests/faults/changing_files.py --tries 50` runs the whole sweep (`make test-faults`); `--seed S --only N`
repeats one. A try changes the file at a random time of the ingest: it is cut, appended to, written over in its place,
replaced by a rename, or touched. If the ingest ends well, the stored rows are those that an undisturbed ingest of the
file before the change, or after it, stores. Otherwise one line names the file and nothing is stored. Either way the
next ingest stores what the file holds then.
"""

import gzip
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from children import started
from ingests import DATASET
from prepared import Prepared
from sweep import error_line, main

from flows.ending import exit_code
from flows.tasks.ingest import ingest_log
from storage.events.table import ingested_datasets, read_events
from storage.layout import Layout

NUM_ROWS = 150_000
FIRST = "as it is at first"
FORMATS = ("csv", "csv.gz", "parquet")
CHANGES = ("cut", "appended to", "written over", "replaced", "touched")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One change of a file."""

    kind: str
    change: str
    fraction: float  # of the seconds of an undisturbed ingest

    def __str__(self) -> str:
        return f"log.{self.kind} {self.change} at {self.fraction:.3f} of its ingest"


def trials(made: Prepared, num_tries: int, seed: int) -> Iterator[Trial]:
    """Draw trials: the formats in turn."""
    generator = random.Random(seed)
    for number in range(num_tries):
        kind = FORMATS[number % len(FORMATS)]
        yield Trial(kind=kind, change=generator.choice(CHANGES), fraction=generator.random())


def write_state(path: Path, kind: str, change: str) -> None:
    """Write a log as it is at first, or after a change."""
    num_rows = NUM_ROWS + 1_000 * (change == "appended to")
    rows = pl.DataFrame({"row": pl.int_range(num_rows, eager=True)}).select(
        source="u" + (pl.col("row") * 7 % 101).cast(pl.String),
        target="v" + (pl.col("row") * (11 if change in ("written over", "replaced") else 13) % 103).cast(pl.String),
        time=1_600_000_000 + 60 * pl.col("row"),
    )
    if kind == "parquet":
        rows.write_parquet(path)
    elif kind == "csv.gz":
        path.write_bytes(gzip.compress(rows.write_csv().encode(), 1, mtime=0))
    else:
        rows.write_csv(path)
    if change == "cut":
        os.truncate(path, path.stat().st_size // 2)


def apply(path: Path, trial: Trial, wanted: bytes) -> None:
    """Change the file as another program does, in place or by a rename."""
    if trial.change == "replaced":
        other = path.with_name("other")
        other.write_bytes(wanted)
        other.rename(path)
    elif trial.change == "cut":
        os.truncate(path, len(wanted))
    elif trial.change == "touched":
        path.touch()
    else:
        with path.open("r+b") as stream:
            stream.write(wanted)
            stream.truncate()


def ingest(path: Path) -> None:
    """Commit a file by the command's function."""
    reading = {"log": [str(path)], "source": "source", "target": "target", "time": "time", "time_unit": "s"}
    ingest_log(DATASET, {**reading, "window": "1d", "max_bad": "1%"}, lambda text: None)


def stored() -> dict[str, Any]:
    """Give number and hash of the stored rows, in any order."""
    layout = Layout.from_environment()
    if not ingested_datasets(layout):
        return {"rows": 0, "hash": "0"}
    rows = read_events(layout, DATASET).select("source", "target", "time", "weight")
    return {"rows": rows.height, "hash": str(rows.hash_rows(seed=1).cast(pl.Int128).sum())}


def failures(made: Prepared, trial: Trial) -> list[str]:
    """Change the file during its ingest; list the claims that do not hold."""
    path = made.disk / f"log.{trial.kind}"
    before, after = (_undisturbed(made, path, trial.kind, change) for change in (FIRST, trial.change))
    _restart(made, path, before.content)
    child = started(lambda: sys.exit(exit_code(lambda: ingest(path))), **made.environment)
    time.sleep(trial.fraction * before.seconds)
    apply(path, trial, after.content)
    end = child.ended()
    line, wrong = error_line(end.code, end.output)
    found = made.read(stored).value
    if line is None and found not in (before.stored, after.stored):
        wrong.append(f"{found} is stored, of {before.stored} or {after.stored}")
    if line is not None and (str(path) not in line or found["rows"]):
        wrong.append(f"{found['rows']} rows are stored with: {line}")
    if not found["rows"]:
        again = made.read(lambda: sys.exit(exit_code(lambda: ingest(path))))
        held = made.read(stored).value
        if held != after.stored:
            wrong.append(f"the next ingest ended with {again.code} and stored {held}: {again.output}")
    return wrong


@dataclass(frozen=True, kw_only=True)
class Undisturbed:
    """A state of a file: its bytes, the rows that an ingest stores of it, and the seconds that this takes."""

    content: bytes
    stored: dict[str, Any]
    seconds: float


def _undisturbed(made: Prepared, path: Path, kind: str, change: str) -> Undisturbed:
    key = f"{kind} {change}"
    if key not in made.results:
        state = made.disk / "state"
        assert made.read(lambda: write_state(state, kind, change)).code == 0
        content = state.read_bytes()
        _restart(made, path, content)
        end = made.read(lambda: sys.exit(exit_code(lambda: ingest(path))))
        made.results[key] = Undisturbed(content=content, stored=made.read(stored).value, seconds=end.seconds)
    return made.results[key]


def _restart(made: Prepared, path: Path, content: bytes) -> None:
    shutil.rmtree(made.store)
    made.store.mkdir()
    path.write_bytes(content)


if __name__ == "__main__":
    main(__doc__, trials, failures, 50, "files that change", stages={})
