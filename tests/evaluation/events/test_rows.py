"""Rows of metrics: means over events, intervals over sources, differences to the best baseline."""

from collections.abc import Collection

import numpy as np
import polars as pl
import pytest

from dyformer.evaluation.protocols import tgb
from dyformer.evaluation.protocols.tgb import RANKS_SCHEMA, ROWS_SCHEMA, metrics_of_ranks
from dyformer.evaluation.scored_pairs import NotTheSamePairs

SOURCE_Q = np.repeat(np.arange(40), 5)


def event_rows(ranks: pl.DataFrame, dataset: str, baselines: Collection[str] = ()) -> pl.DataFrame:
    return tgb.event_rows(ranks, metrics_of_ranks(ranks, dataset, baselines=baselines))


def ranks_of(method: str, rank_Q: np.ndarray, *, seed: int = 0, split: str = "test", **other) -> pl.DataFrame:
    columns = {"method": method, "seed": seed, "split": split, "visible": "strict", "candidates": "all 9", **other}
    events = {"event": np.arange(len(rank_Q)), "source": SOURCE_Q[: len(rank_Q)], "rank": rank_Q, "cpu_seconds": 2.0}
    return pl.DataFrame({**events, **columns}, schema_overrides={"seed": pl.Int64}).select(RANKS_SCHEMA.names())


def random_ranks(seed: int, most: int = 20) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, most, size=len(SOURCE_Q)).astype(np.float64)


def row_of(rows: pl.DataFrame, method: str, metric: str = "mrr", split: str = "test") -> dict:
    return rows.row(
        by_predicate=(pl.col("method") == method) & (pl.col("metric") == metric) & (pl.col("split") == split),
        named=True,
    )


def test_events_weigh_alike_and_seeds_are_averaged():
    first, second = random_ranks(0), random_ranks(1)
    rows = event_rows(pl.concat([ranks_of("A", first), ranks_of("A", second, seed=1)]), "log")
    assert rows.schema == ROWS_SCHEMA
    mrr, hits = row_of(rows, "A"), row_of(rows, "A", "hits@10")
    by_seed = [(1 / first).mean(), (1 / second).mean()]
    assert mrr["value"] == pytest.approx(np.mean(by_seed))
    assert mrr["seed_deviation"] == pytest.approx(np.std(by_seed, ddof=1))
    assert hits["value"] == pytest.approx(np.mean([(first <= 10).mean(), (second <= 10).mean()]))
    assert (mrr["num_queries"], mrr["num_seeds"], mrr["cpu_seconds"]) == (200, 2, 2.0)
    assert mrr["low"] < mrr["value"] < mrr["high"]


def test_intervals_resample_sources_and_not_events():
    # All events of a source have one rank: as many different values as there are sources.
    alike = np.repeat(random_ranks(2)[::5], 5)
    rows = event_rows(
        pl.concat([ranks_of("alike", alike), ranks_of("mixed", np.roll(alike, 2).reshape(5, 40).T.ravel())]), "log"
    )
    alike_row, mixed_row = row_of(rows, "alike"), row_of(rows, "mixed")
    deviation = (1 / alike[::5]).std() / np.sqrt(40)
    assert alike_row["high"] - alike_row["low"] == pytest.approx(2 * 1.96 * deviation, rel=0.15)
    assert alike_row["high"] - alike_row["low"] > 1.3 * (mixed_row["high"] - mixed_row["low"])


def test_differences_are_paired_and_to_the_best_baseline_of_the_split_and_metric():
    best, own = random_ranks(3, 5), random_ranks(3, 5)
    own[::4] = 1
    parts = [ranks_of("ours", own), ranks_of("best", best), ranks_of("weak", best + 3)]
    parts += [
        ranks_of(name, rank_Q, split="validation")
        for name, rank_Q in (("ours", own), ("best", best + 9), ("weak", best))
    ]
    rows = event_rows(pl.concat(parts), "log", baselines=["best", "weak"])
    test, validation = row_of(rows, "ours"), row_of(rows, "ours", split="validation")
    assert (test["best_baseline"], validation["best_baseline"]) == ("best", "weak")
    assert test["difference"] == pytest.approx((1 / own).mean() - (1 / best).mean())
    assert 0 < test["difference_low"] < test["difference"] < test["difference_high"]
    # The same events: the interval of the difference is much narrower than that of the value.
    assert test["difference_high"] - test["difference_low"] < 0.8 * (test["high"] - test["low"])
    assert row_of(rows, "best")["difference"] is None
    assert row_of(rows, "weak")["difference"] < 0
    assert rows.filter(metric="mrr", split="test")["method"].to_list()[0] == "ours"
    assert rows["is_baseline"].to_list() == [method != "ours" for method in rows["method"]]


def test_methods_of_other_events_or_visibility_are_not_compared():
    fewer = ranks_of("B", random_ranks(1)[:-1])
    other = ranks_of("B", random_ranks(1), visible="batch:200")
    for part in (fewer, other):
        with pytest.raises(NotTheSamePairs):
            event_rows(pl.concat([ranks_of("A", random_ranks(0)), part]), "log")
