"""Events in order of time -> the state that each of them updates, and features of any pair at any later time.

E events    Q queries    R rows of candidates    F features    P targets    H half-lives    N sources    D targets
W width of a vector

One pass, O(1) work an event, beside the decompositions at fixed numbers of events (`contact_vectors`). A query reads
the events strictly before its time t. Ages are in seconds of real time.

| feature | formula, for source s, candidate c, the last partner l of s, and each half-life h |
|---|---|
| recency | number of partners of s with a newer contact |
| events_back | number of events of s since its newest contact with c, that one included |
| is_last, is_before_last | 1 where recency is 0, or 1 |
| since, since_first | t - time of the newest, the first contact of s with c |
| contacts, contacts_h | number of contacts; d_h of them |
| fraction_h | contacts_h / d_h of all events of s |
| of_5, of_20 | contacts with c among the last 5 and 20 events of s |
| mean_weight | mean weight of the contacts in the log |
| reply_since, replies, reply_h | since, contacts and contacts_h from c to s |
| reply_after | time of the newest event from c to s - time of the newest one from s to c |
| pending, pending_own | events from c to s since the newest one from s to c; the same the other way |
| met_recency, met_since, met_h | recency, since and contacts_h of the events of both directions |
| met_fraction_h | met_h / d_h of all events of s as a source or as a target |
| partner_since, partner_h | source_since and source_h of c |
| received_since, received_events, received_sources, received_h | target_since, events, sources and target_h of s |
| received_after | time of the newest event at s - time of the newest event of s |
| received_pending | number of the newest partners of s of which `pending` is above 0 |
| source_since, source_between | t - time of the newest event of s; from the one before to the newest |
| source_since_first, source_events, source_h | t - time of the first event of s; number of its events; d_h of them |
| stays, stays_lately | events of s with the target of the event before, as a fraction; moving average of 0.1 |
| new, new_lately | events of s with a new partner, as a fraction; moving average of 0.1 |
| partners, streak | number of these events; newest events with one target |
| target_since, target_since_other | t - time of the newest event at c, by anyone and by another source than s |
| target_is_own | 1 where the newest event at c is by s |
| target_events, target_sources, target_weight | number of events, number of sources, mean weight at c |
| target_h, target_other_h | d_h of all events at c; without those by s |
| target_new_h, target_first_h | d_h of the events at c by which it was a new partner; of the first of all of a source |
| move_since, moves, own_moves | the moves from l to c: t - time of the newest, number by all, number by s |
| move_h, move_fraction_h, move_other_h | d_h by all; divided by d_h of all moves from l; d_h without those by s |
| editors | sources in common among the last 8 distinct ones of l and c |
| shared_h | d_h of the times at which a source of one of l and c got the other as a partner |
| shared, shared_sum | number n(l, c) of these; sum of n(p, c) over the 8 newest partners p of s |
| cosine, cosine_sum, cosine_max | n(p, c) / sqrt(sources of p x sources of c): of l, sum and maximum over these p |
| last_contacts, last_since_other, last_contacts_h | contacts, target_since_other and contacts_h of l |
| last_target_h, last_left_h | target_h of l; d_h of the moves from l |
| rank_* | number of candidates with a greater value: among the past partners, or among the new ones |
| vector_cosine | cosine of the vectors of s and c, of a new candidate alone |
| partner_cosine, partner_cosine_max | the same of c and the mean of the 8 newest partners of s; the maximum over them |

d_h(events) = sum of 0.5^(age / h). A move is an event of a source with another target than its event before. n counts
only a source's 16 newest partners at the time of a new one, so that the work is bounded. A value that does not exist
is NaN: of a pair without contact, of a source or target without events, or without a vector. The vectors are those of
`dyformer.streams.contact_vectors`, which are made at fixed numbers of events.

Partners of a source are the targets of its events. In directed logs with one side, as in messages, they are also the
sources of the events at it, and the newest is that of the newest event in either direction: who got a message is no
stranger to its sender. The features from reply_since to received_pending exist in these logs alone; l stays the
target of the newest event of s, but in `editors`, `shared_h`, `shared` and `cosine` it is the newest partner.

With `directed=False` (one side alone) each event counts as one of both ends.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.streams.contact_vectors import contact_vectors, newest_refresh, next_refresh
from dyformer.streams.event_log import EventLog, EventQueries
from dyformer.streams.factorisation import DENSE_NODES
from dyformer.streams.kernels.features import Limits
from dyformer.streams.kernels.rows import Scratch, collect_rows, pair_rows
from dyformer.streams.kernels.tables import (
    caught_up,
    changes_copied,
    filled_in_parts,
    is_nearly_full,
    larger_table,
    marks_taken,
    no_rest,
)
from dyformer.streams.kernels.updates import NEVER, State, absorb_events
from dyformer.streams.state_tables import (
    TABLES,
    arrays_of,
    empty_state,
    most_slots,
    state_of,
    with_event_room,
    with_nodes,
)

HALF_LIVES = (600.0, 7_200.0, 86_400.0, 604_800.0)
"""Ten minutes, two hours, a day, a week. Sums are float32: 3 million events in a half-life may be 7 % off."""

RANK = 8  # of the vectors

BLOCK_EVENTS = 1 << 13
BLOCK_ROWS = 1 << 15
MIN_ROWS = 32  # of a query on average, for the size of a block's other arrays
EVENT_COLUMNS = ("source_E", "target_E", "time_E", "weight_E")
RANKED = (
    "contacts_2",
    "target_1",
    "target_new_2",
    "move_fraction_2",
    "cosine_sum",
    "target_since_other",
    "met_1",
    "partner_1",
)

Columns = tuple[NDArray, NDArray, NDArray, NDArray]
"""Source, target, time and weight of events [E]."""

Rest = Callable[[], None]
"""Called between the parts of a long computation; it may wait, so that others have the processor."""


@dataclass(frozen=True, kw_only=True)
class StateSettings:
    """Which world the events are of, and over which times counts are forgotten."""

    two_sides: bool
    seconds: float  # length of one unit of the log's time in seconds
    directed: bool = True  # with one side: False lets an event count for both of its ends
    half_lives: tuple[float, ...] = HALF_LIVES  # in seconds; four, because the features are named by their index
    max_past: int = 128  # newest partners of a source that get rows
    max_new: int = 192  # targets new to a source that get rows
    max_near: int = 64  # targets with the nearest vectors: those new to the source get rows, too
    rank: int = RANK  # of the decomposition that gives the vectors; 0: none

    def __post_init__(self) -> None:
        if len(self.half_lives) != len(HALF_LIVES) or min(self.half_lives) <= 0:
            raise InvalidInput(f"expected {len(HALF_LIVES)} half-lives in seconds above 0, got {self.half_lives}")
        if self.two_sides and not self.directed:
            raise InvalidInput("events between two sides have a direction: leave directed=True, or give one side")
        if not 0 <= self.rank <= DENSE_NODES:
            raise InvalidInput(f"expected vectors of a rank from 0 (none) to {DENSE_NODES}, got {self.rank}")

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "StateSettings":
        """Read the values of `dataclasses.asdict`."""
        return cls(**{**record, "half_lives": tuple(record["half_lives"])})

    @property
    def rate_H(self) -> NDArray[np.float64]:
        """Give log(2) / half-life, per unit of the log's time."""
        return np.log(2) * self.seconds / np.array(self.half_lives)

    @property
    def limits(self) -> Limits:
        """The same as plain numbers for the kernels."""
        both_ways = not self.directed and not self.two_sides
        has_replies = self.directed and not self.two_sides
        return Limits(self.max_past, self.max_new, self.max_near, self.seconds, self.two_sides, both_ways, has_replies)


def names() -> dict[str, tuple[str, ...]]:
    """Name the features of each group in the order of their columns; `contacts_0` has the first half-life."""

    def by_half_life(*stems: str) -> tuple[str, ...]:
        return tuple(f"{stem}_{index}" for stem in stems for index in range(len(HALF_LIVES)))

    pair = ("recency", "events_back", "is_last", "is_before_last", "since", "since_first", "contacts")
    received = ("received_since", "received_events", "received_sources", "received_after")
    source = ("source_since", "source_between", "source_since_first", "source_events")
    target = ("target_since", "target_since_other", "target_is_own", "target_events", "target_sources", "target_weight")
    rates = ("stays", "stays_lately", "new", "new_lately", "partners", "streak")
    cosines = ("shared", "shared_sum", "cosine", "cosine_sum", "cosine_max")
    context = ("last_contacts", "last_since_other")
    return {
        "pair": (*pair, *by_half_life("contacts", "fraction"), "of_5", "of_20", "mean_weight"),
        "reply": (
            *("reply_since", "replies", "reply_after", *by_half_life("reply"), "pending", "pending_own"),
            *("met_since", "met_recency", *by_half_life("met", "met_fraction"), "partner_since"),
            *by_half_life("partner"),
        ),
        "received": (*received, *by_half_life("received"), "received_pending"),
        "source": (*source, *by_half_life("source"), *rates),
        "target": (*target, *by_half_life("target", "target_other", "target_new", "target_first")),
        "moves": ("move_since", "moves", "own_moves", *by_half_life("move", "move_fraction", "move_other")),
        "shared": ("editors", *by_half_life("shared"), *cosines),
        "context": (*context, *by_half_life("last_contacts", "last_target", "last_left")),
        "ranks": tuple(f"rank_{name}" for name in RANKED),
        "vectors": ("vector_cosine", "partner_cosine", "partner_cosine_max"),
    }


FEATURES = tuple(name for group in names().values() for name in group)


_NO_NODES = np.zeros(0, dtype=np.int64)
_NO_EVENTS: Columns = (_NO_NODES, _NO_NODES, _NO_NODES, np.zeros(0))
INDEX = {name: column for column, name in enumerate(FEATURES)}
_RANKED = np.array([INDEX[name] for name in RANKED])


def columns_of(log: EventLog) -> Columns:
    """Give the columns of a log's events."""
    return log.source_E, log.target_E, log.time_E, log.weight_E


def _uniform(array: NDArray) -> NDArray:
    # Contiguous and read-only, because numba compiles each layout anew: many seconds for the kernels of rows.
    uniform = np.ascontiguousarray(array).view()
    uniform.flags.writeable = False
    return uniform


def _sliced(events: Columns, part: slice = slice(None)) -> Columns:
    source_E, target_E, time_E, weight_E = events
    return _uniform(source_E[part]), _uniform(target_E[part]), _uniform(time_E[part]), _uniform(weight_E[part])


def absorbed(state: State, events: Columns, settings: StateSettings, num_before: int, rest: Rest = no_rest) -> State:
    """Give the state after events that follow the `num_before` it has; the old state's arrays may change too.

    Where they pass a number of events at which vectors are made, the state has those of the newest one. `rest` is
    called often.
    """
    point = 0 if settings.rank == 0 else newest_refresh(num_before + len(events[0])) - num_before
    if point <= 0:
        return _absorbed(state, events, settings.limits, rest)
    state = _absorbed(state, _sliced(events, slice(point)), settings.limits, rest)
    vectors = contact_vectors(state.contacts, both_roles=settings.limits.has_replies, rank=settings.rank)
    rest()
    return _absorbed(state._replace(vectors=vectors), _sliced(events, slice(point, None)), settings.limits, rest)


def _absorbed(state: State, events: Columns, limits: Limits, rest: Rest) -> State:
    for first in range(0, len(events[0]), BLOCK_EVENTS):
        block = _sliced(events, slice(first, first + BLOCK_EVENTS))
        state = with_event_room(state, len(block[0]), limits, rest)
        absorb_events(state, *block, limits)
        rest()
    return state


@dataclass(frozen=True, kw_only=True, eq=False)
class CandidateRows:
    """Features of the candidates of consecutive queries: of each its partners, newest first, then its new ones."""

    row_RF: NDArray[np.float32]
    target_R: NDArray[np.int64]
    num_past_Q: NDArray[np.int64]
    num_new_Q: NDArray[np.int64]
    rest_QC: NDArray[np.float32]  # log of target_new_3 of every candidate, for those without rows; or no columns


class _Buffers(NamedTuple):
    # Arrays that blocks of queries are written to.
    row_RF: NDArray[np.float32]
    target_R: NDArray[np.int64]
    scratch: Scratch


def _scratch(num_targets: int) -> Scratch:
    return Scratch(
        common_F=np.empty(len(FEATURES), dtype=np.float32),
        ranked_F=_RANKED,
        stamp_D=np.zeros(num_targets + 1, dtype=np.int64),
    )


def _buffers(limits: Limits, scratch: Scratch, num_queries: int) -> _Buffers:
    per_query = limits.max_past + limits.max_new + limits.max_near
    num_rows = max(per_query, min(per_query * num_queries, BLOCK_ROWS))
    return _Buffers(np.empty((num_rows, len(FEATURES)), dtype=np.float32), np.empty(num_rows, dtype=np.int64), scratch)


def _plain_queries(queries: EventQueries, target_Q: NDArray[np.int64] | None, block: slice) -> tuple[NDArray, ...]:
    source_Q, time_Q, num_visible_Q = queries.source_Q[block], queries.time_Q[block], queries.num_visible_Q[block]
    chosen_Q = np.full(len(source_Q), -1) if target_Q is None else target_Q[block]
    every = np.zeros((len(source_Q), 0), dtype=np.int64)
    candidate_QC = every if queries.candidate_QC is None else queries.candidate_QC[block]
    return source_Q, time_Q, num_visible_Q, chosen_Q, candidate_QC


def candidate_rows(
    log: EventLog, queries: EventQueries, settings: StateSettings, target_Q: NDArray[np.int64] | None = None
) -> Iterator[CandidateRows]:
    """Give the candidates of queries in order of time and their features, in one pass over the log.

    A query reads the first `num_visible_Q` events. With one side a source is no candidate of its own. With the chosen
    targets `target_Q` (for fitting) a query whose target is a past partner gets no new candidates, and there is no
    `rest_QC`. The arrays are those of the block: use them before the next one.
    """
    limits, num_queries = settings.limits, len(queries)
    state = empty_state(log.num_sources, log.num_targets, settings.rate_H)
    buffers = _buffers(limits, _scratch(log.num_targets), num_queries)
    num_rest = log.num_targets if queries.candidate_QC is None else queries.candidate_QC.shape[1]
    num_rest = num_rest if target_Q is None else 0
    events, num_absorbed, first = _sliced(columns_of(log)), 0, 0
    while first < num_queries:
        start = int(queries.num_visible_Q[first])
        state = absorbed(state, _sliced(events, slice(num_absorbed, start)), settings, num_absorbed)
        num_absorbed = max(num_absorbed, start)
        most = min(num_absorbed + BLOCK_EVENTS, next_refresh(num_absorbed) - 1)  # a block has the same vectors
        last = int(np.searchsorted(queries.num_visible_Q, most, side="right"))
        last = min(last, first + max(1, len(buffers.row_RF) // MIN_ROWS))
        state = with_event_room(state, int(queries.num_visible_Q[last - 1]) - num_absorbed, limits)
        plain = _plain_queries(queries, target_Q, slice(first, last))
        rows, num_absorbed = _collected(state, events, num_absorbed, plain, buffers, limits, num_rest)
        first += len(rows.num_past_Q)
        yield rows


def _collected(
    state: State,
    events: Columns,
    num_absorbed: int,
    queries: tuple[NDArray, ...],
    buffers: _Buffers,
    limits: Limits,
    num_rest: int,
) -> tuple[CandidateRows, int]:
    num_past_Q, num_new_Q = np.zeros((2, len(queries[0])), dtype=np.int64)
    rest_QC = np.empty((len(queries[0]), num_rest), dtype=np.float32)
    num_done_1 = np.zeros(1, dtype=np.int64)
    out = (buffers.row_RF, buffers.target_R, num_past_Q, num_new_Q, rest_QC, num_done_1)
    uniform = _sliced(events), num_absorbed, tuple(map(_uniform, queries))
    num_absorbed = collect_rows(state, *uniform, limits, buffers.scratch, out)
    num_done = int(num_done_1[0])
    num_rows = int(num_past_Q[:num_done].sum() + num_new_Q[:num_done].sum())
    rows = CandidateRows(
        row_RF=buffers.row_RF[:num_rows],
        target_R=buffers.target_R[:num_rows],
        num_past_Q=num_past_Q[:num_done],
        num_new_Q=num_new_Q[:num_done],
        rest_QC=rest_QC[:num_done],
    )
    return rows, num_absorbed


class Contact(NamedTuple):
    """A target of a source, the number of their events, and the times of the first and the newest."""

    target: int
    num_events: int
    first: int
    latest: int


def _check_numbers(side: str, number_P: NDArray[np.int64], num_nodes: int) -> None:
    # The compiled loops would read beyond their arrays.
    if len(number_P) and not 0 <= number_P.min() <= number_P.max() < num_nodes:
        raise InvalidInput(
            f"expected numbers of {side}s from 0 to {num_nodes - 1}, got {number_P.min()} to {number_P.max()}"
        )


class EventState:
    """What is known of the events observed so far; it gives features as of any time after them.

    Events of one and the same time are neither before nor after each other. So the newest events wait until the time
    goes on, and a query at their time does not read them.

    Memory: a contact and a meeting take a slot of 64 bytes, a move and an own move 48, a shared pair 56, each with 8 to
    24 bytes of hash buckets and 1/8 byte of marks; while a table grows, up to half of its slots are free, or five
    eighths of one that grows ahead. A new contact makes at most 16 shared pairs, an event at most one move and one own
    move, and none where the target stays the same. A source takes 152 bytes and a target 168. Undirected logs count
    each event twice. Directed logs with one side have two more slots for each unordered pair with an event. A vector
    takes 4 x `rank` bytes a source and a target, and twice as many in directed logs with one side.
    `benchmarks/event_state.py` measures it.
    """

    def __init__(self, num_sources: int, num_targets: int, settings: StateSettings) -> None:
        self.settings = settings
        self.num_events = 0  # observed, the waiting ones included
        self._makes_vectors = True
        self._state = empty_state(num_sources, num_targets, settings.rate_H)
        self._scratch = _scratch(num_targets)
        self._waiting: Columns = _NO_EVENTS
        self._absorbed_until = NEVER

    def observe(self, events: EventLog, rest: Rest = no_rest) -> None:
        """Take events that follow those observed so far; they may have new nodes. `rest` is called often.

        Raises ValueError where they are older than events observed before, or are of another unit of time.
        """
        if len(events) == 0:
            return
        self._check(events)
        self._state = with_nodes(self._state, events.num_sources, events.num_targets)
        source_E, target_E, time_E, weight_E = map(np.concatenate, zip(self._waiting, columns_of(events), strict=True))
        num_older = int(np.searchsorted(time_E, time_E[-1]))
        joined = (source_E, target_E, time_E, weight_E)
        self._absorb(_sliced(joined, slice(num_older)), rest)
        self._waiting = _sliced(joined, slice(num_older, None))
        self.num_events += len(events)

    @property
    def newest_time(self) -> int | None:
        """Time of the newest event that was observed, in units of the log; None before the first."""
        newest = self._newest()
        return None if newest == NEVER else newest

    def keep_vectors(self) -> None:
        """Make the vectors of the events so far, and leave them as they are: no later event waits for a decomposition.

        The events so far all count, so that a query must be later than the newest one.
        """
        if self.num_events:
            self._state_before(self._newest() + 1)
        self._makes_vectors = False

    def grow(self, num_sources: int, num_targets: int) -> None:
        """Make room for at least these numbers of nodes, so that those without an event can be queried, too."""
        self._state = with_nodes(self._state, num_sources, num_targets)

    def grow_ahead(self, lock: AbstractContextManager, rest: Rest = no_rest) -> None:
        """Grow the tables that are nearly full, while others query the state and let it observe events.

        `lock` is what they hold meanwhile; it is held here for the slots alone that changed since they were copied.
        `rest` is called often without it, and may wait. The state is the same as without. One thread at a time may call
        it. A table has then room for BLOCK_EVENTS events, whatever they are; it grows when events are observed that
        need more.
        """
        for name, num_more in most_slots(BLOCK_EVENTS, self.settings.limits).items():
            self._grow_ahead(name, num_more, lock, rest)  # its arrays are free again before the next table grows

    def _grow_ahead(self, name: str, num_more: int, lock: AbstractContextManager, rest: Rest) -> None:
        with lock:
            before = getattr(self._state, name)
            if not is_nearly_full(before, num_more):
                return
            larger = larger_table(before, max(num_more, len(before.slot_S)))
            marks_taken(before)
        for _ in filled_in_parts(larger, before):
            rest()
        with lock:
            changed_M = marks_taken(before)
        for _ in changes_copied(larger, before, changed_M):  # so that few are left for the lock
            rest()
        with lock:
            table = getattr(self._state, name)
            if table.slot_S is before.slot_S:
                self._state = self._state._replace(**{name: caught_up(larger, table)})

    def num_events_of(self, source: int, *, at: int) -> int:
        """Count the events of a source before a time, with those at it where they make partners.

        Raises ValueError like `features`.
        """
        state = self._state_before(at)
        received = state.target_D["count"][source] if self.settings.limits.has_replies else 0
        return int(state.source_N["count"][source] + received)

    def newest_contacts(self, source: int, count: int, *, at: int) -> list[Contact]:
        """List a source's contacts before a time, the newest first. Raises ValueError like `features`."""
        contacts, found = self._state_before(at).contacts, []
        slot = int(contacts.newest_R[source])
        while slot >= 0 and len(found) < count:
            record = contacts.slot_S[slot]
            found.append(Contact(*(int(record[name]) for name in ("column", "count", "first", "latest"))))
            slot = int(record["older"])
        return found

    def _newest(self) -> int:
        return int(self._waiting[2][-1]) if len(self._waiting[2]) else self._absorbed_until

    def _check(self, events: EventLog) -> None:
        newest = self._newest()
        if events.time_E[0] < newest or np.any(np.diff(events.time_E) < 0):
            raise InvalidInput(f"expected events in order of time from {newest} on, got one at {events.time_E.min()}")
        if (events.seconds, events.two_sides) != (self.settings.seconds, self.settings.two_sides):
            raise InvalidInput("expected events with the unit of time and the sides of the state; make a new state")

    def _absorb(self, events: Columns, rest: Rest = no_rest) -> None:
        if len(events[0]):
            settings = self.settings if self._makes_vectors else replace(self.settings, rank=0)
            num_before = self.num_events - len(self._waiting[0])
            self._state = absorbed(self._state, events, settings, num_before, rest)
            self._absorbed_until = int(events[2][-1])

    def _state_before(self, at: int) -> State:
        if at <= self._absorbed_until:
            raise InvalidInput(f"expected a time after {self._absorbed_until}, which was observed already, got {at}")
        if len(self._waiting[2]) and self._waiting[2][-1] < at:
            self._absorb(self._waiting)
            self._waiting = _NO_EVENTS
        return self._state

    def features(self, source: int, target_P: NDArray[np.int64], *, at: int) -> NDArray[np.float32]:
        """Give the features [P, F] of a source and any targets as of a time; the ranks are NaN.

        Raises ValueError where an observed event is not older than `at`, except the newest ones at `at` itself, and for
        numbers of nodes that the state does not have.
        """
        state, limits = self._state_before(at), self.settings.limits
        _check_numbers("source", np.array([source]), len(state.source_N))
        _check_numbers("target", target_P, len(state.target_D))
        row_PF = np.empty((len(target_P), len(FEATURES)), dtype=np.float32)
        pair_rows(row_PF, state, source, at, limits, _uniform(target_P))
        return row_PF

    def candidates(self, source: int, *, at: int, target_P: NDArray[np.int64] | None = None) -> CandidateRows:
        """Give the candidates of a source as of a time and their features; `rest_QC` is of the targets [P], if any.

        Raises ValueError like `features`.
        """
        target_P = np.zeros(0, dtype=np.int64) if target_P is None else target_P
        state, limits = self._state_before(at), self.settings.limits
        _check_numbers("source", np.array([source]), len(state.source_N))
        _check_numbers("target", target_P, len(state.target_D))
        if len(self._scratch.stamp_D) != len(state.target_D) + 1:
            self._scratch = _scratch(len(state.target_D))
        buffers = _buffers(limits, self._scratch, 1)
        source_Q, time_Q, num_visible_Q, target_Q = np.array([[source], [at], [0], [-1]])
        queries = (source_Q, time_Q, num_visible_Q, target_Q, target_P[None])
        return _collected(state, self._waiting, 0, queries, buffers, limits, len(target_P))[0]

    def allocated_bytes(self) -> dict[str, int]:
        """Give the memory of each table with its hash buckets, of the sources and of the targets."""
        tables = {name: getattr(self._state, name) for name in TABLES}
        sizes = {name: sum(column.nbytes for column in table) for name, table in tables.items()}
        return sizes | {"source": self._state.source_N.nbytes, "target": self._state.target_D.nbytes}

    def to_arrays(self) -> dict[str, NDArray]:
        """Give all that the state is made from again; the same events give the same bytes, however they were cut.

        Records are cut into one array a field, so that any file of arrays can hold them.
        """
        arrays = arrays_of(self._state)
        arrays |= {f"waiting.{name}": column.copy() for name, column in zip(EVENT_COLUMNS, self._waiting, strict=True)}
        return arrays | {"events": np.array([self.num_events, self._absorbed_until], dtype=np.int64)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray], settings: StateSettings) -> "EventState":
        """Make the state whose `to_arrays` are given, with the settings that it had."""
        self = cls(0, 0, settings)
        self._state = state_of(arrays, settings.rate_H)
        source_E, target_E, time_E, weight_E = (arrays[f"waiting.{name}"].copy() for name in EVENT_COLUMNS)
        self._waiting = (source_E, target_E, time_E, weight_E)
        self.num_events, self._absorbed_until = (int(value) for value in arrays["events"])
        return self
