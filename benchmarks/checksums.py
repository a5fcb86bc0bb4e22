"""10M stored events, read with and without a check of their checksums -> the cost of the check.

Both sides open the event table, read every event of the newest version and order them as the log had them. The checked
side computes the SHA-256 of every data file first, as the first read of a process does.
"""

import tempfile
from unittest import mock

import measure
import numpy as np
import polars as pl

from dyformer.logs.events import ReadResult
from storage.bytes import checksums
from storage.events import versions
from storage.events.commits import append_all
from storage.events.rows import EVENT_COLUMNS, QUARANTINE_COLUMNS
from storage.events.table import read_events
from storage.layout import Layout

NUM_ROWS = 10_000_000
NUM_NODES = 1_000_000
START, SECONDS = 1_600_000_000, 2 * 365 * 86_400


def log(num_rows: int = NUM_ROWS, seed: int = 0) -> ReadResult:
    """Make events with power-law ends and times drawn evenly over two years, as a reader gives them."""
    generator = np.random.default_rng(seed)
    cumulative_N = np.cumsum(np.arange(1, NUM_NODES + 1) ** (-2 / 3))
    source_R, target_R = np.searchsorted(cumulative_N / cumulative_N[-1], generator.random((2, num_rows)))
    events = pl.DataFrame(
        {
            "source": source_R,
            "target": target_R,
            "time": generator.integers(START, START + SECONDS, num_rows) * 1_000_000,
            "weight": np.ones(num_rows),
        }
    ).with_columns(label=pl.lit(None, pl.Int8), file=pl.lit("log.csv"), line=pl.int_range(1, pl.len() + 1))
    return ReadResult(
        events=events.select(EVENT_COLUMNS.keys()),
        quarantine=pl.DataFrame(schema=QUARANTINE_COLUMNS),
        num_read=num_rows,
        num_accepted=num_rows,
        num_quarantined=0,
        num_dropped=0,
        num_duplicates=0,
    )


def main() -> None:
    """Store the events and time both sides."""
    with tempfile.TemporaryDirectory() as folder:
        layout = Layout(folder)
        append_all(layout, "log", {"0" * 64: log()})
        (part,) = [part for part in versions.newest(layout, "log").parts if part["name"] == versions.INTERACTIONS]

        def checked() -> pl.DataFrame:
            checksums._file_sha256.cache_clear()  # a check is made once in a process  # noqa: SLF001
            return read_events(layout, "log")

        def unchecked() -> pl.DataFrame:
            with mock.patch.object(versions, "_readable", lambda location, part: location):
                return read_events(layout, "log")

        assert checked().equals(unchecked())
        seconds = measure.cpu_seconds({"checked": checked, "unchecked": unchecked})
    print(f"{NUM_ROWS:,} events in a file of {part['bytes'] / 2**20:.0f} MiB")
    for name, value in measure.medians(seconds).items():
        print(f"{name}: {value:.2f} s")
    ratios = measure.ratios(seconds["checked"], seconds["unchecked"])
    measure.verdict("checksums-read-10m", ratios, 1.1, at_most=True)


if __name__ == "__main__":
    main()
