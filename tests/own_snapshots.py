"""The snapshots of a log like a user's own, in the store of the environment."""

from pathlib import Path

from own_log import READING, own_log

from flows.tasks.ingest import ingest_log
from flows.tasks.snapshots import make_snapshots


def ingest_own(folder: Path) -> int:
    """Write the log to a folder and ingest it; return its version."""
    reading = {"log": [str(own_log(folder / "mylog.csv"))], **READING}
    return ingest_log("mylog", reading, show=lambda text: None)["version"]


def own_snapshots(folder: Path) -> str:
    """Write the log to a folder, ingest it and make its snapshots; return their address."""
    return make_snapshots("mylog", ingest_own(folder))
