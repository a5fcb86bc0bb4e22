"""Forecasts for a step, and its links -> rows of metrics, reliability, and what came of those that were published.

P pairs: each node's ten best partners; a pair that is linked in the forecast step came    B resamples    K bins
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.evaluation.bootstrap import NodeResamples, interval, node_resamples
from dyformer.evaluation.first_stage import linked_in, ordered
from dyformer.evaluation.forecasts.best_partners import BUSIEST, FIRST, NUM_PARTNERS, PUBLISHED, evaluated_nodes
from dyformer.evaluation.forecasts.forecast import Forecast
from dyformer.evaluation.rows import Cell, Measured, Run, means, metric_rows, pair_weights
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.scoring.metrics import expected_calibration_error
from dyformer.scoring.retrieval import Retrieved

CONFIDENT = 0.8
SLICES = ("all", "new", "repeat")
Part = tuple[str, str]  # family and slice
PartsOf = Callable[[pl.DataFrame], Mapping[Part, NDArray[np.bool_]]]

BEST_NEW = "best_new"
"""The slice of each node's best new partners; `new` has the new ones among its best partners of all kinds."""
EDGES = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 1.0)
"""Ends of the bins of a reliability diagram: most probabilities are small."""

BACKTEST_SCHEMA = pl.Schema(
    {
        "method": pl.String(),
        "seed": pl.Int64(),
        "step": pl.Int64(),
        "node": pl.Int64(),
        "partner": pl.Int64(),
        "probability": pl.Float64(),
        "linked_before": pl.Boolean(),
        "came": pl.Boolean(),
    }
)
NEW_PARTNERS_SCHEMA = pl.Schema({**BACKTEST_SCHEMA, "is_busiest": pl.Boolean()})
RELIABILITY_SCHEMA = pl.Schema(
    {
        "method": pl.String(),
        "is_baseline": pl.Boolean(),
        "low_end": pl.Float64(),
        "high_end": pl.Float64(),
        "num_pairs": pl.Int64(),
        "probability": pl.Float64(),
        "fraction": pl.Float64(),
        "low": pl.Float64(),
        "high": pl.Float64(),
    }
)


def backtests(name: str, forecast: Forecast, graph: DynamicGraph, *, seed: int) -> dict[str, pl.DataFrame]:
    """Give each node's best partners of a forecast, the best new ones apart, and whether they were linked.

    `backtest` has the columns of BACKTEST_SCHEMA, `new_partners` those of NEW_PARTNERS_SCHEMA. `graph` ends with the
    step that was forecast.
    """
    best = forecast.tables(NUM_PARTNERS, ("all", "new"))
    busiest_A = evaluated_nodes(forecast.past.history, seed=seed).busiest_A
    is_busiest = pl.Series(np.isin(best["new"]["node"].to_numpy(), busiest_A), dtype=pl.Boolean)
    new = _with_outcomes(best["new"], name, forecast, graph, seed).with_columns(is_busiest=is_busiest)
    return {"backtest": _with_outcomes(best["all"], name, forecast, graph, seed), "new_partners": new}


def _with_outcomes(best: pl.DataFrame, name: str, forecast: Forecast, graph: DynamicGraph, seed: int) -> pl.DataFrame:
    pairs = Retrieved.of_table(best)
    came_P = linked_in(graph, graph.num_steps, *ordered(forecast.past.history, pairs))
    keys = {"method": name, "seed": seed, "step": graph.num_steps}
    literals = [pl.lit(value, BACKTEST_SCHEMA[key]).alias(key) for key, value in keys.items()]
    return best.with_columns(*literals, came=pl.Series(came_P, dtype=pl.Boolean)).select(BACKTEST_SCHEMA.names())


def forecast_metrics(backtests: pl.DataFrame, dataset: str, *, baselines: Collection[str] = ()) -> pl.DataFrame:
    """Give the metrics of backtests as rows of METRICS_SCHEMA: per step, micro and macro; all, new and past pairs.

    `precision_at_10`: the fraction of the pairs that came. `brier`: the mean squared difference of probability and
    outcome. `calibration_error`: the expected calibration error, without interval. `probability_sum`: the sum of the
    probabilities over the number of links that came, 1 at best; null where none came. `confident`: the fraction that
    came of the pairs with a probability of CONFIDENT and more. Only the precision is compared with the best of
    `baselines`.
    """
    return _metrics(backtests, dataset, baselines, _kinds_of_links)


def new_partner_metrics(partners: pl.DataFrame, dataset: str, *, baselines: Collection[str] = ()) -> pl.DataFrame:
    """Give the metrics of `forecast_metrics` of each node's best new partners, with the slice BEST_NEW.

    The family BUSIEST has those of the nodes with the most past partners alone.
    """
    return _metrics(partners, dataset, baselines, _all_and_busiest)


def _metrics(rows: pl.DataFrame, dataset: str, baselines: Collection[str], parts_of: PartsOf) -> pl.DataFrame:
    resamples = {
        int(str(seed)): _resamples(of_seed, int(str(seed)))
        for (seed,), of_seed in rows.group_by("seed", maintain_order=True)
    }
    steps: dict[int, dict[Run, dict[Cell, Measured]]] = {}
    for (step, method, seed), of_run in rows.group_by("step", "method", "seed", maintain_order=True):
        run = str(method), int(str(seed))
        steps.setdefault(int(str(step)), {})[run] = dict(_cells(of_run, resamples[run[1]], parts_of(of_run)))
    parts = []
    for is_precision in (True, False):
        chosen = {
            step: {
                run: {
                    cell: metric_cells
                    for cell, metric_cells in cells.items()
                    if (cell[0] == "precision_at_10") == is_precision
                }
                for run, cells in by_run.items()
            }
            for step, by_run in steps.items()
        }
        parts.append(metric_rows(chosen, dataset, protocol="forecasts", baselines=baselines if is_precision else ()))
    return pl.concat(parts).with_columns(is_baseline=pl.col("method").is_in(list(baselines)))


def _kinds_of_links(rows: pl.DataFrame) -> dict[Part, NDArray[np.bool_]]:
    linked_P = rows["linked_before"].to_numpy()
    masks = (np.full(len(linked_P), fill_value=True), ~linked_P, linked_P)
    return {(PUBLISHED, part): own_P for part, own_P in zip(SLICES, masks, strict=True)}


def _all_and_busiest(rows: pl.DataFrame) -> dict[Part, NDArray[np.bool_]]:
    busiest_P = rows["is_busiest"].to_numpy()
    return {(PUBLISHED, BEST_NEW): np.full(len(busiest_P), fill_value=True), (BUSIEST, BEST_NEW): busiest_P}


def reliability(backtests: pl.DataFrame, *, baselines: Collection[str] = ()) -> pl.DataFrame:
    """Give mean probability and fraction that came, by method and bin of EDGES, with the columns of RELIABILITY_SCHEMA.

    The 95 % interval of the fraction is that of resampled nodes. A bin without pairs has no row.
    """
    rows = []
    for (method,), of_method in backtests.group_by("method", maintain_order=True):
        weight_BP, (probability_P, came_P) = _weights(of_method, _resamples(of_method, seed=0)), _values(of_method)
        bin_P = np.clip(np.searchsorted(EDGES, probability_P, side="right") - 1, 0, len(EDGES) - 2)
        for k in np.unique(bin_P).tolist():
            inside_P = bin_P == k
            [fraction] = means(came_P[inside_P, None], weight_BP[:, inside_P])
            columns = (
                method,
                method in baselines,
                EDGES[k],
                EDGES[k + 1],
                int(inside_P.sum()),
                float(probability_P[inside_P].mean()),
            )
            rows.append((*columns, fraction.value, *interval(fraction.value_B)))
    return pl.DataFrame(rows, schema=RELIABILITY_SCHEMA, orient="row")


def _cells(
    rows: pl.DataFrame, resamples: NodeResamples, parts: Mapping[Part, NDArray[np.bool_]]
) -> Iterator[tuple[Cell, Measured]]:
    weight_BP, (probability_P, came_P) = _weights(rows, resamples), _values(rows)
    for part, inside_P in parts.items():
        if not inside_P.any():
            continue
        in_bin = probability_P[inside_P], came_P[inside_P], weight_BP[:, inside_P]
        for metric, measured in _measured(*in_bin):
            yield (metric, *part), measured


def _measured(
    probability_P: NDArray[np.float64], came_P: NDArray[np.float64], weight_BP: NDArray[np.float32]
) -> Iterator[tuple[str, Measured]]:
    precision, brier = means(np.stack([came_P, (probability_P - came_P) ** 2], axis=1), weight_BP)
    yield "precision_at_10", precision
    yield "brier", brier
    error = expected_calibration_error(came_P.astype(np.bool_), probability_P)
    yield "calibration_error", Measured(error, len(came_P), np.empty(0))
    num_came = int(came_P.sum())
    total, total_B, count_B = float(probability_P.sum()), weight_BP @ probability_P, weight_BP @ came_P
    with np.errstate(invalid="ignore", divide="ignore"):  # a resample without a link that came
        value_B = total_B / count_B
    value = total / num_came if num_came else np.nan  # the step still counts where steps are pooled
    value_B = np.where(np.isfinite(value_B), value_B, np.nan)
    yield "probability_sum", Measured(value, num_came, value_B, total, total_B, count_B)
    confident_P = probability_P >= CONFIDENT
    if confident_P.any():
        [came] = means(came_P[confident_P, None], weight_BP[:, confident_P])
        yield "confident", came


def _values(rows: pl.DataFrame) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return rows["probability"].to_numpy(), rows["came"].to_numpy().astype(np.float64)


def _resamples(rows: pl.DataFrame, seed: int) -> NodeResamples:
    return node_resamples(_ends(rows), generator=np.random.default_rng(seed))


def _weights(rows: pl.DataFrame, resamples: NodeResamples) -> NDArray[np.float32]:
    node_P, partner_P = _ends(rows)
    return pair_weights(resamples, node_P, partner_P)


def _ends(rows: pl.DataFrame) -> Sequence[NDArray[np.int64]]:
    return [rows[end].to_numpy() for end in ("node", "partner")]


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
    return [
        _row(part, part_rows, metrics.filter(slice=part))
        for part, part_rows in parts.items()
        if not part_rows.is_empty()
    ]


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
