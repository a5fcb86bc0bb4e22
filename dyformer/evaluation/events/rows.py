"""Ranks of the chosen targets -> rows of MRR and Hits@10 with intervals, and differences to the best baseline.

Q ranked events    S sources    B resamples    K metrics
"""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.evaluation.bootstrap import interval, node_resamples
from dyformer.evaluation.metric_rows import METRICS_SCHEMA
from dyformer.evaluation.scored_pairs import NotTheSamePairs

PROTOCOL = "tgb"
METRICS = ("mrr", "hits@10")

RANKS_SCHEMA = pl.Schema(
    {
        "method": pl.String(),
        "seed": pl.Int64(),
        "split": pl.String(),
        "visible": pl.String(),
        "candidates": pl.String(),
        "event": pl.Int64(),  # number in the log
        "source": pl.Int64(),
        "rank": pl.Float64(),
        "cpu_seconds": pl.Float64(),  # of the fit and of the ranking of both splits, the same in all rows of a run
    }
)

ROWS_SCHEMA = pl.Schema(
    {
        "dataset": pl.String(),
        "protocol": pl.String(),
        "method": pl.String(),
        "split": pl.String(),
        "visible": pl.String(),
        "candidates": pl.String(),
        "metric": pl.String(),
        "value": pl.Float64(),  # mean over events, and over seeds
        "low": pl.Float64(),  # ends of the 95 % interval of `value`
        "high": pl.Float64(),
        "num_queries": pl.Int64(),
        "num_seeds": pl.Int64(),
        "seed_deviation": pl.Float64(),  # standard deviation over seeds
        "cpu_seconds": pl.Float64(),  # of one seed: fit and ranking of both splits
        "is_baseline": pl.Boolean(),
        "best_baseline": pl.String(),  # the baseline with the best value of this split and metric
        "difference": pl.Float64(),  # `value` less that of the best baseline
        "difference_low": pl.Float64(),
        "difference_high": pl.Float64(),
    }
)


def seed_rows(ranks: pl.DataFrame, dataset: str, *, baselines: Collection[str] = ()) -> pl.DataFrame:
    """Give the metrics of each seed, and its CPU seconds, as rows of METRICS_SCHEMA.

    The split is the family and the step (with `macro` once more), the visibility the slice. Raises as event_rows does.
    """
    parts = [
        _of_seed(event_rows(own, dataset, baselines=baselines), seed)
        for (seed,), own in ranks.group_by("seed", maintain_order=True)
    ]
    return pl.concat([pl.DataFrame(schema=METRICS_SCHEMA), *parts])


def _of_seed(rows: pl.DataFrame, seed: object) -> pl.DataFrame:
    seconds = rows.filter(split="test", metric="mrr").with_columns(metric=pl.lit("cpu_seconds"), value="cpu_seconds")
    about = ("dataset", "protocol", "method", "split", "visible", "metric", "value", "num_queries", "is_baseline")
    both = pl.concat([rows, seconds.select(about)], how="diagonal")
    named = both.rename({"split": "family", "visible": "slice", "num_queries": "num_pairs"})
    named = named.with_columns(seed=pl.lit(seed, pl.Int64))
    steps = [named.with_columns(step="family"), named.with_columns(step=pl.lit("macro"))]
    return pl.concat(steps).select(pl.col(name).cast(kind) for name, kind in METRICS_SCHEMA.items())


class Means(NamedTuple):
    """The metrics of one method on one split, averaged over its seeds."""

    total_SK: NDArray[np.float64]  # sum over the events of each source
    num_seeds: int
    deviation_K: NDArray[np.float64]
    cpu_seconds: float


def event_rows(ranks: pl.DataFrame, dataset: str, *, baselines: Collection[str] = ()) -> pl.DataFrame:
    """Give the metrics of ranks (RANKS_SCHEMA, one visibility) as rows of ROWS_SCHEMA, best MRR first in each split.

    Every event weighs alike. Intervals resample the sources with all their events (NodeResamples), alike for all
    methods. `baselines` are titles; the best of them in a split and metric is the one that all are compared with.
    Raises NotTheSamePairs where methods or seeds were not evaluated on the same events, candidates and visibility.
    """
    _check_same(ranks)
    return pl.concat(
        [
            pl.DataFrame(schema=ROWS_SCHEMA),
            *(_split_rows(part, dataset, baselines) for _, part in ranks.group_by("split", maintain_order=True)),
        ]
    )


def _check_same(ranks: pl.DataFrame) -> None:
    if ranks.select("visible", "candidates").unique().height > 1:
        raise NotTheSamePairs("ranks of several visibilities or kinds of candidates: give those of one")
    runs = ranks.group_by("split", "method", "seed").agg(pl.col("event").sort().hash().alias("events").sum())
    uneven = runs.group_by("split").agg(pl.col("events").n_unique()).filter(pl.col("events") > 1)
    if uneven.height:
        raise NotTheSamePairs(f"methods ranked different events of {', '.join(uneven['split'])}: rank the same ones")


def _split_rows(part: pl.DataFrame, dataset: str, baselines: Collection[str]) -> pl.DataFrame:
    """Give the rows of one split."""
    source_S, count_S = _sources(part)
    means = {name: _means(own, source_S) for (name,), own in part.group_by("method", maintain_order=True)}
    methods = {str(name): each for name, each in means.items()}
    weight_BS = node_resamples([source_S] * 2, num_resamples=None, generator=np.random.default_rng(0)).weight_BS
    count_B = _weighted(weight_BS, count_S[:, None])
    rows = []
    for index, metric in enumerate(METRICS):
        values = {name: each.total_SK[:, index].sum() / count_S.sum() for name, each in methods.items()}
        best = max((name for name in values if name in baselines), key=values.__getitem__, default=None)
        for name in sorted(values, key=lambda name: -values[name]):
            own = methods[name]
            bounds = _interval(weight_BS, own.total_SK[:, index], count_B)
            about = (dataset, PROTOCOL, name, *part.select("split", "visible", "candidates").row(0), metric)
            row = (*about, values[name], *bounds, int(count_S.sum()), own.num_seeds, own.deviation_K[index])
            difference: tuple[float | None, ...] = (None,) * 3
            if best not in (None, name):
                other = methods[best].total_SK[:, index]
                bounds = _interval(weight_BS, own.total_SK[:, index] - other, count_B)
                difference = (values[name] - values[best], *bounds)
            rows.append((*row, own.cpu_seconds, name in baselines, best, *difference))
    return pl.DataFrame(rows, schema=ROWS_SCHEMA, orient="row").fill_nan(None)


def _sources(part: pl.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Give the sources of a split's events, and the number of events of each."""
    events = part.select("event", "source").unique("event")
    source_S, count_S = np.unique(events["source"].to_numpy(), return_counts=True)
    return source_S, count_S


def _means(own: pl.DataFrame, source_S: NDArray[np.int64]) -> Means:
    """Sum a method's metrics by source, averaged over its seeds."""
    rank_R, num_seeds = own["rank"].to_numpy(), own["seed"].n_unique()
    value_RK = np.column_stack([1 / rank_R, rank_R <= 10])
    position_R = np.searchsorted(source_S, own["source"].to_numpy())
    total_SK = np.column_stack([np.bincount(position_R, value_R, len(source_S)) for value_R in value_RK.T]) / num_seeds
    seed_R = own["seed"].to_numpy()
    by_seed = np.stack([value_RK[seed_R == seed].mean(axis=0) for seed in np.unique(seed_R)])
    seconds = own.unique("seed")["cpu_seconds"].to_numpy()
    deviation_K = by_seed.std(axis=0, ddof=1) if num_seeds > 1 else np.full(len(METRICS), np.nan)
    return Means(total_SK, num_seeds, deviation_K, float(seconds.mean()))


def _interval(
    weight_BS: NDArray[np.uint8], total_S: NDArray[np.float64], count_B: NDArray[np.float64]
) -> tuple[float, float]:
    with np.errstate(invalid="ignore"):  # a resample without a source is NaN
        return interval(_weighted(weight_BS, total_S[:, None]) / count_B)


def _weighted(weight_BS: NDArray[np.uint8], value_S1: NDArray) -> NDArray[np.float64]:
    """Sum the values of each resample; a few resamples at a time, because the product needs floats."""
    parts = np.array_split(weight_BS, max(1, weight_BS.size >> 22))
    return np.concatenate([(part @ value_S1.astype(np.float64))[:, 0] for part in parts])
