"""Addresses of files -> the folders of artifacts that have no manifest."""

import re
import time

from storage import files
from storage.artifacts.artifact import MANIFEST

CONTENT = (".parquet", "/weights.safetensors")
LAST_KEY = re.compile("(settings|seed|commit)=.+")
WRITING_SECONDS = 3600.0  # a writer needs minutes, and the clock of an object store may be another one


def without_manifest(locations: list[str]) -> list[str]:
    """Folders of artifacts that have tables or weights but no manifest, which no writer leaves on a local disk.

    Only the last folder of an address is one: a file that a user put above belongs to no artifact. In an object store a
    writer that is at work leaves the same, so that only folders are listed in which nothing was written for long.
    """
    folders = {location.rpartition("/")[0] for location in locations if location.endswith(CONTENT)}
    whole = {location.rpartition("/")[0] for location in locations if location.endswith(f"/{MANIFEST}")}
    lost = {folder for folder in folders - whole if LAST_KEY.fullmatch(folder.rpartition("/")[2])}
    above = {folder for folder in lost if any(other.startswith(f"{folder}/") for other in whole)}
    return sorted(folder for folder in lost - above if not _may_be_in_writing(folder, locations))


def _may_be_in_writing(folder: str, locations: list[str]) -> bool:
    if not files.is_remote(folder):
        return False
    try:
        newest = max(files.modified(each) for each in locations if each.startswith(f"{folder}/"))
    except FileNotFoundError:  # removed meanwhile
        return True
    return time.time() - newest < WRITING_SECONDS
