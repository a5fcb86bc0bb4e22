"""Vectors of contacts: those of a dense decomposition, of earlier events alone, the same however the log is cut."""

import json
from dataclasses import asdict, replace
from itertools import pairwise

import numpy as np
import pytest
from slow_events import partners_of, random_log, strict_queries

from dyformer.streams.contact_vectors import newest_refresh, next_refresh
from dyformer.streams.event_log import EventLog
from dyformer.streams.event_state import FEATURES, INDEX, EventState, StateSettings, candidate_rows, names

WORLDS = {"two sides": (True, True), "directed": (False, True), "undirected": (False, False)}
VECTORS = [INDEX[name] for name in names()["vectors"]]
POINTS = (500, 600, 720, 864, 1_036, 1_243, 1_491)
RANK = 6


def log_of(world: str, seed: int = 0, num_events: int = 900) -> EventLog:
    sizes = {"num_sources": 60, "num_targets": 50, "num_events": num_events}
    return random_log(seed, two_sides=WORLDS[world][0], **sizes)


def settings_of(log: EventLog, world: str, rank: int = RANK) -> StateSettings:
    return StateSettings(two_sides=log.two_sides, seconds=log.seconds, directed=WORLDS[world][1], rank=rank)


def part_of(log: EventLog, first: int, end: int) -> EventLog:
    columns = ("source_E", "target_E", "time_E", "weight_E")
    return replace(log, **{name: getattr(log, name)[first:end] for name in columns})


def observed(log: EventLog, settings: StateSettings, *borders: int) -> EventState:
    state = EventState(log.num_sources, log.num_targets, settings)
    for first, end in pairwise((0, *borders, len(log))):
        state.observe(part_of(log, first, end))
    return state


def dense_vectors(log: EventLog, world: str, num_events: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of sources and targets by numpy's decomposition of the whole matrix, from its definition."""
    count_NN = np.zeros((log.num_sources, log.num_targets))
    for source, target in zip(log.source_E[:num_events], log.target_E[:num_events], strict=True):
        count_NN[source, target] += 1
        if world == "undirected" and source != target:
            count_NN[target, source] += 1
    contact_NN = np.log(1 + count_NN)
    row_N, column_N = contact_NN.sum(axis=1), contact_NN.sum(axis=0)
    if world == "directed":
        row_N = column_N = row_N + column_N
    row_root_N, column_root_N = (np.sqrt(total_N + total_N[total_N > 0].mean()) for total_N in (row_N, column_N))
    scaled_NN = contact_NN / row_root_N[:, None] / column_root_N
    beside_NN = np.hstack([scaled_NN, scaled_NN.T]) if world == "directed" else scaled_NN
    left_NK, value_K, right_KN = np.linalg.svd(beside_NN, full_matrices=False)
    left_NK, right_NK = left_NK[:, :RANK] * np.sqrt(value_K[:RANK]), right_KN[:RANK].T * np.sqrt(value_K[:RANK])
    source_NW, target_NW = left_NK, right_NK
    if world == "directed":
        num_nodes = log.num_sources
        source_NW = np.hstack([left_NK, right_NK[num_nodes:]])
        target_NW = np.hstack([right_NK[:num_nodes], left_NK])
    return unit(source_NW), unit(target_NW)


def unit(vector_NW: np.ndarray) -> np.ndarray:
    """Bring vectors to the length 1, but rounding errors to 0."""
    length_N = np.linalg.norm(vector_NW, axis=1)
    is_sound_N = length_N > 1e-6 * length_N.max()
    return np.where(is_sound_N[:, None], vector_NW / np.where(is_sound_N, length_N, 1)[:, None], 0)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("num_events", [510, 899])
def test_cosines_are_those_of_a_dense_decomposition_of_the_events_up_to_the_newest_refresh(world: str, num_events: int):
    log = log_of(world).head(num_events)
    settings = settings_of(log, world)
    state, at = observed(log, settings), int(log.time_E[-1]) + 1
    source_NW, target_NW = dense_vectors(log, world, max(point for point in POINTS if point <= num_events))
    num_compared = 0
    for source in range(log.num_sources):
        partners = partners_of(log, num_events, source)
        table_PF = state.features(source, np.arange(log.num_targets), at=at)[:, VECTORS]
        assert np.isnan(table_PF[partners]).all(), "partners have no features of vectors"
        strangers = np.setdiff1d(np.arange(log.num_targets), partners)
        newest = [partner for partner in partners[:8] if target_NW[partner].any()]
        for target in strangers[target_NW[strangers].any(axis=1)].tolist():
            expected_V = np.full(3, np.nan)
            if source_NW[source].any():
                expected_V[0] = source_NW[source] @ target_NW[target]
            if newest:
                mean_W = target_NW[newest].mean(axis=0)
                expected_V[1] = mean_W @ target_NW[target] / np.linalg.norm(mean_W)
                expected_V[2] = (target_NW[newest] @ target_NW[target]).max()
            np.testing.assert_allclose(table_PF[target], expected_V, atol=2e-4, err_msg=f"{source} -> {target}")
            num_compared += 1
    assert num_compared > 300


@pytest.mark.parametrize("world", WORLDS)
def test_a_row_has_the_vectors_of_a_state_of_the_events_before_it(world: str):
    log = log_of(world)
    settings, queries, first = settings_of(log, world), strict_queries(log_of(world), 480), 0
    num_with = 0
    for rows in candidate_rows(log, queries, settings):
        start_Q1 = np.concatenate([[0], np.cumsum(rows.num_past_Q + rows.num_new_Q)])
        for index in range(len(rows.num_past_Q)):
            number = first + index
            if number % 11 and int(queries.num_visible_Q[number]) not in POINTS:
                continue
            part = slice(start_Q1[index], start_Q1[index + 1])
            state = observed(log.head(int(queries.num_visible_Q[number])), settings)
            source, at = int(queries.source_Q[number]), int(queries.time_Q[number])
            expected_PF = state.features(source, rows.target_R[part], at=at)[:, VECTORS]
            np.testing.assert_array_equal(rows.row_RF[part][:, VECTORS], expected_PF)
            num_with += int(np.isfinite(expected_PF).any())
        first += len(rows.num_past_Q)
    assert num_with > 20


@pytest.mark.parametrize("world", WORLDS)
def test_an_event_is_not_read_by_the_vectors_of_its_own_row_but_by_later_ones(world: str):
    log = log_of(world)
    settings, changed_at = settings_of(log, world), 599  # the last event of a refresh
    other_E = np.where(np.arange(len(log)) == changed_at, (log.target_E + 7) % log.num_targets, log.target_E)

    def tables(events: EventLog, first: int, end: int) -> list[np.ndarray]:
        blocks = candidate_rows(events, strict_queries(events, first, end), settings)
        return [array.copy() for rows in blocks for array in (rows.row_RF, rows.target_R)]

    changed = replace(log, target_E=other_E)
    before, same = tables(log, 520, changed_at + 1), tables(changed, 520, changed_at + 1)
    assert [table.tobytes() for table in before] == [table.tobytes() for table in same]
    assert np.isfinite(before[0][:, VECTORS]).any()
    for num_events, is_read in (changed_at + 1, False), (changed_at + 2, True):  # the newest event waits
        one, other = (observed(events.head(num_events), settings).to_arrays() for events in (log, changed))
        assert np.array_equal(one["vectors.target"], other["vectors.target"]) != is_read


@pytest.mark.parametrize("world", WORLDS)
def test_vectors_are_the_same_bytes_however_the_log_is_cut_and_whoever_is_queried(world: str):
    log = log_of(world)
    settings = settings_of(log, world)
    whole = observed(log, settings).to_arrays()
    state = EventState(0, 0, settings)
    for first, end in pairwise((0, 499, 500, 501, 720, 880, len(log))):
        state.observe(part_of(log, first, end))
        if end < len(log):
            state.candidates(3, at=int(log.time_E[end - 1]))
    for name in ("vectors.source", "vectors.target"):
        assert state.to_arrays()[name].tobytes() == whole[name].tobytes()
        assert whole[name].any()


@pytest.mark.parametrize("world", WORLDS)
def test_other_numbers_of_nodes_give_the_same_cosines(world: str):
    log, generator = log_of(world), np.random.default_rng(0)
    source_N = generator.permutation(log.num_sources)
    target_D = generator.permutation(log.num_targets) if log.two_sides else source_N
    other = replace(log, source_E=source_N[log.source_E], target_E=target_D[log.target_E])
    at = int(log.time_E[-1]) + 1
    state, relabelled = (observed(events, settings_of(log, world)) for events in (log, other))
    for source in range(0, log.num_sources, 7):
        one_PF = state.features(source, np.arange(log.num_targets), at=at)
        other_PF = relabelled.features(int(source_N[source]), target_D, at=at)
        np.testing.assert_allclose(one_PF[:, VECTORS], other_PF[:, VECTORS], atol=2e-4)


def test_without_a_vector_features_are_missing():
    log = log_of("two sides")
    at, targets = int(log.time_E[-1]) + 1, np.arange(log.num_targets)
    early = observed(log.head(499), settings_of(log, "two sides"))
    assert np.isnan(early.features(0, targets, at=at)[:, VECTORS]).all(), "there was no refresh yet"
    none = observed(log, settings_of(log, "two sides", rank=0))
    assert np.isnan(none.features(0, targets, at=at)[:, VECTORS]).all()
    state = observed(log, settings_of(log, "two sides"))
    state.grow(log.num_sources + 1, log.num_targets + 1)
    stranger_PF = state.features(log.num_sources, targets, at=at)
    assert np.isnan(stranger_PF[:, VECTORS]).all(), "a source without a past"
    assert np.isnan(state.features(0, np.array([log.num_targets]), at=at)[:, VECTORS]).all(), "an unknown target"


def test_a_state_that_keeps_its_vectors_makes_no_others():
    log = log_of("directed")
    state = observed(log.head(650), settings_of(log, "directed"))
    vectors = state.to_arrays()["vectors.target"]
    state.keep_vectors()
    state.observe(part_of(log, 650, len(log)))
    assert np.array_equal(state.to_arrays()["vectors.target"], vectors)
    assert not np.array_equal(observed(log, state.settings).to_arrays()["vectors.target"], vectors)


def test_vectors_that_stay_are_those_of_the_newest_events_too():
    log = log_of("directed").head(650)
    log = replace(log, time_E=np.minimum(log.time_E, log.time_E[550]))  # events 550 to 649 wait, a refresh among them
    settings, at = settings_of(log, "directed"), int(log.time_E[-1]) + 1
    still, batch, targets = observed(log, settings), observed(log, settings), np.arange(log.num_targets)
    still.keep_vectors()
    for source in range(5):
        found, expected = (state.features(source, targets, at=at)[:, VECTORS] for state in (still, batch))
        np.testing.assert_array_equal(found, expected)
        assert np.isfinite(expected).any()
    early = observed(log.head(550), settings).to_arrays()["vectors.target"]
    assert not np.array_equal(still.to_arrays()["vectors.target"], early)
    none = EventState(0, 0, settings)
    none.keep_vectors()
    none.observe(log)
    assert not none.to_arrays()["vectors.target"].any()


def test_settings_are_read_of_their_record():
    settings = StateSettings(two_sides=False, seconds=60.0, half_lives=(1.0, 2.0, 3.0, 4.0))
    record = json.loads(json.dumps(asdict(settings)))
    assert StateSettings.from_record(record) == settings


@pytest.mark.parametrize("rank", [-1, 65])
def test_a_rank_that_no_decomposition_has_is_refused(rank: int):
    with pytest.raises(ValueError, match=f"expected vectors of a rank from 0 .none. to 64, got {rank}"):
        StateSettings(two_sides=True, seconds=1.0, rank=rank)


def test_the_numbers_of_events_of_refreshes_grow_by_a_fifth():
    assert [next_refresh(point - 1) for point in POINTS] == list(POINTS)
    for num_events in range(1_500):
        expected = max((point for point in POINTS if point <= num_events), default=0)
        assert newest_refresh(num_events) == expected
        assert newest_refresh(num_events) <= num_events < next_refresh(num_events)


def grouped_log(num_events: int = 1_500) -> EventLog:
    """Ten groups of 40 sources, each with 60 targets of its own, which only the groups set apart."""
    generator = np.random.default_rng(0)
    source_E = generator.integers(400, size=num_events)
    return EventLog(
        source_E=source_E,
        target_E=source_E % 10 * 60 + generator.integers(60, size=num_events),
        time_E=np.arange(num_events) * 100,
        weight_E=np.ones(num_events),
        num_sources=400,
        num_targets=600,
        two_sides=True,
        seconds=1.0,
    )


def test_targets_with_near_vectors_become_candidates():
    log = grouped_log()
    at = int(log.time_E[-1]) + 1

    def fraction_of_own_group(rank: int, max_new: int, max_near: int) -> float:
        settings = StateSettings(two_sides=True, seconds=1.0, rank=rank, max_new=max_new, max_near=max_near)
        state, fractions = observed(log, settings), []
        for source in np.unique(log.source_E)[::9].tolist():
            rows = state.candidates(source, at=at)
            new_R = rows.target_R[int(rows.num_past_Q[0]) :]
            assert len(set(new_R.tolist())) == len(new_R) <= 48
            fractions.append(np.mean(new_R // 60 == source % 10))
        return float(np.mean(fractions))

    assert fraction_of_own_group(10, 0, 48) > 0.9
    assert fraction_of_own_group(0, 48, 0) < 0.5


def test_every_feature_of_vectors_is_the_last_of_a_row():
    assert [FEATURES[column] for column in VECTORS] == list(FEATURES[-3:])
