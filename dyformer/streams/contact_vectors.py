"""The contacts so far -> a vector of each source and of each target, whose cosine is high where a contact is likely.

S contacts    N sources    D targets    K rank    W width: K, or 2K in directed logs with one side

The matrix [N, D] has log(1 + number of events) of each contact, divided by the root of (total of its row + mean total
of the rows) and by the same of its column, so that busy nodes do not take all of the rank (regularised, as in spectral
clustering: Qin and Rohe, 2013). Its decomposition is U V', with the singular values divided evenly.

In directed logs with one side a node's contacts as a source and those as a target both say who it is. So the matrix A
[N, N] stands beside its transpose, [A A'] = U [V_1 V_2]', and both ends of a contact of n and m estimate it: U_n V_1m
reads the contacts of n, V_2n U_m those of m. The vector of n as a source is [U_n V_2n], as a target [V_1n U_n]; the
total of a row or of a column is that of the node in both roles.

Vectors are made at fixed numbers of events, of these events alone: the first time after FIRST_REFRESH, then each time
the events have become GROWTH times as many. So their cost is that of the last decomposition, times six.
"""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dyformer.streams.factorisation import factorise
from dyformer.streams.kernels.tables import PairTable
from dyformer.streams.kernels.updates import Vectors

FIRST_REFRESH = 500
GROWTH = 6, 5  # a fraction of integers, so that every machine has the same numbers


def next_refresh(num_events: int) -> int:
    """Give the least number of events above `num_events` at which vectors are made."""
    point = FIRST_REFRESH
    while point <= num_events:
        point = point * GROWTH[0] // GROWTH[1]
    return point


def newest_refresh(num_events: int) -> int:
    """Give the greatest number of events, at most `num_events`, at which vectors are made, or 0."""
    point, newest = FIRST_REFRESH, 0
    while point <= num_events:
        newest, point = point, point * GROWTH[0] // GROWTH[1]
    return newest


def no_vectors() -> Vectors:
    """Give the vectors before the first refresh."""
    return Vectors(source_NW=np.zeros((0, 1), dtype=np.float32), target_DW=np.zeros((0, 1), dtype=np.float32))


def contact_vectors(contacts: PairTable, *, both_roles: bool, rank: int) -> Vectors:
    """Decompose the contacts; the vectors have the length 1, or 0 for a node without a sound one.

    `both_roles`: sources and targets are the same nodes, and a contact has a direction. Nodes after the last one with a
    contact have no vector.
    """
    slot_S = contacts.slot_S[: int(contacts.num_used_1[0])]
    row_S, column_S, value_S = slot_S["row"], slot_S["column"], np.log1p(slot_S["count"])
    num_sources, num_targets = int(row_S.max()) + 1, int(column_S.max()) + 1
    size = max(num_sources, num_targets)
    row_total_N, column_total_N = np.bincount(row_S, value_S, size), np.bincount(column_S, value_S, size)
    if both_roles:
        row_total_N = column_total_N = row_total_N + column_total_N
    value_S = value_S * _weights(row_total_N)[row_S] * _weights(column_total_N)[column_S]
    if not both_roles:
        factors = factorise(sparse.csr_array((value_S, (row_S, column_S)), shape=(size, size)), rank)
        return Vectors(source_NW=_unit(factors.left_NK[:num_sources]), target_DW=_unit(factors.right_NK[:num_targets]))
    ends = np.concatenate([row_S, column_S]), np.concatenate([column_S, size + row_S])
    factors = factorise(sparse.csr_array((np.tile(value_S, 2), ends), shape=(2 * size, 2 * size)), rank)
    own_NK, as_target_NK, as_source_NK = factors.left_NK[:size], factors.right_NK[:size], factors.right_NK[size:]
    source_NW, target_NW = np.hstack([own_NK, as_source_NK]), np.hstack([as_target_NK, own_NK])
    return Vectors(source_NW=_unit(source_NW), target_DW=_unit(target_NW))


def _weights(total_N: NDArray[np.number]) -> NDArray[np.float64]:
    return 1 / np.sqrt(total_N + total_N[total_N > 0].mean())


def _unit(vector_NW: NDArray[np.float32]) -> NDArray[np.float32]:
    length_N = np.linalg.norm(vector_NW, axis=1, keepdims=True)
    return np.ascontiguousarray(vector_NW / np.where(length_N > 0, length_N, 1), dtype=np.float32)
