"""A store that was moved or copied -> an MLflow database whose addresses of files are of its present place.

MLflow records absolute addresses. Without this, the runs of a copy would write their files into the store that it was
copied from, and those of a moved store into a folder that nobody looks at.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from storage.layout import Layout
from storage.tracking.addresses import database_of
from storage.tracking.mlflow_client import LOCKED_SECONDS, PREFIX

COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
"""Where MLflow records the addresses of files, as table and column."""


def follow_store(layout: Layout) -> None:
    """Replace the folder of files that the experiments of the store's own database have by the one of this store.

    Experiments of others stay as they are, and so do ours whose files do not lie in a folder of this machine named as
    ours, such as those made through a server. A database beside the store (DYFORMER_STATE) may be of several stores.
    """
    database, artifact_root = database_of(layout.tracking_database), layout.tracking_artifacts
    if layout.state != layout.root or database is None:
        return
    with closing(sqlite3.connect(database, timeout=LOCKED_SECONDS, isolation_level=None)) as connection:
        for left in _other_roots(connection, artifact_root):
            connection.execute("begin immediate")
            for table, column in COLUMNS:
                connection.execute(
                    f"update {table} set {column} = ? || substr({column}, ?) where substr({column}, 1, ?) = ?",  # noqa: S608
                    (artifact_root, len(left) + 1, len(left) + 1, f"{left}/"),
                )
            connection.execute("commit")


def _other_roots(connection: sqlite3.Connection, artifact_root: str) -> set[str]:
    found = connection.execute("select name, artifact_location from experiments").fetchall()
    ending = f"/{Path(artifact_root).name}"
    ours = [(name, location) for name, location in found if name.startswith(PREFIX)]
    roots = {location.removesuffix(f"/{name}") for name, location in ours if location.endswith(f"{ending}/{name}")}
    return {root for root in roots if root.startswith("/") and root.endswith(ending)} - {artifact_root}
