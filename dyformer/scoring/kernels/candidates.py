"""Compiled lists of the pairs that a forecast compares on a graph too large to compare all pairs.

N nodes    N1 = N + 1    M slots of neighbours    B bridges of a node    T its most popular neighbours, or more
K nodes of its PageRank row    C candidates of a node    A query nodes    R pairs    B best ones
"""

import numpy as np
from numba import njit

NEW, POPULAR, REFUSED = np.uint8(0), np.uint8(1), np.uint8(2)


@njit(nogil=True, cache=True)
def first_neighbors(indptr_N1, neighbor_M, num, most_popular):
    """Give `num` neighbours of each node [N, num], the least or the most popular first; -1 where it has fewer.

    Equally popular ones come by number, and a node's neighbours are sorted.
    """
    first_NT = np.full((len(indptr_N1) - 1, num), -1, dtype=np.int32)
    for node in range(len(first_NT)):
        size, own_T = 0, first_NT[node]
        for slot in range(indptr_N1[node], indptr_N1[node + 1]):
            neighbor = neighbor_M[slot]
            degree = indptr_N1[neighbor + 1] - indptr_N1[neighbor]
            rank = size
            while rank > 0:
                other = indptr_N1[own_T[rank - 1] + 1] - indptr_N1[own_T[rank - 1]]
                if other >= degree if most_popular else other <= degree:
                    break
                if rank < num:
                    own_T[rank] = own_T[rank - 1]
                rank -= 1
            if rank < num:
                own_T[rank] = neighbor
                size = min(size + 1, num)
    return first_NT


@njit(nogil=True, cache=True)
def longer_bridges(bridge_NB):
    """Give the bridges of the bridges [N, B] of each node, without itself: those to which most ways lead come first."""
    num_nodes, num = bridge_NB.shape
    longer_NB = np.full((num_nodes, num), -1, dtype=np.int32)
    key_W = np.empty(num * num, dtype=np.int64)
    for node in range(num_nodes):
        ways = 0
        for bridge in bridge_NB[node]:
            if bridge >= 0:
                for further in bridge_NB[bridge]:
                    if further >= 0 and further != node:
                        key_W[ways] = further
                        ways += 1
        counted = _counted(np.sort(key_W[:ways]), key_W, num_nodes)
        first_W = np.sort(key_W[:counted])[:num]
        for rank in range(len(first_W)):
            longer_NB[node, rank] = first_W[rank] % num_nodes
    return longer_NB


@njit(nogil=True, cache=True)
def _counted(sorted_W, key_W, num_nodes):
    """Write a key for each distinct node, the smaller the more often it is there; give the number of keys."""
    num_found, start = 0, 0
    for way in range(1, len(sorted_W) + 1):
        if way == len(sorted_W) or sorted_W[way] != sorted_W[start]:
            key_W[num_found] = (len(sorted_W) - (way - start)) * num_nodes + sorted_W[start]
            num_found, start = num_found + 1, way
    return num_found


@njit(nogil=True, cache=True)
def best_candidates(slots, query_A, bridge_NB, popular_NT, near, num_candidates):
    """Give the candidates [A, C] of each query node in ascending order; -1 comes last where it has fewer.

    `near` has the nodes [A, K] of its PageRank row, their scores [A, K], and their number [A].
    """
    near_AK, score_AK, num_near_A = near
    num_nodes = len(slots[0]) - 1
    candidate_AC = np.full((len(query_A), num_candidates), -1, dtype=np.int64)
    state_N = np.zeros(num_nodes, dtype=np.uint8)  # of each node for this query: NEW, POPULAR or REFUSED
    popular_X = np.empty(bridge_NB.shape[1] * popular_NT.shape[1], dtype=np.int64)
    score_C = np.empty(num_candidates)
    for row in range(len(query_A)):
        node, own_C = query_A[row], candidate_AC[row]
        _set_neighbors(state_N, slots, node, REFUSED)
        num_popular = _mark_popular(popular_X, state_N, bridge_NB[node], popular_NT)
        size = 0
        for column in range(num_near_A[row]):
            if state_N[near_AK[row, column]] != REFUSED:
                size = _insert(own_C, score_C, size, near_AK[row, column], score_AK[row, column], state_N, slots[0])
        for entry in range(size):
            state_N[own_C[entry]] = REFUSED
        near_by = size
        size = _fill_popular(own_C, size, popular_X[:num_popular], state_N, slots[0])
        for entry in range(near_by):
            state_N[own_C[entry]] = NEW
        for entry in range(num_popular):
            state_N[popular_X[entry]] = NEW
        _set_neighbors(state_N, slots, node, NEW)
        own_C[:size] = np.sort(own_C[:size])
    return candidate_AC


@njit(nogil=True, cache=True)
def _set_neighbors(state_N, slots, node, state):
    """Set the state of a node and of its neighbours."""
    indptr_N1, neighbor_M = slots
    state_N[node] = state
    for slot in range(indptr_N1[node], indptr_N1[node + 1]):
        state_N[neighbor_M[slot]] = state


@njit(nogil=True, cache=True)
def _mark_popular(popular_X, state_N, bridge_B, popular_NT):
    """List the popular neighbours of the bridges, each once, and mark them; give their number."""
    size = 0
    for bridge in bridge_B:
        if bridge < 0:
            break
        for popular in popular_NT[bridge]:
            if popular >= 0 and state_N[popular] == NEW:
                state_N[popular] = POPULAR
                popular_X[size] = popular
                size += 1
    return size


@njit(nogil=True, cache=True)
def _insert(own_C, score_C, size, node, score, state_N, indptr_N1):
    """Insert a node by its score; of equal scores first come popular nodes by degree, then the lower number."""
    rank = size
    while rank > 0 and _goes_before(node, score, own_C[rank - 1], score_C[rank - 1], state_N, indptr_N1):
        if rank < len(own_C):
            own_C[rank], score_C[rank] = own_C[rank - 1], score_C[rank - 1]
        rank -= 1
    if rank < len(own_C):
        own_C[rank], score_C[rank] = node, score
        size = min(size + 1, len(own_C))
    return size


@njit(nogil=True, cache=True)
def _goes_before(node, score, other, other_score, state_N, indptr_N1):
    if score != other_score:
        return score > other_score
    degree = indptr_N1[node + 1] - indptr_N1[node] if state_N[node] == POPULAR else 0
    other_degree = indptr_N1[other + 1] - indptr_N1[other] if state_N[other] == POPULAR else 0
    return degree > other_degree or (degree == other_degree and node < other)


@njit(nogil=True, cache=True)
def _fill_popular(own_C, size, popular_X, state_N, indptr_N1):
    """Add the most popular ones of those that are not refused; give the number of candidates."""
    num_nodes, num_keys, key_X = len(indptr_N1) - 1, 0, np.empty(len(popular_X), dtype=np.int64)
    for popular in popular_X:
        if state_N[popular] == POPULAR:
            degree = indptr_N1[popular + 1] - indptr_N1[popular]
            key_X[num_keys] = (num_nodes - degree) * num_nodes + popular
            num_keys += 1
    key_X = np.sort(key_X[:num_keys])
    for entry in range(min(num_keys, len(own_C) - size)):
        own_C[size] = key_X[entry] % num_nodes
        size += 1
    return size


@njit(nogil=True, cache=True)
def best_of_groups(node_R, partner_R, score_R, num):
    """Give the positions [B] of the `num` best pairs of each node, and their ranks from 1; pairs are grouped by node.

    Equal scores are ranked by the partner's number.
    """
    num_best, size = 0, 0
    for pair in range(len(node_R)):
        size = 1 if pair == 0 or node_R[pair] != node_R[pair - 1] else size + 1
        num_best += size <= num
    best_B, rank_B = np.empty(num_best, dtype=np.int64), np.empty(num_best, dtype=np.int64)
    first, size = 0, 0
    for pair in range(len(node_R)):
        if pair > 0 and node_R[pair] != node_R[pair - 1]:
            first, size = first + size, 0
        rank = size
        while rank > 0:
            other = best_B[first + rank - 1]
            if score_R[pair] < score_R[other] or (
                score_R[pair] == score_R[other] and partner_R[pair] > partner_R[other]
            ):
                break
            if rank < num:
                best_B[first + rank] = other
            rank -= 1
        if rank < num:
            best_B[first + rank] = pair
            size = min(size + 1, num)
            rank_B[first + size - 1] = size
    return best_B, rank_B
