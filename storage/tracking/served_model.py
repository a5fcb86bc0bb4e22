"""The registered model, as code: node ids -> vectors, pairs of ids -> scores.

MLflow copies this file into the model and runs it where the model is loaded, so it imports nothing from this project.

N nodes    D width of a vector    P pairs
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext


class ServedModel(PythonModel):
    """Vectors of one step and the decoder of their Hadamard products.

    A frame with `node` (and `side`, if one id is on both sides of a bipartite log) gives `node, vector`; a
    frame with `source` and `target` gives `source, target, score`.
    """

    def load_context(self, context: PythonModelContext) -> None:
        """Read the files that the model was packed with."""
        folder = Path(context.artifacts["files"])
        table = pq.read_table(folder / "vectors.parquet", columns=["side", "id", "vector"])
        self.vectors_ND = np.stack(table["vector"].to_numpy(zero_copy_only=False)).astype(np.float64)
        keys = zip(table["side"].to_pylist(), map(str, table["id"].to_pylist()), strict=True)
        self.row_of = {key: row for row, key in enumerate(keys)}
        self.is_bipartite = any(side == 1 for side, _ in self.row_of)
        self.decoder = json.loads((folder / "decoder.json").read_text())

    def predict(  # pyright: ignore[reportIncompatibleMethodOverride]  # MLflow's method has no return type
        self, context: PythonModelContext | None, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Predict every row of the frame, in its order.

        Raises:
            ValueError: other columns than `node` or `source` and `target`, or ids without a vector in the model.
        """
        columns = set(model_input.columns)
        if {"source", "target"} <= columns and "node" not in columns:
            return self._scores(model_input)
        if "node" in columns and not {"source", "target"} & columns:
            return self._vectors(model_input)
        raise ValueError(
            f"expected the column node (and side), or the columns source and target; found {', '.join(sorted(columns))}"
        )

    def _vectors(self, rows: pd.DataFrame) -> pd.DataFrame:
        names = [str(name) for name in rows["node"]]
        sides = rows["side"].tolist() if "side" in rows.columns else [self._only_side(name) for name in names]
        row_N = self._rows(sides, names)
        return rows.assign(vector=list(self.vectors_ND[row_N].astype(np.float32)))

    def _scores(self, rows: pd.DataFrame) -> pd.DataFrame:
        other = 1 if self.is_bipartite else 0
        source_P = self._rows([0] * len(rows), [str(name) for name in rows["source"]])
        target_P = self._rows([other] * len(rows), [str(name) for name in rows["target"]])
        product_PD = self.vectors_ND[source_P] * self.vectors_ND[target_P]
        standard_PD = (product_PD - np.array(self.decoder["mean_F"])) / np.array(self.decoder["scale_F"])
        logit_P = standard_PD @ np.array(self.decoder["coefficient_F"]) + self.decoder["intercept"]
        return rows.assign(score=np.exp(-np.logaddexp(0.0, -logit_P)))

    def _only_side(self, name: str) -> int:
        if (0, name) in self.row_of and (1, name) in self.row_of:
            raise ValueError(f"the node {name} is on both sides: add a column side (0 source, 1 target)")
        return 1 if (1, name) in self.row_of else 0

    def _rows(self, sides: Sequence[int], names: Sequence[str]) -> list[int]:
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
                f"unknown nodes: {', '.join(unknown[:10])}{more}; the model has vectors of {len(self.row_of)} nodes"
            )
        return [self.row_of[key] for key in keys]


set_model(ServedModel())
