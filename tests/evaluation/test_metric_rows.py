"""Scored pairs as tables; their metrics per step, pooled and averaged; numbers of past partners and their levels."""

import io
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from ranked_logs import growing_log
from scored_cases import evaluated_pairs, pairs_at
from toy_graphs import toy_graph

from dyformer.evaluation.audit.poisons import graph_of, rows_of
from dyformer.evaluation.bootstrap import node_resamples, resampled_metrics
from dyformer.evaluation.forecasts.forecast import fit_forecast
from dyformer.evaluation.query_slices import evidence, num_partners
from dyformer.evaluation.rows import METRICS_SCHEMA, Cell, Measured, metric_rows
from dyformer.evaluation.scored_pairs import (
    PAIRS_SCHEMA,
    NotTheSamePairs,
    ScoredPairs,
    from_table,
    log_metrics,
    metrics_of,
    to_table,
)
from dyformer.experiments.methods import METHODS
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.graphs.snapshots import interactions_of
from dyformer.scoring.metrics import auc, average_precision


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


def test_no_pairs_give_no_rows():
    assert metrics_of([], "toy").schema == METRICS_SCHEMA


def many_pairs(step: int, method: str, edge: float, seed: int = 0) -> ScoredPairs:
    """400 pairs of 60 nodes; the scores of all methods share their noise, and `edge` parts the two kinds."""
    generator = np.random.default_rng([step, seed])
    source_P, target_P = generator.integers(60, size=(2, 400))
    positive_P = generator.random(400) < 0.5
    return ScoredPairs(
        method=method,
        seed=seed,
        step=step,
        family="random",
        source_P=source_P,
        target_P=target_P,
        positive_P=positive_P,
        new_P=generator.random(400) < 0.7,
        score_P=generator.normal(size=400) + edge * positive_P,
    )


def test_every_value_has_its_pairs_and_an_interval_of_its_own_resamples():
    steps = [many_pairs(step, "mine", 1.0) for step in (3, 4)]
    metrics = metrics_of(steps, "toy")
    assert metrics["low"].is_not_null().all()
    assert (metrics["low"] < metrics["value"]).all()
    assert (metrics["value"] < metrics["high"]).all()
    counts = dict(metrics.filter(metric="auc", slice="all").select("step", "num_pairs").iter_rows())
    assert counts == {"3": 400, "4": 400, "micro": 800, "macro": 800}
    assert metrics.filter(step="3", metric="auc", slice="new")["num_pairs"].item() == steps[0].new_P.sum()
    assert metrics.select("best_baseline", "difference").null_count().row(0) == (len(metrics), len(metrics))
    # macro: the mean over steps in one resample of the nodes of both, not the mean of two intervals
    ends = [end_P for pairs in steps for end_P in (pairs.source_P, pairs.target_P)]
    resamples = node_resamples(ends, generator=np.random.default_rng(0))
    auc_TB = [resampled_metrics(resamples, p.source_P, p.target_P, p.positive_P, p.score_P)[0] for p in steps]
    low, high = np.quantile(np.mean(auc_TB, axis=0), [0.025, 0.975])
    row = metrics.row(
        by_predicate=(pl.col("step") == "macro") & (pl.col("metric") == "auc") & (pl.col("slice") == "all"), named=True
    )
    assert (row["low"], row["high"]) == pytest.approx((low, high), abs=1e-12)
    assert (
        row["high"] - row["low"]
        < metrics.filter(step="3", metric="auc", slice="all").select(pl.col("high") - pl.col("low")).item()
    )


def test_all_methods_are_compared_with_the_baseline_of_the_best_macro_value():
    scored = [
        many_pairs(step, method, edge, seed)
        for step in (3, 4)
        for seed in (0, 1)
        for method, edge in (("weak", 0.2), ("good", 1.0), ("ours", 1.5))
    ]
    metrics = metrics_of(scored, "toy", baselines={"weak", "good", "not evaluated"})
    assert set(metrics["best_baseline"]) == {"good"}
    assert set(metrics.filter("is_baseline")["method"]) == {"weak", "good"}
    assert metrics.filter(method="good")["difference"].null_count() == metrics.filter(method="good").height
    key = ["seed", "step", "metric", "slice"]
    ours = metrics.filter(method="ours").join(metrics.filter(method="good"), on=key, suffix="_good")
    np.testing.assert_allclose(ours["difference"], ours["value"] - ours["value_good"])
    assert (ours["difference_low"] < ours["difference"]).all()
    assert (ours["difference"] < ours["difference_high"]).all()
    assert (ours.filter(step="macro")["difference_low"] > 0).all()
    assert (metrics.filter(method="weak", step="macro")["difference_high"] < 0).all()
    # the methods share their noise, so a paired interval is narrower than that of either value
    narrower = (ours["difference_high"] - ours["difference_low"]) < (ours["high"] - ours["low"])
    assert np.mean(narrower.to_numpy()) > 0.9


CELL: Cell = ("auc", "random", "all")


def measured(value: float, *resampled: float) -> Measured:
    return Measured(value, 100, np.array(resampled))


def test_the_best_baseline_has_the_best_mean_over_seeds():
    values = {("steady", 0): 0.6, ("steady", 1): 0.6, ("uneven", 0): 0.9, ("uneven", 1): 0.1, ("ours", 0): 0.7}
    steps = {3: {run: {CELL: measured(value, value - 0.1, value, value + 0.1)} for run, value in values.items()}}
    metrics = metric_rows(steps, "toy", protocol="paper", baselines=("uneven", "steady"))
    assert set(metrics["best_baseline"]) == {"steady"}
    assert metrics.filter(method="ours")["difference"].to_list() == pytest.approx([0.1, 0.1])  # step and macro


@pytest.mark.parametrize("titles", [("empty", "steady"), ("steady", "empty")])
def test_a_baseline_without_a_value_is_not_the_best_in_whatever_order_they_are(titles: tuple[str, ...]):
    """As of pairs with a probability of 0.8 and more, of which a baseline may have none."""
    values = {"empty": np.nan, "steady": 0.5, "ours": 0.75}
    cells = {(title, 0): {CELL: measured(values[title], values[title])} for title in (*titles, "ours")}
    metrics = metric_rows({3: cells}, "toy", protocol="forecasts", baselines=titles)
    assert set(metrics["best_baseline"]) == {"steady"}
    assert metrics.filter(method="ours")["difference"].to_list() == [0.25, 0.25]
    nobody = metric_rows({3: cells}, "toy", protocol="forecasts", baselines=["empty"])
    assert nobody["best_baseline"].null_count() == nobody.height


def test_a_mapping_names_the_method_with_which_each_is_compared():
    values = {(method, seed): value + seed / 8 for seed in (0, 1) for method, value in {"a": 0.5, "b": 0.7}.items()}
    values |= {("alone", 0): 0.9}
    steps = {3: {run: {CELL: measured(value, value, value + run[1])} for run, value in values.items()}}
    metrics = metric_rows(steps, "toy", protocol="paper", baselines={"a": "b", "b": "b"}).filter(step="3")
    columns = "method", "seed", "is_baseline", "best_baseline", "difference", "difference_low"
    assert metrics.select(columns).rows() == [
        ("a", 0, False, "b", pytest.approx(-0.2), pytest.approx(-0.2)),
        ("b", 0, True, "b", None, None),
        ("a", 1, False, "b", pytest.approx(-0.2), pytest.approx(-0.2)),
        ("b", 1, True, "b", None, None),
        ("alone", 0, False, None, None, None),
    ]
    several = metric_rows(steps, "toy", protocol="paper", baselines={"a": "b", "alone": "a"})
    assert several.filter(method="a", step="3")["difference"].to_list() == pytest.approx([-0.2, -0.2])
    assert several.filter(method="alone", step="3")["best_baseline"].to_list() == ["a"]
    assert not several["is_baseline"].any()


def test_a_macro_interval_averages_the_steps_that_have_a_value_in_a_resample():
    third, fourth = [0.1, 0.2, 0.3, np.nan, np.nan], [0.5, np.nan, 0.7, 0.8, np.nan]
    steps = {step: {("ours", 0): {CELL: measured(0.4, *own)}} for step, own in ((3, third), (4, fourth))}
    macro = metric_rows(steps, "toy", protocol="paper").filter(step="macro")
    low, high = np.quantile([0.3, 0.2, 0.5, 0.8], [0.025, 0.975])  # the last resample has no value of any step
    assert macro.select("low", "high").row(0) == pytest.approx((low, high), abs=1e-12)


def test_methods_of_other_pairs_are_refused():
    mine = pairs_at(3, [1, 0, 1, 0], [1, 1, 1, 1], [0.9, 0.1, 0.2, 0.3])
    other = replace(mine, method="other", target_P=mine.target_P + 1)
    with pytest.raises(NotTheSamePairs, match=r"other and mine .* different pairs of step 3 \(target_P differs\)"):
        metrics_of([mine, other], "toy")


def test_partners_are_counted_once_over_all_steps():
    graph = toy_graph([(0, 1), (1, 2)], [(1, 0), (1, 3)], [(0, 1)])
    assert num_partners(graph.snapshots).tolist() == [1, 3, 1, 1]
    assert num_partners(graph.snapshots[:1]).tolist() == [1, 2, 1]


def test_levels_begin_at_their_numbers():
    found = evidence(np.array([0, 1, 2, 4, 5, 100]))
    assert found.tolist() == ["none", "one", "few", "few", "many", "many"]


def test_every_known_node_has_forecasts_with_its_level():
    log = growing_log(num_nodes=150, num_steps=7, num_rows=40)
    rows = rows_of(log)
    alone = (
        rows.filter(pl.col("step") == 3).head(1).with_columns(pl.lit(10_000).alias(end) for end in ("source", "target"))
    )
    graph = graph_of(pl.concat([rows, alone.select(rows.columns).cast(rows.schema)]), log)
    past = prepare_graph(graph, until=6, config=GraphConfig())
    known = interactions_of(past.history)
    partners: list[set[int]] = [set() for _ in range(past.history.snapshots[-1].num_nodes)]
    for source, target in zip(known.source_R.tolist(), known.target_R.tolist(), strict=True):
        if source != target:
            partners[source].add(target)
            partners[target].add(source)
    best = fit_forecast("L3", METHODS["L3"], past, seed=0).top(3)
    assert set(best["node"]) == set(range(len(partners)))
    assert (past.history.node_N == 10_000).sum() == 1
    levels = {0: "none", 1: "one", 2: "few", 3: "few", 4: "few"}
    expected = [levels.get(len(partners[node]), "many") for node in best["node"]]
    assert best["evidence"].to_list() == expected
    assert set(expected) == {"none", "one", "few", "many"}


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
