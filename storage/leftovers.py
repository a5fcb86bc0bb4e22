"""Name of a dataset -> its folders without the files of killed writers."""

from pathlib import Path

from storage import files
from storage.disk import TEMPORARY
from storage.layout import Layout


def remove_leftovers(layout: Layout, dataset: str) -> None:
    """Remove the hidden files and folders of a dataset that nothing was written to for a day.

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
            files.remove_old(str(left))
