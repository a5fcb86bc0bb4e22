"""Values of steps under node resamples -> rows of metrics: per step, pooled and averaged, and compared pair by pair.

U units of a mean (queries, nodes, sources)    M methods    P pairs    B resamples    T steps
"""

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.evaluation.bootstrap import NodeResamples, interval, resampled_metrics
from dyformer.scoring.metrics import auc, average_precision

METRICS_SCHEMA = pl.Schema(
    {
        "dataset": pl.String(),
        "protocol": pl.String(),
        "method": pl.String(),
        "seed": pl.Int64(),
        "step": pl.String(),
        "metric": pl.String(),
        "family": pl.String(),
        "slice": pl.String(),
        "value": pl.Float64(),
        "num_pairs": pl.Int64(),
        "low": pl.Float64(),  # ends of the 95 % interval of `value`
        "high": pl.Float64(),
        "is_baseline": pl.Boolean(),
        "best_baseline": pl.String(),  # by macro value of this metric, family and slice; or the method that is named
        "difference": pl.Float64(),  # `value` less that of `best_baseline`
        "difference_low": pl.Float64(),
        "difference_high": pl.Float64(),
    }
)
LOG_COLUMNS = METRICS_SCHEMA.names()[:10]  # of properties of a log, which have no interval and are not compared

PAIR_METRICS = {"auc": auc, "average_precision": average_precision}  # in the order of resampled_metrics

Run = tuple[str, int]  # method, seed
Cell = tuple[str, str, str]  # metric, family, slice


class Measured(NamedTuple):
    """A metric of one step, and its values with resampled nodes; a mean has its total and count as well."""

    value: float
    num: int  # units of a mean, pairs of an AUC
    value_B: NDArray[np.float64]
    total: float = np.nan
    total_B: NDArray[np.float64] | None = None  # None: no mean, so steps are not pooled
    count_B: NDArray[np.float64] | None = None


def pair_weights(
    resamples: NodeResamples, source_Q: NDArray[np.int64], target_Q: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Give how often each pair counts in each resample, [B, Q]; all ends are among the resampled nodes."""
    source_Q, target_Q = (_positions(resamples.node_S, end_Q) for end_Q in (source_Q, target_Q))
    return resamples.weight_BS[:, source_Q].astype(np.float32) * resamples.weight_BS[:, target_Q]


def _positions(node_S: NDArray[np.int64], end_Q: NDArray[np.int64]) -> NDArray[np.int64]:
    position_Q = np.searchsorted(node_S, end_Q)
    # Another node stands at the position of one that was not resampled. Ends of rows that were taken back are NaN.
    found_Q = node_S.take(position_Q, mode="clip") if len(end_Q) else end_Q
    assert np.array_equal(found_Q, end_Q, equal_nan=True), "a node was not resampled"
    return position_Q


def means(
    total_UM: NDArray[np.float64], weight_BU: NDArray, count_U: NDArray[np.int64] | None = None
) -> list[Measured]:
    """Give the means of M methods, and their resampled means.

    Args:
        total_UM: value of each unit, or the sum of the values that it stands for.
        weight_BU: how often each unit counts in each resample.
        count_U: number of values that each unit stands for; by default one.
    """
    num = len(total_UM) if count_U is None else int(count_U.sum())
    total_BM = _weighted(weight_BU, total_UM)
    count_B = (
        weight_BU.sum(axis=1, dtype=np.float64) if count_U is None else _weighted(weight_BU, count_U[:, None])[:, 0]
    )
    with np.errstate(invalid="ignore"):  # a resample without any of the units is NaN
        value_BM = total_BM / count_B[:, None]
    totals = [float(total_U.sum()) for total_U in total_UM.T]
    return [
        Measured(total / num, num, value_B, total, total_B, count_B)
        for total, value_B, total_B in zip(totals, value_BM.T, total_BM.T, strict=True)
    ]


def _weighted(weight_BU: NDArray, value_UM: NDArray) -> NDArray[np.float64]:
    """Sum the values of each resample; whole weights a few resamples at a time, because the product needs floats."""
    if not np.issubdtype(weight_BU.dtype, np.integer):
        return weight_BU @ value_UM
    parts = np.array_split(weight_BU, max(1, weight_BU.size >> 22))
    return np.concatenate([part @ value_UM.astype(np.float64) for part in parts])


def pair_metrics(
    resamples: NodeResamples,
    source_P: NDArray[np.int64],
    target_P: NDArray[np.int64],
    positive_P: NDArray[np.bool_],
    score_P: NDArray[np.float64],
) -> dict[str, Measured]:
    """Give AUC and average precision of pairs, with the two-way bootstrap of their ends (NodeResamples)."""
    resampled = resampled_metrics(resamples, source_P, target_P, positive_P, score_P)
    return {
        name: Measured(metric(positive_P, score_P), len(positive_P), value_B)
        for (name, metric), value_B in zip(PAIR_METRICS.items(), resampled, strict=True)
    }


def metric_rows(
    steps: Mapping[int, Mapping[Run, Mapping[Cell, Measured]]] | Mapping[str, Mapping[Run, Mapping[Cell, Measured]]],
    dataset: str,
    *,
    protocol: str,
    baselines: Collection[str] = (),
    pooled: Mapping[Run, Mapping[Cell, Measured]] | None = None,
) -> pl.DataFrame:
    """Give the metrics of steps as rows of METRICS_SCHEMA, with `micro` and `macro`.

    Macro is the mean over the steps that have a value. Micro is that of `pooled`, else it pools the units of means.
    The best baseline of a metric, family and slice is that of `baselines` with the best macro value, averaged over
    seeds. All methods are compared with it under the same resamples, of a run with the same seed. A mapping gives the
    method with which each is compared, by title, instead; it is a baseline if it is the only one.
    """
    fixed = baselines if isinstance(baselines, Mapping) else None
    titles = set(baselines if fixed is None else fixed.values())
    if fixed is not None and len(titles) > 1:
        titles = set()
    runs = list(dict.fromkeys(run for by_run in steps.values() for run in by_run))
    whole = {
        run: _over_steps(
            {str(step): by_run.get(run, {}) for step, by_run in steps.items()}, (pooled or {}).get(run, {})
        )
        for run in runs
    }
    best = _best_baselines(whole, titles)
    rows = []
    for (method, seed), values in whole.items():
        for (step, cell), measured in values.items():
            metric, family, part = cell
            name = best.get(cell) if fixed is None else fixed.get(method)
            other = None if name in (None, method) else whole.get((name, seed), {}).get((step, cell))
            columns = (dataset, protocol, method, seed, step, metric, family, part, measured.value, measured.num)
            rows.append((*columns, *interval(measured.value_B), method in titles, name, *_difference(measured, other)))
    return pl.DataFrame(rows, schema=METRICS_SCHEMA, orient="row").fill_nan(None)


def _over_steps(
    steps: Mapping[str, Mapping[Cell, Measured]], pooled: Mapping[Cell, Measured]
) -> dict[tuple[str, Cell], Measured]:
    """Give the values of each metric by step, then its `micro` where there is one, and its `macro`."""
    means: dict[tuple[str, Cell], Measured] = {}
    for cell in dict.fromkeys(cell for cells in steps.values() for cell in cells):
        of_steps = {step: cells[cell] for step, cells in steps.items() if cell in cells}
        means |= {(step, cell): measured for step, measured in of_steps.items()}
        values = list(of_steps.values())
        num = sum(measured.num for measured in values)
        totals = [(measured.total_B, measured.count_B) for measured in values if measured.total_B is not None]
        if cell in pooled:
            means["micro", cell] = pooled[cell]
        elif totals:
            total_B, count_B = (np.sum(parts, axis=0) for parts in zip(*totals, strict=True))
            with np.errstate(invalid="ignore", divide="ignore"):  # a resample without any unit that counts
                total = sum(measured.total for measured in values)
                means["micro", cell] = Measured(total / num if num else np.nan, num, total_B / count_B)
        values_known = [measured.value for measured in values if np.isfinite(measured.value)]
        value = float(np.mean(values_known)) if values_known else np.nan
        means["macro", cell] = Measured(value, num, _mean_of_known([measured.value_B for measured in values]))
    return means


def _mean_of_known(value_TB: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Average over the steps that have a value in a resample."""
    stacked_TB = np.stack(value_TB)
    is_known_TB = np.isfinite(stacked_TB)
    with np.errstate(invalid="ignore"):  # 0 / 0 is NaN where no step has one
        return np.where(is_known_TB, stacked_TB, 0).sum(axis=0) / is_known_TB.sum(axis=0)


def _best_baselines(
    whole: Mapping[Run, Mapping[tuple[str, Cell], Measured]], baselines: Collection[str]
) -> dict[Cell, str]:
    values: dict[Cell, dict[str, list[float]]] = {}
    for (method, _), cells in whole.items():
        for (step, cell), of_methods in cells.items():
            if step == "macro" and method in baselines and np.isfinite(of_methods.value):
                values.setdefault(cell, {}).setdefault(method, []).append(of_methods.value)
    return {
        cell: max(of_methods, key=lambda method: float(np.mean(of_methods[method])))
        for cell, of_methods in values.items()
    }


def _difference(own: Measured, other: Measured | None) -> tuple[float | None, ...]:
    if other is None:
        return None, None, None
    return own.value - other.value, *interval(own.value_B - other.value_B)


def log_rows(
    dataset: str, protocol: str, metric: str, values: Mapping[str, tuple[float, int]], family: str = "-"
) -> pl.DataFrame:
    """Give a property of a log, value and number by step, as rows of METRICS_SCHEMA: of the method `-`, no seed."""
    rows = [(dataset, protocol, "-", None, step, metric, family, "all", *pair) for step, pair in values.items()]
    schema = pl.Schema({name: METRICS_SCHEMA[name] for name in LOG_COLUMNS})
    return pl.concat(
        [pl.DataFrame(schema=METRICS_SCHEMA), pl.DataFrame(rows, schema=schema, orient="row")], how="diagonal"
    )


def fractions(counts: Mapping[int, tuple[int, int]]) -> dict[str, tuple[float, int]]:
    """Give part / whole of each step, with `micro` and `macro`, and the wholes; a step without a whole is left out."""
    values = {str(step): (part / whole, whole) for step, (part, whole) in counts.items() if whole}
    if values:
        total = sum(whole for _, whole in values.values())
        macro = float(np.mean([value for value, _ in values.values()]))
        values["micro"] = sum(part for part, whole in counts.values() if whole) / total, total
        values["macro"] = macro, total
    return values
