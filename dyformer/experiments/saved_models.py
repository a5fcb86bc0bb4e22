"""A fitted model as plain values -> a folder of JSON, Parquet and safetensors, and back; nothing in it is executed."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from dyformer import DyformerError, InvalidInput

FORMAT = 3
RECORD, ARRAYS = "model.json", "arrays.safetensors"
PART = ".part-"  # at the beginning of the name of a folder with what is being written
LOADERS = {"steps": "dyformer.load", "events": "dyformer.EventModel.load"}

Kind = Literal["steps", "events"]
Parts = tuple[Mapping[str, Any], dict[str, pl.DataFrame], dict[str, NDArray]]
"""Plain values for JSON, tables and arrays of a model."""


class NotSaved(DyformerError, OSError):
    """The system refuses to write a model, for example because the disk is full."""


def write_model(folder: Path, kind: Kind, parts: Parts) -> None:
    """Write the parts of a model beside those of an earlier one, which they replace once all are written.

    The record is last, so that a folder without it is no model. Raises ValueError for a folder that has files of
    another kind, and NotSaved where it cannot be written.
    """
    try:
        _write(folder, kind, parts)
    except (OSError, SafetensorError) as error:
        raise NotSaved(f"{folder} cannot be written ({error}): name a folder in which you may write") from error


def _write(folder: Path, kind: Kind, parts: Parts) -> None:
    record, tables, arrays = parts
    present = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    others = [name for name in present if not name.startswith(PART)]  # than those that a killed process left
    if others and RECORD not in present:
        raise InvalidInput(f"{folder} has other files ({', '.join(others[:3])}): name a new folder, or that of a model")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=PART, dir=folder) as part:
        for name, table in tables.items():
            table.write_parquet(Path(part, f"{name}.parquet"))
        save_file({name: np.ascontiguousarray(values) for name, values in arrays.items()}, Path(part, ARRAYS))
        saved = {"format": FORMAT, "kind": kind, "tables": sorted(tables), "record": dict(record)}
        Path(part, RECORD).write_text(json.dumps(saved))
        (folder / RECORD).unlink(missing_ok=True)
        for name in (*(f"{name}.parquet" for name in tables), ARRAYS, RECORD):
            Path(part, name).replace(folder / name)


def read_model(folder: Path, kind: Kind) -> Parts:
    """Read the parts of a model. Raises ValueError for a folder without a whole one, or with one of another kind."""
    try:
        saved = json.loads((folder / RECORD).read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{folder} has no readable {RECORD}: expected a folder that model.save wrote") from error
    if saved.get("format") != FORMAT:
        raise InvalidInput(f"{folder} has a model of format {saved.get('format')!r}, expected {FORMAT}: fit it again")
    if saved["kind"] != kind:
        raise InvalidInput(f"{folder} has a model of {saved['kind']}: read it by {LOADERS[saved['kind']]}")
    try:
        tables = {name: pl.read_parquet(folder / f"{name}.parquet") for name in saved["tables"]}
        return saved["record"], tables, load_file(folder / ARRAYS)
    except (OSError, pl.exceptions.PolarsError, SafetensorError) as error:
        raise InvalidInput(
            f"{folder} is not whole ({str(error).partition(chr(10))[0]}): save the model again"
        ) from error
