from typing import Any

import numpy as np
from numba import njit

from dyformer.streams.kernels import tables

compiled: Any = njit  # which a type checker takes for something else without options
find, find_unordered = compiled(tables.find), compiled(tables.find_unordered)
touch, touch_unordered = compiled(tables.touch), compiled(tables.touch_unordered)
other_and_older = compiled(tables.other_and_older)


def _table(num_rows: int) -> tables.PairTable:
    return tables.table_of(np.empty(0, dtype=tables.SLOT), np.full(num_rows, -1, dtype=np.int32))


def test_a_table_is_nearly_full_when_a_quarter_or_what_may_come_is_not_free() -> None:
    table = tables.with_room(_table(1), 8)
    for column in range(6):
        assert not tables.is_nearly_full(table, 0)
        touch(table, 0, column, column, np.zeros(4))
    assert [tables.is_nearly_full(table, num_more) for num_more in (0, 2, 3)] == [False, False, True]
    touch(table, 0, 6, 6, np.zeros(4))
    assert tables.is_nearly_full(table, 0)


def _list_of(table: tables.PairTable, node: int) -> list[int]:
    others, slot = [], int(table.newest_R[node])
    while slot >= 0:
        if table.slot_S.dtype == tables.UNORDERED_SLOT:
            other, slot = other_and_older(table, slot, node)
        else:
            other, slot = int(table.slot_S[slot]["column"]), int(table.slot_S[slot]["older"])
        others.append(int(other))
    return others


def _list_along_newer(table: tables.PairTable, node: int) -> list[int]:
    # From the oldest slot of a node's list along the links to newer ones.
    slots = [slot for slot in table.slot_S[: int(table.num_used_1[0])] if node in (slot["row"], slot["column"])]
    [record] = [slot for slot in slots if slot["older"][int(slot["row"] != node)] < 0]
    others: list[int] = []
    while True:
        others.insert(0, int(record["row"] + record["column"] - node))
        newer = int(record["newer"][int(record["row"] != node)])
        if newer < 0:
            return others
        record = table.slot_S[newer]


def _both_tables(num_nodes: int, num_times: int, rate_H: np.ndarray) -> tuple[tables.PairTable, tables.PairTable]:
    """A table of unordered pairs, and one with a slot for each order, after the same updates."""
    generator = np.random.default_rng(0)
    kinds = (tables.UNORDERED_SLOT, num_nodes**2 // 2), (tables.SLOT, num_nodes**2)
    unordered, ordered = (
        tables.with_room(tables.table_of(np.empty(0, dtype=kind), np.full(num_nodes, -1, dtype=np.int32)), size)
        for kind, size in kinds
    )
    for time in range(num_times):
        node, *others = generator.choice(num_nodes, size=2 + time % 7, replace=False).tolist()
        touch_unordered(unordered, np.array(others), node, time, rate_H)
        for other in others:
            touch(ordered, other, node, time, rate_H)
            touch(ordered, node, other, time, rate_H)
    return unordered, ordered


def test_an_unordered_pair_has_the_counts_and_lists_of_both_orders() -> None:
    rate_H = np.arange(tables.NUM_HALF_LIVES) / 7
    unordered, ordered = _both_tables(12, 80, rate_H)
    assert ordered.num_used_1[0] == 2 * unordered.num_used_1[0] > 0
    for record in ordered.slot_S[: ordered.num_used_1[0]]:
        ends = sorted((int(record["row"]), int(record["column"])))
        found = unordered.slot_S[find(unordered, *ends)]
        for field in ("count", "latest", "decayed"):
            assert np.array_equal(found[field], record[field])
    lists = [_list_of(ordered, node) for node in range(12)]
    assert min(map(len, lists)) > 5
    assert [_list_of(unordered, node) for node in range(12)] == lists
    assert [_list_along_newer(unordered, node) for node in range(12)] == lists


def test_every_slot_that_an_update_of_unordered_pairs_changes_is_marked() -> None:
    rate_H = np.zeros(tables.NUM_HALF_LIVES)
    table, _ = _both_tables(40, 60, rate_H)
    tables.marks_taken(table)
    before = table.slot_S.view(np.uint8).reshape(len(table.slot_S), -1).copy()  # a copy of records leaves gaps out
    touch_unordered(table, np.array([3, 17, 31]), 8, 100, rate_H)
    changed = np.flatnonzero((table.slot_S.view(np.uint8).reshape(before.shape) != before).any(axis=1))
    marks = set((changed // tables.SLOTS_OF_A_MARK).tolist())
    assert len(changed) > 3
    assert set(np.flatnonzero(table.changed_M).tolist()) == marks


def test_unordered_pairs_are_found_at_once_and_from_either_end() -> None:
    table, _ = _both_tables(30, 60, np.zeros(tables.NUM_HALF_LIVES))
    table = table._replace(bucket_B=np.full(512, -1, dtype=np.int32))  # so few that pairs often share a bucket
    tables.enter_slots(table, 0, int(table.num_used_1[0]))
    node_P = np.arange(30)
    slot_P, is_first_P = np.empty(30, dtype=np.int64), np.empty(30, dtype=np.bool_)
    found, is_first = [], []
    for other in range(30):
        find_unordered(table, node_P, other, slot_P, is_first_P)
        wanted = [find(table, min(node, other), max(node, other)) for node in range(30)]
        assert slot_P.tolist() == wanted
        found.append(slot_P.tolist())
        is_first += is_first_P[slot_P >= 0].tolist()
    assert np.array_equal(found, np.transpose(found))
    assert {slot for row in found for slot in row} == {-1, *range(int(table.num_used_1[0]))}
    assert set(is_first) == {False, True}


def test_in_a_table_without_slots_no_pair_is_found() -> None:
    table = _table(0)
    slot_P = np.zeros(2, dtype=np.int64)
    find_unordered(table, np.array([0, 3]), 1, slot_P, np.empty(2, dtype=np.bool_))
    assert slot_P.tolist() == [-1, -1]
