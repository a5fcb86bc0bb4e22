"""Metrics of published forecasts against sums over their pairs."""

import numpy as np
import polars as pl
import pytest
from ranked_logs import growing_log

from dyformer.evaluation.forecasts.best_partners import BUSIEST, PUBLISHED
from dyformer.evaluation.forecasts.forecast import fit_forecast
from dyformer.evaluation.forecasts.forecast_rows import (
    BACKTEST_SCHEMA,
    BEST_NEW,
    EDGES,
    NEW_PARTNERS_SCHEMA,
    backtests,
    forecast_metrics,
    new_partner_metrics,
    reliability,
)
from dyformer.evaluation.protocols.forecasts import PROTOCOL
from dyformer.evaluation.rows import METRICS_SCHEMA
from dyformer.experiments.methods import METHODS
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.graphs.snapshots import prefix
from dyformer.sampling.ranking_queries import step_pairs

GRAPH, STEP = growing_log(num_nodes=60, num_steps=7, num_rows=150), 6


def table(method: str, probabilities: list[float], came: list[bool], *, step: int = 5, seed: int = 0) -> pl.DataFrame:
    rows = [
        (method, seed, step, pair // 3, 10 + pair % 3, probability, pair % 2 == 0, came[pair])
        for pair, probability in enumerate(probabilities)
    ]
    return pl.DataFrame(rows, schema=BACKTEST_SCHEMA, orient="row")


def value(rows: pl.DataFrame, metric: str, *, part: str = "all", step: str = "macro", method: str = "A") -> dict:
    return rows.filter(method=method, metric=metric, slice=part, step=step).row(0, named=True)


@pytest.fixture(scope="module")
def both() -> dict[str, pl.DataFrame]:
    past = prepare_graph(GRAPH, until=STEP - 1, config=GraphConfig())
    forecast = fit_forecast("Contact recency", METHODS["Contact recency"], past, seed=3)
    return backtests("Contact recency", forecast, prefix(GRAPH, STEP), seed=3)


@pytest.fixture(scope="module")
def made(both: dict[str, pl.DataFrame]) -> pl.DataFrame:
    return both["backtest"]


def test_the_best_new_partners_are_those_of_the_published_table_of_new_links(both: dict[str, pl.DataFrame]):
    past = prepare_graph(prefix(GRAPH, STEP - 1), until=STEP - 1, config=GraphConfig())
    published = fit_forecast("Contact recency", METHODS["Contact recency"], past, seed=3).top(10, links="new")
    new = both["new_partners"]
    assert new.schema == NEW_PARTNERS_SCHEMA
    columns = ["node", "partner", "probability", "linked_before"]
    assert new.select(columns).equals(published.select(columns))
    assert not new["linked_before"].any()
    links = set(zip(*(end.tolist() for end in step_pairs(GRAPH, STEP)), strict=True))
    assert new["came"].to_list() == [pair in links for pair in new.select("node", "partner").iter_rows()]
    assert new["came"].any()


def test_the_busiest_nodes_have_a_family_of_their_own():
    new = table("A", [0.5, 0.4, 0.1, 0.1], [True, False, False, True])
    rows = new_partner_metrics(new.with_columns(is_busiest=pl.Series([True, False, False, False])), "log")
    precision = rows.filter(metric="precision_at_10", step="macro").select("family", "slice", "value", "num_pairs")
    assert precision.rows() == [(PUBLISHED, BEST_NEW, 0.5, 4), (BUSIEST, BEST_NEW, 1.0, 1)]


def test_a_backtest_has_the_published_pairs_and_whether_they_came(made: pl.DataFrame):
    past = prepare_graph(prefix(GRAPH, STEP - 1), until=STEP - 1, config=GraphConfig())
    published = fit_forecast("Contact recency", METHODS["Contact recency"], past, seed=3).top(10)
    assert made.schema == BACKTEST_SCHEMA
    assert made.select("node", "partner", "probability", "linked_before").equals(
        published.select("node", "partner", "probability", "linked_before")
    )
    links = set(zip(*(end.tolist() for end in step_pairs(GRAPH, STEP)), strict=True))
    expected = [(node, partner) in links for node, partner in made.select("node", "partner").iter_rows()]
    assert made["came"].to_list() == expected
    assert 0 < sum(expected) < len(expected)
    assert made.select("method", "seed", "step").unique().rows() == [("Contact recency", 3, STEP)]


def test_metrics_by_hand():
    probabilities, came = [0.9, 0.85, 0.1, 0.1, 0.1, 0.0], [True, False, False, True, False, False]
    rows = forecast_metrics(table("A", probabilities, came), "log")
    assert rows.schema == METRICS_SCHEMA
    assert rows.select("dataset", "protocol", "family").unique().rows() == [("log", "forecasts", PUBLISHED)]
    assert value(rows, "precision_at_10")["value"] == pytest.approx(2 / 6)
    assert value(rows, "probability_sum")["value"] == pytest.approx(2.05 / 2)
    squares = [0.01, 0.85**2, 0.01, 0.81, 0.01, 0]
    assert value(rows, "brier")["value"] == pytest.approx(sum(squares) / 6)
    # bins of a fifteenth: 0.9, 0.85 and 0.1 have one each, and 0.0
    assert value(rows, "calibration_error")["value"] == pytest.approx((0.1 + 0.85 + abs(0.3 - 1) + 0) / 6)
    assert value(rows, "calibration_error")["low"] is None
    assert (value(rows, "confident")["value"], value(rows, "confident")["num_pairs"]) == (0.5, 2)
    assert value(rows, "precision_at_10", part="repeat")["value"] == pytest.approx(1 / 3)
    assert value(rows, "precision_at_10", part="new")["value"] == pytest.approx(1 / 3)
    assert value(rows, "probability_sum", part="repeat")["value"] == pytest.approx(1.1)
    low, high = (value(rows, "precision_at_10")[end] for end in ("low", "high"))
    assert 0 <= low < 2 / 6 < high <= 1


def test_a_pair_is_confident_from_a_probability_of_four_fifths():
    rows = forecast_metrics(table("A", [0.9, 0.8, 0.7999, 0.1], [True, False, True, False]), "log")
    assert (value(rows, "confident")["value"], value(rows, "confident")["num_pairs"]) == (0.5, 2)


def test_micro_pools_pairs_and_macro_averages_steps():
    few = table("A", [0.5, 0.5], [True, True], step=5)
    many = table("A", [0.5] * 6, [False] * 5 + [True], step=6)
    rows = forecast_metrics(pl.concat([few, many]), "log")
    assert value(rows, "precision_at_10")["value"] == pytest.approx((1 + 1 / 6) / 2)
    assert value(rows, "precision_at_10", step="micro")["value"] == pytest.approx(3 / 8)
    assert value(rows, "probability_sum", step="micro")["value"] == pytest.approx(4 / 3)
    assert value(rows, "probability_sum")["value"] == pytest.approx((1 / 2 + 3) / 2)


def test_a_step_without_a_link_has_no_ratio_and_one_without_confidence_no_fraction():
    quiet = table("A", [0.2, 0.3], [False, False])
    rows = forecast_metrics(quiet, "log")
    assert set(rows["metric"]) == {"precision_at_10", "brier", "calibration_error", "probability_sum"}
    assert rows.filter(metric="probability_sum", slice="all")["value"].to_list() == [None] * 3
    both = forecast_metrics(pl.concat([quiet, table("A", [0.5, 0.5], [True, False], step=6)]), "log")
    assert value(both, "probability_sum", step="micro")["value"] == pytest.approx(1.5)  # with the quiet step
    assert value(both, "probability_sum")["value"] == pytest.approx(1.0)


def test_only_the_precision_is_compared_with_the_best_baseline():
    good, poor = table("A", [0.5] * 6, [True] * 4 + [False] * 2), table("B", [0.5] * 6, [True] + [False] * 5)
    rows = forecast_metrics(
        pl.concat([good, poor, poor.with_columns(method=pl.lit("C"), came=False)]), "log", baselines="BC"
    )
    best = value(rows, "precision_at_10")
    assert (best["best_baseline"], best["difference"]) == ("B", pytest.approx(0.5))
    assert best["difference_low"] <= 0.5 <= best["difference_high"]
    assert value(rows, "brier")["difference"] is None
    assert rows.filter(pl.col("is_baseline"))["method"].unique().sort().to_list() == ["B", "C"]


def test_reliability_by_hand():
    found = reliability(table("A", [0.15, 0.18, 0.5, 1.0, 0.0], [True, False, True, True, False]), baselines={"B"})
    ends = found.select("low_end", "high_end", "num_pairs").rows()
    assert ends == [(0.0, 0.001, 1), (0.1, 0.2, 2), (0.5, 0.8, 1), (0.8, 1.0, 1)]
    assert found["probability"].to_list() == pytest.approx([0, 0.165, 0.5, 1])
    assert found["fraction"].to_list() == [0, 0.5, 1, 1]
    assert found["is_baseline"].to_list() == [False] * 4
    assert (found["low"] <= found["fraction"]).all()


def test_reliability_counts_each_pair_once(made: pl.DataFrame):
    found = reliability(made, baselines={"Contact recency"})
    assert found["num_pairs"].sum() == len(made)
    assert np.average(found["fraction"], weights=found["num_pairs"]) == pytest.approx(made["came"].mean())
    assert np.average(found["probability"], weights=found["num_pairs"]) == pytest.approx(made["probability"].mean())
    assert set(found["low_end"]) <= set(EDGES)
    assert found["is_baseline"].all()


def test_no_two_columns_of_a_table_have_one_title():
    for found in PROTOCOL.tables:
        titles = [column.title for column in found.columns]
        assert len(set(titles)) == len(titles)
