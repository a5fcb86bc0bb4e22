"""Scored pairs as tables, and the metrics computed from them."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from toy_graphs import toy_graph

from dyformer.evaluation.scored_pairs import (
    METRICS_SCHEMA,
    PAIRS_SCHEMA,
    OtherColumns,
    ScoredPairs,
    from_table,
    log_metrics,
    metrics_of,
    to_table,
)
from dyformer.scoring.metrics import auc, average_precision
from flows.tasks.report import read_report
from storage.artifacts.artifact import ArtifactMissing, Lineage, write_artifact


def pairs_at(step: int, positive: list[int], new: list[int], score: list[float], **changes) -> ScoredPairs:
    pairs = ScoredPairs(
        method="mine",
        seed=0,
        step=step,
        family="random",
        source_P=np.arange(len(positive)),
        target_P=np.arange(len(positive)) + 1,
        positive_P=np.array(positive, dtype=bool),
        new_P=np.array(new, dtype=bool),
        score_P=np.array(score),
    )
    return replace(pairs, **changes)


def evaluated_pairs() -> list[ScoredPairs]:
    """Random scores of two methods, for two steps and two seeds."""
    generator = np.random.default_rng(0)
    columns = generator.integers(2, size=(8, 2, 30)).tolist()
    keys = [(step, seed, method) for step in (3, 4) for seed in (0, 1) for method in ("one", "two")]
    return [
        pairs_at(step, positive, new, generator.normal(size=30).tolist(), seed=seed, method=method)
        for (step, seed, method), (positive, new) in zip(keys, columns, strict=True)
    ]


def value(metrics: pl.DataFrame, step: str, part: str = "all", metric: str = "auc") -> float:
    """Return NaN if there is no such value; raise if there are several."""
    rows = metrics.filter(step=step, slice=part, metric=metric)
    return rows["value"].item() if len(rows) else np.nan


def test_micro_pools_the_steps_and_macro_averages_them():
    third = pairs_at(3, [1, 0, 1, 0], [1, 1, 0, 1], [0.9, 0.1, 0.2, 0.3])
    fourth = pairs_at(4, [1, 0], [0, 1], [0.05, 0.01])
    metrics = metrics_of([fourth, third], "toy")
    assert metrics.schema == METRICS_SCHEMA
    assert value(metrics, "3") == 0.75
    assert value(metrics, "4") == 1
    assert value(metrics, "macro") == 0.875
    pooled = (np.array([1, 0, 1, 0, 1, 0], dtype=bool), np.array([0.9, 0.1, 0.2, 0.3, 0.05, 0.01]))
    assert value(metrics, "micro") == auc(*pooled) == pytest.approx(6 / 9)
    assert value(metrics, "micro", metric="average_precision") == average_precision(*pooled)
    assert metrics["step"].to_list()[:4] == ["3", "4", "micro", "macro"]
    row = metrics.row(0, named=True)
    assert (row["dataset"], row["protocol"], row["method"], row["seed"], row["family"]) == (
        "toy",
        "paper",
        "mine",
        0,
        "random",
    )


def test_the_slice_new_holds_the_new_pairs_of_both_kinds():
    third = pairs_at(3, [1, 1, 0, 0], [1, 0, 1, 0], [0.2, 0.9, 0.4, 0.1])
    metrics = metrics_of([third], "toy")
    assert value(metrics, "3") == 0.75
    assert value(metrics, "3", "new") == value(metrics, "micro", "new") == 0


def test_a_step_without_new_links_has_no_new_metric_and_is_left_out_of_macro():
    third = pairs_at(3, [1, 0, 0], [1, 1, 1], [0.2, 0.9, 0.1])
    fourth = pairs_at(4, [1, 0], [0, 1], [0.9, 0.1])
    metrics = metrics_of([third, fourth], "toy")
    assert np.isnan(value(metrics, "4", "new"))
    assert value(metrics, "macro", "new") == value(metrics, "3", "new") == 0.5
    assert value(metrics, "macro") == 0.75
    none = metrics_of([fourth], "toy")
    assert none.filter(slice="new").is_empty()


def test_one_batch_equals_many():
    whole = evaluated_pairs()
    table = pl.concat([to_table([pairs]) for pairs in reversed(whole)])
    key = ["method", "seed", "step", "metric", "slice"]
    assert metrics_of(from_table(table), "toy").sort(key).equals(metrics_of(whole, "toy").sort(key))


def test_a_step_evaluated_twice_or_for_some_methods_only_is_refused():
    third, fourth = pairs_at(3, [1, 0], [1, 1], [0.2, 0.1]), pairs_at(4, [1, 0], [1, 1], [0.2, 0.1])
    with pytest.raises(ValueError, match="mine, seed 0: a step is evaluated twice"):
        metrics_of([third, third], "toy")
    with pytest.raises(ValueError, match=r"other, seed 0: evaluated on steps \[3\], others on \[3, 4\]"):
        metrics_of([third, fourth, replace(third, method="other")], "toy")


def test_scored_pairs_survive_parquet():
    evaluated = evaluated_pairs()
    file = io.BytesIO()
    to_table(evaluated).write_parquet(file)
    table = pl.read_parquet(io.BytesIO(file.getvalue()))
    assert table.schema == PAIRS_SCHEMA
    for before, after in zip(evaluated, from_table(table), strict=True):
        assert (before.method, before.seed, before.step, before.family) == (
            after.method,
            after.seed,
            after.step,
            after.family,
        )
        for name in ("source_P", "target_P", "positive_P", "new_P", "score_P"):
            np.testing.assert_array_equal(getattr(before, name), getattr(after, name))
    assert from_table(to_table([])) == []
    assert metrics_of([], "toy").schema == METRICS_SCHEMA


def test_coverage_and_repeat_rate_are_fractions_of_the_edges():
    graph = toy_graph([(0, 1), (1, 2)], [(0, 1), (0, 2), (2, 3), (4, 5)], [(0, 2), (5, 0)], [])
    metrics = log_metrics(graph, [2, 3, 4], "toy")
    assert metrics.schema == METRICS_SCHEMA
    assert value(metrics, "2", metric="coverage") == 0.5
    assert value(metrics, "2", metric="repeat_rate") == 0.25
    assert value(metrics, "3", metric="coverage") == 1
    assert value(metrics, "3", metric="repeat_rate") == 0.5
    assert value(metrics, "micro", metric="coverage") == pytest.approx(4 / 6)
    assert value(metrics, "macro", metric="coverage") == 0.75
    assert np.isnan(value(metrics, "4", metric="coverage"))
    assert set(metrics["method"]) == {"-"}


def test_a_table_of_an_earlier_version_is_refused_with_the_command_that_makes_it_again():
    earlier = to_table(evaluated_pairs()).rename({"positive": "linked"})
    with pytest.raises(OtherColumns, match=r"linked.*expected.*positive.*earlier version.*dyformer benchmark"):
        from_table(earlier)


def test_a_report_of_an_earlier_version_is_refused_with_the_command_that_makes_it_again(tmp_path: Path):
    lineage = Lineage(kind="report", dataset="mylog", table_version=1)
    earlier = {"former_name": pl.DataFrame({"value": [0.5]}), "summary.json": b"{}"}
    address = write_artifact(str(tmp_path / "report"), earlier, lineage)
    with pytest.raises(ArtifactMissing, match="earlier version of dyformer: delete it and run `dyformer run` again"):
        read_report(address)
