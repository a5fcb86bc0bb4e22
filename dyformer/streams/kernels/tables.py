"""Pairs of numbers -> slots with counts that decay, found in O(1), and per row a list by recency.

A table is a hash table with open addressing. Slots are numbered in the order in which their pairs first appear, so they
depend on the updates alone. The buckets depend on the capacity too; they are made again from the slots. A row's list is
doubly linked: an update moves its slot to the front in O(1). A slot is one record, so that an update reads one or two
lines of the processor's cache.

A table of UNORDERED_SLOT has one slot for both orders of a pair of nodes: its row is the lesser node, its column the
greater one, and it is in the lists of both.

A larger table is made of one that is in use: its slots are copied part by part, and those that updates change
meanwhile are marked, to be copied once more.

S slots    B buckets    R rows    H = 4 half-lives    M marks    P pairs
"""

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.streams.kernels.inner import inner_njit

NUM_HALF_LIVES = 4
SLOTS_OF_A_MARK = 8
PART = 1 << 13  # slots that are copied at a time: about half a millisecond

_FIELDS: list[tuple] = [
    ("row", "i4"),
    ("column", "i4"),
    ("count", "i4"),
    ("newer", "i4"),  # the next slot of the same row towards the newest, or -1
    ("older", "i4"),
    ("number", "i4"),  # of a contact: events of the source before the newest one
    ("latest", "i8"),
    ("decayed", "f4", (NUM_HALF_LIVES,)),  # sum of 0.5^(age / half-life) over the updates, as of the latest one
]
SLOT = np.dtype(_FIELDS, align=True)
CONTACT_SLOT = np.dtype(
    [
        *_FIELDS,
        ("first", "i8"),  # time of the first update; of a meeting 0
        ("weight", "f8"),  # sum of the weights in the log; of a meeting 0
    ],
    align=True,
)
UNORDERED_SLOT = np.dtype(
    [
        *_FIELDS[:3],
        ("newer", "i4", (2,)),  # in the list of the row and in that of the column
        ("older", "i4", (2,)),
        *_FIELDS[6:],
    ],
    align=True,
)


class PairTable(NamedTuple):
    """Counts of pairs (row, column). A table without rows in `newest_R` has no lists."""

    num_used_1: NDArray[np.int64]
    bucket_B: NDArray[np.int32]  # a slot, or -1; B is a power of 2 and at least twice the slots
    slot_S: NDArray[np.void]  # of SLOT, CONTACT_SLOT or UNORDERED_SLOT
    newest_R: NDArray[np.int32]  # the row's slot with the newest update, or -1
    changed_M: NDArray[np.bool_]  # whether any of a mark's slots has changed since `marks_taken`


@inner_njit
def _bucket(row, column, mask):
    # The multipliers are odd and random in their high bits; the shifts bring these down to the low bits that are used.
    mixed = np.uint64(row) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(column) * np.uint64(0xC2B2AE3D27D4EB4F)
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(32)
    return np.int64(mixed & np.uint64(mask))


@inner_njit
def find(table, row, column):
    """Give the slot of a pair, or -1."""
    mask = len(table.bucket_B) - 1
    bucket = _bucket(row, column, mask)
    slot = np.int64(table.bucket_B[bucket])
    while slot >= 0 and (table.slot_S[slot].row != row or table.slot_S[slot].column != column):
        bucket = (bucket + 1) & mask
        slot = np.int64(table.bucket_B[bucket])
    return slot


@inner_njit
def find_unordered(table, node_P, other, slot_P, is_first_P):
    """Write the slots of the pairs of nodes with another one, or -1, into `slot_P`; `is_first_P` has room for as many.

    What no pair waits for comes first: the processor then fetches the buckets of all pairs at once, and their slots.
    """
    mask = len(table.bucket_B) - 1
    for pair in range(len(node_P)):
        row, column = min(node_P[pair], other), max(node_P[pair], other)
        slot_P[pair] = table.bucket_B[_bucket(row, column, mask)]
    if len(table.slot_S) == 0:
        return
    for pair in range(len(node_P)):
        record = table.slot_S[max(slot_P[pair], 0)]
        row, column = min(node_P[pair], other), max(node_P[pair], other)
        is_first_P[pair] = (record.row == row) & (record.column == column)
    for pair in range(len(node_P)):
        if slot_P[pair] >= 0 and not is_first_P[pair]:
            slot_P[pair] = find(table, min(node_P[pair], other), max(node_P[pair], other))


@inner_njit
def other_and_older(table, slot, node):
    """Give the other node of a slot of an unordered pair, and the next slot towards the oldest of the node's list."""
    record = table.slot_S[slot]
    if record.row == node:
        return np.int64(record.column), np.int64(record.older[0])
    return np.int64(record.row), np.int64(record.older[1])


@inner_njit
def _enter(table, slot):
    mask = len(table.bucket_B) - 1
    bucket = _bucket(table.slot_S[slot].row, table.slot_S[slot].column, mask)
    while table.bucket_B[bucket] >= 0:
        bucket = (bucket + 1) & mask
    table.bucket_B[bucket] = slot


@njit(nogil=True, cache=True)
def enter_slots(table, first, end):
    """Enter used slots from `first` up to `end` into the buckets."""
    for slot in range(first, end):
        _enter(table, slot)


@inner_njit
def _mark(table, slot):
    table.changed_M[slot // SLOTS_OF_A_MARK] = True


@inner_njit
def _unlink(table, slot):
    newer, older = table.slot_S[slot].newer, table.slot_S[slot].older
    if newer >= 0:
        table.slot_S[newer].older = older
        _mark(table, newer)
    else:
        table.newest_R[table.slot_S[slot].row] = older
    if older >= 0:
        table.slot_S[older].newer = newer
        _mark(table, older)


@inner_njit
def _link_first(table, slot):
    row = table.slot_S[slot].row
    front = table.newest_R[row]
    table.slot_S[slot].newer, table.slot_S[slot].older = -1, front
    if front >= 0:
        table.slot_S[front].newer = slot
        _mark(table, front)
    table.newest_R[row] = slot


@inner_njit
def _side(table, slot, node):
    return 0 if table.slot_S[slot].row == node else 1


@inner_njit
def _unlink_from(table, slot, node):
    side = _side(table, slot, node)
    newer, older = table.slot_S[slot].newer[side], table.slot_S[slot].older[side]
    if newer >= 0:
        table.slot_S[newer].older[_side(table, newer, node)] = older
        _mark(table, newer)
    else:
        table.newest_R[node] = older
    if older >= 0:
        table.slot_S[older].newer[_side(table, older, node)] = newer
        _mark(table, older)


@inner_njit
def _link_first_of(table, slot, node):
    front, side = table.newest_R[node], _side(table, slot, node)
    table.slot_S[slot].newer[side], table.slot_S[slot].older[side] = -1, front
    if front >= 0:
        table.slot_S[front].newer[_side(table, front, node)] = slot
        _mark(table, front)
    table.newest_R[node] = slot


@inner_njit
def decay_and_add(value_H, age, rate_H, amount):
    """Bring decayed sums from their own time to one `age` later and add `amount` to each."""
    for h in range(NUM_HALF_LIVES):
        factor = math.exp(-age * rate_H[h]) if age > 0 else 1.0
        value_H[h] = value_H[h] * factor + amount


@inner_njit
def touch(table, row, column, time, rate_H):
    """Count one update of a pair; give its slot. The table must have a free slot.

    `rate_H` is log(2) / half-life, per unit of the log's time.
    """
    slot, is_found = _count(table, _bucket(row, column, len(table.bucket_B) - 1), row, column, time, rate_H)
    _move_to_front(table, slot, is_found)
    return slot


@inner_njit
def touch_unordered(table, node_P, other, time, rate_H):
    """Count one update of each pair of these nodes, which differ, with another one, in their order; as `touch`.

    What no pair waits for comes first: the processor then fetches the buckets of all pairs at once, then their slots,
    and at last the fronts of their lists.
    """
    mask = len(table.bucket_B) - 1
    bucket_P, slot_P = np.empty((2, len(node_P)), dtype=np.int64)
    is_found_P = np.empty(len(node_P), dtype=np.bool_)
    for pair in range(len(node_P)):
        bucket_P[pair] = _bucket(min(node_P[pair], other), max(node_P[pair], other), mask)
        slot_P[pair] = table.bucket_B[bucket_P[pair]]
    for pair in range(len(node_P)):
        row, column = min(node_P[pair], other), max(node_P[pair], other)
        slot_P[pair], is_found_P[pair] = _count(table, bucket_P[pair], row, column, time, rate_H)
    for pair in range(len(node_P)):
        for node in (node_P[pair], other):
            if is_found_P[pair]:
                _unlink_from(table, slot_P[pair], node)
            _link_first_of(table, slot_P[pair], node)


@inner_njit
def _count(table, bucket, row, column, time, rate_H):
    # Gives the slot, and whether the pair had it before; a new slot is in no list yet.
    mask = len(table.bucket_B) - 1
    slot = np.int64(table.bucket_B[bucket])
    while slot >= 0 and (table.slot_S[slot].row != row or table.slot_S[slot].column != column):
        bucket = (bucket + 1) & mask
        slot = np.int64(table.bucket_B[bucket])
    is_found = slot >= 0
    if not is_found:
        slot = table.num_used_1[0]
        table.num_used_1[0] += 1
        table.bucket_B[bucket] = slot
        table.slot_S[slot].row, table.slot_S[slot].column = row, column
        table.slot_S[slot].latest = time
    _mark(table, slot)
    record = table.slot_S[slot]
    decay_and_add(record.decayed, time - record.latest, rate_H, 1.0)
    record.count += 1
    record.latest = time
    return slot, is_found


@inner_njit
def _move_to_front(table, slot, is_listed):
    if len(table.newest_R) == 0:
        return
    if is_listed:
        _unlink(table, slot)
    _link_first(table, slot)


@njit(nogil=True, cache=True)
def _copy_marked(into_SV, slot_SV, changed_M, first, end):
    # Slots as rows of V numbers, because numba copies records field by field. An assignment of all rows at once would
    # take seconds to compile, for its error.
    for mark in range(first, min(end, len(changed_M))):
        if changed_M[mark]:
            start = mark * SLOTS_OF_A_MARK
            for slot in range(start, min(start + SLOTS_OF_A_MARK, len(slot_SV))):
                for v in range(slot_SV.shape[1]):
                    into_SV[slot, v] = slot_SV[slot, v]


def _copy(into: NDArray, values: NDArray) -> None:
    # As bytes, because numpy copies records field by field, which takes more than twice as long.
    into[: len(values)].view(np.uint8)[:] = values.view(np.uint8)


def grown(values: NDArray, length: int, fill: float = 0) -> NDArray:
    """Give an array of a greater length along its first axis; the new part is `fill`, or all 0 in records."""
    if len(values) >= length:
        return values
    longer = np.zeros((length, *values.shape[1:]), dtype=values.dtype)
    _copy(longer, values)
    if fill:
        longer[len(values) :] = fill
    return longer


def no_rest() -> None:
    """Go on at once."""


def with_room(table: PairTable, num_more: int, rest: Callable[[], None] = no_rest) -> PairTable:
    """Give a table that has at least `num_more` free slots; its size at least doubles when it grows.

    `rest` is called after each part of the growth. Raises ValueError where a table would have more slots than fit into
    32 bits.
    """
    if int(table.num_used_1[0]) + num_more <= len(table.slot_S):
        return table
    larger = larger_table(table, num_more)
    for _ in filled_in_parts(larger, table):
        rest()
    return larger


def larger_table(table: PairTable, num_more: int) -> PairTable:
    """Give a table of at least twice the size, with `num_more` free slots, that `filled_in_parts` fills.

    Raises ValueError like `with_room`.
    """
    num_slots = max(int(table.num_used_1[0]) + num_more, 2 * len(table.slot_S))
    if num_slots >= np.iinfo(np.int32).max:
        raise InvalidInput(f"a table of pairs has fewer than {np.iinfo(np.int32).max} slots, got {num_slots}")
    return table._replace(
        num_used_1=table.num_used_1.copy(),
        bucket_B=np.empty(_num_buckets(num_slots), dtype=np.int32),
        slot_S=np.zeros(num_slots, dtype=table.slot_S.dtype),
        changed_M=_no_marks(num_slots),
    )


def filled_in_parts(larger: PairTable, table: PairTable) -> Iterator[None]:
    """Copy the used slots of a table into a larger one and enter them into its buckets; yields after each part.

    Updates of the table may go on meanwhile: no pair leaves its slot, and what changes in a slot is marked.
    """
    for first in range(0, len(larger.bucket_B), 16 * PART):
        larger.bucket_B[first : first + 16 * PART] = -1
        yield
    num_used = int(larger.num_used_1[0])
    for first in range(0, num_used, PART):
        end = min(first + PART, num_used)
        _copy(larger.slot_S[first:end], table.slot_S[first:end])
        enter_slots(larger, first, end)
        yield


def is_nearly_full(table: PairTable, num_more: int) -> bool:
    """Whether less than a quarter of the slots, or less than `num_more`, are free: the next growth is near."""
    return len(table.slot_S) - int(table.num_used_1[0]) < max(len(table.slot_S) / 4, num_more)


def marks_taken(table: PairTable) -> NDArray[np.bool_]:
    """Give the marks of what has changed since they were last taken; no update may go on meanwhile."""
    changed_M = table.changed_M.copy()
    table.changed_M[:] = False
    return changed_M


def changes_copied(larger: PairTable, table: PairTable, changed_M: NDArray[np.bool_]) -> Iterator[None]:
    """Copy the marked slots of a table into a larger one; yields after each part, as `filled_in_parts`."""
    for first in range(0, len(changed_M), PART // SLOTS_OF_A_MARK):
        _copy_marked(_rows(larger), _rows(table), changed_M, first, first + PART // SLOTS_OF_A_MARK)
        yield


def caught_up(larger: PairTable, table: PairTable) -> PairTable:
    """Give the table with the room of a larger one that lacks its marked slots; no update may go on meanwhile."""
    _copy_marked(_rows(larger), _rows(table), table.changed_M, 0, len(table.changed_M))
    num_before = int(larger.num_used_1[0])
    table = table._replace(bucket_B=larger.bucket_B, slot_S=larger.slot_S, changed_M=larger.changed_M)
    enter_slots(table, num_before, int(table.num_used_1[0]))
    return table


def _rows(table: PairTable) -> NDArray[np.int64]:
    num_values = table.slot_S.dtype.itemsize // 8
    return table.slot_S.view(np.int64).reshape(len(table.slot_S), num_values)  # also of no slots


def _num_buckets(num_slots: int) -> int:
    return 1 << int(2 * num_slots + 1).bit_length()


def _no_marks(num_slots: int) -> NDArray[np.bool_]:
    return np.zeros(-(-num_slots // SLOTS_OF_A_MARK), dtype=np.bool_)


def table_of(slot_S: NDArray[np.void], newest_R: NDArray[np.int32]) -> PairTable:
    """Make the table with these slots, all of them used."""
    table = PairTable(
        num_used_1=np.array([len(slot_S)], dtype=np.int64),
        bucket_B=np.full(_num_buckets(len(slot_S)), -1, dtype=np.int32),
        slot_S=slot_S,
        newest_R=newest_R,
        changed_M=_no_marks(len(slot_S)),
    )
    enter_slots(table, 0, len(slot_S))
    return table
