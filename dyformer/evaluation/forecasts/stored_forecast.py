"""A published forecast -> plain values and tables, and back: the same object wherever it is loaded.

N nodes    D width of a vector    R interactions
"""

import importlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.evaluation.first_stage import CandidatesOf
from dyformer.evaluation.forecasts.forecast import Forecast
from dyformer.evaluation.labelled_steps import labelled_steps
from dyformer.evaluation.seasons import NO_SEASON
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.interactions import Interactions
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.graphs.snapshots import DynamicGraph, from_tables, interactions_of, to_tables
from dyformer.scoring.calibration import Calibration
from dyformer.scoring.decoder import LinkDecoder
from dyformer.scoring.event_pairs import EventPairScore, FittedEventPairs, score_as_of
from dyformer.scoring.forecaster import FittedForecaster, Forecaster, ForecasterScore
from dyformer.scoring.heads import plain_values, with_arrays
from dyformer.scoring.interfaces import Embedder, Scorer

BASELINES = "dyformer.baselines."
HISTORY_TABLES = ("edges", "steps", "nodes", "interactions")


def can_store(forecast: Forecast, method: Embedder | Scorer) -> bool:
    """Whether `forecast_record` can give the values of a fitted method."""
    is_ours = isinstance(forecast.score, ForecasterScore | EventPairScore)
    return is_ours or type(method).__module__.startswith(BASELINES)


def forecast_record(forecast: Forecast, method: Embedder | Scorer, *, seed: int) -> dict[str, Any]:
    """Give what was fitted as plain values for JSON.

    The heads of a forecaster are stored; those of the event forecaster by pair read events, whose heads are stored,
    too. A baseline is stored by its class and settings, because it is fitted again in seconds where it is loaded.
    Raises ValueError for a user's own scorer, whose code is not part of the package.
    """
    fitted, event_pairs, reads_vectors, kind = None, None, False, type(method)
    if isinstance(forecast.score, ForecasterScore):
        fitted, reads_vectors = forecast.score.fitted.record(), forecast.score.forecaster.vectors_of is not None
    if isinstance(forecast.score, EventPairScore):
        event_pairs = forecast.score.fitted.record()
    if not can_store(forecast, method):
        raise InvalidInput(
            f"{kind.__module__}:{kind.__qualname__} cannot be stored: expected a forecaster or a baseline"
        )
    return {
        "fitted": fitted,
        "event_pairs": event_pairs,
        "reads_vectors": reads_vectors,
        "baseline": None if fitted or event_pairs else [kind.__module__, kind.__qualname__, vars(method)],
        "seed": seed,
        "until": forecast.past.until,
        "directed": forecast.past.history.directed,
        "graph": asdict(forecast.past.config),
        "retrieval": plain_values(forecast.retrieval),
        "calibration": plain_values(forecast.calibration),
        "calibration_step": forecast.calibration_step,
        "period": forecast.period,
    }


def forecast_from(
    record: Mapping[str, Any], history: DynamicGraph, vectors_ND: NDArray[np.floating] | None
) -> Forecast:
    """Read the values of `forecast_record`, for the same history and vectors. Raises ValueError for another history."""
    if history.num_steps != record["until"]:
        raise InvalidInput(
            f"a forecast as of step {record['until']} needs its history, found {history.num_steps} steps"
        )
    past = PreparedGraph(config=GraphConfig(**record["graph"]), until=record["until"], history=history)
    return forecast_of(record, past, vectors_ND)


def forecast_of(
    record: Mapping[str, Any],
    past: PreparedGraph,
    vectors_ND: NDArray[np.floating] | None,
    candidates_of: CandidatesOf | None = None,
) -> Forecast:
    """Read the values of `forecast_record` for the graph that the method was fitted as of, and the same vectors."""
    period = record.get("period", NO_SEASON)  # not in records of earlier versions
    if record.get("event_pairs") is not None:
        score = score_as_of(FittedEventPairs.from_record(record["event_pairs"]), past)
    elif record["fitted"] is None:
        module, name, settings = record["baseline"]
        if not module.startswith(BASELINES):
            raise InvalidInput(f"the baseline {module}:{name} is not one of {BASELINES.rstrip('.')}")
        method = getattr(importlib.import_module(module), name)(**settings)
        score = method.fit_pairs(past, labelled_steps(past, seed=record["seed"], period=period))
    else:
        if record["reads_vectors"] and vectors_ND is None:
            raise InvalidInput("this forecast reads vectors, and none are given")
        vectors_of = (lambda graph: vectors_ND) if record["reads_vectors"] else None
        forecaster = Forecaster(vectors_of=vectors_of, seed=record["seed"])
        score = ForecasterScore(
            forecaster=forecaster, fitted=FittedForecaster.from_record(record["fitted"]), graph=past
        )
    return Forecast(
        title=record["baseline"][1] if record["baseline"] else type(score).__name__,
        past=past,
        score=score,
        retrieval=LinkDecoder(**with_arrays(record["retrieval"])),
        calibration=Calibration(**with_arrays(record["calibration"])),
        calibration_step=record["calibration_step"],
        period=period,
        candidates_of=candidates_of,
    )


def history_tables(history: DynamicGraph) -> dict[str, pl.DataFrame]:
    """Give a history as HISTORY_TABLES."""
    return {**to_tables(history), "interactions": pl.DataFrame(vars(interactions_of(history)))}


def history_from(tables: Mapping[str, pl.DataFrame], *, directed: bool) -> DynamicGraph:
    """Read the tables of `history_tables`."""
    graph = from_tables(dict(tables))
    columns = {name: column.to_numpy() for name, column in tables["interactions"].to_dict().items()}
    return DynamicGraph(
        snapshots=graph.snapshots,
        node_N=graph.node_N,
        side_N=graph.side_N,
        interactions=Interactions(**columns),
        directed=directed,
    )
