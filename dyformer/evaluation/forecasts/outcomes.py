"""Forecasts that were published, and the links of their step -> what came of them, by kind of link."""

from typing import Any

import polars as pl

from dyformer.evaluation.forecasts.best_partners import FIRST, NUM_PARTNERS
from dyformer.evaluation.forecasts.forecast_rows import BACKTEST_SCHEMA, SLICES, forecast_metrics


def outcome_rows(pairs: pl.DataFrame, dataset: str, method: str, step: int) -> list[dict[str, Any]]:
    """Measure the best partners of a forecast, one row for each slice of links that has pairs.

    Args:
        pairs: at most NUM_PARTNERS partners a node: node, partner, rank, probability, linked_before, evidence, came.
        dataset: name of the log.
        method: that was published.
        step: that was forecast.

    Returns:
        slice; num_pairs, num_came: pairs, and those that were linked in the step; precision_at_K: fraction of the
        first K partners that were; precision_at_10_low, precision_at_10_high: 95 % interval under resamples of nodes;
        probability: mean; calibration_error; brier.
    """
    named = pairs.with_columns(method=pl.lit(method), seed=pl.lit(0, pl.Int64), step=pl.lit(step, pl.Int64))
    metrics = forecast_metrics(named.select(BACKTEST_SCHEMA.names()), dataset).filter(step=str(step))
    is_in = {"all": pl.lit(value=True), "new": ~pl.col("linked_before"), "repeat": pl.col("linked_before")}
    parts = {part: pairs.filter(is_in[part]) for part in SLICES}
    return [_row(part, own, metrics.filter(slice=part)) for part, own in parts.items() if not own.is_empty()]


def _row(part: str, pairs: pl.DataFrame, metrics: pl.DataFrame) -> dict[str, Any]:
    value = {row["metric"]: row for row in metrics.iter_rows(named=True)}
    best = value[f"precision_at_{NUM_PARTNERS}"]
    return {
        "slice": part,
        "num_pairs": pairs.height,
        "num_came": int(pairs["came"].sum()),
        **{f"precision_at_{k}": pairs.filter(pl.col("rank") <= k)["came"].mean() for k in FIRST},
        **{f"precision_at_{NUM_PARTNERS}_{end}": best[end] for end in ("low", "high")},
        "probability": pairs["probability"].mean(),
        "calibration_error": value["calibration_error"]["value"],
        "brier": value["brier"]["value"],
    }
