"""Compiled walks of two and three steps between pairs: plain ones, and plain and weighted ones in one pass.

N nodes    N1 = N + 1    M slots of both directions    E edges    P pairs, sorted by their first end
"""

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def path_sums(indptr_N1, neighbor_M, degree_N, weight_N, first_P, second_P):
    """Give for each pair the number of common neighbours, the sum of their weights, and the three-step walks `[3, P]`.

    A walk a-m-n-b counts as 1 / (degree of m x degree of n). Pairs with equal first ends must follow each other,
    because the two-step walks of a first end are summed once for all of its pairs.
    """
    sums_3P = np.zeros((3, len(first_P)))
    is_neighbor_N = np.zeros(len(degree_N), dtype=np.bool_)
    walk_N = np.zeros(len(degree_N))
    end = 0
    while end < len(first_P):
        start, node = end, first_P[end]
        num_walks = _spread(indptr_N1, neighbor_M, degree_N, node, is_neighbor_N, walk_N)
        while end < len(first_P) and first_P[end] == node:
            end += 1
        for pair in range(start, end):
            for slot in range(indptr_N1[second_P[pair]], indptr_N1[second_P[pair] + 1]):
                middle = neighbor_M[slot]
                if is_neighbor_N[middle]:
                    sums_3P[0, pair] += 1
                    sums_3P[1, pair] += weight_N[middle]
                sums_3P[2, pair] += walk_N[middle] / degree_N[middle]
        _clear(indptr_N1, neighbor_M, node, num_walks, is_neighbor_N, walk_N)
    return sums_3P


@njit(nogil=True, cache=True)
def _spread(indptr_N1, neighbor_M, degree_N, node, is_neighbor_N, walk_N):
    """Mark a node's neighbours, add each of its two-step walks to the node at its end, and count these walks."""
    num_walks = 0
    for slot in range(indptr_N1[node], indptr_N1[node + 1]):
        middle = neighbor_M[slot]
        is_neighbor_N[middle] = True
        fraction = 1 / degree_N[middle]
        first, last = indptr_N1[middle], indptr_N1[middle + 1]
        num_walks += last - first
        for further in range(first, last):
            walk_N[neighbor_M[further]] += fraction
    return num_walks


@njit(nogil=True, cache=True)
def _clear(indptr_N1, neighbor_M, node, num_walks, is_neighbor_N, walk_N):
    for slot in range(indptr_N1[node], indptr_N1[node + 1]):
        is_neighbor_N[neighbor_M[slot]] = False
    if num_walks > len(walk_N):
        walk_N[:] = 0
        return
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
    """Give the edge of each pair (-1: none), and `[5, P]` sums over the walks between its ends.

    `edge_M` and `value_M` belong to the slots, `weight_N` to common neighbours; `pair_2P` has first and second ends.
    The sums are the three of `path_sums`, and the two- and three-step walks in which a step counts its value.
    One pass over the slots of both ends gives all of them. Pairs with equal first ends must be adjacent, because the
    two-step walks of a first end are summed once for all its pairs.
    """
    first_P, second_P = pair_2P
    sums_5P = np.zeros((5, len(first_P)))
    edge_P = np.full(len(first_P), -1, dtype=np.int64)
    is_neighbor_N = np.zeros(len(degree_N), dtype=np.bool_)
    walk_N2 = np.zeros((len(degree_N), 2))  # plain and weighted sums side by side: one cache line serves both
    end = 0
    while end < len(first_P):
        start, node = end, first_P[end]
        num_walks = _spread_weighted(indptr_N1, neighbor_M, value_M, degree_N, node, is_neighbor_N, walk_N2)
        while end < len(first_P) and first_P[end] == node:
            end += 1
        for pair in range(start, end):
            sums_5P[3, pair] = walk_N2[second_P[pair], 1]
            for slot in range(indptr_N1[second_P[pair]], indptr_N1[second_P[pair] + 1]):
                middle = neighbor_M[slot]
                if middle == node:
                    edge_P[pair] = edge_M[slot]
                if is_neighbor_N[middle]:
                    sums_5P[0, pair] += 1
                    sums_5P[1, pair] += weight_N[middle]
                sums_5P[2, pair] += walk_N2[middle, 0] / degree_N[middle]
                sums_5P[4, pair] += walk_N2[middle, 1] * value_M[slot]
        _clear(indptr_N1, neighbor_M, node, num_walks, is_neighbor_N, walk_N2)
    return edge_P, sums_5P


@njit(nogil=True, cache=True)
def _spread_weighted(indptr_N1, neighbor_M, value_M, degree_N, node, is_neighbor_N, walk_N2):
    """Mark a node's neighbours, add up its two-step walks where they end, and count them."""
    num_walks = 0
    for slot in range(indptr_N1[node], indptr_N1[node + 1]):
        middle = neighbor_M[slot]
        is_neighbor_N[middle] = True
        fraction, value = 1 / degree_N[middle], value_M[slot]
        first, last = indptr_N1[middle], indptr_N1[middle + 1]
        num_walks += last - first
        for further in range(first, last):
            walk_N2[neighbor_M[further], 0] += fraction
            walk_N2[neighbor_M[further], 1] += value * value_M[further]
    return num_walks
