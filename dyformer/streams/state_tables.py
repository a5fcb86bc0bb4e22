"""The tables of a state of events: made, grown, and turned into arrays that any file can hold.

H half-lives    N sources    D targets
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from dyformer.streams.contact_vectors import no_vectors
from dyformer.streams.kernels.features import Limits
from dyformer.streams.kernels.tables import (
    CONTACT_SLOT,
    SLOT,
    UNORDERED_SLOT,
    PairTable,
    grown,
    no_rest,
    table_of,
    with_room,
)
from dyformer.streams.kernels.updates import (
    NUM_LISTS,
    NUM_POPULAR,
    NUM_SHARED,
    SOURCE,
    TARGET,
    Popular,
    State,
    Vectors,
)

TABLES = {
    "contacts": CONTACT_SLOT,
    "meetings": CONTACT_SLOT,  # the partners of a source are read of one of these two
    "moves": SLOT,
    "own_moves": SLOT,
    "shared": UNORDERED_SLOT,
}
"""The tables of pairs of a state and the records of their slots."""


def empty_state(num_sources: int, num_targets: int, rate_H: NDArray[np.float64]) -> State:
    """Make the state before the first event; `rate_H` is log(2) / half-life, per unit of the log's time."""
    contacts, meetings, moves, own_moves, shared = (
        table_of(np.empty(0, dtype=kind), np.empty(0, dtype=np.int32)) for kind in TABLES.values()
    )
    state = State(
        contacts=contacts,
        meetings=meetings,
        moves=moves,
        own_moves=own_moves,
        shared=shared,
        source_N=np.empty(0, dtype=SOURCE),
        target_D=np.empty(0, dtype=TARGET),
        popular=Popular(
            target_KM=np.full((NUM_LISTS, NUM_POPULAR), -1, dtype=np.int32),
            size_K=np.zeros(NUM_LISTS, dtype=np.int32),
        ),
        vectors=no_vectors(),
        rate_H=rate_H,
    )
    return with_nodes(state, num_sources, num_targets)


def _with_rows(table: PairTable, num_rows: int) -> PairTable:
    return table._replace(newest_R=grown(table.newest_R, num_rows, -1))


def with_nodes(state: State, num_sources: int, num_targets: int) -> State:
    """Give the state for at least these numbers of nodes; new ones have no event."""
    return state._replace(
        contacts=_with_rows(state.contacts, num_sources),
        meetings=_with_rows(state.meetings, num_sources),
        moves=_with_rows(state.moves, num_targets),
        shared=_with_rows(state.shared, num_targets),
        source_N=grown(state.source_N, num_sources),
        target_D=grown(state.target_D, num_targets),
    )


def most_slots(num_events: int, limits: Limits) -> dict[str, int]:
    """Give the slots of each table that this many events may take, whatever they are."""
    num_ends = num_events * (1 + limits.both_ways)
    num_meetings, num_shared = 2 * num_events * limits.has_replies, NUM_SHARED * num_ends
    return dict(zip(TABLES, (num_ends, num_meetings, num_ends, num_ends, num_shared), strict=True))


def with_event_room(state: State, num_events: int, limits: Limits, rest: Callable[[], None] = no_rest) -> State:
    """Give the state with free slots for this many events, whatever they are."""
    for name, num_more in most_slots(num_events, limits).items():
        state = state._replace(**{name: with_room(getattr(state, name), num_more, rest)})
    return state


def arrays_of(state: State) -> dict[str, NDArray]:
    """Give all that a state is made from again; records are cut into one array a field."""
    arrays: dict[str, NDArray] = {}
    for name in TABLES:
        table = getattr(state, name)
        records = table.slot_S[: int(table.num_used_1[0])]
        arrays |= _fields(name, records) | {f"{name}.newest": table.newest_R.copy()}
    arrays |= _fields("source", state.source_N) | _fields("target", state.target_D)
    arrays |= {"popular.target": state.popular.target_KM.copy(), "popular.size": state.popular.size_K.copy()}
    return arrays | {"vectors.source": state.vectors.source_NW.copy(), "vectors.target": state.vectors.target_DW.copy()}


def state_of(arrays: Mapping[str, NDArray], rate_H: NDArray[np.float64]) -> State:
    """Make the state whose `arrays_of` are given."""
    return empty_state(0, 0, rate_H)._replace(
        **{
            name: table_of(_records(name, arrays, kind), arrays[f"{name}.newest"].copy())
            for name, kind in TABLES.items()
        },
        source_N=_records("source", arrays, SOURCE),
        target_D=_records("target", arrays, TARGET),
        popular=Popular(arrays["popular.target"].copy(), arrays["popular.size"].copy()),
        vectors=Vectors(arrays["vectors.source"].copy(), arrays["vectors.target"].copy()),
    )


def _fields(name: str, records: NDArray[np.void]) -> dict[str, NDArray]:
    return {f"{name}.{field}": records[field].copy() for field in records.dtype.names or ()}


def _records(name: str, arrays: Mapping[str, NDArray], kind: np.dtype) -> NDArray[np.void]:
    records = np.zeros(len(arrays[f"{name}.count"]), dtype=kind)
    for field in kind.names or ():
        records[field] = arrays[f"{name}.{field}"]
    return records
