"""Probabilities of pairs within a length of time: what each part may read, and that they are probabilities."""

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from event_logs import random_log

from dyformer.scoring import event_horizon, heads
from dyformer.scoring.event_forecaster import TooFewPastEvents
from dyformer.scoring.event_horizon import NUM_WINDOWS, FittedHorizon, fit_horizon
from dyformer.scoring.event_pairs import fitted_heads
from dyformer.scoring.labelled_tables import LabelledTable
from dyformer.streams.event_log import EventLog
from dyformer.streams.event_state import EventState, StateSettings

LENGTH = 10 * 700_000_000  # ten of the log's 150 times


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "NUM_ROUNDS", 10)


def log(*, two_sides: bool = True) -> EventLog:
    return random_log(num_events=3_000, num_nodes=30, two_sides=two_sides)


def settings(log: EventLog, *, directed: bool = True) -> StateSettings:
    return StateSettings(two_sides=log.two_sides, seconds=log.seconds, directed=directed)


def fitted(log: EventLog, *, directed: bool = True) -> FittedHorizon:
    return fit_horizon(log, settings(log, directed=directed), length=LENGTH, seed=0)


@cache
def fitted_whole() -> FittedHorizon:
    """Fit the log as it is once for the tests that compare others with it."""
    return fitted(log())


def shuffled(log: EventLog, part: slice) -> EventLog:
    """The log with other targets in a part."""
    target_E = log.target_E.copy()
    target_E[part] = np.random.default_rng(1).permutation(target_E[part])
    return replace(log, target_E=target_E)


def start_of(log: EventLog, number: int) -> int:
    """The first event of the horizon of this number, counted from the end."""
    return int(np.searchsorted(log.time_E, log.time_E[-1] + 1 - number * LENGTH))


def test_a_group_is_a_source_in_one_window_whatever_its_number_and_the_times(monkeypatch: pytest.MonkeyPatch):
    tables: list[LabelledTable] = []

    def recorded(table: LabelledTable, seed: int, *, ranked: bool) -> Any:
        tables.append(table)
        return fitted_heads(table, seed, ranked=ranked)

    monkeypatch.setattr(event_horizon, "fitted_heads", recorded)
    usual = log()
    late = replace(
        usual,
        source_E=usual.source_E + 9_000,
        time_E=usual.time_E + 1_700_000_000_000_000,
        num_sources=usual.num_sources + 9_000,
    )
    sizes = [len(np.unique(own.group_P)) for given in (usual, late) if fitted(given) for own in tables[-1:]]
    assert sizes[0] == sizes[1] > 30  # more than there are sources
    weight_of = [set(tables[0].weight_P[tables[0].group_P == group].tolist()) for group in np.unique(tables[0].group_P)]
    assert all(len(weights) == 1 for weights in weight_of)  # those of one window are alike


def test_the_newest_horizon_calibrates_and_fits_nothing():
    whole, given = log(), fitted_whole()
    other = fitted(shuffled(whole, slice(start_of(whole, 1), len(whole))))
    assert json.dumps(other.pairs.record()) == json.dumps(given.pairs.record())
    assert json.dumps(other.record()) != json.dumps(given.record())


def test_the_event_forecaster_has_read_no_event_of_a_horizon():
    whole = log()
    oldest = start_of(whole, NUM_WINDOWS + 1)
    given, other = fitted_whole().pairs, fitted(shuffled(whole, slice(oldest, len(whole)))).pairs
    earlier = fitted(shuffled(whole, slice(0, oldest))).pairs
    assert given.events is not None
    assert other.events is not None
    assert earlier.events is not None
    assert other.events.record() == given.events.record()
    assert other.record()["heads"] != given.record()["heads"]
    assert earlier.events.record() != given.events.record()


@pytest.mark.parametrize(("two_sides", "directed"), [(True, True), (False, True), (False, False)])
def test_as_many_pairs_come_as_the_probabilities_say(two_sides: bool, directed: bool):
    whole = log(two_sides=two_sides)
    first = start_of(whole, 1)
    start = int(whole.time_E[-1]) + 1 - LENGTH
    past = whole.head(first)
    given = fitted(past, directed=directed)
    state = EventState(past.num_sources, past.num_targets, settings(past, directed=directed))
    state.observe(past)
    came = set(zip(whole.source_E[first:].tolist(), whole.target_E[first:].tolist(), strict=True))
    came |= set() if directed else {(target, source) for source, target in came}
    total, num_came = 0.0, 0
    for source in range(past.num_sources):
        target_R = state.candidates(source, at=start).target_R.copy()
        probability_R, logit_R = given.probability(state, source, target_R, at=start)
        assert np.all((probability_R >= 0) & (probability_R <= 1))
        assert np.all(np.diff(probability_R[np.argsort(logit_R)]) >= 0)
        total += probability_R.sum()
        num_came += sum((source, target) in came for target in target_R.tolist())
    assert num_came > 50
    assert total == pytest.approx(num_came, rel=0.25)


def test_a_weight_beyond_32_bits_leaves_probabilities_numbers():
    weights = log().weight_E.copy()
    weights[::97] = 1e300  # as an accepted event may have
    whole = replace(log(), weight_E=weights)
    for horizon in (fitted_whole(), fitted(whole)):
        state = EventState(whole.num_sources, whole.num_targets, settings(whole))
        state.observe(whole)
        for values in horizon.probability(state, 3, np.arange(whole.num_targets), at=int(whole.time_E[-1]) + 1):
            assert np.isfinite(values).all()


def test_what_was_fitted_is_read_again_from_json():
    whole, given = log(), fitted_whole()
    again = FittedHorizon.from_record(json.loads(json.dumps(given.record())))
    state = EventState(whole.num_sources, whole.num_targets, settings(whole))
    state.observe(whole)
    one, other = (each.probability(state, 3, np.arange(30), at=int(whole.time_E[-1]) + 1) for each in (given, again))
    np.testing.assert_array_equal(one, other)


def test_too_short_a_log_and_horizons_without_a_pair_are_named():
    whole = log()
    with pytest.raises(TooFewPastEvents, match="past horizons with at least 20 events before them: 1;"):
        fit_horizon(whole, settings(whole), length=60 * 700_000_000 + 60 * LENGTH // 10, seed=0)
    alone = replace(whole, source_E=np.where(np.arange(len(whole)) < start_of(whole, 5), whole.source_E, 29))
    alone = replace(alone, source_E=np.where(np.arange(len(whole)) < start_of(whole, 5), alone.source_E % 29, 29))
    with pytest.raises(TooFewPastEvents, match="no candidate of a source occurs"):
        fit_horizon(alone, settings(alone), length=1, seed=0)
