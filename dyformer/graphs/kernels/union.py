"""Compiled loops over the edges of a union graph.

The rows of a graph are `indptr_N1`, `edge_indptr_N1` and `neighbor_M`, as in TemporalUnionGraph: row i lists node i's
neighbours.

N1 = nodes + 1    E edges, source < target    M = 2 E slots    A edges of all steps
W words of 64 lags    P pairs found    n rows and m columns of a block    F fields of a hash table
"""

import numpy as np
from numba import njit

FIELDS_PER_COLUMN = 4  # fields of the hash table: with so many, few nodes collide
FEWEST_FIELDS = 64
HASH_FACTOR = 2_654_435_769  # 2^32 / golden ratio (Knuth)


@njit(nogil=True, cache=True)
def united_edges(key_A, node_bits, lag_bits, num_words):
    """Give source, target and presence bits of each pair, from ascending keys of (source, target, lag)."""
    source_E = np.empty(len(key_A), dtype=np.int32)
    target_E = np.empty(len(key_A), dtype=np.int32)
    presence_EW = np.zeros((len(key_A), num_words), dtype=np.uint64)
    edge, last = -1, np.int64(-1)
    for key in key_A:
        pair = key >> lag_bits
        if pair != last:
            edge += 1
            last = pair
            source_E[edge] = pair >> node_bits
            target_E[edge] = pair & ((1 << node_bits) - 1)
        lag = key & ((1 << lag_bits) - 1)
        presence_EW[edge, lag >> 6] |= np.uint64(1) << np.uint64(lag & 63)
    return source_E[: edge + 1], target_E[: edge + 1], presence_EW[: edge + 1].copy()


@njit(nogil=True, cache=True)
def rows_of(source_E, target_E, num_nodes):
    """Give the rows of a graph from its edges, which ascend by (source, target)."""
    indptr_N1 = np.zeros(num_nodes + 1, dtype=np.int64)
    edge_indptr_N1 = np.zeros(num_nodes + 1, dtype=np.int64)
    for edge in range(len(source_E)):
        indptr_N1[target_E[edge] + 1] += 1
        edge_indptr_N1[source_E[edge] + 1] += 1
    for node in range(num_nodes):
        indptr_N1[node + 1] += indptr_N1[node] + edge_indptr_N1[node + 1]
        edge_indptr_N1[node + 1] += edge_indptr_N1[node]
    free_N = indptr_N1[:-1].copy()
    neighbor_M = np.empty(2 * len(source_E), dtype=np.int32)
    # Because edges ascend, two passes write each row in ascending order: its lower neighbours, then the higher ones.
    _scatter(target_E, source_E, free_N, neighbor_M)
    _scatter(source_E, target_E, free_N, neighbor_M)
    return indptr_N1, edge_indptr_N1, neighbor_M


@njit(nogil=True, cache=True)
def _scatter(row_E, other_E, free_N, neighbor_M):
    for edge in range(len(row_E)):
        row = row_E[edge]
        neighbor_M[free_N[row]] = other_E[edge]
        free_N[row] += 1


@njit(nogil=True, cache=True)
def lower_presence(rows, presence_EW):
    """Give the presence bits in the order of the slots that list an edge's lower end in the row of its higher one."""
    indptr_N1, edge_indptr_N1, neighbor_M = rows
    free_N = (indptr_N1 - edge_indptr_N1)[:-1]
    lower_EW = np.empty_like(presence_EW)
    for node in range(len(free_N)):
        first = indptr_N1[node + 1] - edge_indptr_N1[node + 1]
        for edge in range(edge_indptr_N1[node], edge_indptr_N1[node + 1]):
            target = neighbor_M[first + edge]
            for word in range(presence_EW.shape[1]):  # an assignment of all takes seconds to compile, for its error
                lower_EW[free_N[target], word] = presence_EW[edge, word]
            free_N[target] += 1
    return lower_EW


@njit(nogil=True, cache=True)
def chosen_rows(rows, lower_EW, presence_EW, seen_W, num_nodes):
    """Give the rows of the first nodes with the edges that have a bit of `seen_W`, and the bits that these have."""
    indptr_N1, edge_indptr_N1, neighbor_M = rows
    new_indptr_N1, new_edge_indptr_N1 = np.zeros(num_nodes + 1, np.int64), np.zeros(num_nodes + 1, np.int64)
    new_M = np.empty(indptr_N1[num_nodes], dtype=np.int32)
    new_EW = np.empty((edge_indptr_N1[num_nodes], len(seen_W)), dtype=np.uint64)
    num_slots = num_edges = lower = 0
    for node in range(num_nodes):
        first = indptr_N1[node + 1] - edge_indptr_N1[node + 1]
        for slot in range(indptr_N1[node], first + edge_indptr_N1[node]):
            new_M[num_slots] = neighbor_M[slot]  # written in any case, and kept where the number grows: no branch
            num_slots += _is_seen(lower_EW, lower, seen_W)
            lower += 1
        for edge in range(edge_indptr_N1[node], edge_indptr_N1[node + 1]):
            new_M[num_slots] = neighbor_M[first + edge]
            for word in range(len(seen_W)):
                new_EW[num_edges, word] = presence_EW[edge, word] & seen_W[word]
            is_seen = _is_seen(presence_EW, edge, seen_W)
            num_slots += is_seen
            num_edges += is_seen
        new_indptr_N1[node + 1], new_edge_indptr_N1[node + 1] = num_slots, num_edges
    return (new_indptr_N1, new_edge_indptr_N1, new_M[:num_slots].copy()), new_EW[:num_edges].copy()


@njit
def _is_seen(presence_EW, edge, seen_W):
    bits = np.uint64(0)
    for word in range(len(seen_W)):
        bits |= presence_EW[edge, word] & seen_W[word]
    return bits != 0


@njit(nogil=True, cache=True)
def younger(presence_EW, num_lags, num_words):
    """Shift the presence bits back by some lags, into so many words; the bits that this drops are 0."""
    new_EW = np.zeros((len(presence_EW), num_words), dtype=np.uint64)
    words, bits = num_lags >> 6, np.uint64(num_lags & 63)
    for edge in range(len(presence_EW)):
        for word in range(num_words):
            new_EW[edge, word] = presence_EW[edge, word + words] >> bits
            if bits and word + words + 1 < presence_EW.shape[1]:
                new_EW[edge, word] |= presence_EW[edge, word + words + 1] << (np.uint64(64) - bits)
    return new_EW


@njit(nogil=True, cache=True)
def connected_pairs(rows, rows_n, columns_m):
    """Find edges from some nodes to others: position of both ends in their lists and number of the edge, [P] each."""
    indptr_N1, _, neighbor_M = rows
    node_F, position_F = _hash_table(columns_m)
    most = 0
    for row in rows_n:
        most += min(indptr_N1[row + 1] - indptr_N1[row], len(columns_m))
    found_3P = np.empty((3, most), dtype=np.int64)
    num_found = 0
    for position in range(len(rows_n)):
        row = rows_n[position]
        for slot in range(indptr_N1[row], indptr_N1[row + 1]):
            field = _field_of(neighbor_M[slot], node_F)
            if node_F[field] == neighbor_M[slot]:
                found_3P[0, num_found] = position
                found_3P[1, num_found] = position_F[field]
                found_3P[2, num_found] = _edge_of(rows, row, slot)
                num_found += 1
    return found_3P[:, :num_found].copy()


@njit(nogil=True, cache=True)
def _hash_table(columns_m):
    # A hash table of the columns fits the L1 cache; an array with a mark for each node would grow with the graph.
    num_fields = FEWEST_FIELDS
    while num_fields < FIELDS_PER_COLUMN * len(columns_m):
        num_fields *= 2
    node_F = np.full(num_fields, -1, dtype=np.int64)
    position_F = np.empty(num_fields, dtype=np.int64)
    for position in range(len(columns_m)):
        field = _field_of(columns_m[position], node_F)
        node_F[field] = columns_m[position]
        position_F[field] = position
    return node_F, position_F


@njit(nogil=True, cache=True)
def _field_of(node, node_F):
    """Give the field of a node, or the empty one where it would be: multiplicative hashing, linear probing."""
    last = len(node_F) - 1
    field = ((node * HASH_FACTOR) >> 16) & last
    while node_F[field] >= 0 and node_F[field] != node:
        field = (field + 1) & last
    return field


@njit(nogil=True, cache=True)
def _edge_of(rows, row, slot):
    """Give the number of a slot's edge: edges are numbered by source, and are the last slots of their source's row."""
    indptr_N1, edge_indptr_N1, neighbor_M = rows
    source = row
    if neighbor_M[slot] < row:
        source = neighbor_M[slot]
        slot = indptr_N1[source + 1] - edge_indptr_N1[source + 1] + edge_indptr_N1[source]
        num = edge_indptr_N1[source + 1] - edge_indptr_N1[source]
        while num > 1:  # without a branch that the processor could mispredict
            half = num >> 1
            slot += half * (neighbor_M[slot + half] <= row)
            num -= half
    return slot - indptr_N1[source + 1] + edge_indptr_N1[source + 1]
