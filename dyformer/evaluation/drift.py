"""Steps of a history, and what was published at them -> how far the newest step lies from the earlier ones.

T steps    L links of a step, source < target    N nodes    D width of a vector    P forecasts

| metric | value at a step |
|---|---|
| interactions | logarithm of the number of interactions |
| active_nodes | logarithm of the number of nodes with an interaction |
| new_nodes | fraction of the active nodes that no earlier step has |
| repeats | fraction of the links that repeat an earlier one |
| busiest_nodes | fraction of the links' ends at the busiest hundredth of the active nodes |
| probabilities | distance of the published probabilities from those published before (Kolmogorov-Smirnov) |
| vectors | mean cosine distance of the nodes' vectors from those published before, after a rotation |
| calibration | logarithm of the sum of the published probabilities over the links that came |
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.linalg import orthogonal_procrustes

from dyformer.evaluation.config import DriftConfig
from dyformer.evaluation.seasons import MAX_STEPS, NO_SEASON, period_of
from dyformer.graphs.snapshots import DynamicGraph, Snapshot

NUM_EARLIER = 20  # steps before a step that it is compared with
MIN_EARLIER = 4
NUM_SHIFTS = 7  # newest publications that are compared with an earlier one
LOGARITHMS = ("interactions", "active_nodes", "calibration")  # the other metrics are fractions or distances, 0 to 1
COUNTS, DISTANCES = ("interactions", "active_nodes"), ("probabilities", "vectors")
SMALLEST_OF_LOGARITHM = 0.1  # smallest spread: a tenth of a volume
SMALLEST_SPREAD = 0.03  # of the other metrics: three points
NO_LINK = 0.5  # links that a step in which none came stands for
LEAST_RATIO = 1e-6  # of the sum of probabilities to the links that came, where the sum is 0
NORMAL = 1.4826  # times the median absolute deviation: the standard deviation, where values are normal

NO_PERIODS: Mapping[int, int] = MappingProxyType({})

DRIFT_SCHEMA = pl.Schema(
    {
        "step": pl.Int64(),
        "metric": pl.String(),
        "value": pl.Float64(),
        "usual": pl.Float64(),  # median of the earlier steps
        "deviation": pl.Float64(),  # robust standard deviations from it; null with few earlier steps
    }
)


def step_values(graph: DynamicGraph) -> pl.DataFrame:
    """Give the metrics of each step, from this step and earlier ones alone: step, metric, value.

    A step without links has no fractions, only the two counts: a log that stops has drifted.
    """
    rows, seen_L, num_before = [], np.empty(0, dtype=np.int64), 0
    for snapshot in graph.snapshots:
        pair_L = snapshot.source_E * len(graph.node_N) + snapshot.target_E
        values = _counts(snapshot)
        if len(pair_L):
            repeats = np.isin(pair_L, seen_L, assume_unique=True).mean()
            values |= _fractions(snapshot, num_before, float(repeats))
        rows += [(snapshot.step, *row) for row in values.items()]
        seen_L, num_before = np.union1d(seen_L, pair_L), snapshot.num_nodes
    return pl.DataFrame(rows, {name: DRIFT_SCHEMA[name] for name in ("step", "metric", "value")}, orient="row")


def step_periods(graph: DynamicGraph) -> dict[int, int]:
    """Give the period of the number of interactions before each step, by `period_of`."""
    count_T = [each.num_interactions for each in graph.snapshots]
    start_T = [each.start_time for each in graph.snapshots]
    newest = [slice(max(index - MAX_STEPS, 0), index) for index in range(len(count_T))]  # before each step
    return {
        snapshot.step: period_of(count_T[before], start_T[before])
        for snapshot, before in zip(graph.snapshots, newest, strict=True)
    }


def compared_steps(step_P: Sequence[int], period: int) -> list[tuple[tuple[int, ...], int]]:
    """Give the newest of the steps with a publication, each with the earlier ones that it is compared with.

    That is the one before, and where links recur after a `period`, also the one a period before; a step without the
    latter is left out then. The smallest distance counts: from a Friday to a Saturday probabilities move every week,
    and from one Saturday to the next they move with each lasting change, which the Sunday has seen already.
    """
    pairs = list(pairwise(step_P))[-NUM_SHIFTS:]
    if period == NO_SEASON:
        return [((before,), step) for before, step in pairs]
    return [((before, step - period), step) for before, step in pairs if step - period in step_P]


def probability_shift(earlier_P: NDArray[np.floating], later_P: NDArray[np.floating]) -> float:
    """Give the largest distance of two distributions of probabilities (two-sample Kolmogorov-Smirnov), 0 to 1."""
    from scipy.stats import ks_2samp  # late, because it takes 0.4 s to import

    distance, _ = ks_2samp(earlier_P, later_P)
    return float(np.asarray(distance))


def vector_shift(earlier_ND: NDArray[np.floating], later_ND: NDArray[np.floating]) -> float:
    """Give the mean cosine distance of the same nodes' vectors, after the best rotation (orthogonal Procrustes).

    Trainings place equal graphs in rotated spaces, which is no drift. Vectors of length 0 are left out.
    """
    rotation_DD, _ = orthogonal_procrustes(earlier_ND, later_ND)
    rotated_ND = earlier_ND @ rotation_DD
    length_N = np.linalg.norm(rotated_ND, axis=1) * np.linalg.norm(later_ND, axis=1)
    cosine_N = np.einsum("nd,nd->n", rotated_ND, later_ND)[length_N > 0] / length_N[length_N > 0]
    return float(1 - cosine_N.mean()) if len(cosine_N) else 0.0


def calibration(num_pairs: int, mean_probability: float, num_came: int) -> float:
    """Give the logarithm of the sum of published probabilities over the links that came: 0 if equal.

    Where none came, the sum is divided by half a link, which Haldane (1956) adds to counts that may be 0, so that the
    worst miscalibration has a value above that of one link. A sum of up to half a link then counts as equal.
    """
    total = num_pairs * mean_probability
    if not num_came:
        return float(np.log(max(total / NO_LINK, 1)))
    return float(np.log(max(total / num_came, LEAST_RATIO)))


def with_deviations(values: pl.DataFrame, periods: Mapping[int, int] = NO_PERIODS) -> pl.DataFrame:
    """Compare each value with those of the same metric at up to 20 earlier steps; rows of DRIFT_SCHEMA.

    `periods` has those before steps, as `step_periods` gives them: after how many steps the number of interactions
    recurs, as on days of a week. Then a value is compared with those some periods before, if there are at least 4: a
    quiet Sunday is as usual.

    The deviation is (value - median) / spread. The spread is 1.4826 times the median absolute deviation, and at least
    0.1 for a logarithm and 0.03 for another metric, so that a very steady log raises no alarm by a trifle. It is null
    with fewer than 4 earlier values.
    """
    parts = []
    for (metric,), group in values.sort("step").group_by("metric", maintain_order=True):
        value_T, step_T = group["value"].to_numpy(), group["step"].to_numpy()
        smallest = SMALLEST_OF_LOGARITHM if metric in LOGARITHMS else SMALLEST_SPREAD
        usual = [
            _usual(_earlier(value_T[:index], step - step_T[:index], periods.get(step, NO_SEASON)), smallest)
            for index, step in enumerate(step_T.tolist())
        ]
        medians = [None if median is None else median[0] for median in usual]
        deviations = [
            None if median is None else float(value - median[0]) / median[1]
            for value, median in zip(value_T, usual, strict=True)
        ]
        parts.append(
            group.with_columns(
                pl.Series("usual", medians, pl.Float64()), pl.Series("deviation", deviations, pl.Float64())
            )
        )
    return pl.concat(parts).select(DRIFT_SCHEMA.names()) if parts else pl.DataFrame(schema=DRIFT_SCHEMA)


def alarms_of(drift: pl.DataFrame, step: int, config: DriftConfig) -> list[str]:
    """Write, of a step's rows of DRIFT_SCHEMA, those that raise an alarm by the settings, as words.

    A distance that is smaller than usual raises none.
    """
    if config.alarm_at is None:
        return []
    size = pl.when(pl.col("metric").is_in(DISTANCES)).then("deviation").otherwise(pl.col("deviation").abs())
    rows = drift.filter(pl.col("step") == step, size >= config.alarm_at)
    return list(map(drift_text, rows.iter_rows(named=True)))


def value_text(metric: str, value: float | None) -> str:
    """Write a value without its logarithm: a count, or a fraction in percent, or a distance."""
    if value is None:
        return ""
    if metric in COUNTS:
        return f"{np.expm1(value):,.0f}"
    if metric == "calibration":
        return f"{100 * np.exp(value):.0f} %"
    return f"{value:.3g}" if metric in DISTANCES else f"{100 * value:.1f} %"


def drift_text(row: dict) -> str:
    """Write a row of DRIFT_SCHEMA as words: "interactions 3,983, usually 391 (12.4 standard deviations above)"."""
    side = "above" if row["deviation"] >= 0 else "below"
    numbers = f"{value_text(row['metric'], row['value'])}, usually {value_text(row['metric'], row['usual'])}"
    return f"{row['metric']} {numbers} ({abs(row['deviation']):.1f} standard deviations {side})"


def drift_texts(rows: pl.DataFrame) -> pl.DataFrame:
    """Write rows of DRIFT_SCHEMA for a reader: the same columns, numbers without logarithms."""
    values = [[value_text(row["metric"], row[name]) for row in rows.to_dicts()] for name in ("value", "usual")]
    texts = [pl.Series(name, text, pl.String()) for name, text in zip(("value", "usual"), values, strict=True)]
    return rows.with_columns(*texts, pl.col("deviation").round(1) + 0.0)  # no -0


def _counts(snapshot: Snapshot) -> dict[str, float]:
    return {
        "interactions": float(np.log1p(snapshot.num_interactions)),
        "active_nodes": float(np.log1p(len(_active(snapshot)))),
    }


def _fractions(snapshot: Snapshot, num_before: int, repeats: float) -> dict[str, float]:
    end_E, active_A = np.concatenate([snapshot.source_E, snapshot.target_E]), _active(snapshot)
    degree_A = np.sort(np.bincount(end_E, minlength=snapshot.num_nodes)[active_A])[::-1]
    num_busiest = max(1, len(active_A) // 100)
    return {
        "new_nodes": float((active_A >= num_before).mean()),
        "repeats": repeats,
        "busiest_nodes": float(degree_A[:num_busiest].sum() / degree_A.sum()),
    }


def _active(snapshot: Snapshot) -> NDArray[np.int64]:
    return np.union1d(np.concatenate([snapshot.source_E, snapshot.target_E]), snapshot.self_loop_node_L)


def _earlier(value_T: NDArray[np.float64], age_T: NDArray[np.int64], period: int) -> NDArray[np.float64]:
    """Give the newest values that a value is compared with: of steps some periods before, where these are enough."""
    alike_T = value_T[age_T % period == 0]
    return (value_T if len(alike_T) < MIN_EARLIER else alike_T)[-NUM_EARLIER:]


def _usual(earlier_T: NDArray[np.float64], smallest: float) -> tuple[float, float] | None:
    """Give the median and the spread of earlier values, None where they are too few."""
    if len(earlier_T) < MIN_EARLIER:
        return None
    median = float(np.median(earlier_T))
    return median, max(NORMAL * float(np.median(np.abs(earlier_T - median))), smallest)
