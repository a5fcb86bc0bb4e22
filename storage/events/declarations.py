"""Options for reading a log -> a JSON record under its name, from which a later retraining reads them."""

import json
from typing import Any

from storage import files
from storage.layout import Layout

OPTIONS = {"time_unit": "--time-unit", "bipartite": "--bipartite or --one-space"}


class DeclarationConflict(ValueError):
    """A log is declared with other options than at its first ingest."""


def declare(layout: Layout, dataset: str, record: dict[str, Any], *, fixed: tuple[str, ...] = ()) -> None:
    """Store the record; the keys in `fixed`, on which stored rows depend, may never change afterwards.

    Raises:
        DeclarationConflict: a fixed key differs from the stored record.
    """
    known = declaration(layout, dataset) or {}
    plain = json.loads(json.dumps(record))
    for key in fixed:
        if key in known and known[key] != plain.get(key):
            raise DeclarationConflict(
                f"dataset {dataset!r} was ingested with {key} = {known[key]!r}, but now {key} = {plain.get(key)!r}: "
                f"leave the option out, ingest under another name, or remove the log with `dyformer drop {dataset}` "
                f"and ingest it again with {OPTIONS.get(key, key)}"
            )
    if plain != known:
        files.write_bytes(layout.declaration(dataset), json.dumps(plain, indent=1, sort_keys=True).encode())


def declaration(layout: Layout, dataset: str) -> dict[str, Any] | None:
    """Stored record, None when the log was never declared."""
    location = layout.declaration(dataset)
    return json.loads(files.read_bytes(location)) if files.size(location) is not None else None
