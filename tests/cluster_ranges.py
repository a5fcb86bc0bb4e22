"""Functions of ranges that workers of a test's cluster import."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl


def numbers(values: Mapping[str, Any], rows: range, num_threads: int) -> pl.DataFrame:
    """Give the numbers of a range; note that it was made, and stay in the range `stay` while the file `gate` exists."""
    log = Path(values["log"])
    with log.open("a") as stream:
        stream.write(f"{rows.start} {os.getpid()}\n")
    while rows.start == values.get("stay") and Path(values["gate"]).exists():
        time.sleep(0.05)
    return pl.DataFrame({"number": list(rows)})


def bytes_not_freed() -> int:
    """Give by how much the memory of this process has grown after 80 MB of polars' were freed."""
    before = _resident()
    columns = [pl.int_range(1_000_000, eager=True) for _ in range(10)]
    assert _resident() > before + 60_000_000
    del columns
    return _resident() - before


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
