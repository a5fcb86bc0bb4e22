"""A log of a few hundred rows, as files -> ingests of them, and the snapshots."""

import random
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import storage.raw.contents
from flows.console import counts_line
from flows.tasks.ingest import ingest_log
from flows.tasks.snapshots import make_snapshots
from storage.layout import Layout

DATASET = "log"
DAYS, LATER_DAYS, ROWS_PER_DAY = 5, 2, 40


def parts_of_log(num: int) -> list[str]:
    """Name the files of the log in so many parts."""
    return ["first", "second"] if num == 2 else [f"part-{number}" for number in range(num)]


def write_logs(folder: Path) -> None:
    """Write two files of rows, some days and the days after them, and all rows in eight files."""
    generator = random.Random(7)
    rows = []
    for day in range(DAYS + LATER_DAYS):
        for number in range(ROWS_PER_DAY):
            group = generator.randrange(3)
            source, target = (f"u{3 * generator.randrange(4) + group}", f"v{3 * generator.randrange(3) + group}")
            rows.append(f"{source},{target},{86_400 * day + 1_800 * number}")
        rows.append(f",broken,{86_400 * day}")
    first = (ROWS_PER_DAY + 1) * DAYS
    parts = dict(zip(parts_of_log(2), (rows[:first], rows[first:]), strict=True))
    parts |= {name: rows[number::8] for number, name in enumerate(parts_of_log(8))}
    for name, part in parts.items():
        (folder / f"{name}.csv").write_text("\n".join(["source,target,time", *part]) + "\n")


def ingested(name: str) -> str:
    """Commit a file and make its snapshots; the files lie beside the store, or beside the state of one in S3."""
    log = Path(Layout.from_environment().state).with_name(f"{name}.csv")
    reading = {"log": [str(log)], "max_bad": "50%", "window": "1d", "time_unit": "s"}
    # Files of any age are recorded: otherwise the number of effects depends on the seconds since they were written.
    with patch.object(storage.raw.contents, "RECENT_SECONDS", 0.0):
        counts = ingest_log(DATASET, reading, lambda text: None)
    address = make_snapshots(DATASET, counts["version"])
    print(counts_line(counts))
    return address


INGESTS: dict[str, Callable[[], object]] = {
    "ingest": lambda: ingested("first"),
    "second ingest": lambda: ingested("second"),
}
"""Name of a command -> the function that does it; the second needs the first."""
