"""What `union_kernels` does, in whole-array operations: for machines without numba.

N1 = nodes + 1    E edges, source < target    M = 2 E slots    D edges that join    A edges of all steps
W words of 64 lags    P pairs found    n rows, m columns asked for
"""

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]
Words = NDArray[np.uint64]
Rows = tuple[Int64s, Int64s, Int32s]


def united_edges(key_A: Int64s, node_bits: int, lag_bits: int, num_words: int) -> tuple[Int32s, Int32s, Words]:
    """Give source, target and presence bits of each pair, from ascending keys of (source, target, lag)."""
    pair_A, lag_A = key_A >> lag_bits, key_A & ((1 << lag_bits) - 1)
    is_first_A = np.diff(pair_A, prepend=-1) != 0
    pair_E = pair_A[is_first_A]
    presence_EW = np.zeros((len(pair_E), num_words), dtype=np.uint64)
    bit_A = np.left_shift(np.uint64(1), (lag_A & 63).astype(np.uint64))
    # A snapshot has an edge once at most, so that adding sets bits.
    np.add.at(presence_EW, (np.cumsum(is_first_A) - 1, lag_A >> 6), bit_A)
    return *_ends(pair_E, node_bits), presence_EW


def _ends(pair_E: Int64s, node_bits: int) -> tuple[Int32s, Int32s]:
    return (pair_E >> node_bits).astype(np.int32), (pair_E & ((1 << node_bits) - 1)).astype(np.int32)


def rows_of(source_E: Int32s, target_E: Int32s, num_nodes: int) -> Rows:
    """Give indptr, edge indptr and neighbours of ascending edges."""
    # Lower neighbours first: edges ascend, so that a stable sort by row alone leaves each row's neighbours ascending.
    row_M = np.concatenate([target_E, source_E])
    neighbor_M = np.concatenate([source_E, target_E])[np.argsort(row_M, kind="stable")]
    return _indptr(row_M, num_nodes), _indptr(source_E, num_nodes), neighbor_M


def _indptr(row_A: Int32s, num_nodes: int) -> Int64s:
    return np.concatenate([[0], np.cumsum(np.bincount(row_A, minlength=num_nodes))]).astype(np.int64)


def merged_rows(old: Rows, joining: Rows) -> tuple[Rows, Int64s, NDArray[np.bool_]]:
    """Merge rows (indptr, edge indptr, neighbours) of as many nodes.

    Returns:
        The rows of both; of each joining edge the number of the old edge that it stands at or comes before, and
        whether it is that very edge.
    """
    num_nodes = len(old[0]) - 1
    node_bits = num_nodes.bit_length()
    pair_E, pair_D = _pairs(old, node_bits), _pairs(joining, node_bits)
    place_D, is_known_D = np.searchsorted(pair_E, pair_D), np.isin(pair_D, pair_E)
    merged_E = np.insert(pair_E, place_D[~is_known_D], pair_D[~is_known_D])
    return rows_of(*_ends(merged_E, node_bits), num_nodes), place_D, is_known_D


def _pairs(rows: Rows, node_bits: int) -> Int64s:
    indptr_N1, edge_indptr_N1, neighbor_M = rows
    num_N = np.diff(edge_indptr_N1)
    slot_E = np.arange(edge_indptr_N1[-1]) + np.repeat(indptr_N1[1:] - edge_indptr_N1[1:], num_N)
    return (np.repeat(np.arange(len(num_N)), num_N) << node_bits) | neighbor_M[slot_E]


def merged_presence(presence_EW: Words, place_D: Int64s, is_known_D: NDArray[np.bool_], num_words: int) -> Words:
    """Age the presence bits by one lag, and set lag 0 of the edges that join or are there again."""
    presence_EW = np.pad(presence_EW, ((0, 0), (0, num_words - presence_EW.shape[1])))
    older_EW = presence_EW << np.uint64(1)
    older_EW[:, 1:] |= presence_EW[:, :-1] >> np.uint64(63)
    merged_EW = np.insert(older_EW, place_D[~is_known_D], 0, axis=0)
    merged_EW[place_D + np.cumsum(~is_known_D) - ~is_known_D, 0] |= np.uint64(1)
    return merged_EW


def connected_pairs(rows: Rows, rows_n: Int64s, columns_m: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Find edges from some nodes to others: position of either in its list and number of the edge, [P] each."""
    indptr_N1, _, neighbor_M = rows
    mark_N = np.full(len(indptr_N1) - 1, -1)
    mark_N[columns_m] = np.arange(len(columns_m))
    row_A, slot_A = _slots(indptr_N1, rows_n)
    column_A = mark_N[neighbor_M[slot_A]]
    is_found_A = column_A >= 0
    row_P, first_P, second_P = row_A[is_found_A], rows_n[row_A[is_found_A]], neighbor_M[slot_A[is_found_A]]
    return row_P, column_A[is_found_A], _edges(rows, np.minimum(first_P, second_P), np.maximum(first_P, second_P))


def _slots(indptr_N1: Int64s, rows_n: Int64s) -> tuple[Int64s, Int64s]:
    """Give all slots of some nodes, and the position of the node that each belongs to."""
    start_n = indptr_N1[rows_n]
    degree_n = indptr_N1[rows_n + 1] - start_n
    row_A = np.repeat(np.arange(len(rows_n)), degree_n)
    offset_n = np.cumsum(degree_n) - degree_n
    return row_A, np.arange(len(row_A)) + np.repeat(start_n - offset_n, degree_n)


def _edges(rows: Rows, source_P: Int64s, target_P: Int64s) -> Int64s:
    """Halve each source's edges until its target is found; all of them at once."""
    indptr_N1, edge_indptr_N1, neighbor_M = rows
    first_P, stop_P = edge_indptr_N1[source_P], edge_indptr_N1[source_P + 1]
    lower_P = indptr_N1[source_P + 1] - stop_P  # slots before a row's last ones that are no edge of it
    while (first_P < stop_P).any():
        middle_P = (first_P + stop_P) // 2
        is_lower_P = (first_P < stop_P) & (neighbor_M[np.minimum(lower_P + middle_P, len(neighbor_M) - 1)] < target_P)
        first_P, stop_P = np.where(is_lower_P, middle_P + 1, first_P), np.where(is_lower_P, stop_P, middle_P)
    return first_P
