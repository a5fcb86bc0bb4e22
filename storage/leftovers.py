"""Name of a dataset -> its folders without the files of killed writers; a store -> without what a killed drop left."""

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from storage import files
from storage.artifacts.artifact import MANIFEST
from storage.disk import TEMPORARY
from storage.layout import PART, Layout
from storage.locks import DatasetInUse, not_in_use

DROPPED = re.compile(r"\.+dataset=(.+?)(?:\.[0-9a-f]{32})+")  # renamed once, or again by a removal that was killed too


def remove_leftovers(layout: Layout, dataset: str) -> None:
    """Remove the hidden files and folders of a dataset that nothing was written to for a day.

    Parts of artifacts go too, if none was made for a day. The event table has leftovers of its own, which its
    next commit removes. An object store has no hidden files.
    """
    _remove_old_parts(layout, dataset)
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


def _remove_old_parts(layout: Layout, dataset: str) -> None:
    manifests = files.find(layout.artifacts(PART, dataset), MANIFEST)
    with suppress(FileNotFoundError):  # another process has just removed one, so it is at work
        if manifests and time.time() - max(map(files.modified, manifests)) > files.LEFTOVER_SECONDS:
            for manifest in manifests:
                files.remove_folder(manifest.rpartition("/")[0])


def dropped_rests(layout: Layout) -> Iterator[tuple[str, str]]:
    """Yield each folder that a killed drop has renamed and not removed, with its dataset.

    An object store has none, because objects are removed one by one under their own names.
    """
    if not layout.is_local:
        return
    kinds = [f"{folder}/{kind}" for folder in layout.artifact_folders for kind in files.children(folder)]
    for folder in (layout.datasets, *kinds):
        for name in files.children(folder):
            if (found := DROPPED.fullmatch(name)) is not None:
                yield f"{folder}/{name}", found[1]


def remove_dropped(layout: Layout) -> None:
    """Remove what killed drops have left; the rest of a dataset that another process is just dropping stays."""
    for address, dataset in dropped_rests(layout):
        with suppress(DatasetInUse), not_in_use(layout, dataset, "drop"):
            files.remove_folder(address)
