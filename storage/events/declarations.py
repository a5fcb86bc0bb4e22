"""Options for reading a log -> a JSON record under its name, from which a later retraining reads them."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel

from dyformer import InvalidInput
from storage.bytes.checksums import Count, RecordDamaged, read_stamped_record, replace_record, wrong_kind
from storage.bytes.files import Stamp
from storage.events.versions import has_commits
from storage.layout import Layout
from storage.locks import alone

FIXED = ("time_unit", "bipartite")  # the committed rows depend on these

Change = Callable[[dict[str, Any]], Mapping[str, Any]]
"""The stored record, empty where there is none -> the record that follows it."""


class LogForm(BaseModel, strict=True, extra="forbid"):
    """The form of the files of a log, which later files must have too."""

    format: Literal["delimited", "jsonl", "parquet"]
    separator: str | None
    names: list[str]
    columns: dict[str, str | Count]
    num_fields: Count
    batch: str  # SHA-256 of the bytes of the first source that had it


class Declaration(BaseModel, strict=True):
    """How a log is read; the names of options that are missing are guessed or have defaults."""

    source: str | Count | None = None
    target: str | Count | None = None
    time: str | Count | None = None
    weight: str | Count | None = None
    label: str | Count | None = None
    format: str | None = None
    separator: str | None = None
    has_header: bool | None = None
    time_unit: str | None = None
    bipartite: bool | None = None
    directed: bool | None = None
    comment_marks: str = ""
    window: str = ""
    lateness: str = "0"
    finished: bool | None = None
    new_ids: bool | None = None
    drop_duplicates: bool | None = None
    forms: list[LogForm] = []
    dataset: str | None = None


def declare(layout: Layout, dataset: str, record: Mapping[str, Any] | Change) -> None:
    """Store the record; the keys in FIXED may never change afterwards.

    A function gives it from the stored one. Processes that declare at once, also on several machines, do so one after
    another: a function is called again with the record that came meanwhile, so that nothing of that is lost.

    Raises:
        ValueError: a fixed key differs from the stored record.
        RecordDamaged: the stored record was changed.
    """
    with alone(layout, f"declaration-{dataset}"):
        while True:
            known, stamp = _stored(layout, dataset)
            following = record(dict(known or {})) if callable(record) else record
            plain = json.loads(json.dumps(following))
            _check_fixed(dataset, known or {}, plain)
            named = plain | {"dataset": dataset}  # so that the record of another dataset in its place is noticed
            if plain == known or replace_record(layout.declaration(dataset), named, stamp):
                return


def _check_fixed(dataset: str, known: Mapping[str, Any], plain: Mapping[str, Any]) -> None:
    for key in FIXED:
        if key in known and known[key] != plain.get(key):
            raise InvalidInput(
                f"dataset {dataset!r} was ingested with {key} = {known[key]!r}, but now {key} = {plain.get(key)!r}: "
                f"leave the option out, ingest under another name, or remove the log with `dyformer drop {dataset}` "
                f"and ingest it again with `{key}={plain.get(key)}`"
            )


def declaration(layout: Layout, dataset: str) -> dict[str, Any] | None:
    """Stored record, None when the log was never declared.

    Raises:
        RecordDamaged: the record was changed, is another one, or is missing though the log has events.
    """
    return _stored(layout, dataset)[0]


def declared_record(layout: Layout, dataset: str) -> dict[str, Any]:
    """Stored record of a log with events; raises RecordDamaged, also where it lacks the window or the unit of times."""
    return _stored(layout, dataset, ("window", "time_unit"))[0] or {}


def _stored(layout: Layout, dataset: str, needed: tuple[str, ...] = ()) -> tuple[dict[str, Any] | None, Stamp | None]:
    """Read the record, and the stamp that `replace_record` expects."""
    remedy = f"remove the log with `dyformer drop {dataset}` and ingest its files again, with the options of before"
    address = layout.declaration(dataset)
    record, stamp = read_stamped_record(address, remedy, partial(wrong_kind, Declaration))
    if record is None and has_commits(layout, dataset):
        raise RecordDamaged(address, "is missing, though the log has events", remedy)
    if record is not None and (other := _other(record, dataset)):
        raise RecordDamaged(address, other, remedy)
    lacks = [key for key in needed if record is not None and key not in record]
    if lacks:
        raise RecordDamaged(address, f"lacks {', '.join(lacks)}", remedy)
    return record, stamp


def _other(record: dict[str, Any], dataset: str) -> str | None:
    """Say that a sound record is not the declaration of a dataset; take its name out of it if it is."""
    if (name := record.pop("dataset", None)) == dataset:
        return None
    if name is not None:
        return f"is the record of dataset {name!r}"
    return f"is a record of another kind ({', '.join(sorted(record)[:3])}), which names no dataset"
