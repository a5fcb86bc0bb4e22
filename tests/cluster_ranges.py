"""Ranges and functions of them, which workers and drivers of a test's cluster import: few libraries are behind them."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from flows.parallel import Shared
from storage.artifacts.artifact import Lineage
from storage.artifacts.made import planned
from storage.layout import Layout

RANGES = [range(start, start + 5) for start in range(0, 20, 5)]
NODE = "NODE_OF_TEST"  # a variable of a node's processes


def shared_in(folder: Path, **values: object) -> Shared:
    layout = Layout(str(folder / "store"))
    lineage = Lineage(kind="pagerank", dataset="mylog", table_version=1, until=1, settings={"top_k": 3})
    log = folder / "made"
    log.touch()
    gate = str(folder / "gate")
    return Shared(layout=layout, whole=planned(layout, lineage), values={"log": str(log), "gate": gate, **values})


def numbers(values: Mapping[str, Any], rows: range, num_threads: int) -> pl.DataFrame:
    """Give the numbers of a range, and note that it was begun.

    While the file `gate` exists, a worker stays in the range `stay`, and in each range if it is not on the node `only`.
    """
    log, node = Path(values["log"]), os.environ.get(NODE)
    with log.open("a") as stream:
        stream.write(f"{rows.start} {os.getpid()}\n")
    stays = rows.start == values.get("stay") or values.get("only", node) != node
    while stays and Path(values["gate"]).exists():
        time.sleep(0.05)
    return pl.DataFrame({"number": list(rows)})


def with_pid(job: Callable[[], Any]) -> tuple[int, Any]:
    """Do a job; give the number of the process that has done it, and the result."""
    return os.getpid(), job()


def bytes_not_freed() -> int:
    """Give by how much the memory of this process has grown after 80 MB of polars' were freed."""
    before = _resident()
    columns = [pl.int_range(1_000_000, eager=True) for _ in range(10)]
    assert _resident() > before + 60_000_000
    del columns
    return _resident() - before


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
