"""A log of 10M rows under a memory limit of 1 GiB: ingest and snapshots over the disk equal those in memory.

Each way runs in a process of its own, by the steps that `dyformer ingest` and `dyformer prepare` call.
"""

import os
import sys
import tempfile
from pathlib import Path

import measure
from ingest import write_log

from flows.tasks.ingest import ingest_log
from flows.tasks.snapshots import make_snapshots
from storage.artifacts.artifact import digest
from storage.events.scratch_database import MEMORY_VARIABLE

MEMORY = 1024  # MiB
WAYS = {"in memory": 16 * MEMORY, "over the disk": MEMORY}


def run(path: Path, memory: int, folder: Path) -> None:
    """Ingest a log into an empty store, make its snapshots, and write the digest of all tables' bytes."""
    os.environ |= {"DYFORMER_STORAGE": str(folder / "store"), MEMORY_VARIABLE: str(memory)}
    reading = {"log": [str(path)], "time_unit": "s", "window": "16 equal", "drop_duplicates": True}
    counts = ingest_log("log", reading, show=lambda text: None)
    (folder / "result").write_text(f"{digest(make_snapshots('log'))} {counts}")


def main() -> None:
    """Check that both ways give the same bytes, and print the verdict on the memory of the way over the disk."""
    results, peaks = {}, {}
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "log.csv"
        write_log(path)
        for name, memory in WAYS.items():
            folder = Path(scratch) / str(memory)
            folder.mkdir()
            peaks[name] = measure.peak_mib(__file__, str(path), str(memory), str(folder))
            results[name] = (folder / "result").read_text()
            print(f"{name}: {peaks[name]:.0f} MiB", flush=True)
    if len(set(results.values())) > 1:
        raise SystemExit(f"the snapshots differ: {results}")
    print(f"identical snapshots: {results['over the disk']}")
    measure.verdict("ingest-10m-over-the-disk-peak", peaks["over the disk"], MEMORY, at_most=True, unit="MiB")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
