"""Adjacency -> random walks, and the pairs of nodes near each other on them.

N nodes, N1 = N + 1    M slots of neighbours    S walks    L nodes of a walk    A = S L    B nodes    P pairs
"""

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy import sparse

from dyformer.sampling.pairs import Pairs


def random_walks(
    adjacency: sparse.csr_array,
    generator: np.random.Generator,
    *,
    num_walks: int,
    length: int,
    return_parameter: float = 1.0,
    in_out_parameter: float = 1.0,
) -> NDArray[np.int32]:
    """Give `num_walks` walks of `length` nodes from every node with an edge, in random order, [S, L].

    A step back has the weight 1 / `return_parameter` (p), one to a neighbour of the node before 1, and any other one
    1 / `in_out_parameter` (q). The rows of the adjacency are sorted; its values are not read.
    """
    start_S = np.repeat(np.flatnonzero(np.diff(adjacency.indptr)), num_walks)
    biases = (1 / return_parameter, 1.0, 1 / in_out_parameter)
    start_S = generator.permutation(start_S)
    return _second_order_walks(adjacency.indptr, adjacency.indices, start_S, length, biases, generator)


@njit(nogil=True, cache=True)
def _second_order_walks(indptr_N1, neighbor_M, start_S, length, biases, generator):
    """Give one walk from each start (Grover and Leskovec, 2016), [S, L]; a walk stays at a node without neighbours.

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


@dataclass(frozen=True, kw_only=True)
class WalkContexts:
    """Walks with the positions of every node on them, from which nodes near a given one are drawn."""

    walk_SL: NDArray[np.int32]
    position_A: NDArray[np.int64]  # positions in the flat walks, by node
    indptr_N1: NDArray[np.int64]  # the positions of node i are `indptr_N1[i] : indptr_N1[i + 1]`

    def draw(self, node_B: NDArray[np.int64], num: int, window: int, generator: np.random.Generator) -> Pairs:
        """Draw `num` nodes near each given node that is on a walk; drop pairs of a node with itself.

        One of the node's positions is drawn, and another position of the walk at most `window` from it.
        """
        length = self.walk_SL.shape[1]
        first_P = np.repeat(node_B[np.diff(self.indptr_N1)[node_B] > 0], num)
        start_P, end_P = self.indptr_N1[first_P], self.indptr_N1[first_P + 1]
        position_P = self.position_A[generator.integers(start_P, end_P)]
        slot_P = position_P % length
        low_P, high_P = np.maximum(slot_P - window, 0), np.minimum(slot_P + window, length - 1)
        other_P = generator.integers(low_P, high_P)  # of the others in reach: the position itself is left out
        other_P += other_P >= slot_P
        second_P = self.walk_SL.ravel()[position_P - slot_P + other_P].astype(np.int64)
        differs_P = first_P != second_P
        return first_P[differs_P], second_P[differs_P]


def walk_contexts(walk_SL: NDArray[np.int32], num_nodes: int) -> WalkContexts:
    """Sort the positions of walks by node."""
    count_N = np.bincount(walk_SL.ravel(), minlength=num_nodes)
    return WalkContexts(
        walk_SL=walk_SL,
        position_A=np.argsort(walk_SL, axis=None, kind="stable"),
        indptr_N1=np.concatenate([[0], np.cumsum(count_N)]),
    )
