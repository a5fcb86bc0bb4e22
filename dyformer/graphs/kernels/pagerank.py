"""Personalized PageRank in compiled loops over the hub-first graph: Chebyshev iteration and two kinds of push.

To push is to add a node's value to all of its neighbours; to pull is to sum the values of a node's neighbours. Because
the hubs (nodes with the most neighbours) are numbered first, the values that are read most often lie together.

N nodes    N1 = N + 1    M slots of neighbours    G targets    B nodes of a block    K best nodes    A nodes touched
R rounds    J components    C candidates
"""

import numpy as np
from numba import njit

PUSHED = 1e-300  # residual after a push: too small to matter, but not 0, which marks a node that was never touched
PUSHED_FRACTION = (
    0.25  # pushing is faster than pulling while the nonzero nodes have less than this fraction of all slots
)


@njit(nogil=True, cache=True)
def chebyshev(indptr_N1, neighbor_M, number_N, target_G, teleport, num_iterations):
    """Give the personalized PageRank [N], averaged over the targets, by Chebyshev iteration."""
    # An iterate is PageRank divided by the degree, so an iteration sums neighbours without weights. The new iterate
    # overwrites the one before the last.
    before_N, now_N, total_N = np.zeros(len(number_N)), np.zeros(len(number_N)), np.zeros(len(number_N))
    start = teleport / len(target_G)
    _restart(now_N, indptr_N1, target_G, start)
    weight, is_pushed = 2.0, True
    for _ in range(num_iterations):
        weight = 1 / (1 - (1 - teleport) ** 2 * weight / 4)
        is_pushed = is_pushed and _num_read(indptr_N1, now_N) < PUSHED_FRACTION * len(neighbor_M)
        if is_pushed:
            _push_step(indptr_N1, neighbor_M, before_N, now_N, total_N, weight, 1 - teleport)
        else:
            _pull_step(indptr_N1, neighbor_M, before_N, now_N, weight, 1 - teleport)
        _restart(before_N, indptr_N1, target_G, weight * start)
        before_N, now_N = now_N, before_N
    for node in range(len(number_N)):
        before_N[node] = now_N[number_N[node]] * _degree(indptr_N1, number_N[node])
    return before_N


@njit(nogil=True, cache=True)
def _degree(indptr_N1, node):
    return max(indptr_N1[node + 1] - indptr_N1[node], 1)


@njit(nogil=True, cache=True)
def _restart(score_N, indptr_N1, target_G, mass):
    for target in target_G:
        score_N[target] += mass / _degree(indptr_N1, target)


@njit(nogil=True, cache=True)
def _num_read(indptr_N1, now_N):
    """Count the slots of the nonzero nodes."""
    num_slots = 0
    for node in range(len(now_N)):
        if now_N[node] != 0.0:
            num_slots += indptr_N1[node + 1] - indptr_N1[node]
    return num_slots


@njit(nogil=True, cache=True)
def _push_step(indptr_N1, neighbor_M, before_N, now_N, total_N, weight, walk):
    """Iterate once by pushing from the few nonzero nodes; the sums add their terms in the same order as by pulling."""
    total_N[:] = 0.0
    for node in range(len(now_N)):
        if now_N[node] != 0.0:
            for slot in range(indptr_N1[node], indptr_N1[node + 1]):
                total_N[neighbor_M[slot]] += now_N[node]
    for node in range(len(before_N)):
        before_N[node] += weight * (walk * total_N[node] / _degree(indptr_N1, node) - before_N[node])


@njit(nogil=True, cache=True)
def _pull_step(indptr_N1, neighbor_M, before_N, now_N, weight, walk):
    for node in range(len(before_N)):
        total = 0.0
        for slot in range(indptr_N1[node], indptr_N1[node + 1]):
            total += now_N[neighbor_M[slot]]
        before_N[node] += weight * (walk * total / _degree(indptr_N1, node) - before_N[node])


@njit(nogil=True, cache=True)
def push_rounds(lists, num_slots_J, target_G, weight_R, threshold, teleport):
    """Push mass from the targets in rounds; give the nodes reached [A] without the targets and their scores [A].

    The scores [N] divided by the degrees and the rest of the mass for each slot [J] follow, for `pull_once`.
    """
    # The mass of a node belongs to walkers who are still to continue. A component's masses and scores together keep
    # their sum, whatever is pushed: a node whose mass is too small for a round keeps it.
    indptr_N1, neighbor_M, component_N = lists
    mass_N, score_N, sent_N = np.zeros(len(component_N)), np.zeros(len(component_N)), np.empty(len(component_N))
    front_N, mass_J = np.empty(len(component_N), np.uint32), np.zeros(len(num_slots_J))
    for target in target_G:
        mass_N[target] += 1 / len(target_G)
        mass_J[component_N[target]] += 1 / len(target_G)
    for weight in weight_R:
        num_front = _front(indptr_N1, mass_N, front_N, threshold / weight)
        for entry in range(num_front):
            node = front_N[entry]
            pushed = weight * mass_N[node]
            mass_N[node] -= pushed
            score_N[node] += teleport * pushed / _degree(indptr_N1, node)
            mass_J[component_N[node]] -= teleport * pushed
            sent_N[entry] = (1 - teleport) * pushed / _degree(indptr_N1, node)
        for entry in range(num_front):
            for slot in range(indptr_N1[front_N[entry]], indptr_N1[front_N[entry] + 1]):
                mass_N[neighbor_M[slot]] += sent_N[entry]
    is_target_N = np.zeros(len(component_N), np.bool_)
    for target in target_G:
        score_N[target] += teleport * mass_N[target] / _degree(indptr_N1, target)
        mass_N[target], is_target_N[target] = 0.0, True
    num_front = _others(is_target_N, mass_N, score_N, front_N)
    rest_J = (1 - teleport) * mass_J / np.maximum(num_slots_J, 1)
    for entry in range(num_front):
        node = front_N[entry]
        score_N[node] += teleport * mass_N[node] / _degree(indptr_N1, node)
        sent_N[entry] = (score_N[node] + rest_J[component_N[node]]) * _degree(indptr_N1, node)
    return front_N[:num_front].copy(), sent_N[:num_front].copy(), score_N, rest_J


@njit
def _others(is_target_N, mass_N, score_N, front_N):
    """List the nodes reached that are no targets; give their number."""
    num_front = 0
    for node in range(len(mass_N)):  # as in `_front`; masses of both signs may cancel where a score is left
        front_N[num_front] = node
        num_front += ~is_target_N[node] & ((mass_N[node] != 0.0) | (score_N[node] != 0.0))
    return num_front


@njit
def _front(indptr_N1, mass_N, front_N, threshold):
    """List the nodes whose mass for each slot reaches the threshold; give their number."""
    # All nodes are passed over in their order and without a branch: up to some million nodes that takes less time than
    # a list of the nodes reached, whose order in memory is random.
    num_front = 0
    for node in range(len(mass_N)):
        front_N[num_front] = node
        is_enough = abs(mass_N[node]) >= threshold * (indptr_N1[node + 1] - indptr_N1[node])
        num_front += is_enough & (mass_N[node] != 0.0)
    return num_front


@njit(nogil=True, cache=True)
def pull_once(lists, node_C, slot_N, rest_J, teleport):
    """Give the scores [C] of nodes that are no targets, from the scores of their neighbours divided by the degrees."""
    indptr_N1, neighbor_M, component_N = lists
    score_C = np.empty(len(node_C))
    for entry in range(len(node_C)):
        first, end = indptr_N1[node_C[entry]], indptr_N1[node_C[entry] + 1]
        total = (end - first) * rest_J[component_N[node_C[entry]]]
        for slot in range(first, end):
            total += slot_N[neighbor_M[slot]]
        score_C[entry] = (1 - teleport) * total
    return score_C


@njit(nogil=True, cache=True)
def best_rows(slots, node_N, threshold_N, own_B, top_k, teleport, tie):
    """Give the nodes with the highest PageRank [B, K] for each node of the block, without itself, by forward push.

    Their scores [B, K] and their number [B] follow.
    """
    shape, num_nodes = (len(own_B), top_k), len(node_N)
    best_BK, score_BK, num_best_B = np.empty(shape, np.int64), np.empty(shape), np.zeros(len(own_B), np.int64)
    settled_N, residual_N, touched_N = np.zeros(num_nodes), np.zeros(num_nodes), np.empty(num_nodes, np.uint32)
    fronts = np.empty(num_nodes, np.uint32), np.empty(num_nodes, np.uint32), np.empty(num_nodes)
    for row in range(len(own_B)):
        residual_N[own_B[row]] = 1.0
        touched_N[0] = own_B[row]
        num_touched = _push(slots, threshold_N, settled_N, residual_N, touched_N, fronts, teleport)
        _settle(touched_N[:num_touched], settled_N, residual_N, fronts[2], teleport)
        scores = touched_N[1:num_touched], fronts[2][1:num_touched]  # the first is the node itself
        num_best_B[row] = _take_best(node_N, scores, best_BK[row], score_BK[row], tie)
    return best_BK, score_BK, num_best_B


@njit(nogil=True, cache=True)
def _push(slots, threshold_N, settled_N, residual_N, touched_N, fronts, teleport):
    """Push the first node, then all residuals that reach their node's threshold at once, until there is none."""
    front_N, next_N, pushed_N = fronts
    indptr_N1, neighbor_M = slots
    num_touched, num_front = 1, 1
    front_N[0] = touched_N[0]  # in any case: the threshold of a node with very many neighbours is above 1
    while num_front:
        for entry in range(num_front):
            node = front_N[entry]
            pushed_N[entry] = residual_N[node]
            settled_N[node] += teleport * residual_N[node]
            residual_N[node] = PUSHED
        num_next = 0
        for entry in range(num_front):
            first, end = indptr_N1[front_N[entry]], indptr_N1[front_N[entry] + 1]
            mass = (1 - teleport) * pushed_N[entry] / (end - first)
            for slot in range(first, end):
                neighbor = neighbor_M[slot]
                before = residual_N[neighbor]
                residual_N[neighbor] = before + mass
                if before == 0.0:
                    touched_N[num_touched] = neighbor
                    num_touched += 1
                if before < threshold_N[neighbor] <= before + mass:
                    next_N[num_next] = neighbor
                    num_next += 1
        front_N, next_N, num_front = next_N, front_N, num_next
    return num_touched


@njit(nogil=True, cache=True)
def _settle(touched_A, settled_N, residual_N, score_N, teleport):
    for entry in range(len(touched_A)):
        node = touched_A[entry]
        score_N[entry] = settled_N[node] + teleport * residual_N[node]
        settled_N[node] = residual_N[node] = 0.0


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
    """Insert a node into the sorted list of the best so far; give the list's new length."""
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
