"""The registered model, as code: pairs of ids -> probabilities, nodes -> best partners or vectors.

MLflow copies this file into the model, and the package `dyformer` beside it, and runs both where the model is loaded.

N nodes    D width of a vector    P pairs
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import BAD_REQUEST
from mlflow.pyfunc.model import PythonModel, PythonModelContext
from numpy.typing import NDArray

from dyformer.evaluation.forecasts.forecast import Links, check_distinct
from dyformer.evaluation.forecasts.stored_forecast import HISTORY_TABLES, forecast_from, history_from
from dyformer.scoring.retrieval import MAX_NODES
from dyformer.scoring.vector_spaces import rotated


class WrongRequest(MlflowException, ValueError):
    """A request that is wrong: MLflow's server returns it with the status 400, without a stack trace."""

    def __init__(self, message: str) -> None:
        super().__init__(message, error_code=BAD_REQUEST)


class ServedModel(PythonModel):
    """The published forecast of one step.

    A frame with `source` and `target` gives `source, target, probability`. A frame with `node` (and `side`, if one id
    is on both sides of a bipartite log) gives `node, vector`, or with the parameter `k` the node's `k` best partners:
    `node, partner, rank, probability, linked_before`; the parameter `links` is "all", "new" or "repeat".
    """

    def load_context(self, context: PythonModelContext) -> None:
        """Read the files that the model was packed with."""
        folder = Path(context.artifacts["files"])
        record = json.loads((folder / "forecast.json").read_text())
        ids = pl.read_parquet(folder / "ids.parquet")
        self.ids = ids["id"].cast(pl.String).to_list()
        self.row_of = {key: row for row, key in enumerate(zip(ids["side"].to_list(), self.ids, strict=True))}
        self.is_bipartite = any(side == 1 for side, _ in self.row_of)
        self.id_type = pd.Int64Dtype() if ids["id"].dtype.is_integer() else object
        own_ND, rotation = _vectors(folder / "vectors.parquet"), folder / "rotation.npy"
        self.vectors_ND = own_ND
        if own_ND is not None and rotation.exists():
            self.vectors_ND = rotated(own_ND, np.load(rotation))
        history = history_from(
            {name: pl.read_parquet(folder / f"{name}.parquet") for name in HISTORY_TABLES}, directed=record["directed"]
        )
        self.forecast = forecast_from(record, history, own_ND)

    def predict(  # pyright: ignore[reportIncompatibleMethodOverride]  # MLflow's method has no return type
        self, context: PythonModelContext | None, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Predict every row of the frame, in its order.

        Raises:
            WrongRequest: other columns than `node` or `source` and `target`, unknown ids, or vectors of a model that
                has none, or a pair of a node with itself.
        """
        try:
            return self._predicted(model_input, params)
        except ValueError as error:
            raise WrongRequest(str(error)) from error

    def _predicted(self, model_input: pd.DataFrame, params: dict[str, Any] | None) -> pd.DataFrame:
        columns, given = set(model_input.columns), params or {}
        if {"source", "target"} <= columns and "node" not in columns:
            return self._probabilities(model_input)
        if "node" in columns and not {"source", "target"} & columns:
            row_N = self._rows_of_nodes(model_input)
            k, links = int(given.get("k") or 0), given.get("links") or "all"
            if not k and links != "all":
                raise ValueError(f"links = {links!r} needs the parameter k, the number of partners of each node")
            return self._top(row_N, k, links) if k else self._vectors(model_input, row_N)
        raise ValueError(
            f"expected the column node (and side), or the columns source and target; found {', '.join(sorted(columns))}"
        )

    def _probabilities(self, rows: pd.DataFrame) -> pd.DataFrame:
        other = 1 if self.is_bipartite else 0
        source_P = self._rows([0] * len(rows), [str(name) for name in rows["source"]])
        target_P = self._rows([other] * len(rows), [str(name) for name in rows["target"]])
        check_distinct(self.ids, source_P, target_P)
        return rows.assign(probability=self.forecast.probability(source_P, target_P))

    def _vectors(self, rows: pd.DataFrame, row_N: NDArray[np.int64]) -> pd.DataFrame:
        if self.vectors_ND is None:
            raise ValueError("this model is a baseline and has no vectors: it gives partners with the parameter k")
        return rows.assign(vector=list(self.vectors_ND[row_N]))

    def _top(self, row_N: NDArray[np.int64], k: int, links: Links) -> pd.DataFrame:
        if len(self.ids) > MAX_NODES:
            raise ValueError(
                f"{len(self.ids):,} nodes are too many to compare all pairs (up to {MAX_NODES:,}): read the forecasts "
                f"that `dyformer run` writes, or give pairs of source and target"
            )
        table = self.forecast.top(k, links=links, query_A=np.unique(row_N))
        order = {row: position for position, row in reversed(list(enumerate(row_N.tolist())))}
        table = table.sort(pl.col("node").replace_strict(order, return_dtype=pl.Int64), "rank")
        named = {end: pd.Series([self.ids[row] for row in table[end]]).astype(self.id_type) for end in PARTNERS}
        numbers = {name: table[name].to_numpy() for name in ("rank", "probability", "linked_before")}
        return pd.DataFrame({**named, **numbers})

    def _rows_of_nodes(self, rows: pd.DataFrame) -> NDArray[np.int64]:
        names = [str(name) for name in rows["node"]]
        sides = rows["side"].tolist() if "side" in rows.columns else [self._only_side(name) for name in names]
        return self._rows(sides, names)

    def _only_side(self, name: str) -> int:
        if (0, name) in self.row_of and (1, name) in self.row_of:
            raise ValueError(f"the node {name} is on both sides: add a column side (0 source, 1 target)")
        return 1 if (1, name) in self.row_of else 0

    def _rows(self, sides: Sequence[int], names: Sequence[str]) -> NDArray[np.int64]:
        keys = list(zip(sides, names, strict=True))
        unknown = sorted(
            {
                name if not self.is_bipartite else f"{name} on side {side}"
                for side, name in keys
                if (side, name) not in self.row_of
            }
        )
        if unknown:
            more = f" and {len(unknown) - 10} more" if len(unknown) > 10 else ""
            raise ValueError(
                f"unknown nodes: {', '.join(unknown[:10])}{more}; the model knows {len(self.row_of)} nodes"
            )
        return np.array([self.row_of[key] for key in keys], dtype=np.int64)


PARTNERS = ("node", "partner")


def _vectors(file: Path) -> NDArray[np.float32] | None:
    if not file.exists():
        return None
    vectors = pl.read_parquet(file)["vector"]
    return vectors.explode().to_numpy().reshape(len(vectors), -1)


set_model(ServedModel())
