"""Name of a dataset -> its folders without the files of killed writers."""

import re
import shutil
import time
from contextlib import suppress
from pathlib import Path

from storage import files
from storage.layout import Layout

TEMPORARY = re.compile(r"\..+\.[0-9a-f]{32}")  # as disk.temporary_name writes them
LEFTOVER_SECONDS = 3600  # no artifact takes so long to write


def remove_leftovers(layout: Layout, dataset: str) -> None:
    """Remove the hidden files and folders of a dataset that nothing was written to for an hour.

    The event table has leftovers of its own, which its next commit removes. An object store has no hidden files.
    """
    if not layout.is_local:
        return
    folders = [layout.of_dataset(layout.datasets, dataset)]
    folders += [
        layout.of_dataset(f"{folder}/{kind}", dataset)
        for folder in layout.artifact_folders
        for kind in files.children(folder)
    ]
    for folder in folders:
        for left in [path for path in Path(folder).rglob(".*") if TEMPORARY.fullmatch(path.name)]:
            with suppress(FileNotFoundError):  # its writer has just renamed it
                if time.time() - left.lstat().st_mtime > LEFTOVER_SECONDS:
                    shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()
