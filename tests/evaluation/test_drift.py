"""Drift: metrics against a recount, deviations against scipy, the rule case by case, nothing from later steps."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from ranked_logs import weekly_log
from scipy.stats import median_abs_deviation

from dyformer.evaluation.config import DriftConfig
from dyformer.evaluation.drift import (
    DRIFT_SCHEMA,
    alarms_of,
    calibration,
    drift_text,
    drift_texts,
    probability_shift,
    step_periods,
    step_values,
    vector_shift,
    with_deviations,
)
from dyformer.graphs.snapshots import DynamicGraph, build_snapshots
from dyformer.logs.time_windows import Window

STEADY = 60  # rows a step


def events(num_steps: int = 8, *, last: int = STEADY, seed: int = 0) -> list[tuple[int, int, int]]:
    """Rows of source, target and step; the last step has another number of them."""
    generator = np.random.default_rng(seed)
    rows = [(step, *generator.choice(30, size=2)) for step in range(num_steps - 1) for _ in range(STEADY)]
    rows += [(num_steps - 1, *generator.choice(30, size=2)) for _ in range(last)]
    return [(int(source), int(target), step) for step, source, target in rows]


def graph_of(rows: list[tuple[int, int, int]]) -> DynamicGraph:
    table = pl.DataFrame(rows, schema=["source", "target", "time"], orient="row")
    return build_snapshots(table, Window(rule="equal_time", length="1"), "step")


def value(values: pl.DataFrame, metric: str, step: int) -> float:
    return values.filter(pl.col("metric") == metric, pl.col("step") == step)["value"].item()


def test_metrics_of_a_step_equal_a_plain_recount():
    rows = events(last=25)
    values = step_values(graph_of(rows))
    for step in range(8):
        now = [(a, b) for a, b, at in rows if at == step]
        before = [(a, b) for a, b, at in rows if at < step]
        links = {frozenset(pair) for pair in now if pair[0] != pair[1]}
        known = {node for pair in before for node in pair}
        active = {node for pair in now for node in pair}
        degrees = sorted((sum(node in link for link in links) for node in active), reverse=True)
        expected = {
            "interactions": np.log(1 + len(now)),
            "active_nodes": np.log(1 + len(active)),
            "new_nodes": len(active - known) / len(active),
            "repeats": len(links & {frozenset(pair) for pair in before}) / len(links),
            "busiest_nodes": degrees[0] / sum(degrees),  # one node is the busiest hundredth of 30
        }
        for metric, number in expected.items():
            assert value(values, metric, step + 1) == pytest.approx(number), (metric, step)


@pytest.mark.parametrize(("num_nodes", "num_busiest"), [(90, 1), (199, 1), (200, 2), (350, 3)])
def test_the_busiest_hundredth_is_rounded_down_and_has_a_node_at_least(num_nodes: int, num_busiest: int):
    """Each of the 10 nodes 0 .. 9 links to all nodes after it, so that their degrees are the highest."""
    rows = [(busy, node, step) for step in range(2) for busy in range(10) for node in range(busy + 1, num_nodes)]
    num_ends = 2 * sum(num_nodes - 1 - busy for busy in range(10))
    found = value(step_values(graph_of(rows)), "busiest_nodes", 2)
    assert found == pytest.approx(num_busiest * (num_nodes - 1) / num_ends)


def test_a_quiet_sunday_is_as_usual_where_four_such_days_are_known_and_a_busy_one_is_not():
    periods = step_periods(weekly_log(num_weeks=6))
    assert [periods[step] for step in (21, 22, 23, 42)] == [1, 1, 7, 7]
    counts = np.log1p([*[90, 110, 100, 100, 105, 30, 8] * 5, 90, 110, 100, 100, 105, 30, 100])
    table = pl.DataFrame({"step": range(1, 43), "metric": "interactions", "value": counts})
    drift = with_deviations(table, periods)
    deviation = dict(zip(drift["step"], drift["deviation"], strict=True))
    assert deviation[28] == with_deviations(table)["deviation"][27] < -5  # of three Sundays nothing is known
    assert [deviation[step] for step in (34, 35, 36)] == [0, 0, 0]
    assert deviation[42] == pytest.approx((np.log(101) - np.log(9)) / 0.1)


def test_the_period_of_a_step_reads_no_later_step():
    graph = weekly_log(num_weeks=6)
    later = [replace(snapshot, num_interactions=7, start_time=0) for snapshot in graph.snapshots[30:]]
    other = step_periods(replace(graph, snapshots=(*graph.snapshots[:30], *later)))
    assert other != step_periods(graph)
    assert all(other[step] == period for step, period in step_periods(graph).items() if step <= 31)


def test_a_step_is_compared_with_the_20_steps_before_it():
    """30 steps rise by 1 each: the median of the 20 before step 30 is 19.5, and their distances from it 0.5 .. 9.5."""
    table = pl.DataFrame({"step": range(1, 31), "metric": "interactions", "value": map(float, range(1, 31))})
    drift = with_deviations(table)
    assert drift["usual"].to_list()[18:] == [9.5, 10, 10.5, *np.arange(11.5, 20.5)]
    assert drift["deviation"][-1] == pytest.approx((30 - 19.5) / (1.4826 * 5), rel=1e-6)


def test_deviation_is_the_robust_z_score_of_the_earlier_steps_alone():
    numbers = [5.0, 5.4, 4.1, 6.2, 5.9, 9.0, 2.0]
    table = pl.DataFrame({"step": range(1, 8), "metric": "interactions", "value": numbers})
    drift = with_deviations(table)
    assert drift.schema == DRIFT_SCHEMA
    assert drift["deviation"].to_list()[:4] == [None] * 4
    for index in range(4, 7):
        earlier = numbers[:index]
        spread = median_abs_deviation(earlier, scale="normal")  # pyright: ignore[reportArgumentType]
        assert drift["deviation"][index] == pytest.approx((numbers[index] - np.median(earlier)) / spread, rel=1e-4)


def test_a_steady_log_deviates_by_the_smallest_spread():
    values = [("interactions", step, 7.0) for step in range(1, 6)] + [("repeats", step, 0.5) for step in range(1, 6)]
    table = pl.DataFrame(values, schema=["metric", "step", "value"], orient="row")
    moved = table.with_columns(pl.col("value") + pl.when(pl.col("step") == 5).then(0.3).otherwise(0.0))
    drift = with_deviations(moved).filter(pl.col("step") == 5)
    assert dict(drift.select("metric", "deviation").iter_rows()) == pytest.approx({"interactions": 3, "repeats": 10})


def test_later_steps_change_nothing_of_an_earlier_one():
    rows = events()
    whole, part = (with_deviations(step_values(graph_of(part))) for part in (rows, [row for row in rows if row[2] < 6]))
    assert part.sort("step", "metric").equals(whole.filter(pl.col("step") <= 6).sort("step", "metric"))


def test_a_step_of_few_rows_is_far_from_the_others_and_a_usual_one_is_not():
    for last, is_far in ((STEADY, False), (3, True), (10 * STEADY, True)):
        drift = with_deviations(step_values(graph_of(events(last=last))))
        alarms = alarms_of(drift, 8, DriftConfig())
        assert any("interactions" in alarm for alarm in alarms) == is_far


def test_a_step_without_rows_raises_an_alarm():
    rows = [row for row in events() if row[2] != 6]
    values = step_values(graph_of(rows))
    assert values.filter(step=7)["metric"].to_list() == ["interactions", "active_nodes"]
    assert alarms_of(with_deviations(values), 7, DriftConfig())[0].startswith("interactions 0, usually 60 (")


@pytest.mark.parametrize(
    ("deviation", "settings", "num_alarms"),
    [(7.0, {}, 1), (-7.0, {}, 1), (5.9, {}, 0), (7.0, {"alarm_at": None}, 0), (None, {"alarm_at": 1.0}, 0)],
)
def test_rule(deviation: float | None, settings: dict, num_alarms: int):
    row = {"step": 5, "metric": "repeats", "value": 0.5, "usual": 0.2, "deviation": deviation}
    other = {**row, "metric": "new_nodes", "deviation": 0.5}
    strange = {**row, "step": 4, "deviation": 50.0}  # of an earlier step, which does not count
    drift = pl.DataFrame([row, other, strange], DRIFT_SCHEMA)
    assert len(alarms_of(drift, 5, DriftConfig(**settings))) == num_alarms


def test_rotated_vectors_have_not_moved_and_others_have():
    generator = np.random.default_rng(0)
    vector_ND = generator.normal(size=(200, 8))
    rotation_DD = np.linalg.qr(generator.normal(size=(8, 8)))[0]
    assert vector_shift(vector_ND, 3 * vector_ND @ rotation_DD) == pytest.approx(0, abs=1e-12)
    near = vector_shift(vector_ND, vector_ND + 0.1 * generator.normal(size=vector_ND.shape))
    far = vector_shift(vector_ND, generator.normal(size=vector_ND.shape))
    assert 0 < near < 0.05 < 0.5 < far <= 1


def test_vectors_of_length_0_are_left_out():
    assert vector_shift(np.array([[1.0, 0], [0, 0]]), np.array([[2.0, 0], [1, 1]])) == pytest.approx(0)
    assert vector_shift(np.zeros((2, 2)), np.zeros((2, 2))) == 0


def test_shift_of_probabilities_is_the_largest_distance_of_their_distributions():
    earlier_P, later_P = np.array([0.1, 0.2, 0.3, 0.4]), np.array([0.3, 0.35, 0.6, 0.7, 0.8])
    at = np.concatenate([earlier_P, later_P])
    distance = max(abs((earlier_P <= x).mean() - (later_P <= x).mean()) for x in at)
    assert probability_shift(earlier_P, later_P) == pytest.approx(distance)


def test_calibration_is_the_logarithm_of_forecast_links_over_links_that_came():
    probability_P, came_P = np.array([0.5, 0.2, 0.1, 0.0]), np.array([1, 0, 1, 0])
    expected = np.log(probability_P.sum() / came_P.sum())
    assert calibration(4, float(probability_P.mean()), 2) == pytest.approx(expected)
    assert np.isfinite(calibration(4, 0.0, 2))


def test_a_step_in_which_nothing_came_is_worse_than_one_with_a_link_if_more_was_expected():
    assert calibration(40, 0.25, 0) == pytest.approx(np.log(10 / 0.5))
    assert calibration(40, 0.25, 0) > calibration(40, 0.25, 1) > 0
    assert [calibration(4, mean, 0) for mean in (0.0, 0.1, 0.125)] == [0, 0, 0]  # up to half a link was expected
    assert calibration(4, 0.126, 0) > 0


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("interactions", float(np.log1p(3983)), "3,983"),
        ("active_nodes", 0.0, "0"),
        ("new_nodes", 0.031, "3.1 %"),
        ("repeats", 1.0, "100.0 %"),
        ("busiest_nodes", 0.2, "20.0 %"),
        ("probabilities", 0.3141, "0.314"),
        ("vectors", 0.02, "0.02"),
        ("calibration", float(np.log(0.97)), "97 %"),
        ("calibration", None, ""),
    ],
)
def test_a_reader_sees_counts_and_percent_without_logarithms(metric: str, value: float | None, text: str):
    row = {"step": 5, "metric": metric, "value": value, "usual": value, "deviation": -2.04}
    [printed] = drift_texts(pl.DataFrame([row], DRIFT_SCHEMA)).to_dicts()
    assert printed == {**row, "value": text, "usual": text, "deviation": -2.0}
    if value is not None:
        assert drift_text(row) == f"{metric} {text}, usually {text} (2.0 standard deviations below)"


def test_a_distance_that_is_smaller_than_usual_raises_no_alarm():
    rows = {"step": 9, "value": 0.1, "usual": 0.5, "deviation": [-10.0, -10.0, 10.0, -10.0]}
    metrics = ["probabilities", "vectors", "vectors", "interactions"]
    drift = pl.DataFrame({"metric": metrics, **rows}, schema_overrides=DRIFT_SCHEMA).select(DRIFT_SCHEMA.names())
    assert [alarm.split()[0] for alarm in alarms_of(drift, 9, DriftConfig())] == ["vectors", "interactions"]
