"""A forecast, its history and vectors, and the event state -> the folder of an MLflow model without pickle."""

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

import dyformer
from dyformer import InvalidInput
from storage.tracking.mlflow_client import set_environment

if TYPE_CHECKING:
    from mlflow.models import ModelSignature

    from dyformer.scoring.packed_ranking import PackedRanking

REQUIREMENTS = (
    "mlflow",
    "numpy",
    "pandas",
    "pyarrow",
    "polars",
    "scipy",
    "scikit-learn",
    "lightgbm",
    "numba",
    "pydantic",
    "threadpoolctl",
)
"""Packages that the served code imports; torch is not among them."""


@contextmanager
def packed_model(
    *,
    record: bytes,
    history: Mapping[str, pl.DataFrame],
    ids: pl.DataFrame,
    vectors: pl.DataFrame | None = None,
    rotation: NDArray[np.float64] | None = None,
    weights: bytes | None = None,
    live: "PackedRanking | None" = None,
) -> Iterator[Path]:
    """Make a temporary model folder, which exists during the `with` block, for `TrackedRun.register_model`.

    Args:
        record: JSON of dyformer.evaluation.forecasts.stored_forecast.forecast_record.
        history: the tables of history_tables, from which the features of any pair are computed.
        ids: side and id (integer or string) of the nodes, in their order.
        vectors: the column vector (list of floats), in the same order; None for a forecast without vectors.
        rotation: `[D, D]`, by which these become the vectors that the model gives; None: they are those.
        weights: a safetensors file, stored with the model so that a training can continue from it.
        live: the event state, the ids of its nodes and the event forecaster, by which the model ranks as of now.

    Raises:
        ValueError: the record is of a history with another number of steps.
    """
    steps, until = history["steps"].height, json.loads(record)["until"]
    if steps != until:
        raise InvalidInput(f"a forecast as of step {until} needs its history, found {steps} steps")
    with TemporaryDirectory() as folder:
        files = Path(folder) / "files"
        files.mkdir()
        tables = {**history, "ids": ids.select("side", "id")}
        for name, table in (tables if vectors is None else {**tables, "vectors": vectors.select("vector")}).items():
            table.write_parquet(files / f"{name}.parquet")
        if rotation is not None:
            np.save(files / "rotation.npy", rotation)
        (files / "forecast.json").write_bytes(record)
        if weights is not None:
            (files / "weights.safetensors").write_bytes(weights)
        if live is not None:
            _write_live(files, live)
        yield _save(files, Path(folder) / "model", "long" if ids["id"].dtype.is_integer() else "string")


def _write_live(files: Path, live: "PackedRanking") -> None:
    # Compressed to a fifth of the bytes of the store's file, because each registered version has a state of its own.
    np.savez_compressed(files / "event_state.npz", allow_pickle=False, **live.state.to_arrays())
    live.id_table().write_parquet(files / "event_ids.parquet")
    (files / "event_forecaster.json").write_text(json.dumps(live.record()))


def _save(files: Path, model: Path, id_type: str) -> Path:
    set_environment()
    from mlflow.pyfunc import save_model

    with warnings.catch_warnings(), _unchecked_packages():
        # An example serves models without a signature; one here would cost seconds and other warnings.
        warnings.filterwarnings("ignore", message=".*input example was not provided", category=UserWarning)
        save_model(
            path=str(model),
            python_model=str(Path(__file__).with_name("served_model.py")),
            artifacts={"files": str(files)},
            signature=_signature(id_type),
            pip_requirements=[f"{name}=={version(name)}" for name in REQUIREMENTS],
            code_paths=[str(Path(dyformer.__file__).parent)],
        )
    return model


@contextmanager
def _unchecked_packages() -> Iterator[None]:
    """Leave out MLflow's comparison of the requirements, which are the installed versions, with these.

    It reads the files of all installed packages for it, which takes most of the time of saving a model.
    """
    from mlflow.utils import environment

    name = "warn_dependency_requirement_mismatches"
    check = getattr(environment, name, None)  # not public: another MLflow may check elsewhere
    if check is not None:
        setattr(environment, name, lambda requirements: None)
    try:
        yield
    finally:
        if check is not None:
            setattr(environment, name, check)


def _signature(id_type: str) -> "ModelSignature":
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema
    from mlflow.types.schema import Array, DataType

    ids = [ColSpec(id_type, name, required=False) for name in ("node", "source", "target")]
    partner = [ColSpec(id_type, "partner", required=False), ColSpec("long", "rank", required=False)]
    numbers = [ColSpec("double", "probability", required=False), ColSpec("boolean", "linked_before", required=False)]
    vector = ColSpec(Array(DataType.float), "vector", required=False)
    ranked = [ColSpec("double", "score", required=False), ColSpec("long", "num_events", required=False)]
    reasons = ColSpec(Array(DataType.string), "reasons", required=False)
    texts = [ParamSpec("links", "string", "all"), ParamSpec("events", "string", ""), ParamSpec("at", "string", "")]
    return ModelSignature(
        inputs=Schema([*ids, ColSpec("long", "side", required=False)]),
        outputs=Schema([*ids, *partner, *numbers, vector, *ranked, reasons]),
        params=ParamSchema([ParamSpec("k", "long", 0), *texts]),
    )
