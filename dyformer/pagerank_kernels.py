"""Personalized PageRank in compiled loops: the graph with its hubs first, Chebyshev iteration and forward push.

N nodes    N1 = N + 1    M slots of neighbours    G targets    B nodes of a block    K best nodes

Importing this module needs numba; `dyformer.pagerank` imports it where it is there and does without it otherwise.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dyformer.union_graph import TemporalUnionGraph

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class HubFirstGraph:
    """A graph whose nodes are numbered by falling degree: what is read most lies together, and rows of equal length.

    Slots are unsigned, as numba would look for negative positions in every signed one.
    """

    node_N: Int64s  # the node at each place
    place_N: Int64s  # the place of each node
    degree_N: Float64s  # of the node at each place; 1 where it has no neighbour
    indptr_N1: Int64s
    neighbor_M: NDArray[np.uint32]


def hub_first(union: TemporalUnionGraph) -> HubFirstGraph:
    """Renumber a graph's nodes by falling degree; made once a graph and kept with it.

    Two threads that ask at once may both make it: the same.
    """
    kept = vars(union)  # where its cached properties are kept as well
    if "hub_first" not in kept:
        kept["hub_first"] = _renumbered(union)
    return kept["hub_first"]


def _renumbered(union: TemporalUnionGraph) -> HubFirstGraph:
    degree_N = np.diff(union.indptr_N1)
    node_N = np.argsort(-degree_N, kind="stable")
    place_N = np.empty_like(node_N)
    place_N[node_N] = np.arange(union.num_nodes)
    indptr_N1 = np.zeros(union.num_nodes + 1, dtype=np.int64)
    np.cumsum(degree_N[node_N], out=indptr_N1[1:])
    from_N1, from_M = union.indptr_N1.astype(np.int64, copy=False), union.neighbor_M.astype(np.int32, copy=False)
    return HubFirstGraph(
        node_N=node_N,
        place_N=place_N,
        degree_N=np.maximum(degree_N[node_N], 1.0),
        indptr_N1=indptr_N1,
        neighbor_M=_moved_slots(from_N1, from_M, node_N, place_N),
    )


@njit(nogil=True, cache=True)
def _moved_slots(indptr_N1, neighbor_M, node_N, place_N):
    moved_M = np.empty(len(neighbor_M), dtype=np.uint32)
    end = 0
    for node in node_N:
        for slot in range(indptr_N1[node], indptr_N1[node + 1]):
            moved_M[end] = place_N[neighbor_M[slot]]
            end += 1
    return moved_M


def chebyshev_scores(graph: HubFirstGraph, targets_G: Int64s, teleport: float, num_iterations: int) -> Float64s:
    """Give the mean PageRank [N] of the targets, as `pagerank_solvers.chebyshev` does from their averaged seeds."""
    place_G = graph.place_N[targets_G]
    start_G = teleport / len(targets_G) / graph.degree_N[place_G]
    share_N = _chebyshev(
        graph.indptr_N1, graph.neighbor_M, 1 / graph.degree_N, place_G, start_G, teleport, num_iterations
    )
    score_N = np.empty_like(share_N)
    score_N[graph.node_N] = share_N * graph.degree_N
    return score_N


@njit(nogil=True, cache=True)
def _chebyshev(indptr_N1, neighbor_M, inverse_N, place_G, start_G, teleport, num_iterations):
    # Solves for D^-1 pi, so that a step adds up neighbours as they are; the older of two iterates is overwritten.
    before_N, now_N = np.zeros(len(inverse_N)), np.zeros(len(inverse_N))
    _add_at(now_N, place_G, start_G, 1.0)
    weight = 2.0
    for _ in range(num_iterations):
        weight = 1 / (1 - (1 - teleport) ** 2 * weight / 4)
        _chebyshev_step(indptr_N1, neighbor_M, inverse_N, before_N, now_N, weight, 1 - teleport)
        _add_at(before_N, place_G, start_G, weight)
        before_N, now_N = now_N, before_N
    return now_N


@njit(nogil=True, cache=True)
def _add_at(sum_N, place_G, start_G, weight):
    for target in range(len(place_G)):
        sum_N[place_G[target]] += weight * start_G[target]


@njit(nogil=True, cache=True)
def _chebyshev_step(indptr_N1, neighbor_M, inverse_N, before_N, now_N, weight, walk):
    for place in range(len(inverse_N)):
        total = 0.0
        for slot in range(indptr_N1[place], indptr_N1[place + 1]):
            total += now_N[neighbor_M[slot]]
        before_N[place] += weight * (walk * inverse_N[place] * total - before_N[place])


def pushed_best(
    graph: HubFirstGraph, node_B: Int64s, *, top_k: int, teleport: float, epsilon: float, tie: float
) -> tuple[Int64s, Float64s, Int64s]:
    """Give the best nodes [B, K] of each node's row, itself left out, their scores [B, K] and how many they are [B].

    Rows are those of `pagerank_solvers.pushed_rows`; scores that round to the same multiple of `tie` count as equal.
    """
    slots = graph.indptr_N1, graph.neighbor_M
    threshold_N = epsilon * graph.degree_N
    return _best_rows(slots, graph.node_N, threshold_N, graph.place_N[node_B], top_k, teleport, tie)


@njit(nogil=True, cache=True)
def _best_rows(slots, node_N, threshold_N, place_B, top_k, teleport, tie):
    shape, num_nodes = (len(place_B), top_k), len(node_N)
    best_BK, score_BK, num_best_B = np.empty(shape, np.int64), np.empty(shape), np.zeros(len(place_B), np.int64)
    settled_N, residual_N, touched_N = np.zeros(num_nodes), np.zeros(num_nodes), np.empty(num_nodes, np.uint32)
    fronts = np.empty(num_nodes, np.uint32), np.empty(num_nodes, np.uint32), np.empty(num_nodes)
    for row in range(len(place_B)):
        residual_N[place_B[row]] = 1.0
        touched_N[0] = place_B[row]
        num_touched = _push(slots, threshold_N, settled_N, residual_N, touched_N, fronts, teleport)
        _settle(touched_N[:num_touched], settled_N, residual_N, fronts[2], teleport)
        scores = touched_N[1:num_touched], fronts[2][1:num_touched]  # the first is the node itself
        num_best_B[row] = _take_best(node_N, scores, best_BK[row], score_BK[row], tie)
    return best_BK, score_BK, num_best_B


@njit(nogil=True, cache=True)
def _push(slots, threshold_N, settled_N, residual_N, touched_N, fronts, teleport):
    """Push all large residuals at once, from the one of the row's own node, until none is left."""
    front_N, next_N, pushed_N = fronts
    indptr_N1, neighbor_M = slots
    num_touched, num_front = 1, 1 if residual_N[touched_N[0]] >= threshold_N[touched_N[0]] else 0
    front_N[0] = touched_N[0]
    while num_front:
        for entry in range(num_front):
            place = front_N[entry]
            pushed_N[entry] = residual_N[place]
            settled_N[place] += teleport * residual_N[place]
            residual_N[place] = 0.0
        num_next = 0
        for entry in range(num_front):
            first, end = indptr_N1[front_N[entry]], indptr_N1[front_N[entry] + 1]
            share = (1 - teleport) * pushed_N[entry] / (end - first)
            for slot in range(first, end):
                neighbor = neighbor_M[slot]
                before = residual_N[neighbor]
                residual_N[neighbor] = before + share
                if before == 0.0 and settled_N[neighbor] == 0.0:
                    touched_N[num_touched] = neighbor
                    num_touched += 1
                if before < threshold_N[neighbor] <= before + share:
                    next_N[num_next] = neighbor
                    num_next += 1
        front_N, next_N, num_front = next_N, front_N, num_next
    return num_touched


@njit(nogil=True, cache=True)
def _settle(touched_A, settled_N, residual_N, score_N, teleport):
    for entry in range(len(touched_A)):
        place = touched_A[entry]
        score_N[entry] = settled_N[place] + teleport * residual_N[place]
        settled_N[place] = residual_N[place] = 0.0


@njit(nogil=True, cache=True)
def _take_best(node_N, scores, best_K, score_K, tie):
    num_best, least = 0, 0.0
    for entry in range(len(scores[0])):
        if scores[1][entry] >= least:
            num_best = _insert(best_K, score_K, num_best, node_N[scores[0][entry]], scores[1][entry], tie)
            least = score_K[-1] - 2 * tie if num_best == len(best_K) else 0.0
    return num_best


@njit(nogil=True, cache=True)
def _insert(best_K, score_K, num_best, node, score, tie):
    """Put a node where it belongs among the best so far; give their new number."""
    if num_best == len(best_K) and not _goes_before(node, score, best_K[-1], score_K[-1], tie):
        return num_best
    rank = min(num_best, len(best_K) - 1)
    while rank > 0 and _goes_before(node, score, best_K[rank - 1], score_K[rank - 1], tie):
        best_K[rank], score_K[rank] = best_K[rank - 1], score_K[rank - 1]
        rank -= 1
    best_K[rank], score_K[rank] = node, score
    return min(num_best + 1, len(best_K))


@njit(nogil=True, cache=True)
def _goes_before(node, score, other_node, other_score, tie):
    if abs(score - other_score) > 2 * tie:
        return score > other_score
    step, other_step = np.floor(score / tie + 0.5), np.floor(other_score / tie + 0.5)
    return step > other_step or (step == other_step and node < other_node)
