"""Honest rankers pass every check of events; each planted leak fails a named one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from event_logs import random_log

from dyformer.baselines.event_heuristics import LastPartner, PairMemory, PairRecency, Popularity
from dyformer.baselines.event_mixture import EventMixture
from dyformer.evaluation import event_splits as splits
from dyformer.evaluation.audit import events
from dyformer.evaluation.audit.events import EVENT_POISONS, NUM_EVENT_CHECKS, EventAuditCase, audit_events
from dyformer.evaluation.event_splits import EventTrial, Visibility, split_events
from dyformer.scoring import event_forecaster
from dyformer.scoring.event_forecaster import EventForecaster
from dyformer.scoring.interfaces import Ranker
from dyformer.streams import event_state
from dyformer.streams.event_log import EventLog, EventQueries

HONEST = {
    "Last": LastPartner(),
    "Recency": PairRecency(fallback=True),
    "Memory": PairMemory(memory="window"),
    "Popularity": Popularity(),
    "Mixture": EventMixture(),
}
VISIBLE = ("strict", "batch:7", "window:1h")
LOG = random_log(num_events=900, num_nodes=30, num_times=400)


def case_of(methods: dict[str, Any], visible: str = "strict", log: EventLog = LOG) -> EventAuditCase:
    trial = EventTrial(log=log, splits=split_events(log), visibility=Visibility.parse(visible))
    return EventAuditCase(trial=trial, methods=methods)


def failed(methods: dict[str, Any], visible: str = "strict") -> set[str]:
    return {check.name for check in audit_events(case_of(methods, visible)) if not check.passed}


@pytest.mark.parametrize("visible", VISIBLE)
@pytest.mark.parametrize("two_sides", [True, False])
def test_honest_rankers_pass_every_check(visible: str, two_sides: bool):
    log = random_log(num_events=900, num_nodes=30, num_times=400, two_sides=two_sides)
    checks = list(audit_events(case_of(HONEST, visible, log)))
    assert len({check.name for check in checks}) == NUM_EVENT_CHECKS
    assert [check for check in checks if not check.passed] == []


@pytest.mark.parametrize("name", EVENT_POISONS)
def test_a_poison_changes_the_log_from_an_event_on_and_nothing_before(name: str):
    found = events._with_tail(LOG, 700, EVENT_POISONS[name](LOG, 700, np.random.default_rng(0)))
    for column in ("source_E", "target_E", "time_E", "weight_E"):
        np.testing.assert_array_equal(getattr(found, column)[:700], getattr(LOG, column)[:700])
    assert len(found) == 700 or (found.target_E[700:900] != LOG.target_E[700:]).any()
    assert (np.diff(found.time_E) >= 0).all()


@dataclass(frozen=True)
class Changed:
    """An honest ranker to which the log and the queries are given in another way."""

    change: Callable[[EventLog, EventQueries], EventQueries]
    method: Ranker

    def fit_events(self, log: EventLog, training: EventQueries, validation: EventQueries, *, seed: int):
        rank_events = self.method.fit_events(log, training, validation, seed=seed)
        return lambda log, queries: rank_events(log, self.change(log, queries))


def later(log: EventLog, queries: EventQueries) -> EventQueries:
    """The state is updated by the event before that is scored."""
    visible_Q = np.minimum(queries.num_visible_Q + 1, len(log))
    return EventQueries(**{**vars(queries), "num_visible_Q": visible_Q})


def equal_times(log: EventLog, queries: EventQueries) -> EventQueries:
    """Events of the query's own time are visible."""
    visible_Q = np.searchsorted(log.time_E, queries.time_Q, side="right")
    return EventQueries(**{**vars(queries), "num_visible_Q": visible_Q})


@dataclass(frozen=True)
class Refitted:
    """Popularity of all events of the log that is ranked: fitted again on the test."""

    def fit_events(self, log: EventLog, training: EventQueries, validation: EventQueries, *, seed: int):
        def rank_events(log: EventLog, queries: EventQueries):
            yield np.tile(np.bincount(log.target_E, minlength=log.num_targets).astype(float), (len(queries), 1))

        return rank_events


@dataclass(frozen=True)
class OtherQueries:
    """Scores depend on which sources have later queries."""

    def fit_events(self, log: EventLog, training: EventQueries, validation: EventQueries, *, seed: int):
        def rank_events(log: EventLog, queries: EventQueries):
            busy = np.bincount(queries.source_Q, minlength=log.num_targets)[: log.num_targets]
            yield np.tile(busy.astype(float), (len(queries), 1))

        return rank_events


FUTURE = {f"events: {name}" for name in EVENT_POISONS}


def test_a_state_that_is_updated_before_it_scores_is_found():
    assert failed({"leak": Changed(later, PairRecency())}) & FUTURE


@pytest.mark.parametrize("visible", VISIBLE)
def test_a_ranker_that_reads_equal_times_is_found(visible: str):
    assert failed({"leak": Changed(equal_times, PairRecency())}, visible) & FUTURE


def test_a_ranker_that_is_fitted_again_on_the_test_is_found():
    # Shuffled events have the same popular targets.
    assert FUTURE - {"events: shuffled events"} <= failed({"leak": Refitted()})


def test_a_ranker_that_reads_later_queries_is_found():
    assert events.ALONE in failed({"leak": OtherQueries()})


@pytest.mark.parametrize("visible", VISIBLE)
def test_equal_times_that_the_evaluation_shows_are_found(monkeypatch: pytest.MonkeyPatch, visible: str):
    honest = splits.num_visible

    def with_equal_times(log: EventLog, *rest: Any):
        after_E = np.searchsorted(log.time_E, log.time_E, side="right")
        return np.maximum(honest(log, *rest), after_E) if visible == "strict" else honest(log, *rest) + 1

    monkeypatch.setattr(splits, "num_visible", with_equal_times)
    assert events.VISIBILITY in failed({"honest": LastPartner()}, visible)


def test_candidates_from_the_future_are_found(monkeypatch: pytest.MonkeyPatch):
    honest = splits._partners
    monkeypatch.setattr(splits, "_partners", lambda training: honest(LOG))
    assert failed({}) == {events.CANDIDATES}


def test_negatives_that_depend_on_later_events_are_found(monkeypatch: pytest.MonkeyPatch):
    honest = splits.sampled_negatives

    def popular(log: EventLog, *rest: Any, **more: Any):
        drawn = honest(log, *rest, **more)
        busiest = int(np.bincount(log.target_E[-100:]).argmax())
        return {split: np.where(rows == rows.max(), busiest, rows) for split, rows in drawn.items()}

    monkeypatch.setattr(events, "sampled_negatives", popular)
    assert events.CANDIDATES in failed({})


def test_a_fit_or_a_calibration_that_reads_the_test_is_found(monkeypatch: pytest.MonkeyPatch):
    honest = EventTrial.fitting.fget
    assert honest is not None

    def whole_log(self: EventTrial):
        _, training, validation = honest(self)
        return self.log, training, validation

    def test_queries(self: EventTrial):
        log, training, _ = honest(self)
        return log, training, self.queries(np.arange(self.splits.first_test, self.splits.num_events))

    for leak in (whole_log, test_queries):
        monkeypatch.setattr(EventTrial, "fitting", property(leak))
        assert events.FITTED in failed({"honest": LastPartner()})


def test_a_log_without_equal_times_is_audited():
    log = replace(LOG, time_E=np.arange(len(LOG)) * 10_000_000)
    assert [check.name for check in audit_events(case_of(HONEST, "strict", log)) if not check.passed] == []


def forecaster_and_log() -> tuple[dict[str, Any], EventLog]:
    few = EventForecaster(gate_rounds=4, past_rounds=4, new_rounds=12)
    return {"forecaster": few}, random_log(num_events=2_000, num_nodes=120, num_times=900)


def test_the_event_forecaster_with_its_vectors_passes_every_check():
    methods, log = forecaster_and_log()
    checks = list(audit_events(case_of(methods, "strict", log)))
    assert [check for check in checks if not check.passed] == []


def test_vectors_of_later_events_are_found(monkeypatch: pytest.MonkeyPatch):
    methods, log = forecaster_and_log()
    pass_over, absorb = event_state.candidate_rows, event_state.absorbed

    def leaking(events: EventLog, *arguments: Any):
        # Every refresh has the vectors of all events of the log.
        settings = arguments[1]
        monkeypatch.setattr(event_state, "absorbed", absorb)
        state = event_state.EventState(events.num_sources, events.num_targets, settings)
        state.observe(events)
        vectors = state._state.vectors
        monkeypatch.setattr(event_state, "absorbed", lambda *given: absorb(*given)._replace(vectors=vectors))
        yield from pass_over(events, *arguments)

    monkeypatch.setattr(event_forecaster, "candidate_rows", leaking)
    failed_checks = {check.name for check in audit_events(case_of(methods, "strict", log)) if not check.passed}
    assert {"events: shuffled events", "events: random events"} <= failed_checks
