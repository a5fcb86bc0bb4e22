"""The installed sources -> the version of the code on which artifacts depend."""

import hashlib
import inspect
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

PRESENTATION = "experiments"  # tables, plots and the API; hyperparameters are in the settings of a lineage


@cache
def code_version() -> str:
    """Name the release and the first 12 digits of a SHA-256 of all modules that compute results: `0.1.0+1f0a...`."""
    return f"{version('dyformer')}+{sources_digest(files('dyformer'))[:12]}"


def source_digest(thing: Any) -> str:
    """SHA-256 of the file that defines a module, a class or a function."""
    return hashlib.sha256(Path(inspect.getfile(thing)).read_bytes()).hexdigest()


def sources_digest(folder: Traversable) -> str:
    """SHA-256 of the names and contents of a package's modules, without the folder PRESENTATION."""
    digest = hashlib.sha256()
    _add(digest, folder, "")
    return digest.hexdigest()


def _add(digest: "hashlib._Hash", folder: Traversable, path: str) -> None:
    for item in sorted(folder.iterdir(), key=lambda item: item.name):
        name = f"{path}/{item.name}"
        if item.is_dir():
            if name != f"/{PRESENTATION}":
                _add(digest, item, name)
        elif name.endswith(".py"):
            content = item.read_bytes()
            digest.update(f"{name} {len(content)}\n".encode() + content)
