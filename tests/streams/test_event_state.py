import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from event_logs import log_of
from numba import njit
from slow_events import SlowEvents, partners_of, random_log, rows_of, strict_queries

from dyformer.streams import event_state, state_tables
from dyformer.streams.event_log import EventLog, EventQueries, event_log_of
from dyformer.streams.event_state import FEATURES, INDEX, RANKED, EventState, StateSettings, candidate_rows, names
from dyformer.streams.kernels import tables
from dyformer.streams.kernels.borrowed import borrowed, hold
from dyformer.streams.kernels.rows import collect_rows, pair_rows
from dyformer.streams.kernels.updates import absorb_events

QUERY_COLUMNS = ("source_Q", "time_Q", "num_visible_Q")
HALF_LIVES = (120.0, 900.0, 7_200.0, 50_000.0)
WORLDS = {"two sides": (True, True), "directed": (False, True), "undirected": (False, False)}
ROWS = pl.DataFrame(
    {
        "source": [0, 2, 0, 5],
        "target": [1, 3, 3, 1],
        "source_side": [0, 0, 0, 0],
        "target_side": [1, 1, 1, 1],
        "time": [7, 3, 7, 9],
        "weight": [1.0, None, 3.0, 4.0],
    }
)


def settings_of(log: EventLog, *, directed: bool = True, **changes: int) -> StateSettings:
    return StateSettings(
        two_sides=log.two_sides, seconds=log.seconds, directed=directed, half_lives=HALF_LIVES, **changes
    )


def observed(log: EventLog, settings: StateSettings, *borders: int) -> EventState:
    state = EventState(0, 0, settings)
    for first, end in zip((0, *borders), (*borders, len(log)), strict=True):
        state.observe(part_of(log, first, end))
    return state


def part_of(log: EventLog, first: int, end: int) -> EventLog:
    columns = ("source_E", "target_E", "time_E", "weight_E")
    return replace(log, **{name: getattr(log, name)[first:end] for name in columns})


def all_rows(log: EventLog, queries: EventQueries, settings: StateSettings) -> list[tuple[np.ndarray, ...]]:
    """The past and new targets of every query and their rows."""
    found = []
    for rows in candidate_rows(log, queries, settings):
        first = 0
        for num_past, num_new in zip(rows.num_past_Q, rows.num_new_Q, strict=True):
            border, end = first + num_past, first + num_past + num_new
            parts = rows.target_R[first:border], rows.target_R[border:end], rows.row_RF[first:end]
            found.append(tuple(part.copy() for part in parts))
            first = end
    return found


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_feature_is_the_one_of_plain_loops(world: str, seed: int) -> None:
    two_sides, directed = WORLDS[world]
    log = random_log(seed, two_sides=two_sides)
    settings, targets = settings_of(log, directed=directed), np.arange(log.num_targets)
    both_ways, has_replies = not directed, directed and not two_sides
    for num_events in (1, 2, 17, 150, 400):
        state, at = observed(log.head(num_events), settings), int(log.time_E[num_events - 1]) + 11
        rows = rows_of(log, num_events, both_ways=both_ways)
        slow = SlowEvents(rows, at, seconds=log.seconds, half_lives=HALF_LIVES, has_replies=has_replies)
        for source in range(0, log.num_sources, 2):
            table_PF = state.features(source, targets, at=at)
            for target in targets.tolist():
                expected = slow.features(source, target)
                expected_F = np.array([expected.get(name, np.nan) for name in FEATURES])
                np.testing.assert_allclose(
                    table_PF[target], expected_F, rtol=2e-4, atol=2e-5, err_msg=f"{source} -> {target}"
                )


def strided(array: np.ndarray) -> np.ndarray:
    return np.repeat(array, 2)[::2]


def frozen(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


def test_arrays_of_another_layout_give_the_same_bytes_by_the_same_compiled_kernels() -> None:
    def outcome(layout: Callable[[np.ndarray], np.ndarray]) -> list[bytes]:
        log = random_log(0, two_sides=True)
        columns = {name: layout(getattr(log, name)) for name in ("source_E", "target_E", "time_E", "weight_E")}
        log, settings = replace(log, **columns), settings_of(log)
        queries = strict_queries(log, len(log) // 2)
        queries = replace(queries, **{name: layout(getattr(queries, name)) for name in QUERY_COLUMNS})
        rows = [part.tobytes() for parts in all_rows(log, queries, settings) for part in parts]
        state, at = observed(log, settings, 50), int(log.time_E[-1]) + 1
        target_P = layout(np.arange(3))
        return [*rows, state.features(0, target_P, at=at).tobytes(), state.candidates(0, at=at).row_RF.tobytes()]

    kernels = (absorb_events, collect_rows, pair_rows)
    plain, num_compiled = outcome(np.copy), [len(kernel.signatures) for kernel in kernels]
    assert outcome(strided) == outcome(frozen) == plain
    assert [len(kernel.signatures) for kernel in kernels] == num_compiled


def test_before_the_first_event_nothing_is_known() -> None:
    log = random_log(0)
    state = EventState(log.num_sources, log.num_targets, settings_of(log))
    state.observe(log.head(0))
    slow = SlowEvents([], 5, seconds=log.seconds, half_lives=HALF_LIVES).features(2, 3)
    expected_F = np.array([slow.get(name, np.nan) for name in FEATURES], dtype=np.float32)
    assert np.array_equal(state.features(2, np.array([3]), at=5)[0], expected_F, equal_nan=True)
    assert len(state.candidates(2, at=5).target_R) == 0


def test_a_group_of_features_has_as_many_names_as_columns_in_the_kernels() -> None:
    from dyformer.streams.kernels.features import GROUP_SIZES

    assert tuple(map(len, names().values())) == GROUP_SIZES
    assert len(set(FEATURES)) == len(FEATURES)


@pytest.mark.parametrize("world", WORLDS)
def test_candidates_are_past_partners_by_recency_and_then_new_ones_each_once(world: str) -> None:
    two_sides, directed = WORLDS[world]
    log = random_log(3, two_sides=two_sides, num_sources=15, num_targets=30)
    settings = settings_of(log, directed=directed)
    num_new = 0
    queries = strict_queries(log, 100)
    for index, (past_P, new_N, _) in enumerate(all_rows(log, queries, settings)):
        source, visible = int(queries.source_Q[index]), int(queries.num_visible_Q[index])
        rows, newest_first = rows_of(log, visible, both_ways=not directed), partners_of(log, visible, source)
        own = set() if two_sides else {source}
        assert past_P.tolist() == [target for target in newest_first if target not in own]
        touched = {row[1] for row in rows} - set(newest_first) - own
        assert len(set(new_N.tolist())) == len(new_N)
        assert set(new_N.tolist()) == touched  # there are fewer than any list holds
        num_new += len(new_N)
    assert num_new > 100


def test_rows_of_candidates_are_their_features_and_ranks_count_greater_values() -> None:
    log = random_log(4, two_sides=False)
    settings, queries = settings_of(log), strict_queries(log, 50)
    not_ranks = np.array([not name.startswith("rank_") for name in FEATURES])
    for index, (past_P, new_N, row_RF) in enumerate(all_rows(log, queries, settings)):
        if index % 37:
            continue
        source, at = int(queries.source_Q[index]), int(queries.time_Q[index])
        state = observed(log.head(int(queries.num_visible_Q[index])), settings)
        assert np.array_equal(
            row_RF[:, not_ranks],
            state.features(source, np.concatenate([past_P, new_N]), at=at)[:, not_ranks],
            equal_nan=True,
        )
        for rows in (row_RF[: len(past_P)], row_RF[len(past_P) :]):
            for name in RANKED:
                value_R = np.nan_to_num(rows[:, INDEX[name]], nan=-np.inf)
                assert rows[:, INDEX[f"rank_{name}"]].tolist() == [int((value_R > value).sum()) for value in value_R]


def test_who_wrote_to_a_source_is_its_partner_and_waits_for_a_reply() -> None:
    log = log_of([(0, 1, 10), (0, 1, 20), (2, 1, 30), (1, 2, 50), (1, 3, 60)], two_sides=False)
    settings = StateSettings(two_sides=False, seconds=1.0)
    before, after = observed(log.head(3), settings), observed(log, settings)

    def of(state: EventState, source: int, target: int, at: int, *features: str) -> list[float]:
        row_F = state.features(source, np.array([target]), at=at)[0]
        return [float(row_F[INDEX[name]]) for name in features]

    rows = before.candidates(1, at=40)
    assert (rows.target_R.tolist(), rows.num_past_Q.tolist()) == ([2, 0], [2])
    assert of(before, 1, 0, 40, "pending", "replies", "met_recency", "met_since") == [2, 2, 1, 20]
    assert of(before, 0, 1, 40, "pending", "pending_own") == [0, 2]
    assert of(before, 1, 3, 40, "received_pending", "received_sources") == [2, 2]
    assert of(after, 1, 2, 70, "pending", "reply_after", "received_pending") == [0, -20, 1]
    # A reply brings no new partner: of the two events of node 1 the one with node 3 does.
    assert of(after, 1, 2, 70, "partners", "source_events") == [1, 2]
    assert after.candidates(1, at=70).target_R.tolist() == [3, 2, 0]


def test_garbage_after_the_visible_events_changes_no_byte() -> None:
    log, generator = random_log(5, two_sides=False), np.random.default_rng(0)
    queries = strict_queries(log, 60, 200)
    num_visible = int(queries.num_visible_Q[-1])
    garbage = {
        "source_E": generator.integers(0, log.num_sources, len(log)),
        "target_E": generator.integers(0, log.num_targets, len(log)),
        "weight_E": generator.random(len(log)),
    }
    later_E = np.arange(len(log)) >= num_visible
    changed = replace(log, **{name: np.where(later_E, column, getattr(log, name)) for name, column in garbage.items()})
    for first, second in zip(
        all_rows(log, queries, settings_of(log)), all_rows(changed, queries, settings_of(log)), strict=True
    ):
        assert [array.tobytes() for array in first] == [array.tobytes() for array in second]


def test_fewer_visible_events_are_those_of_a_shorter_log() -> None:
    log = random_log(6)
    queries = strict_queries(log, 100)
    stale = replace(queries, num_visible_Q=queries.num_visible_Q // 40 * 40)
    for index, (past_P, new_N, row_RF) in enumerate(all_rows(log, stale, settings_of(log))):
        if index % 29 == 0:
            state = observed(log.head(int(stale.num_visible_Q[index])), settings_of(log))
            alone = state.candidates(int(stale.source_Q[index]), at=int(stale.time_Q[index]))
            assert alone.target_R.tolist() == [*past_P, *new_N]
            assert alone.row_RF.tobytes() == row_RF.tobytes()


@pytest.mark.parametrize("world", WORLDS)
def test_a_state_that_goes_on_has_the_bytes_of_one_pass(world: str) -> None:
    two_sides, directed = WORLDS[world]
    log = random_log(7, two_sides=two_sides)
    settings = settings_of(log, directed=directed)
    whole = observed(log, settings).to_arrays()
    stored = EventState.from_arrays(observed(log.head(133), settings, 40, 41).to_arrays(), settings)
    stored.observe(part_of(log, 133, len(log)))
    for arrays in (observed(log, settings, 1, 100, 399).to_arrays(), stored.to_arrays()):
        assert arrays.keys() == whole.keys()
        assert all(arrays[name].tobytes() == whole[name].tobytes() for name in whole)


class ObservedInBetween:
    """A lock and a rest: the state observes an event before each time the lock is taken, and in some of the rests.

    With `at_once` it observes all of them in the first rest, for which its tables have no room.
    """

    def __init__(self, state: EventState, log: EventLog, first: int, end: int, *, at_once: bool) -> None:
        self.state, self.log, self.first, self.end, self.at_once = state, log, first, end, at_once
        self.is_held, self.num_taken, self.num_rests = False, 0, 0

    def __enter__(self) -> None:
        self.is_held, self.num_taken = True, self.num_taken + 1
        if not self.at_once:
            self.observe(1)

    def __exit__(self, *error: object) -> None:
        self.is_held = False

    def rest(self) -> None:
        assert not self.is_held
        self.num_rests += 1
        if self.at_once or self.num_rests % 100 == 6:
            self.observe(len(self.log) if self.at_once else 1)

    def observe(self, num_events: int) -> None:
        end = min(self.first + num_events, self.end)
        self.state.observe(part_of(self.log, self.first, end))
        self.first = end


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("end", [160, 399])  # up to it is observed during the growth: for less has a table room, or not
def test_tables_that_grow_ahead_hold_what_came_meanwhile(world: str, end: int, monkeypatch: pytest.MonkeyPatch) -> None:
    two_sides, directed = WORLDS[world]
    log = random_log(7, two_sides=two_sides)
    settings = settings_of(log, directed=directed)
    end = int(np.searchsorted(log.time_E, log.time_E[end]))  # of a time
    whole, state = observed(log, settings), observed(log.head(133), settings)
    before = state.allocated_bytes()
    monkeypatch.setattr(event_state, "is_nearly_full", lambda table, _: len(table.slot_S) > 0)
    monkeypatch.setattr(event_state, "BLOCK_EVENTS", 8)
    monkeypatch.setattr(tables, "PART", 16)  # so that events come between the copies of slots
    meanwhile = ObservedInBetween(state, log, 133, end, at_once=end > 200)
    state.grow_ahead(meanwhile, meanwhile.rest)
    after = state.allocated_bytes()
    assert meanwhile.num_rests > 100
    assert meanwhile.num_taken > 10
    state.observe(part_of(log, meanwhile.first, end))
    for name in state_tables.TABLES:
        table = getattr(state._state, name)
        assert np.array_equal(np.sort(table.bucket_B[table.bucket_B >= 0]), np.arange(table.num_used_1[0]))
    assert all(after[name] > before[name] for name in ("contacts", "moves", "own_moves", "shared"))
    targets = np.arange(log.num_targets)
    until, at = observed(log.head(end), settings), int(log.time_E[end - 1]) + 1
    for source in range(log.num_sources):  # before they grow again
        assert state.features(source, targets, at=at).tobytes() == until.features(source, targets, at=at).tobytes()
    state.observe(part_of(log, end, len(log)))
    assert all(state.to_arrays()[name].tobytes() == values.tobytes() for name, values in whole.to_arrays().items())


def test_each_slot_that_changes_while_its_table_is_copied_is_copied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    log = random_log(7)
    settings = settings_of(log)
    monkeypatch.setattr(event_state, "is_nearly_full", lambda table, _: len(table.slot_S) > 0)
    monkeypatch.setattr(event_state, "BLOCK_EVENTS", 8)
    for first in range(40, 380, 2):
        state = observed(log.head(first), settings)
        meanwhile = ObservedInBetween(state, log, first, len(log), at_once=False)
        state.grow_ahead(meanwhile, meanwhile.rest)
        whole = observed(log.head(meanwhile.first), settings).to_arrays()
        assert all(state.to_arrays()[name].tobytes() == values.tobytes() for name, values in whole.items())


@pytest.mark.parametrize("world", WORLDS)
def test_a_source_with_new_targets_alone_takes_the_most_slots(world: str) -> None:
    two_sides, directed = WORLDS[world]
    count = np.arange(70)
    log = replace(
        random_log(7, two_sides=two_sides),
        source_E=0 * count,
        target_E=1 + count,
        time_E=count,
        weight_E=np.ones(70),
        num_sources=80,
        num_targets=80,
    )
    state = EventState(80, 80, settings_of(log, directed=directed))
    state.observe(part_of(log, 0, 21))  # the newest waits, so that 20 count
    before = {name: int(getattr(state._state, name).num_used_1[0]) for name in state_tables.TABLES}
    state.observe(part_of(log, 21, 70))
    taken = {name: int(getattr(state._state, name).num_used_1[0]) - before[name] for name in state_tables.TABLES}
    most = state_tables.most_slots(49, state.settings.limits)
    assert taken == most or (not directed and all(taken[name] <= most[name] for name in taken))


@njit
def _sum_of_borrowed(size):
    owned = np.arange(size), np.full(size, 0.5)
    numbers, halves = borrowed(owned)
    for _ in range(3):
        np.full(size, -7.0)  # which would take the memory of an array that is gone
    total = numbers.sum() + halves.sum()
    hold(owned)
    return total


def test_arrays_without_counts_exist_until_they_are_let_go() -> None:
    assert [_sum_of_borrowed(size) for size in (3, 1_000)] == [4.5, 500_000.0]


def test_the_memory_of_borrowed_arrays_is_given_back() -> None:
    _sum_of_borrowed(3)
    memory = import_module("numba.core.runtime._nrt_python")
    memory.memsys_enable_stats()
    alloc, free = memory.memsys_get_stats_alloc(), memory.memsys_get_stats_free()
    _sum_of_borrowed(1_000)
    assert memory.memsys_get_stats_alloc() - alloc == memory.memsys_get_stats_free() - free > 0
    memory.memsys_disable_stats()


def test_queries_of_one_state_leave_no_mark_also_where_targets_came_between() -> None:
    log = random_log(0, two_sides=True)
    settings, later = settings_of(log), int(log.time_E[-1]) + 1
    state = observed(log, settings)
    for room in (0, 0, 10, 0):
        state.grow(0, len(state.to_arrays()["target.count"]) + room)
        for source in (0, 1, 0):
            rows, fresh = state.candidates(source, at=later), observed(log, settings).candidates(source, at=later)
            assert rows.target_R.tobytes() == fresh.target_R.tobytes()
            assert rows.row_RF.tobytes() == fresh.row_RF.tobytes()


def test_tables_without_slots_grow_ahead() -> None:
    state = EventState(3, 3, StateSettings(two_sides=True, seconds=1.0))
    state.grow_ahead(nullcontext())
    assert state.allocated_bytes()["contacts"] > 0


@pytest.mark.parametrize("world", WORLDS)
def test_a_block_of_events_finds_room_that_was_made_ahead(world: str, monkeypatch: pytest.MonkeyPatch) -> None:
    two_sides, directed = WORLDS[world]
    log = random_log(7, two_sides=two_sides)
    settings = settings_of(log, directed=directed)
    state = EventState.from_arrays(observed(log.head(133), settings).to_arrays(), settings)  # its tables are full
    monkeypatch.setattr(event_state, "BLOCK_EVENTS", 100)
    state.grow_ahead(nullcontext())
    before = state.allocated_bytes()
    state.grow_ahead(nullcontext())
    assert state.allocated_bytes() == before
    state.observe(part_of(log, 133, 233))
    assert state.allocated_bytes() == before


@pytest.mark.parametrize("two_sides", [True, False])
def test_a_query_between_two_observations_changes_no_later_byte(two_sides: bool) -> None:
    log = random_log(7, two_sides=two_sides)
    whole, queried = observed(log, settings_of(log)), EventState(0, 0, settings_of(log))
    border = int(np.searchsorted(log.time_E, log.time_E[150]))
    queried.observe(log.head(border))
    queried.candidates(3, at=int(log.time_E[border]))
    queried.observe(part_of(log, border, len(log)))
    at = int(log.time_E[-1]) + 1
    assert queried.candidates(3, at=at).row_RF.tobytes() == whole.candidates(3, at=at).row_RF.tobytes()
    assert all(queried.to_arrays()[name].tobytes() == values.tobytes() for name, values in whole.to_arrays().items())


@pytest.mark.parametrize("two_sides", [True, False])
def test_events_of_the_time_of_a_query_are_not_read(two_sides: bool) -> None:
    log = random_log(8, two_sides=two_sides, per_time=6)
    at = int(log.time_E[-1])
    num_older = int(np.searchsorted(log.time_E, at))
    assert len(log) - num_older > 1
    ties, before = observed(log, settings_of(log)), observed(log.head(num_older), settings_of(log))
    targets, source = np.arange(log.num_targets), int(log.source_E[-1])
    now = ties.features(source, targets, at=at)
    assert now.tobytes() == before.features(source, targets, at=at).tobytes()
    assert ties.features(source, targets, at=at + 1).tobytes() != before.features(source, targets, at=at + 1).tobytes()
    with pytest.raises(ValueError, match="expected a time after"):
        ties.features(source, targets, at=at)


def test_numbers_of_nodes_that_the_state_lacks_are_named() -> None:
    log = random_log(8)
    state, at = observed(log, settings_of(log)), int(log.time_E[-1]) + 1
    for source in (-1, log.num_sources):
        with pytest.raises(ValueError, match="expected numbers of sources from 0 to"):
            state.features(source, np.array([0]), at=at)
        with pytest.raises(ValueError, match="expected numbers of sources from 0 to"):
            state.candidates(source, at=at)
    for target in (-1, log.num_targets):
        with pytest.raises(ValueError, match="expected numbers of targets from 0 to"):
            state.features(0, np.array([0, target]), at=at)


def test_new_numbers_of_nodes_change_no_feature() -> None:
    log, generator = random_log(9, two_sides=False), np.random.default_rng(1)
    number_N = generator.permutation(log.num_sources)
    renumbered = replace(log, source_E=number_N[log.source_E], target_E=number_N[log.target_E])
    queries = strict_queries(log, 80)
    other_queries = replace(queries, source_Q=number_N[queries.source_Q])
    pairs = zip(
        all_rows(log, queries, settings_of(log)), all_rows(renumbered, other_queries, settings_of(log)), strict=True
    )
    for (past_P, new_N, row_RF), (other_past_P, other_new_N, other_row_RF) in pairs:
        assert number_N[past_P].tolist() == other_past_P.tolist()
        assert number_N[new_N].tolist() == other_new_N.tolist()
        assert row_RF.tobytes() == other_row_RF.tobytes()


def test_popular_targets_are_those_with_the_greatest_decayed_counts() -> None:
    log = random_log(10, num_events=3_000, num_targets=150, num_sources=400)
    state = observed(log, settings_of(log))
    at = int(log.time_E[-1]) + 1
    table_DF = state.features(0, np.arange(log.num_targets), at=at)
    popular = state.to_arrays()["popular.target"]
    for group, stem in enumerate(("target", "target_new", "target_first")):
        for index in range(4):
            value_D = table_DF[:, INDEX[f"{stem}_{index}"]]
            listed_M = popular[4 * group + index]
            np.testing.assert_allclose(value_D[listed_M], np.sort(value_D)[::-1][: len(listed_M)], rtol=1e-3)


def test_limits_keep_the_newest_partners_and_at_most_so_many_new_ones() -> None:
    log = random_log(11, num_targets=60, num_events=1_200)
    queries = strict_queries(log, 600)
    num_near = 0
    for (past_P, new_N, _), (few_P, few_N, _), (_, near_N, _) in zip(
        all_rows(log, queries, settings_of(log, max_near=0)),
        all_rows(log, queries, settings_of(log, max_past=5, max_new=7, max_near=0)),
        all_rows(log, queries, settings_of(log, max_new=7, max_near=40)),
        strict=True,
    ):
        assert few_P.tolist() == past_P[:5].tolist()
        assert few_N.tolist() == new_N[:7].tolist()
        assert near_N[:7].tolist() == few_N.tolist(), "near targets take no place of others"
        assert len(set(near_N.tolist())) == len(near_N) <= 7 + 40
        num_near += len(near_N) - len(few_N)
    assert num_near > 100


def test_the_rest_is_ordered_by_events_with_new_partners() -> None:
    log = random_log(12, num_targets=20)
    queries = strict_queries(log, 300)
    candidate_QC = np.tile(np.array([3, 19, 0]), (len(queries), 1))
    some = [
        rows.rest_QC.copy()
        for rows in candidate_rows(log, replace(queries, candidate_QC=candidate_QC), settings_of(log))
    ]
    every_QD = np.concatenate([rows.rest_QC.copy() for rows in candidate_rows(log, queries, settings_of(log))])
    assert np.array_equal(np.concatenate(some), every_QD[:, [3, 19, 0]])
    for index in range(0, len(queries), 20):
        state = observed(log.head(int(queries.num_visible_Q[index])), settings_of(log))
        table_DF = state.features(0, np.arange(20), at=int(queries.time_Q[index]))
        with np.errstate(divide="ignore"):
            expected_D = np.log(table_DF[:, INDEX["target_new_3"]])
        np.testing.assert_allclose(every_QD[index], expected_D, rtol=1e-4, atol=1e-4)


def test_events_out_of_order_and_of_another_world_are_refused() -> None:
    log = random_log(13)
    state = observed(log, settings_of(log))
    with pytest.raises(ValueError, match="in order of time from"):
        state.observe(log.head(3))
    with pytest.raises(ValueError, match="unit of time"):
        state.observe(replace(part_of(log, 390, 400), time_E=log.time_E[390:] + 10**6, seconds=1.0))
    with pytest.raises(ValueError, match="half-lives"):
        replace(settings_of(log), half_lives=(1.0, 2.0))
    with pytest.raises(ValueError, match="have a direction"):
        settings_of(log, directed=False)


def test_events_are_in_order_of_time_and_then_of_the_log():
    log = event_log_of(ROWS, has_steps=False).log
    np.testing.assert_array_equal(log.time_E, [3, 7, 7, 9])
    np.testing.assert_array_equal(log.weight_E, [1, 1, 3, 4])
    np.testing.assert_array_equal(log.source_E, [1, 0, 0, 2])
    np.testing.assert_array_equal(log.target_E, [1, 0, 1, 0])
    assert log.seconds == 1e-6


def test_each_side_has_its_own_numbers():
    two, (_, sources, targets) = event_log_of(ROWS, has_steps=True).log, event_log_of(ROWS, has_steps=True)
    assert (two.num_sources, two.num_targets, two.two_sides, two.seconds) == (3, 2, True, 1)
    assert (sources.tolist(), targets.tolist()) == ([0, 2, 5], [1, 3])
    one, sources, targets = event_log_of(ROWS.with_columns(target_side=0), has_steps=True)
    assert (one.num_sources, one.num_targets, one.two_sides) == (5, 5, False)
    assert sources.tolist() == targets.tolist() == [0, 1, 2, 3, 5]
    np.testing.assert_array_equal(one.target_E, [3, 1, 3, 1])


@pytest.mark.parametrize("side", [0, 1])
def test_a_log_that_grows_keeps_its_numbers(side: int):
    rows = ROWS.with_columns(target_side=pl.lit(side)).sort("time")
    more = pl.concat(
        [rows, rows.with_columns(source=pl.col("source") + 10, target=pl.col("target") + 10, time=pl.lit(20, pl.Int64))]
    )
    before, after = event_log_of(rows, has_steps=True).log, event_log_of(more, has_steps=True).log
    np.testing.assert_array_equal(after.source_E[:4], before.source_E)
    np.testing.assert_array_equal(after.target_E[:4], before.target_E)


GROWTH = """
from contextlib import nullcontext
import numpy as np
from dyformer.scoring.live_ranking import load_growth
from dyformer.streams.event_log import EventLog
from dyformer.streams.event_state import EventState, StateSettings
from dyformer.streams.kernels import tables
kernels = tables.enter_slots, tables._copy_marked
load_growth()
loaded = [list(kernel.signatures) for kernel in kernels]
node_E = np.arange(20)
state = EventState(20, 20, StateSettings(two_sides=True, seconds=1.0))
columns = {"source_E": node_E, "target_E": node_E, "time_E": node_E, "weight_E": np.ones(20)}
state.observe(EventLog(**columns, num_sources=20, num_targets=20, two_sides=True, seconds=1.0))
state.features(0, node_E, at=50)
slots = len(state._state.contacts.slot_S)
state.grow_ahead(nullcontext())
assert len(state._state.contacts.slot_S) > slots > 0
print(all(loaded) and loaded == [list(kernel.signatures) for kernel in kernels])
"""


def test_what_a_growth_calls_is_compiled_before() -> None:
    done = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_the_page_has_the_bytes_of_a_pair_a_source_and_a_target() -> None:
    log = random_log(0, two_sides=True, num_sources=1_000, num_targets=2_000)
    state = EventState(0, 0, settings_of(log))
    state.grow(log.num_sources, log.num_targets)
    arrays = state._state
    lists = {name: getattr(arrays, name).newest_R.nbytes for name in state_tables.TABLES}
    sources = arrays.source_N.nbytes + lists["contacts"] + lists["meetings"]
    targets = arrays.target_D.nbytes + lists["moves"] + lists["shared"]
    contact, move, shared = (kind.itemsize for kind in (tables.CONTACT_SLOT, tables.SLOT, tables.UNORDERED_SLOT))
    source, target = sources / log.num_sources, targets / log.num_targets
    page = (Path(__file__).resolve().parents[2] / "docs" / "serving.md").read_text()
    assert f"{contact} bytes a contact, {move} a move and {shared} a pair that shares a source" in page
    assert f"{source:g} bytes a source and {target:g} a target" in page
    documented = " ".join((EventState.__doc__ or "").split())
    assert (
        f"a contact and a meeting take a slot of {contact} bytes, a move and an own move {move}, a shared pair {shared}"
        in documented
    )
    assert f"A source takes {source:g} bytes and a target {target:g}." in documented
