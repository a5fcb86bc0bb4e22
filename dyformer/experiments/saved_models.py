"""A fitted model as plain values -> a folder of JSON, Parquet and safetensors, and back; nothing in it is executed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

FORMAT = 2
RECORD, VECTORS = "model.json", "vectors.safetensors"


def write_model(
    folder: Path,
    record: Mapping[str, Any],
    tables: Mapping[str, pl.DataFrame],
    vector_ND: NDArray[np.floating] | None,
) -> None:
    """Write a model's record, tables and vectors; the record is last, so that a folder without it is no model.

    Raises ValueError for a folder that has files of another kind.
    """
    present = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if present and RECORD not in present:
        raise ValueError(f"{folder} has other files ({', '.join(present[:3])}): name a new folder, or that of a model")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECORD).unlink(missing_ok=True)
    (folder / VECTORS).unlink(missing_ok=True)
    for name, table in tables.items():
        table.write_parquet(folder / f"{name}.parquet")
    if vector_ND is not None:
        save_file({"vectors": np.ascontiguousarray(vector_ND)}, folder / VECTORS)
    saved = {"format": FORMAT, "tables": sorted(tables), "has_vectors": vector_ND is not None, "record": dict(record)}
    (folder / RECORD).write_text(json.dumps(saved))


def read_model(folder: Path) -> tuple[Mapping[str, Any], dict[str, pl.DataFrame], NDArray[np.floating] | None]:
    """Read the record, the tables and the vectors of a model. Raises ValueError for a folder without a whole one."""
    try:
        saved = json.loads((folder / RECORD).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{folder} has no readable {RECORD}: expected a folder that model.save wrote") from error
    if saved.get("format") != FORMAT:
        raise ValueError(f"{folder} has a model of format {saved.get('format')!r}, expected {FORMAT}: fit it again")
    try:
        tables = {name: pl.read_parquet(folder / f"{name}.parquet") for name in saved["tables"]}
        vector_ND = load_file(folder / VECTORS)["vectors"] if saved["has_vectors"] else None
    except (OSError, KeyError, pl.exceptions.PolarsError, SafetensorError) as error:
        raise ValueError(f"{folder} is not whole ({str(error).partition(chr(10))[0]}): save the model again") from error
    return saved["record"], tables, vector_ND
