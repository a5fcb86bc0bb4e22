"""The state, a source and a target -> one row of features, formula by formula.

H half-lives    C candidates of the query    F features    D targets    J newest partners of the source
W width of a vector
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dyformer.streams.kernels.inner import inner_njit
from dyformer.streams.kernels.tables import NUM_HALF_LIVES, find, find_unordered
from dyformer.streams.kernels.updates import NEVER, NUM_RECENT

MET_RECENCY = 10  # position in the features of replies
NUM_JOINED = 8  # newest partners whose shared sources with a candidate are counted

GROUP_SIZES = (18, 24, 9, 14, 22, 15, 10, 14, 8, 3)
"""Features of a pair, of replies, of the source as a target, of the source, the target, moves, shared sources, the
last partner; ranks; vectors."""
FIRST_REPLY, FIRST_RECEIVED, FIRST_SOURCE, FIRST_TARGET, FIRST_MOVES, FIRST_SHARED, FIRST_CONTEXT = (
    sum(GROUP_SIZES[:count]) for count in range(1, 8)
)
FIRST_RANK, FIRST_VECTORS = sum(GROUP_SIZES[:8]), sum(GROUP_SIZES[:9])


class Limits(NamedTuple):
    """The shape of a query's candidates."""

    max_past: int
    max_new: int
    max_near: int
    seconds: float  # length of one unit of time
    two_sides: bool
    both_ways: bool  # whether an event counts for both of its ends
    has_replies: bool  # whether a contact in the other direction means something else


class Query(NamedTuple):
    """A source, a time, and the numbers of them that the rows of all candidates need."""

    source: int
    time: int
    seconds: float
    last_slot: np.int64  # the newest contact of the source, or -1
    last: np.int64  # the target of that contact
    joined_J: NDArray[np.int64]  # its newest partners, the newest first
    total_H: NDArray[np.float64]  # decayed events of the source
    leaving_H: NDArray[np.float64]  # decayed moves from the last partner
    met_H: NDArray[np.float64]  # decayed events of the source in either role
    vector_W: NDArray[np.float32]  # of the source, or of the length 0
    partner_JW: NDArray[np.float32]  # of those of the newest partners that have one
    mean_W: NDArray[np.float32]  # mean of these, brought to the length 1, or 0
    found_2J: NDArray[np.int64]  # of a candidate and the newest partners: room for what `find_unordered` writes
    rate_H: NDArray[np.float64]


@inner_njit
def _age(query, since):
    return (query.time - since) * query.seconds


@inner_njit
def _decay(query, since, h):
    return math.exp(-(query.time - since) * query.rate_H[h])


@inner_njit
def _fill_pair(row_F, query, contact, record, recency):
    # recency | events back | last | before last | since | since first | contacts | H decayed | H fractions | of 5
    # | of 20 | mean weight
    row_F[0] = recency
    row_F[1] = record.count - contact.number
    row_F[2] = recency == 0
    row_F[3] = recency == 1
    row_F[4] = _age(query, contact.latest)
    row_F[5] = _age(query, contact.first)
    row_F[6] = contact.count
    for h in range(NUM_HALF_LIVES):
        own = contact.decayed[h] * _decay(query, contact.latest, h)
        row_F[7 + h] = own
        row_F[7 + NUM_HALF_LIVES + h] = own / query.total_H[h] if query.total_H[h] > 0 else 0
    end = 7 + 2 * NUM_HALF_LIVES
    row_F[end] = row_F[end + 1] = 0
    for back in range(1, min(NUM_RECENT, record.count) + 1):
        same = record.recent[(record.count - back) % NUM_RECENT] == contact.column
        row_F[end] += same and back <= 5
        row_F[end + 1] += same
    row_F[end + 2] = contact.weight / contact.count


@inner_njit
def recency_of(table, slot):
    """Count the slots of the same row with a newer update."""
    recency = 0
    while table.slot_S[slot].newer >= 0:
        slot = np.int64(table.slot_S[slot].newer)
        recency += 1
    return recency


@inner_njit
def _fill_reply(row_F, state, query, target, slot):
    # since | replies | after | H decayed | pending | pending own | since met | met recency | H met
    # | H fractions of met | partner since | H partner; `slot` is the contact of the source with the target, or -1
    row_F[: GROUP_SIZES[1]] = math.nan
    row_F[1] = 0
    row_F[3 : 5 + NUM_HALF_LIVES] = 0
    end = 7 + NUM_HALF_LIVES
    row_F[end : end + 2 * NUM_HALF_LIVES] = 0
    back = find(state.contacts, target, query.source)
    if back >= 0:
        reply = state.contacts.slot_S[back]
        row_F[0] = _age(query, reply.latest)
        row_F[1] = reply.count
        for h in range(NUM_HALF_LIVES):
            row_F[3 + h] = reply.decayed[h] * _decay(query, reply.latest, h)
        if slot >= 0:
            row_F[2] = (reply.latest - state.contacts.slot_S[slot].latest) * query.seconds
    met_slot = find(state.meetings, query.source, target)
    if met_slot >= 0:
        met = state.meetings.slot_S[met_slot]
        row_F[3 + NUM_HALF_LIVES] = state.meetings.slot_S[find(state.meetings, target, query.source)].number
        row_F[4 + NUM_HALF_LIVES] = met.number
        row_F[5 + NUM_HALF_LIVES] = _age(query, met.latest)
        for h in range(NUM_HALF_LIVES):
            value = met.decayed[h] * _decay(query, met.latest, h)
            row_F[end + h] = value
            row_F[end + NUM_HALF_LIVES + h] = value / query.met_H[h] if query.met_H[h] > 0 else 0
    partner = state.source_N[target]
    end += 2 * NUM_HALF_LIVES
    row_F[end + 1 : end + 1 + NUM_HALF_LIVES] = 0
    if partner.count > 0:
        row_F[end] = _age(query, partner.latest)
        for h in range(NUM_HALF_LIVES):
            row_F[end + 1 + h] = partner.decayed[h] * _decay(query, partner.latest, h)


@inner_njit
def _fill_received(row_F, state, query, max_past):
    # since | events | sources | after the newest own event | H decayed | partners with a pending one
    record, own = state.target_D[query.source], state.source_N[query.source]
    row_F[1] = record.count
    row_F[2] = record.sources
    row_F[4 : 5 + NUM_HALF_LIVES] = 0
    if record.count == 0:
        return
    row_F[0] = _age(query, record.latest)
    if own.count > 0:
        row_F[3] = (record.latest - own.latest) * query.seconds
    for h in range(NUM_HALF_LIVES):
        row_F[4 + h] = record.decayed[h] * _decay(query, record.latest, h)
    slot, slot_S = np.int64(state.meetings.newest_R[query.source]), state.meetings.slot_S
    for _ in range(max_past):
        if slot < 0:
            break
        row_F[4 + NUM_HALF_LIVES] += slot_S[find(state.meetings, slot_S[slot].column, query.source)].number > 0
        slot = np.int64(slot_S[slot].older)


@inner_njit
def _fill_source(row_F, query, record):
    # since | between | since first | events | H decayed | stays: all, lately | new: all, lately | partners | streak
    end = 4 + NUM_HALF_LIVES
    row_F[3] = record.count
    row_F[end + 4] = record.partners
    row_F[end + 5] = record.streak
    if record.count == 0:
        return
    row_F[0] = _age(query, record.latest)
    row_F[1] = (record.latest - record.before) * query.seconds
    row_F[2] = _age(query, record.first)
    for h in range(NUM_HALF_LIVES):
        row_F[4 + h] = query.total_H[h]
    row_F[end] = record.stays / record.count
    row_F[end + 1] = record.stay
    row_F[end + 2] = record.partners / record.count
    row_F[end + 3] = record.fresh


@inner_njit
def _since_other(query, record):
    since = record.other if record.by == query.source else record.latest
    return _age(query, since) if since != NEVER else math.nan


@inner_njit
def _fill_target(row_F, query, record):
    # since | since other | newest is the source's | events | sources | mean weight | H decayed | H by others
    # | H new partners | H first events; events by others hold all here, `_subtract_own` makes them right
    row_F[2] = record.count > 0 and record.by == query.source
    row_F[3] = record.count
    row_F[4] = record.sources
    row_F[6 : 6 + 4 * NUM_HALF_LIVES] = 0
    if record.count == 0:
        return
    row_F[0] = _age(query, record.latest)
    row_F[1] = _since_other(query, record)
    row_F[5] = record.weight / record.count
    for h in range(NUM_HALF_LIVES):
        factor = _decay(query, record.latest, h)
        row_F[6 + h] = row_F[6 + NUM_HALF_LIVES + h] = record.decayed[h] * factor
        row_F[6 + 2 * NUM_HALF_LIVES + h] = record.decayed[NUM_HALF_LIVES + h] * factor
        row_F[6 + 3 * NUM_HALF_LIVES + h] = record.decayed[2 * NUM_HALF_LIVES + h] * factor


@inner_njit
def _subtract_own(other_H, own_H):
    for h in range(NUM_HALF_LIVES):
        other_H[h] = max(other_H[h] - own_H[h], 0)


@inner_njit
def _fill_moves(row_F, query, moves, own_moves, last, target):
    # since | moves | own moves | H decayed | H fractions | H by others
    row_F[1 : 3 + 3 * NUM_HALF_LIVES] = 0
    slot = find(moves, last, target)
    if slot < 0:
        return
    move, own_slot = moves.slot_S[slot], find(own_moves, query.last_slot, target)
    row_F[0] = _age(query, move.latest)
    row_F[1] = move.count
    for h in range(NUM_HALF_LIVES):
        by_all = move.decayed[h] * _decay(query, move.latest, h)
        row_F[3 + h] = row_F[3 + 2 * NUM_HALF_LIVES + h] = by_all
        row_F[3 + NUM_HALF_LIVES + h] = by_all / query.leaving_H[h] if query.leaving_H[h] > 0 else 0
    if own_slot >= 0:
        own = own_moves.slot_S[own_slot]
        row_F[2] = own.count
        for h in range(NUM_HALF_LIVES):
            by_others = row_F[3 + h] - own.decayed[h] * _decay(query, own.latest, h)
            row_F[3 + 2 * NUM_HALF_LIVES + h] = max(by_others, 0)


@inner_njit
def _num_common(first, second):
    common = 0
    for i in range(first.num_editors):
        for j in range(second.num_editors):
            common += first.editors[i] == second.editors[j]
    return common


@inner_njit
def _fill_shared(row_F, query, shared, target_D, target):
    # of the last partner: common editors | H decayed | then sources in common: of the last, sum of J | cosine: of the
    # last, sum, maximum
    row_F[: 6 + NUM_HALF_LIVES] = 0
    row_F[0] = _num_common(target_D[query.joined_J[0]], target_D[target])
    end = 1 + NUM_HALF_LIVES
    slot_J, is_first_J = query.found_2J
    find_unordered(shared, query.joined_J, target, slot_J, is_first_J)
    for position in range(len(query.joined_J)):
        slot = slot_J[position]
        if slot < 0:
            continue
        pair = shared.slot_S[slot]
        cosine = pair.count / math.sqrt(target_D[query.joined_J[position]].sources * target_D[target].sources)
        row_F[end + 1] += pair.count
        row_F[end + 3] += cosine
        row_F[end + 4] = max(row_F[end + 4], cosine)
        if position == 0:
            row_F[end] = pair.count
            row_F[end + 2] = cosine
            for h in range(NUM_HALF_LIVES):
                row_F[1 + h] = pair.decayed[h] * _decay(query, pair.latest, h)


@inner_njit
def _fill_context(row_F, query, contact, record):
    # with the last partner: contacts | since other | H contacts | H events | H moves from it
    row_F[0] = contact.count
    row_F[1] = _since_other(query, record)
    for h in range(NUM_HALF_LIVES):
        row_F[2 + h] = contact.decayed[h] * _decay(query, contact.latest, h)
        row_F[2 + NUM_HALF_LIVES + h] = record.decayed[h] * _decay(query, record.latest, h)
        row_F[2 + 2 * NUM_HALF_LIVES + h] = query.leaving_H[h]


@inner_njit
def copy_row(into_F, row_F):
    """Write one row into another; numba compiles an assignment for longer, because it may fail."""
    for f in range(len(row_F)):
        into_F[f] = row_F[f]


@inner_njit
def dot_product(first_W, second_W):
    """Multiply two vectors [W] entry by entry and add the products up, in single precision."""
    total = np.float32(0)
    for w in range(len(first_W)):
        total += first_W[w] * second_W[w]
    return total


@inner_njit
def is_set(vector_W):
    """Whether a vector [W] is not 0."""
    return dot_product(vector_W, vector_W) > 0  # numpy's functions take longer, for so few values


@inner_njit
def _has_vector(target_DW, target):
    return target < len(target_DW) and is_set(target_DW[target])


@inner_njit
def _source_vectors(vectors, source, joined_J):
    source_NW, target_DW = vectors
    vector_W = np.zeros(source_NW.shape[1], dtype=np.float32)
    mean_W = np.zeros(target_DW.shape[1], dtype=np.float32)
    partner_JW = np.empty((len(joined_J), target_DW.shape[1]), dtype=np.float32)
    num_partners = 0
    if source < len(source_NW):
        copy_row(vector_W, source_NW[source])
    for target in joined_J:
        if _has_vector(target_DW, target):
            copy_row(partner_JW[num_partners], target_DW[target])
            num_partners += 1
            for w in range(len(mean_W)):
                mean_W[w] += target_DW[target, w]
    length = np.float32(math.sqrt(dot_product(mean_W, mean_W)))
    if length > 0:
        for w in range(len(mean_W)):
            mean_W[w] /= length
    return vector_W, partner_JW[:num_partners], mean_W


@inner_njit
def _fill_vectors(row_F, query, target_DW, target):
    # cosine with the source | with the mean of the newest partners | the greatest one with one of these
    if not _has_vector(target_DW, target):
        return
    if is_set(query.vector_W):
        row_F[0] = dot_product(query.vector_W, target_DW[target])
    if is_set(query.mean_W):
        row_F[1] = dot_product(query.mean_W, target_DW[target])
    for position in range(len(query.partner_JW)):
        cosine = dot_product(query.partner_JW[position], target_DW[target])
        row_F[2] = cosine if position == 0 else max(row_F[2], cosine)


@inner_njit
def partners_of(state, has_replies):
    """Give the table whose lists have the partners of each source."""
    return state.meetings if has_replies else state.contacts


@inner_njit
def start_query(state, source, time, limits):
    """Give the `Query` of a source at a time."""
    partners, rate_H = partners_of(state, limits.has_replies), state.rate_H
    joined_J = np.empty(NUM_JOINED, dtype=np.int64)
    total_H, leaving_H, met_H = np.zeros(NUM_HALF_LIVES), np.zeros(NUM_HALF_LIVES), np.zeros(NUM_HALF_LIVES)
    num_joined = 0
    slot = np.int64(partners.newest_R[source])
    while slot >= 0 and num_joined < NUM_JOINED:
        joined_J[num_joined] = partners.slot_S[slot].column
        num_joined += 1
        slot = np.int64(partners.slot_S[slot].older)
    last_slot = np.int64(state.contacts.newest_R[source])
    last = np.int64(state.contacts.slot_S[last_slot].column) if last_slot >= 0 else np.int64(-1)
    joined_J = joined_J[:num_joined]
    decayed = total_H, leaving_H, met_H
    vector_W, partner_JW, mean_W = _source_vectors(state.vectors, source, joined_J)
    found_2J = np.empty((2, num_joined), dtype=np.int64)
    vectors = vector_W, partner_JW, mean_W
    query = Query(source, time, limits.seconds, last_slot, last, joined_J, *decayed, *vectors, found_2J, rate_H)
    if last_slot >= 0:
        own, record = state.source_N[source], state.target_D[last]
        for h in range(NUM_HALF_LIVES):
            total_H[h] = own.decayed[h] * _decay(query, own.latest, h)
            if record.leaving[h] > 0:
                leaving_H[h] = record.leaving[h] * _decay(query, record.left, h)
    if limits.has_replies:
        received = state.target_D[source]
        for h in range(NUM_HALF_LIVES):
            met_H[h] = total_H[h]
            if received.count > 0:
                met_H[h] += received.decayed[h] * _decay(query, received.latest, h)
    return query


@inner_njit
def fill_common(row_F, state, query, limits):
    """Write the features that all candidates of a query share: of the source and of its last partner."""
    row_F[:] = math.nan
    _fill_source(row_F[FIRST_SOURCE:], query, state.source_N[query.source])
    if limits.has_replies:
        _fill_received(row_F[FIRST_RECEIVED:], state, query, limits.max_past)
    if query.last_slot >= 0:
        contact, record = state.contacts.slot_S[query.last_slot], state.target_D[query.last]
        _fill_context(row_F[FIRST_CONTEXT:], query, contact, record)


@inner_njit
def _fill_row(row_F, state, query, target, slot, recency, has_replies):
    # The features of one candidate; `slot` is the contact of the source with it, or -1.
    _fill_target(row_F[FIRST_TARGET:], query, state.target_D[target])
    if slot >= 0:
        _fill_pair(row_F, query, state.contacts.slot_S[slot], state.source_N[query.source], recency)
        _subtract_own(row_F[FIRST_TARGET + 6 + NUM_HALF_LIVES :], row_F[7:])
    if has_replies:
        _fill_reply(row_F[FIRST_REPLY:], state, query, target, slot)
    if query.last_slot >= 0:
        _fill_moves(row_F[FIRST_MOVES:], query, state.moves, state.own_moves, query.last, target)
    if len(query.joined_J) > 0:
        _fill_shared(row_F[FIRST_SHARED:], query, state.shared, state.target_D, target)


@inner_njit
def fill_ranks(row_CF, ranked_F):
    """For each ranked feature, count the candidates with a greater value; a missing one is the least."""
    for index in range(len(ranked_F)):
        value_C = row_CF[:, ranked_F[index]].copy()
        for position in range(len(value_C)):
            if math.isnan(value_C[position]):
                value_C[position] = -math.inf
        # Each is compared with all, eight at a time, which is faster than a sort of some hundred.
        for position in range(len(value_C)):
            value, num_greater = value_C[position], np.int32(0)
            for other in range(len(value_C)):
                num_greater += np.int32(value_C[other] > value)
            row_CF[position, FIRST_RANK + index] = num_greater


@inner_njit
def fill_partner(row_F, state, query, target, slot, recency, has_replies):
    """Write the features of a partner; `slot` and `recency` are those of the table of partners."""
    if not has_replies:
        _fill_row(row_F, state, query, target, slot, recency, has_replies)
        return
    own_slot = find(state.contacts, query.source, target)
    own_recency = recency_of(state.contacts, own_slot) if own_slot >= 0 else 0
    _fill_row(row_F, state, query, target, own_slot, own_recency, has_replies)
    row_F[FIRST_REPLY + MET_RECENCY] = recency


@inner_njit
def fill_stranger(row_F, state, query, target, has_replies):
    """Write the features of a target that is no partner; it alone has those of vectors."""
    _fill_row(row_F, state, query, target, np.int64(-1), 0, has_replies)
    _fill_vectors(row_F[FIRST_VECTORS:], query, state.vectors.target_DW, target)
