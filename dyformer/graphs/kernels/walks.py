"""Second-order random walks over the rows of a graph (Grover and Leskovec, 2016).

N nodes    N1 = N + 1    M slots of neighbours    S walks    L nodes of a walk
"""

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def second_order_walks(indptr_N1, neighbor_M, start_S, length, biases, generator):
    """Give one walk from each start, [S, L]; a walk stays at a node without neighbours.

    `biases` are the weights 1/p of the node before, 1 of its neighbours, and 1/q of the other nodes. A neighbour is
    drawn with equal chances and accepted in proportion to its weight, which needs no table of pairs of edges
    (KnightKing; Yang et al., 2019).
    """
    back, near, away = biases
    highest = max(back, near, away)
    walk_SL = np.empty((len(start_S), length), dtype=np.int32)
    for row in range(len(start_S)):
        before, node = -1, start_S[row]
        walk_SL[row, 0] = node
        for position in range(1, length):
            first, degree = indptr_N1[node], indptr_N1[node + 1] - indptr_N1[node]
            following = node
            while degree > 0:
                following = neighbor_M[first + int(generator.random() * degree)]
                if before < 0:
                    break
                weight = away
                if following == before:
                    weight = back
                elif _is_edge(indptr_N1, neighbor_M, before, following):
                    weight = near
                if generator.random() * highest < weight:
                    break
            before, node = node, following
            walk_SL[row, position] = node
    return walk_SL


@njit(nogil=True, cache=True)
def _is_edge(indptr_N1, neighbor_M, node, other):
    """Search a node's sorted neighbours for another one."""
    low, high = indptr_N1[node], indptr_N1[node + 1]
    while low < high:
        middle = (low + high) // 2
        if neighbor_M[middle] < other:
            low = middle + 1
        else:
            high = middle
    return low < indptr_N1[node + 1] and neighbor_M[low] == other
