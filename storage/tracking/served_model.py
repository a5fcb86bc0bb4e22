"""The registered model, as code: pairs of ids -> probabilities, nodes -> best partners or vectors, as of now too.

MLflow copies this file into the model, and the package `dyformer` beside it, and runs both where the model is loaded.

N nodes    D width of a vector    P pairs
"""

import json
import os
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

from dyformer import InvalidInput
from dyformer.evaluation.forecasts.forecast import Links, check_distinct
from dyformer.evaluation.forecasts.stored_forecast import HISTORY_TABLES, forecast_from, history_from
from dyformer.logs.moments import read_moment
from dyformer.scoring.live_ranking import LiveRanking
from dyformer.scoring.packed_ranking import PackedRanking
from dyformer.scoring.retrieval import MAX_NODES
from dyformer.scoring.sent_events import read_events
from dyformer.scoring.vector_spaces import rotated


class WrongRequest(MlflowException, InvalidInput):
    """A request that is wrong: MLflow's server returns it with the status 400, without a stack trace."""

    def __init__(self, message: str) -> None:
        super().__init__(message, error_code=BAD_REQUEST)


class ServedModel(PythonModel):
    """The published forecast of one step, and the ranking as of now.

    A frame with `source` and `target` gives `source, target, probability`. A frame with `node` (and `side`, if one id
    is on both sides of a bipartite log) gives `node, vector`, or with the parameter `k` the node's `k` best partners:
    `node, partner, rank, probability, linked_before`; the parameter `links` is "all", "new" or "repeat".

    With the parameter `events`, a JSON list of `{source, target, time, weight}`, the event forecaster ranks as of now,
    from all events of the model and these, which count in this request alone. A frame with `source` gives the `k` best
    targets of each source (10 without k): `source, target, rank, probability, linked_before, num_events, reasons`,
    where num_events is the number of events of the source. A frame with `source` and `target` gives `source, target,
    score, probability, linked_before`; the score ranks the targets of one source, and the probability is None where
    the target is no candidate. With `at`, a time after the events of the model, only the events before it count.
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
        self.live = _packed_ranking(folder)
        if self.live is not None and SERVER in os.environ:
            ranking = self.live.ranking([])
            ranking.rank("")  # compiles, which takes longer than a first request may
            ranking.scores("", [""])

    def predict(  # pyright: ignore[reportIncompatibleMethodOverride]  # MLflow's method has no return type
        self, context: PythonModelContext | None, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Predict every row of the frame, in its order.

        Raises:
            WrongRequest: other columns than `node` or `source` and `target`, unknown ids, or vectors of a model that
                has none, or a pair of a node with itself; wrong events, or a model without an event forecaster.
        """
        try:
            return self._predicted(model_input, params)
        except ValueError as error:
            raise WrongRequest(str(error)) from error

    def _predicted(self, model_input: pd.DataFrame, params: dict[str, Any] | None) -> pd.DataFrame:
        columns, parameters = set(model_input.columns), params or {}
        if parameters.get("events") or parameters.get("at"):
            return self._as_of_now(model_input, parameters)
        if {"source", "target"} <= columns and "node" not in columns:
            return self._probabilities(model_input)
        if "node" in columns and not {"source", "target"} & columns:
            row_N = self._rows_of_nodes(model_input)
            k, links = int(parameters.get("k") or 0), parameters.get("links") or "all"
            if not k and links != "all":
                raise InvalidInput(f"links = {links!r} needs the parameter k, the number of partners of each node")
            return self._top(row_N, k, links) if k else self._vectors(model_input, row_N)
        raise InvalidInput(
            f"expected the column node (and side), or the columns source and target; found {', '.join(sorted(columns))}"
        )

    def _as_of_now(self, rows: pd.DataFrame, given: dict[str, Any]) -> pd.DataFrame:
        if self.live is None:
            raise InvalidInput(
                "this model has no event forecaster, so that it takes no events: `dyformer rank` makes one, and the"
                " model that is registered next has it"
            )
        if not given.get("events"):
            raise InvalidInput("the parameter at needs events: expected a JSON list of events, which may be empty: []")
        if (
            "source" not in rows.columns
            or {"node", "side"} & set(rows.columns)
            or (given.get("links") or "all") != "all"
        ):
            raise InvalidInput(
                "the parameter events needs the column source, or source and target, and no parameter links; found"
                f" {', '.join(sorted(rows.columns))}"
            )
        for end in sorted({"source", "target"} & set(rows.columns)):
            self.live.check_ids(end, map(str, rows[end]))
        at = read_moment(given["at"], self.live.time_unit) if given.get("at") else None
        ranking = self.live.ranking(read_events(given["events"], self.live.time_unit), at=at)
        if "target" in rows.columns:
            return _scored(ranking, rows, at)
        k = int(given.get("k") or NUM_RANKED)
        if k < 1:
            raise InvalidInput(f"k = {k}: expected at least 1")
        return self._ranked(ranking, [str(name) for name in rows["source"]], k, at)

    def _ranked(self, ranking: LiveRanking, sources: Sequence[str], k: int, at: int | None) -> pd.DataFrame:
        assert self.live is not None
        id_type = pd.Int64Dtype() if self.live.has_integer_ids else object
        columns: dict[str, list[Any]] = {name: [] for name in RANKED}
        for source in dict.fromkeys(sources):  # each once, in the order of the rows
            best = ranking.rank(source, at=at, k=k)
            columns["source"] += [source] * len(best.targets)
            columns["target"] += best.targets
            columns["rank"] += range(1, len(best.targets) + 1)
            columns["probability"] += best.probability_K.tolist()
            columns["linked_before"] += (~best.is_new_K).tolist()
            columns["num_events"] += [best.num_events] * len(best.targets)
            columns["reasons"] += best.reasons
        ends = {end: pd.Series(columns[end], dtype=object).astype(id_type) for end in ("source", "target")}
        return pd.DataFrame({**columns, **ends})

    def _probabilities(self, rows: pd.DataFrame) -> pd.DataFrame:
        other = 1 if self.is_bipartite else 0
        source_P = self._rows([0] * len(rows), [str(name) for name in rows["source"]])
        target_P = self._rows([other] * len(rows), [str(name) for name in rows["target"]])
        check_distinct(self.ids, source_P, target_P)
        return rows.assign(probability=self.forecast.probability(source_P, target_P))

    def _vectors(self, rows: pd.DataFrame, row_N: NDArray[np.int64]) -> pd.DataFrame:
        if self.vectors_ND is None:
            raise InvalidInput("this model is a baseline and has no vectors: it gives partners with the parameter k")
        return rows.assign(vector=list(self.vectors_ND[row_N]))

    def _top(self, row_N: NDArray[np.int64], k: int, links: Links) -> pd.DataFrame:
        if len(self.ids) > MAX_NODES:
            raise InvalidInput(
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
            raise InvalidInput(f"the node {name} is on both sides: add a column side (0 source, 1 target)")
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
            raise InvalidInput(
                f"unknown nodes: {', '.join(unknown[:10])}{more}; the model knows {len(self.row_of)} nodes"
            )
        return np.array([self.row_of[key] for key in keys], dtype=np.int64)


PARTNERS = ("node", "partner")
SERVER = "__pyfunc_model_path__"  # in the environment of MLflow's server, which is ready after the model is loaded
NUM_RANKED = 10
RANKED = ("source", "target", "rank", "probability", "linked_before", "num_events", "reasons")


def _scored(ranking: LiveRanking, rows: pd.DataFrame, at: int | None) -> pd.DataFrame:
    source_P, target_P = ([str(name) for name in rows[end]] for end in ("source", "target"))
    positions: dict[str, list[int]] = {}
    for position, source in enumerate(source_P):
        positions.setdefault(source, []).append(position)
    score_P, linked_P = np.zeros(len(rows)), np.zeros(len(rows), dtype=bool)
    probability_P = np.full(len(rows), None, dtype=object)  # because JSON has no NaN
    for source, own in positions.items():
        scores = ranking.scores(source, [target_P[position] for position in own], at=at)
        score_P[own], linked_P[own] = scores.score_P, scores.num_contacts_P > 0
        probability_P[own] = [None if np.isnan(value) else value for value in scores.probability_P.tolist()]
    return rows.assign(score=score_P, probability=probability_P, linked_before=linked_P)


def _packed_ranking(folder: Path) -> PackedRanking | None:
    if not (folder / "event_forecaster.json").exists():
        return None
    record = json.loads((folder / "event_forecaster.json").read_text())
    with np.load(folder / "event_state.npz", allow_pickle=False) as arrays:
        return PackedRanking.from_parts(record, arrays, pl.read_parquet(folder / "event_ids.parquet"))


def _vectors(file: Path) -> NDArray[np.float32] | None:
    if not file.exists():
        return None
    vectors = pl.read_parquet(file)["vector"]
    return vectors.explode().to_numpy().reshape(len(vectors), -1)


set_model(ServedModel())
