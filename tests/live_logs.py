"""A small log of edits in a store, in parts that are ingested one after another."""

from pathlib import Path

import numpy as np
import pytest

from flows.tasks import event_state
from flows.tasks.ingest import ingest_log
from storage.events.table import newest_version
from storage.layout import Layout

NAME = "edits"
START = 1_700_000_000


def rows_of(count=1_200, seed=0):
    """Make rows user, page, time in seconds, in order of time, with many equal times."""
    generator = np.random.default_rng(seed)
    users = generator.integers(12, size=count)
    favourites = (users * 5 + generator.integers(3, size=count)) % 16
    pages = np.where(generator.random(count) < 0.7, favourites, generator.integers(16, size=count))
    times = START + np.sort(generator.integers(count // 3, size=count)) * 600
    return [(f"u{user}", f"p{page}", int(time)) for user, page, time in zip(users, pages, times, strict=True)]


def write_rows(path: Path, rows) -> Path:
    """Write rows as a file of a log."""
    lines = [f"{user},{page},{time}" for user, page, time in rows]
    path.write_text("\n".join(["user,page,time", *lines]) + "\n")
    return path


def ingest(layout: Layout, folder: Path, rows, number: int, **reading) -> int:
    """Ingest rows as one file; return the version."""
    path = write_rows(folder / f"part-{number}.csv", rows)
    values = {"log": str(path), "bipartite": True, "time_unit": "s", "window": "1d", **reading}
    return ingest_log(NAME, values, lambda text: None, layout=layout)["version"]


def stored_state(layout: Layout) -> str:
    """Store the state of the newest version, as a ranking does, unless it is stored; return its address."""
    version = newest_version(layout, NAME)
    event_state.open_state(NAME, version, layout, pytest.fail)
    return event_state._planned_state(layout, NAME, version).address
