"""Weights, vectors and a decoder -> the folder of an MLflow model without pickle."""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import polars as pl

from storage.tracking.mlflow_client import set_environment

if TYPE_CHECKING:
    from mlflow.models import ModelSignature

REQUIREMENTS = ("mlflow", "numpy", "pandas", "pyarrow")


@contextmanager
def packed_model(*, vectors: pl.DataFrame, decoder: bytes, weights: bytes) -> Iterator[Path]:
    """Make a temporary model folder, which exists during the `with` block, for `TrackedRun.register_model`.

    Args:
        vectors: side, id (integer or string) and vector (list of floats); more columns are stored too.
        decoder: JSON of a LinkDecoder of kind "paper": mean_F, scale_F, coefficient_F, intercept.
        weights: a safetensors file, stored with the model so that a training can continue from it.

    Raises:
        ValueError: the decoder needs more than the Hadamard product of two vectors.
    """
    _check(vectors, json.loads(decoder))
    with TemporaryDirectory() as folder:
        files = Path(folder) / "files"
        files.mkdir()
        vectors.write_parquet(files / "vectors.parquet")
        (files / "decoder.json").write_bytes(decoder)
        (files / "weights.safetensors").write_bytes(weights)
        (files / "ids.json").write_text(json.dumps({"type": _id_type(vectors)}))
        yield _save(files, Path(folder) / "model", vectors)


def _check(vectors: pl.DataFrame, decoder: dict[str, object]) -> None:
    mean, width = decoder["mean_F"], vectors["vector"].list.len().max()
    found = len(mean) if isinstance(mean, list) else 0
    if decoder["kind"] != "paper" or found != width:
        raise ValueError(
            f"a served model scores pairs from vectors only: expected a decoder of kind paper with {width} inputs,"
            f" found kind {decoder['kind']} with {found}"
        )


def _id_type(vectors: pl.DataFrame) -> str:
    return "long" if vectors["id"].dtype.is_integer() else "string"


def _save(files: Path, model: Path, vectors: pl.DataFrame) -> Path:
    set_environment()
    from mlflow.pyfunc import save_model

    with warnings.catch_warnings():
        # An example serves models without a signature; one here would cost seconds and other warnings.
        warnings.filterwarnings("ignore", message=".*input example was not provided", category=UserWarning)
        save_model(
            path=str(model),
            python_model=str(Path(__file__).with_name("served_model.py")),
            artifacts={"files": str(files)},
            signature=_signature(_id_type(vectors)),
            pip_requirements=[f"{name}=={version(name)}" for name in REQUIREMENTS],
        )
    return model


def _signature(id_type: str) -> "ModelSignature":
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema
    from mlflow.types.schema import Array, DataType

    ids = [ColSpec(id_type, name, required=False) for name in ("node", "source", "target")]
    outputs = [ColSpec(Array(DataType.float), "vector", required=False), ColSpec("double", "score", required=False)]
    return ModelSignature(
        inputs=Schema([*ids, ColSpec("long", "side", required=False)]), outputs=Schema([*ids, *outputs])
    )
