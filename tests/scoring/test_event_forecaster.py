import json
from collections import defaultdict
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from event_logs import log_of as small_log
from slow_events import partners_of, random_log, rows_of, strict_queries

from dyformer.scoring.event_forecaster import EventForecaster, FittedEventForecaster
from dyformer.scoring.event_tables import NUM_NEGATIVES, FitTables, fit_tables
from dyformer.scoring.interfaces import Ranker
from dyformer.streams.event_log import EventLog, EventQueries
from dyformer.streams.event_state import INDEX, EventState, StateSettings

HALF_LIVES = (120.0, 900.0, 7_200.0, 50_000.0)
SMALL = EventForecaster(half_lives=HALF_LIVES, gate_rounds=20, past_rounds=20, new_rounds=20)
WORLDS = {"two sides": (True, True), "directed": (False, True), "undirected": (False, False)}


@cache
def log_of(world: str) -> EventLog:
    sizes = {"num_events": 3_000, "num_sources": 90, "num_targets": 300}
    return random_log(2, two_sides=WORLDS[world][0], **sizes)


@cache
def fitted(world: str, seed: int = 0) -> FittedEventForecaster:
    log, forecaster = log_of(world).head(2_400), replace(SMALL, directed=WORLDS[world][1])
    queries = strict_queries(log, 0)
    return forecaster.fit_events(log, part(queries, 0, 1_800), part(queries, 1_800, 2_400), seed=seed)


def part(queries: EventQueries, first: int, end: int | None) -> EventQueries:
    names = ("source_Q", "time_Q", "num_visible_Q")
    return EventQueries(**{name: getattr(queries, name)[first:end] for name in names})


def scores(forecaster: FittedEventForecaster, log: EventLog, queries: EventQueries) -> np.ndarray:
    return np.concatenate(list(forecaster(log, queries)))


def state_of(forecaster: FittedEventForecaster, log: EventLog) -> EventState:
    state = EventState(log.num_sources, log.num_targets, forecaster.settings)
    state.observe(log)
    return state


def ranked_of(
    forecaster: FittedEventForecaster, state: EventState, source: int, at: int, k: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give the best targets from the state, their probabilities, and whether each is new."""
    rows = state.candidates(source, at=at)
    probability_R = forecaster.probabilities(rows)
    best_K = np.argsort(-probability_R, kind="stable")[:k]
    return rows.target_R[best_K], probability_R[best_K], best_K >= rows.num_past_Q[0]


@pytest.mark.parametrize("world", WORLDS)
def test_targets_rank_better_than_by_the_last_contact(world: str) -> None:
    log, queries = log_of(world), strict_queries(log_of(world), 2_400)
    assert isinstance(SMALL, Ranker)
    score_QC, target_Q = scores(fitted(world), log, queries), log.target_E[2_400:]
    last_QC, last, num_read = np.full_like(score_QC, -1), defaultdict(dict), 0
    rows = rows_of(log, len(log), both_ways=False)
    for index, num_visible in enumerate(queries.num_visible_Q.tolist()):
        for event in range(num_read, num_visible):
            source, target, _, _ = rows[event]
            last[source][target] = event
            if world == "undirected":
                last[target][source] = event
        num_read = num_visible
        for target, event in last[int(queries.source_Q[index])].items():
            last_QC[index, target] = event

    def reciprocal_rank(table_QC: np.ndarray) -> float:
        chosen_Q = table_QC[np.arange(len(queries)), target_Q]
        greater_Q, equal_Q = (table_QC > chosen_Q[:, None]).sum(axis=1), (table_QC == chosen_Q[:, None]).sum(axis=1)
        return float((1 / (1 + greater_Q + (equal_Q - 1) / 2)).mean())

    assert reciprocal_rank(score_QC) > 1.15 * reciprocal_rank(last_QC)


@pytest.mark.parametrize("world", WORLDS)
def test_scores_of_a_query_are_probabilities_and_the_rest_is_below(world: str) -> None:
    log, queries = log_of(world), strict_queries(log_of(world), 2_400)
    settings = fitted(world).settings
    score_QC = scores(fitted(world), log, queries)
    assert score_QC.min() >= 0
    assert score_QC.sum(axis=1).max() < 1.5
    state = state_of(fitted(world), log.head(int(queries.num_visible_Q[100])))
    source, at = int(queries.source_Q[100]), int(queries.time_Q[100])
    target_K, probability_K, _ = ranked_of(fitted(world), state, source, at, 10_000)
    assert len(target_K) <= settings.max_past + settings.max_new + settings.max_near
    assert probability_K.sum() <= 1 + 1e-9
    rest_C = np.setdiff1d(np.arange(log.num_targets), target_K)
    assert len(rest_C) > 0
    assert score_QC[100, rest_C].max() < probability_K.min()
    if not log.two_sides:
        assert not score_QC[np.arange(len(queries)), queries.source_Q].any()


@pytest.mark.parametrize("world", WORLDS)
def test_a_ranking_as_of_now_is_that_of_the_batch(world: str) -> None:
    log, queries = log_of(world), strict_queries(log_of(world), 2_400)
    score_QC = scores(fitted(world), log, queries)
    state = state_of(fitted(world), log.head(2_400))
    columns = ("source_E", "target_E", "time_E", "weight_E")
    for index in range(len(queries)):
        if index % 13 == 0:
            source, at = int(queries.source_Q[index]), int(queries.time_Q[index])
            target_K, probability_K, is_new_K = ranked_of(fitted(world), state, source, at, 20)
            np.testing.assert_allclose(score_QC[index, target_K], probability_K, rtol=1e-9, atol=1e-12)
            best_C = np.sort(score_QC[index])[::-1]
            np.testing.assert_allclose(best_C[: len(target_K)], probability_K, rtol=1e-9, atol=1e-12)
            past = partners_of(log, int(queries.num_visible_Q[index]), source)
            assert is_new_K.tolist() == [target not in past for target in target_K.tolist()]
        event = slice(2_400 + index, 2_401 + index)
        state.observe(replace(log, **{name: getattr(log, name)[event] for name in columns}))


def test_a_query_has_the_same_scores_alone_and_for_some_candidates() -> None:
    log, queries = log_of("two sides"), strict_queries(log_of("two sides"), 2_400, 2_600)
    score_QC = scores(fitted("two sides"), log, queries)
    generator = np.random.default_rng(0)
    candidate_QC = np.array([generator.permutation(log.num_targets)[:40] for _ in range(len(queries))])
    some_QC = scores(fitted("two sides"), log, replace(queries, candidate_QC=candidate_QC))
    assert np.array_equal(some_QC, np.take_along_axis(score_QC, candidate_QC, axis=1))
    alone_QC = scores(fitted("two sides"), log, part(queries, 150, 151))
    assert alone_QC.tobytes() == score_QC[150].tobytes()
    assert list(fitted("two sides")(log, part(queries, 0, 0))) == []


def test_what_comes_later_changes_no_score() -> None:
    log, queries = log_of("directed"), strict_queries(log_of("directed"), 2_400, 2_500)
    later_E = np.arange(len(log)) >= int(queries.num_visible_Q[-1])
    changed = replace(log, target_E=np.where(later_E, (log.target_E * 7 + 1) % log.num_targets, log.target_E))
    model = fitted("directed")
    assert scores(model, log, queries).tobytes() == scores(model, changed, queries).tobytes()


def test_a_fit_reports_each_round_and_is_the_same_as_one_that_does_not() -> None:
    log, rounds = log_of("directed").head(2_400), []
    queries = strict_queries(log, 0)
    parts = part(queries, 0, 1_800), part(queries, 1_800, 2_400)
    found = SMALL.fit_events(log, *parts, seed=0, done=lambda: rounds.append(1))
    assert len(rounds) == SMALL.num_rounds == 80
    assert found.record() == fitted("directed").record()


def test_a_seed_gives_the_same_heads_and_another_one_others() -> None:
    first, again, other = fitted("two sides"), fitted.__wrapped__("two sides"), fitted("two sides", 1)
    assert json.dumps(first.record()) == json.dumps(again.record())
    assert first.new.trees != other.new.trees


def test_a_record_gives_the_same_scores() -> None:
    log, queries, model = log_of("directed"), strict_queries(log_of("directed"), 2_400, 2_450), fitted("directed")
    read = FittedEventForecaster.from_record(json.loads(json.dumps(model.record())))
    assert read == model
    assert scores(read, log, queries).tobytes() == scores(model, log, queries).tobytes()


def test_a_source_without_events_gets_new_targets_alone() -> None:
    log = log_of("two sides")
    larger = replace(log, num_sources=log.num_sources + 1)
    query = EventQueries(
        source_Q=np.array([log.num_sources]),
        time_Q=np.array([log.time_E[-1] + 1]),
        num_visible_Q=np.array([len(log)]),
    )
    model = fitted("two sides")
    (score_C,) = scores(model, larger, query)
    target_K, _, is_new_K = ranked_of(model, state_of(model, larger), log.num_sources, int(query.time_Q[0]), 10_000)
    assert is_new_K.all()
    assert score_C[target_K].sum() == pytest.approx(model.retrieved)
    assert 0.3 < model.retrieved < 1


def test_fitted_rows_are_those_of_past_and_of_new_targets() -> None:
    log = log_of("two sides").head(1_000)
    settings = StateSettings(two_sides=True, seconds=log.seconds, half_lives=HALF_LIVES)
    queries = strict_queries(log, 200)
    training, validation = fit_tables(log, queries, settings, 500, np.random.default_rng(0))
    for first, end, tables, most in ((200, 700, training, NUM_NEGATIVES), (700, 1_000, validation, 10_000)):
        is_new, num_past, num_partners = [], 0, []
        for event in range(first, end):
            visible = int(queries.num_visible_Q[event - 200])
            partners = {row[1] for row in rows_of(log, visible, both_ways=False) if row[0] == int(log.source_E[event])}
            is_new.append(int(log.target_E[event]) not in partners)
            num_past += not is_new[-1] and len(partners) > 1
            num_partners.append(len(partners))
        has_past = np.array(num_partners) > 0
        assert tables.gate.positive_R.tolist() == np.array(is_new)[has_past].tolist()
        assert np.array_equal(tables.gate.row_RF[:, INDEX["partners"]], np.array(num_partners)[has_past])
        assert not tables.gate.row_RF[:, INDEX["recency"]].any()
        assert tables.num_new == sum(is_new)
        assert len(tables.past) == num_past
        assert np.array_equal(
            tables.past.size_G, tables.past.row_RF[tables.past.start_G1[:-1], INDEX["partners"]].astype(int)
        )
        assert np.array_equal(tables.past.row_RF[tables.past.start_G1[:-1], INDEX["recency"]], np.zeros(num_past))
        assert 0 < len(tables.new) < sum(is_new)
        assert np.isnan(tables.new.row_RF[:, INDEX["recency"]]).all()
        assert tables.new.size_G.max() <= most + 1
        assert tables.new.chosen_G.min() >= 0
        assert (tables.new.chosen_G < tables.new.size_G).all()
    assert validation.new.size_G.max() > NUM_NEGATIVES + 1
    assert training.retrieved == (len(training.new) + 1) / (training.num_new + 2)


def small_tables(rows: list[tuple[int, int, int]], *, two_sides: bool, first: int) -> FitTables:
    log = small_log(rows, two_sides=two_sides)
    settings = StateSettings(two_sides=two_sides, seconds=1.0, half_lives=HALF_LIVES)
    queries = strict_queries(log, first)
    return fit_tables(log, queries, settings, len(queries), np.random.default_rng(0))[0]


def test_a_target_without_any_new_candidate_is_new_all_the_same() -> None:
    tables = small_tables([(0, 0, 1), (0, 1, 2), (0, 2, 3), (0, 1, 4)], two_sides=True, first=2)
    assert tables.gate.positive_R.tolist() == [True, False]
    assert (tables.num_new, len(tables.new)) == (1, 0)


def test_an_event_of_a_source_with_itself_labels_no_row() -> None:
    tables = small_tables([(0, 1, 1), (0, 2, 2), (0, 0, 3), (0, 0, 4), (0, 1, 5)], two_sides=False, first=2)
    assert tables.gate.positive_R.tolist() == [False]
    assert (tables.num_new, len(tables.past)) == (0, 1)


def test_chosen_rows_are_those_of_the_target() -> None:
    log = log_of("two sides").head(1_000)
    settings = StateSettings(two_sides=True, seconds=log.seconds, half_lives=HALF_LIVES)
    queries = strict_queries(log, 200)
    training, _ = fit_tables(log, queries, settings, len(queries), np.random.default_rng(0))
    chosen = 0
    for event in range(200, 1_000):
        rows = rows_of(log, int(queries.num_visible_Q[event - 200]), both_ways=False)
        source, target = int(log.source_E[event]), int(log.target_E[event])
        newest_first = list(dict.fromkeys(row[1] for row in reversed(rows) if row[0] == source))
        if target in newest_first and len(newest_first) > 1:
            assert training.past.chosen_G[chosen] == newest_first.index(target)
            chosen += 1
    assert chosen == len(training.past) > 50
    row_GF = training.new.row_RF[training.new.start_G1[:-1] + training.new.chosen_G]
    chosen_G2 = row_GF[:, [INDEX["target_events"], INDEX["target_since"]]]
    events = iter([_target_counts(log, event, int(queries.num_visible_Q[event - 200])) for event in range(200, 1_000)])
    assert all(any(np.allclose(pair, counts) for counts in events) for pair in chosen_G2.tolist())  # in this order


def _target_counts(log: EventLog, event: int, visible: int) -> tuple[float, float]:
    """Of an event with a new target: the events before at that, and the seconds since the newest of them."""
    is_at_target = log.target_E[:visible] == log.target_E[event]
    if not is_at_target.any() or np.any(is_at_target & (log.source_E[:visible] == log.source_E[event])):
        return -1.0, -1.0
    newest = int(np.flatnonzero(is_at_target)[-1])
    return float(is_at_target.sum()), float((log.time_E[event] - log.time_E[newest]) * log.seconds)
