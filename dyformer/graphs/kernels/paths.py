"""Compiled walks of two and three steps between pairs: plain ones, and plain and weighted ones in one pass.

N nodes    N1 = N + 1    M slots of both directions    E edges    P pairs, sorted by their first end
X nodes at which walks are read
"""

import numpy as np
from numba import njit

LISTED = 8  # walks for each slot of a second end, from which on the nodes that are read are listed
PULLED = 4  # slots that are read in the time in which a walk is added


@njit(nogil=True, cache=True)
def path_sums(indptr_N1, neighbor_M, degree_N, weight_N, first_P, second_P):
    """Give for each pair the number of common neighbours, the sum of their weights, and the three-step walks `[3, P]`.

    A walk a-m-n-b counts as 1 / (degree of m x degree of n). Pairs with equal first ends must follow each other,
    because the two-step walks of a first end are summed once for all of its pairs.
    """
    sums_3P = np.zeros((3, len(first_P)))
    is_neighbor_N, is_read_N = _unmarked(degree_N), _unmarked(degree_N)
    read_N, walk_N = np.empty(len(degree_N), dtype=np.int32), np.zeros(len(degree_N))
    end = 0
    while end < len(first_P):
        start, node = end, first_P[end]
        while end < len(first_P) and first_P[end] == node:
            end += 1
        num_walks = _mark_neighbors(indptr_N1, neighbor_M, node, is_neighbor_N)
        num_read = _read_by(indptr_N1, neighbor_M, second_P[start:end], num_walks, is_read_N, read_N)
        if num_read >= 0:
            _pull(indptr_N1, neighbor_M, degree_N, read_N[:num_read], is_neighbor_N, walk_N)
        else:
            _spread(indptr_N1, neighbor_M, degree_N, node, walk_N)
        for pair in range(start, end):
            for slot in range(indptr_N1[second_P[pair]], indptr_N1[second_P[pair] + 1]):
                middle = neighbor_M[slot]
                if is_neighbor_N[middle]:
                    sums_3P[0, pair] += 1
                    sums_3P[1, pair] += weight_N[middle]
                sums_3P[2, pair] += walk_N[middle] / degree_N[middle]
        _clear(indptr_N1, neighbor_M, node, num_walks, read_N, num_read, walk_N)
        _unmark_neighbors(indptr_N1, neighbor_M, node, is_neighbor_N)
    return sums_3P


@njit
def _unmarked(degree_N):
    return np.zeros(len(degree_N), dtype=np.bool_)


@njit
def _mark_neighbors(indptr_N1, neighbor_M, node, is_neighbor_N):
    """Mark a node's neighbours; give the number of its two-step walks."""
    num_walks = 0
    for slot in range(indptr_N1[node], indptr_N1[node + 1]):
        middle = neighbor_M[slot]
        is_neighbor_N[middle] = True
        num_walks += indptr_N1[middle + 1] - indptr_N1[middle]
    return num_walks


@njit
def _unmark_neighbors(indptr_N1, neighbor_M, node, is_neighbor_N):
    for slot in range(indptr_N1[node], indptr_N1[node + 1]):
        is_neighbor_N[neighbor_M[slot]] = False


@njit(nogil=True, cache=True)
def _read_by(indptr_N1, neighbor_M, second_P, num_walks, is_read_N, read_N):
    """List the nodes at which the walks of a first end are read, the neighbours of its second ends; give their number.

    It is -1 where it takes less time to make all walks of the first end: `_spread` adds each of them elsewhere in
    memory, `_pull` reads the neighbours of the listed nodes one after the other, which takes a fraction of the time.
    """
    num_slots = 0
    for second in second_P:
        num_slots += indptr_N1[second + 1] - indptr_N1[second]
    if num_walks < LISTED * num_slots:
        return -1
    num_read, num_steps = 0, 0
    for second in second_P:
        for slot in range(indptr_N1[second], indptr_N1[second + 1]):
            middle = neighbor_M[slot]
            if not is_read_N[middle]:
                is_read_N[middle] = True
                read_N[num_read] = middle
                num_read += 1
                num_steps += indptr_N1[middle + 1] - indptr_N1[middle]
    for index in range(num_read):
        is_read_N[read_N[index]] = False
    return num_read if num_steps < PULLED * num_walks else -1


@njit(nogil=True, cache=True)
def _pull(indptr_N1, neighbor_M, degree_N, read_X, is_neighbor_N, walk_N):
    """Sum the two-step walks that end at some nodes, in the order in which `_spread` adds them."""
    for node in read_X:
        total = 0.0
        for slot in range(indptr_N1[node], indptr_N1[node + 1]):
            middle = neighbor_M[slot]
            if is_neighbor_N[middle]:
                total += 1 / degree_N[middle]
        walk_N[node] = total


@njit(nogil=True, cache=True)
def _spread(indptr_N1, neighbor_M, degree_N, node, walk_N):
    """Add each of a node's two-step walks to the node at its end."""
    for slot in range(indptr_N1[node], indptr_N1[node + 1]):
        middle = neighbor_M[slot]
        fraction = 1 / degree_N[middle]
        for further in range(indptr_N1[middle], indptr_N1[middle + 1]):
            walk_N[neighbor_M[further]] += fraction


@njit(nogil=True, cache=True)
def _clear(indptr_N1, neighbor_M, node, num_walks, read_N, num_read, walk_N):
    """Forget the walks of a node: those at the nodes where they were read, or, where `num_read` is -1, all of them."""
    if num_read >= 0:
        for index in range(num_read):
            walk_N[read_N[index]] = 0
    elif num_walks > len(walk_N):
        walk_N[:] = 0
    else:
        for slot in range(indptr_N1[node], indptr_N1[node + 1]):
            middle = neighbor_M[slot]
            for further in range(indptr_N1[middle], indptr_N1[middle + 1]):
                walk_N[neighbor_M[further]] = 0


@njit(nogil=True, cache=True)
def edge_slots(indptr_N1, source_E, target_E):
    """Give the edge [M] of each slot of a symmetric matrix whose rows are sorted.

    The edges are sorted, and source < target: a node's edges to lower nodes come before those to higher ones.
    """
    edge_M, next_N = np.empty(2 * len(source_E), dtype=np.int32), indptr_N1[:-1].copy()
    for edge in range(len(source_E)):
        for node in (source_E[edge], target_E[edge]):
            edge_M[next_N[node]] = edge
            next_N[node] += 1
    return edge_M


@njit(nogil=True, cache=True)
def weighted_path_sums(indptr_N1, neighbor_M, edge_M, value_M, degree_N, weight_N, pair_2P):
    """Give the edge of each pair (-1: none), and `[P, 5]` sums over the walks between its ends.

    `edge_M` and `value_M` belong to the slots, and both slots of an edge have one value; `weight_N` belongs to common
    neighbours; `pair_2P` has first and second ends.
    The sums are the three of `path_sums`, and the two- and three-step walks in which a step counts its value.
    One pass over the slots of both ends gives all of them. Pairs with equal first ends must be adjacent, because the
    two-step walks of a first end are summed once for all its pairs.
    """
    first_P, second_P = pair_2P
    sums_P5, edge_P = np.zeros((len(first_P), 5)), np.full(len(first_P), -1, dtype=np.int64)
    is_neighbor_N, is_read_N = _unmarked(degree_N), _unmarked(degree_N)
    read_N, value_N = np.empty(len(degree_N), dtype=np.int32), np.zeros(len(degree_N))
    walk_N2 = np.zeros((len(degree_N), 2))  # plain and weighted sums side by side: one cache line serves both
    end = 0
    while end < len(first_P):
        start, node = end, first_P[end]
        while end < len(first_P) and first_P[end] == node:
            end += 1
        num_walks = _mark_neighbors(indptr_N1, neighbor_M, node, is_neighbor_N)
        _write_values(indptr_N1, neighbor_M, value_M, node, value_N)
        num_read = _read_by(indptr_N1, neighbor_M, second_P[start:end], num_walks, is_read_N, read_N)
        if num_read >= 0:
            direct = is_neighbor_N, value_N
            _pull_weighted(indptr_N1, neighbor_M, value_M, degree_N, read_N[:num_read], direct, walk_N2)
        else:
            _spread_weighted(indptr_N1, neighbor_M, value_M, degree_N, node, walk_N2)
        for pair in range(start, end):
            for slot in range(indptr_N1[second_P[pair]], indptr_N1[second_P[pair] + 1]):
                middle = neighbor_M[slot]
                if middle == node:
                    edge_P[pair] = edge_M[slot]
                if is_neighbor_N[middle]:
                    sums_P5[pair, 0] += 1
                    sums_P5[pair, 1] += weight_N[middle]
                    sums_P5[pair, 3] += value_N[middle] * value_M[slot]
                sums_P5[pair, 2] += walk_N2[middle, 0] / degree_N[middle]
                sums_P5[pair, 4] += walk_N2[middle, 1] * value_M[slot]
        _clear(indptr_N1, neighbor_M, node, num_walks, read_N, num_read, walk_N2)
        _unmark_neighbors(indptr_N1, neighbor_M, node, is_neighbor_N)
    return edge_P, sums_P5


@njit
def _write_values(indptr_N1, neighbor_M, value_M, node, value_N):
    for slot in range(indptr_N1[node], indptr_N1[node + 1]):
        value_N[neighbor_M[slot]] = value_M[slot]


@njit(nogil=True, cache=True)
def _pull_weighted(indptr_N1, neighbor_M, value_M, degree_N, read_X, own, walk_N2):
    """Sum the two-step walks that end at some nodes, in the order in which `_spread_weighted` adds them."""
    is_neighbor_N, value_N = own
    for node in read_X:
        plain, weighted = 0.0, 0.0
        for slot in range(indptr_N1[node], indptr_N1[node + 1]):
            middle = neighbor_M[slot]
            if is_neighbor_N[middle]:
                plain += 1 / degree_N[middle]
                weighted += value_N[middle] * value_M[slot]
        walk_N2[node, 0], walk_N2[node, 1] = plain, weighted


@njit(nogil=True, cache=True)
def _spread_weighted(indptr_N1, neighbor_M, value_M, degree_N, node, walk_N2):
    """Add each of a node's two-step walks to the node at its end."""
    for slot in range(indptr_N1[node], indptr_N1[node + 1]):
        middle = neighbor_M[slot]
        fraction, value = 1 / degree_N[middle], value_M[slot]
        for further in range(indptr_N1[middle], indptr_N1[middle + 1]):
            walk_N2[neighbor_M[further], 0] += fraction
            walk_N2[neighbor_M[further], 1] += value * value_M[further]
