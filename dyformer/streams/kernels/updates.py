"""An event -> the state after it, in O(1).

N sources    D targets    H half-lives    K = 3H lists of popular targets    M targets of a list    S slots of contacts
W width of a vector
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dyformer.streams.kernels.borrowed import borrowed
from dyformer.streams.kernels.inner import inner_njit
from dyformer.streams.kernels.tables import (
    NUM_HALF_LIVES,
    PairTable,
    decay_and_add,
    find,
    touch,
    touch_unordered,
)

KERNELS = "8945e9290053"  # digest of the imported ones: numba makes machine code anew only where this file changes
NUM_RECENT = 20  # last events of a source, whose targets are known
NUM_EDITORS = 8  # last distinct sources of a target
NUM_SHARED = 16  # a source's newest partners, which a new partner is counted with
NUM_POPULAR = 32  # targets of each list of popular ones
NUM_LISTS = 3 * NUM_HALF_LIVES
FORGETTING = 0.1  # part of the newest event in a source's recent rates

SOURCE = np.dtype(
    [
        ("count", "i4"),
        ("partners", "i4"),
        ("streak", "i4"),  # newest events with one and the same target
        ("stays", "i4"),  # events whose target was also that of the event before
        ("stay", "f4"),  # the same, a moving average over events
        ("fresh", "f4"),  # events with a new partner, a moving average over events
        ("first", "i8"),
        ("before", "i8"),  # time of the event before the newest
        ("latest", "i8"),
        ("decayed", "f4", (NUM_HALF_LIVES,)),
        ("recent", "i4", (NUM_RECENT,)),  # targets of the last events: that of event number i is at i % NUM_RECENT
    ],
    align=True,
)

TARGET = np.dtype(
    [
        ("count", "i4"),
        ("sources", "i4"),
        ("by", "i4"),  # the source of the newest event
        ("num_editors", "i4"),
        ("latest", "i8"),
        ("other", "i8"),  # time of the newest event by any source but `by`, or NEVER
        ("left", "i8"),  # time at which a source last went on to another target
        ("weight", "f8"),
        ("decayed", "f4", (NUM_LISTS,)),  # events | those with new partners | first events of sources; as of `latest`
        ("leaving", "f4", (NUM_HALF_LIVES,)),  # moves to other targets, as of `left`
        ("editors", "i4", (NUM_EDITORS,)),  # last distinct sources, the newest first
        ("position", "i1", (NUM_LISTS,)),  # 1 + the position in each list of popular targets, or 0
    ],
    align=True,
)

NEVER = np.iinfo(np.int64).min


class Popular(NamedTuple):
    """For each number of `decayed` of a target the targets with the greatest values, the greatest first."""

    target_KM: NDArray[np.int32]
    size_K: NDArray[np.int32]


class Vectors(NamedTuple):
    """Vectors of the sources and targets that had contacts when they were made, of length 1 or 0."""

    source_NW: NDArray[np.float32]
    target_DW: NDArray[np.float32]


class State(NamedTuple):
    """What is known of all events so far."""

    contacts: PairTable  # source -> target
    meetings: PairTable  # node -> node of an event in either direction; empty unless these differ
    moves: PairTable  # last partner of a source -> its next one, where they differ
    own_moves: PairTable  # slot of (source, last partner) -> next one; has no lists
    shared: PairTable  # unordered pairs of partners of the same source
    source_N: NDArray[np.void]  # of SOURCE
    target_D: NDArray[np.void]  # of TARGET
    popular: Popular
    vectors: Vectors  # of `dyformer.streams.contact_vectors`; no event changes them
    rate_H: NDArray[np.float64]  # log(2) / half-life, per unit of the log's time


@inner_njit
def _value(target_D, target, k, time, rate):
    return target_D[target].decayed[k] * math.exp(-(time - target_D[target].latest) * rate)


@inner_njit
def _raise_in_list(target_D, popular, target, k, rate):
    # All values of a list decay by the same factor, so that an order changes only where an event adds to a value.
    time, value = target_D[target].latest, target_D[target].decayed[k]
    position = np.int64(target_D[target].position[k]) - 1
    if position < 0:
        position = np.int64(popular.size_K[k])
        if position < popular.target_KM.shape[1]:
            popular.size_K[k] += 1
        else:
            position -= 1
            dropped = popular.target_KM[k, position]
            if _value(target_D, dropped, k, time, rate) >= value:
                return
            target_D[dropped].position[k] = 0
    while position > 0:
        above = popular.target_KM[k, position - 1]
        if _value(target_D, above, k, time, rate) >= value:
            break
        popular.target_KM[k, position] = above
        target_D[above].position[k] = position + 1
        position -= 1
    popular.target_KM[k, position] = target
    target_D[target].position[k] = position + 1


@inner_njit
def _enter_editor(record, source):
    editors, previous = record.editors, source
    for position in range(NUM_EDITORS):
        current = editors[position]
        editors[position] = previous
        if position == record.num_editors:
            record.num_editors += 1
            return
        if current == source:
            return
        previous = current


@inner_njit
def _update_target(state, source, target, time, weight, groups):
    record, rate_H = state.target_D[target], state.rate_H
    if record.count == 0:
        record.other, record.latest = NEVER, time
    elif record.by != source:
        record.other = record.latest
    age = time - record.latest
    record.by = source
    record.latest = time
    record.count += 1
    record.weight += weight
    for group in range(3):
        part_H = record.decayed[group * NUM_HALF_LIVES : (group + 1) * NUM_HALF_LIVES]
        decay_and_add(part_H, age, rate_H, 1.0 if group < groups else 0.0)
    for k in range(groups * NUM_HALF_LIVES):
        _raise_in_list(state.target_D, state.popular, target, k, rate_H[k % NUM_HALF_LIVES])
    _enter_editor(record, source)


@inner_njit
def _update_source(record, target, time, stays, is_fresh, rate_H):
    if record.count == 0:
        record.first = record.latest = time
    else:
        record.stay += FORGETTING * (stays - record.stay)
    decay_and_add(record.decayed, time - record.latest, rate_H, 1.0)
    record.stays += stays
    record.partners += is_fresh
    record.fresh += FORGETTING * (is_fresh - record.fresh)
    record.streak = record.streak + 1 if stays else 1
    record.before = record.latest
    record.latest = time
    record.recent[record.count % NUM_RECENT] = target
    record.count += 1


@inner_njit
def _count_move(state, last_slot, target, time):
    last = state.contacts.slot_S[last_slot].column
    touch(state.moves, last, target, time, state.rate_H)
    touch(state.own_moves, last_slot, target, time, state.rate_H)
    record = state.target_D[last]
    decay_and_add(record.leaving, time - record.left, state.rate_H, 1.0)
    record.left = time


@inner_njit
def _newest_partners(state, source, partner_P):
    """Write a source's newest partners, the newest first, as many as there is room for; give their number.

    They are the distinct targets of the last events. Only where these are too few is the list of contacts followed:
    each step of it waits for the one before.
    """
    record, num = state.source_N[source], 0
    for back in range(1, min(record.count, NUM_RECENT) + 1):
        partner = record.recent[(record.count - back) % NUM_RECENT]
        position = 0
        while position < num and partner_P[position] != partner:
            position += 1
        if position == num:
            partner_P[num] = partner
            num += 1
            if num == len(partner_P):
                return num
    if record.count <= NUM_RECENT:
        return num
    slot, num = np.int64(state.contacts.newest_R[source]), 0
    while slot >= 0 and num < len(partner_P):
        partner_P[num] = state.contacts.slot_S[slot].column
        num += 1
        slot = np.int64(state.contacts.slot_S[slot].older)
    return num


@inner_njit
def _count_shared(state, source, target, time):
    # The target is new to the source, so that no pair occurs twice.
    partner_P = np.empty(NUM_SHARED, dtype=np.int64)
    num = _newest_partners(state, source, partner_P)
    touch_unordered(state.shared, partner_P[:num], target, time, state.rate_H)


@inner_njit
def _count_meeting(meetings, source, target, time, rate_H):
    # The number of a slot counts the row's events with the column since the column's newest one with the row.
    slot = touch(meetings, source, target, time, rate_H)
    if source != target:
        meetings.slot_S[slot].number += 1
        slot = touch(meetings, target, source, time, rate_H)
        meetings.slot_S[slot].number = 0


@inner_njit
def absorb(state, source, target, time, weight, has_replies):
    """Update the state with one event of a source; the tables must have free slots for it."""
    contacts, rate_H = state.contacts, state.rate_H
    last_slot = contacts.newest_R[source]
    stays = last_slot >= 0 and contacts.slot_S[last_slot].column == target
    is_fresh = not stays and find(contacts, source, target) < 0
    if last_slot >= 0 and not stays:
        _count_move(state, last_slot, target, time)
    if is_fresh:
        _count_shared(state, source, target, time)
        state.target_D[target].sources += 1
    if has_replies:
        is_fresh = is_fresh and find(state.meetings, source, target) < 0
        _count_meeting(state.meetings, source, target, time, rate_H)
    slot = touch(contacts, source, target, time, rate_H)
    record = state.source_N[source]
    if contacts.slot_S[slot].count == 1:
        contacts.slot_S[slot].first = time
    contacts.slot_S[slot].number = record.count
    contacts.slot_S[slot].weight += weight
    groups = 1 + is_fresh + (is_fresh and record.count == 0)
    _update_source(record, target, time, stays, is_fresh, rate_H)
    _update_target(state, source, target, time, weight, groups)


@inner_njit
def absorb_both(state, source, target, time, weight, limits):
    """Update the state with one event; with `limits.both_ways` it counts for both of its ends."""
    absorb(state, source, target, time, weight, limits.has_replies)
    if limits.both_ways and source != target:
        absorb(state, target, source, time, weight, limits.has_replies)


@njit(nogil=True, cache=True)
def absorb_events(state, source_E, target_E, time_E, weight_E, limits):
    """Update the state with events in order of time."""
    state = borrowed(state)
    for event in range(len(source_E)):
        absorb_both(state, source_E[event], target_E[event], time_E[event], weight_E[event], limits)
