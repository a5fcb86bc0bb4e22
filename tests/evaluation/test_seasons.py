"""Periods of a history: against a plain recount, on a real log of a working week, and nothing from later steps."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike
from published_logs import published_events
from ranked_logs import DAY, weekly_log

from dyformer.evaluation.fitting import model_steps
from dyformer.evaluation.forecasts.forecast import Forecast, calibration_steps, fit_forecast
from dyformer.evaluation.forecasts.stored_forecast import forecast_from, forecast_record
from dyformer.evaluation.labelled_steps import has_labelled_steps, labelled_steps
from dyformer.evaluation.protocols import forecasts
from dyformer.evaluation.protocols.forecasts import PROTOCOL as FORECASTS
from dyformer.evaluation.protocols.paper import PROTOCOL as PAPER
from dyformer.evaluation.protocols.paper import Trial
from dyformer.evaluation.protocols.prequential import PROTOCOL as PREQUENTIAL
from dyformer.evaluation.seasons import HOUR, MAX_STEPS, NO_SEASON, alike_steps, period_before, period_of
from dyformer.experiments.methods import METHODS
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.scoring.interfaces import Embed, NoVectors, Scorer

WEEK = np.array([110, 100, 100, 105, 90, 30, 8])
EMPTY: dict[str, Any] = {"source_E": np.arange(0), "target_E": np.arange(0)}
GRAPH = weekly_log(num_weeks=6)


def fitted(until: int) -> Forecast:
    past = prepare_graph(GRAPH, until=until, config=GraphConfig())
    return fit_forecast("Last contact", METHODS["Last contact"], past, seed=0)


def noisy(counts: np.ndarray, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).poisson(counts)


def days(count_T: ArrayLike, length: int = DAY) -> int:
    """The period of counts of a day each, or of another length."""
    return period_of(count_T, np.arange(np.size(count_T)) * length)


@pytest.mark.parametrize("growth", [1.0, 1.02, 0.98])
@pytest.mark.parametrize("num_weeks", [4, 8, 40])
def test_a_week_is_found_in_days_also_of_a_log_that_grows_or_shrinks(num_weeks: int, growth: float):
    assert days(noisy(np.tile(WEEK, num_weeks) * growth ** np.arange(7 * num_weeks))) == 7


def test_of_a_day_and_a_week_of_quarters_that_is_found_whose_counts_are_closer():
    day = np.array([5, 60, 100, 70])
    assert days(noisy(np.tile(day, 30)), DAY // 4) == 4
    assert days(noisy(np.concatenate([np.tile(day, 5), [2] * 8] * 5)), DAY // 4) == 28


def test_a_period_needs_three_of_it_and_one_step_more():
    counts = np.tile(WEEK, 4)
    assert [days(counts[:length]) for length in (21, 22)] == [NO_SEASON, 7]


@pytest.mark.parametrize("counts", [[], [5], [0] * 40, [9] * 40, list(range(40)), [100] * 20 + [5] * 20], ids=str)
def test_counts_without_a_period(counts: list[int]):
    assert days(counts) == NO_SEASON


@pytest.mark.parametrize("length", [1, DAY // 5 + DAY // 100, 2 * DAY, 7 * DAY, 10 * DAY])
def test_steps_of_which_none_make_a_day_or_a_week_have_no_period(length: int):
    assert days(np.tile(WEEK, 40), length) == NO_SEASON


def test_days_of_a_calendar_recur_also_where_one_is_an_hour_shorter_and_not_where_windows_have_any_length():
    counts, start_T = np.tile(WEEK, 6), np.arange(42) * DAY
    start_T[20:] -= DAY // 24
    assert period_of(counts, start_T) == 7
    start_T[20:] -= DAY // 24
    assert period_of(counts, start_T) == NO_SEASON


def test_a_clock_that_has_just_changed_and_a_first_window_cut_short_hide_no_period():
    for hours, period in ((6, 4), (24, 7)):
        counts = np.tile([5, 60, 100, 70] if hours == 6 else WEEK, 10)
        start_T = np.arange(len(counts)) * hours * HOUR
        start_T[-1] += HOUR
        assert period_of(counts, start_T) == period
        start_T[0] += hours * HOUR // 2
        assert period_of(counts, start_T) == period


def test_windows_that_nearly_make_a_day_have_no_period():
    for hours in (5, 12.5, 13):
        assert period_of(np.tile([5, 60], 40), np.arange(80) * int(hours * HOUR)) == NO_SEASON


def test_few_windows_have_no_period():
    assert [days([10, 100] * 10, DAY // 2), days(([10, 100] * 10)[:19], DAY // 2)] == [2, NO_SEASON]


def test_chance_is_seldom_taken_for_a_period():
    generator = np.random.default_rng(0)
    found = [
        [days(100 * np.exp(0.3 * log_T)) != NO_SEASON for log_T in (steps_T, steps_T.cumsum())]
        for length in (22, 40)
        for steps_T in generator.normal(size=(300, length))
    ]
    by_chance, walks = np.sum(found, axis=0)
    assert by_chance <= 30  # of 600
    assert walks == 0


def test_the_period_equals_a_plain_recount():
    for seed in range(30):
        generator = np.random.default_rng(seed)
        counts = noisy(np.tile(generator.uniform(20, 60, 7), 9), seed)
        logs = [math.log(1 + count) for count in counts.tolist()]
        later = range(7, len(logs))
        one, week = (sum(abs(logs[t] - logs[t - lag]) for t in later) for lag in (1, 7))
        assert days(counts) == (7 if week <= 0.7 * one else NO_SEASON), seed


def test_only_the_newest_steps_are_compared():
    counts = np.concatenate([np.tile(WEEK, 60), np.full(MAX_STEPS, 50)])
    assert [days(counts), days(counts[: -MAX_STEPS // 4])] == [NO_SEASON, 7]


def test_days_of_a_company_recur_every_week(shared_log: Callable[[str], Path]):
    """Its internal mail; the messages of students do not."""
    for name, expected in (("rds", 7), ("uci", NO_SEASON)):
        events, _ = published_events(name, shared_log(name))
        counts = np.bincount((events["time"] - events["time"].min()).to_numpy() // DAY)
        assert {days(counts[:length]) for length in range(60, len(counts), 10)} == {expected}, name


def test_steps_that_are_alike_lie_some_periods_before_the_newest_first():
    assert list(alike_steps(7, NO_SEASON)) == [6, 5, 4]
    assert list(alike_steps(3, NO_SEASON)) == [2]
    assert list(alike_steps(30, 7)) == [23, 16, 9]
    assert [list(alike_steps(step, 7, 4)) for step in (8, 9, 16)] == [[], [2], [9, 2]]


@pytest.mark.parametrize("step", [29, 31, 36])
def test_the_period_before_a_step_reads_no_later_step(step: int):
    later = [replace(snapshot, **EMPTY) for snapshot in GRAPH.snapshots[step - 1 :]]
    poisoned = replace(GRAPH, snapshots=(*GRAPH.snapshots[: step - 1], *later))
    assert period_before(GRAPH, step) == period_before(poisoned, step) == 7


def test_the_step_itself_is_not_among_those_before_it():
    assert [period_before(GRAPH, step) for step in (22, 23)] == [NO_SEASON, 7]  # 21 and 22 steps before


def test_a_step_like_which_none_has_links_learns_from_the_newest_ones():
    sundays = [replace(snapshot, **EMPTY) if snapshot.step % 7 == 0 else snapshot for snapshot in GRAPH.snapshots]
    graph = replace(GRAPH, snapshots=tuple(sundays))
    assert [period_before(graph, step) for step in (34, 35, 36)] == [7, NO_SEASON, 7]
    assert has_labelled_steps(graph, 35)


def test_labelled_steps_are_those_a_week_apart():
    labelled = labelled_steps(prepare_graph(GRAPH, until=32, config=GraphConfig()), seed=0)
    assert [step.before.until + 1 for step in labelled] == [26, 19, 12]
    assert [step.weight for step in labelled] == [1, 0.5, 0.25]
    assert [step.before.history.num_steps for step in labelled] == [25, 18, 11]


def test_older_labels_of_the_papers_protocol_are_those_a_week_apart():
    labelled = Trial(graph=GRAPH, step=32, seed=0).labelled
    assert [step.before.until + 1 for step in labelled] == [32, 25, 18, 11, 4]
    assert [step.weight for step in labelled] == [1, 0.5, 0.25, 0.125, 0.0625]


def test_a_step_like_the_forecast_one_calibrates_it_and_the_newest_ones_if_none_can():
    assert calibration_steps(30, 7) == [23, 16, 9, 29, 28, 27]
    assert calibration_steps(9, NO_SEASON) == [8, 7, 6]


def test_a_step_can_be_forecast_where_the_one_a_week_before_can_calibrate_it_alone(monkeypatch: pytest.MonkeyPatch):
    log: Any = SimpleNamespace(num_steps=GRAPH.num_steps, graph=lambda until: GRAPH)
    monkeypatch.setattr(forecasts, "rankable_steps", lambda log: [23, 30, 34])
    assert forecasts.backtestable_steps(log) == [30]


def test_models_are_trained_for_the_links_that_a_forecast_learns_from_and_for_those_of_its_calibration():
    assert [model_steps(until, 7) for until in (30, 10, 7, 2)] == [[16, 23, 30], [3, 10], [7], [2]]
    log: Any = SimpleNamespace(num_steps=GRAPH.num_steps, graph=lambda until: GRAPH)
    protocols = PREQUENTIAL, PAPER, FORECASTS
    untils = [protocol.trained_until(log, (32,)) for protocol in protocols if protocol.trained_until]
    assert untils == [[17, 24, 31], [17, 24, 31], [16, 23, 30]]


def test_a_forecast_of_a_sunday_is_calibrated_on_a_sunday():
    """Its probabilities add up to what comes on such a day, an eighth of a working day's links."""
    sunday, monday = (fitted(until) for until in (34, 35))
    assert [(each.calibration_step, each.period) for each in (sunday, monday)] == [(28, 7), (29, 7)]
    totals = [each.top(10)["probability"].to_numpy().sum() for each in (sunday, monday)]
    assert 4 < totals[1] / totals[0] < 40


def test_a_stored_baseline_is_fitted_on_the_steps_of_its_period_again():
    past = prepare_graph(GRAPH, until=34, config=GraphConfig())
    method = METHODS["Logistic regression on pair features"]
    forecast = fit_forecast("regression", method, past, seed=0)
    record = forecast_record(forecast, method, seed=0)
    pairs = np.arange(20), np.arange(20) + 1
    found = forecast_from(record, past.history, None)
    assert record["period"] == found.period == 7
    np.testing.assert_allclose(found.probability(*pairs), forecast.probability(*pairs))
    del record["period"]  # as in records of earlier versions, whose methods learned from the newest steps
    older = forecast_from(record, past.history, None)
    assert older.period == NO_SEASON
    assert isinstance(method, Scorer)
    newest = method.fit_pairs(past, labelled_steps(past, seed=0, period=NO_SEASON))(*pairs)
    np.testing.assert_allclose(older.score(*pairs), newest)
    assert np.abs(older.score(*pairs) - forecast.score(*pairs)).max() > 0.01


@dataclass(frozen=True, kw_only=True)
class VectorsFrom:
    """Vectors of weights trained until some steps; a graph before all of them has none."""

    untils: tuple[int, ...]

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        if graph.until < min(self.untils):
            raise NoVectors("no weights")
        vector_ND = np.random.default_rng(0).normal(size=(len(graph.history.node_N), 4))
        return lambda node_A: vector_ND[node_A]


def test_newer_steps_calibrate_where_no_weights_are_as_old_as_a_week_before():
    """As on the day on which a log first has a period."""
    past = prepare_graph(GRAPH, until=22, config=GraphConfig())
    assert (period_before(GRAPH, 22), period_before(GRAPH, 23)) == (NO_SEASON, 7)
    forecast = fit_forecast("vectors", VectorsFrom(untils=(20, 21)), past, seed=0)
    assert (forecast.period, forecast.calibration_step) == (7, 22)


def test_a_step_that_calibrates_without_links_a_week_before_it_learns_from_the_newest_ones():
    past = prepare_graph(weekly_log(num_weeks=6, without=(9, 16, 23)), until=36, config=GraphConfig())
    forecast = fit_forecast("Last contact", METHODS["Last contact"], past, seed=0)
    assert (forecast.period, forecast.calibration_step) == (7, 30)
