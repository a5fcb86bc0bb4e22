"""Compiled walks of two and three steps between pairs: plain ones, and plain and weighted ones in one pass.

N nodes    N1 = N + 1    M slots of both directions    E edges    P pairs, sorted by their first end
X nodes, such as those at which walks are read    H hubs    Y slots that lead to hubs
"""

import numpy as np
from numba import njit

LISTED = 8  # walks for each slot of a second end, from which on the nodes that are read are listed
PULLED = 4  # slots that are read in the time in which a walk is added
NEIGHBOR, HUB = np.uint8(1), np.uint8(2)  # marks of the neighbours of a first end


@njit(nogil=True, cache=True)
def path_sums(indptr_N1, neighbor_M, degree_N, weight_N, first_P, second_P):
    """Give for each pair the number of common neighbours, the sum of their weights, and the three-step walks `[3, P]`.

    A walk a-m-n-b counts as 1 / (degree of m x degree of n). Pairs with equal first ends must follow each other,
    because the two-step walks of a first end are summed once for all of its pairs.
    """
    sums_3P = np.zeros((3, len(first_P)))
    is_neighbor_N, is_read_N = _unmarked(degree_N), _unmarked(degree_N)
    no_hub_N = np.full(len(degree_N), -1, dtype=np.int32)
    read_N, walk_N = np.empty(len(degree_N), dtype=np.int32), np.zeros(len(degree_N))
    end = 0
    while end < len(first_P):
        start, node = end, first_P[end]
        while end < len(first_P) and first_P[end] == node:
            end += 1
        num_walks = _mark_neighbors(indptr_N1, neighbor_M, node, is_neighbor_N)
        num_read = _read_by(indptr_N1, neighbor_M, second_P[start:end], num_walks, no_hub_N, is_read_N, read_N)
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
def _read_by(indptr_N1, neighbor_M, second_P, num_walks, hub_N, is_read_N, read_N):
    """List the nodes at which the walks of a first end are read, the neighbours of its second ends; give their number.

    Hubs are left out: `_spread_to_hubs` adds the walks that end there.

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
            if hub_N[middle] < 0 and not is_read_N[middle]:
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
def hub_walks(slots, degree_N, hubs, num_hubs, node_X):
    """Sum the two-step walks from some nodes to each hub, plain ones and weighted ones, `[X, H, 2]`.

    A plain one counts as 1 / degree of the middle. `slots` and `hubs` are those of `weighted_path_sums`, but that
    `hubs` has no sums yet.
    """
    indptr_N1, neighbor_M, _, value_M = slots
    hub_N, hub_indptr_N1, hub_slot_Y = hubs
    walk_XH2, sum_H2 = np.empty((len(node_X), num_hubs, 2), dtype=np.float32), np.empty((num_hubs, 2))
    for row, node in enumerate(node_X):
        sum_H2[:] = 0
        for slot in range(indptr_N1[node], indptr_N1[node + 1]):
            middle = neighbor_M[slot]
            for further in hub_slot_Y[hub_indptr_N1[middle] : hub_indptr_N1[middle + 1]]:
                hub = hub_N[neighbor_M[further]]
                sum_H2[hub, 0] += 1 / degree_N[middle]
                sum_H2[hub, 1] += value_M[slot] * value_M[further]
        walk_XH2[row] = sum_H2
    return walk_XH2


@njit(nogil=True, cache=True)
def weighted_path_sums(slots, node_values, hubs, pair_3P):
    """Give the edge of each pair (-1: none), and `[P, 5]` sums over the walks between its ends.

    `slots` are those of the rows: where each begins, the neighbours, their edges and their values, and both slots of an
    edge have one value; `node_values` are the degree of a node and its weight as a common neighbour; `pair_3P` has
    first and second ends, and the row of each second end in the `hub_walks`.
    The sums are the three of `path_sums`, and the two- and three-step walks in which a step counts its value.
    One pass over the slots of both ends gives all of them. Pairs with equal first ends must be adjacent, because the
    two-step walks of a first end are summed once for all its pairs.

    `hubs` are the busiest nodes, through which most walks lead: the number of each among them (-1: another node), where
    a node's slots with hubs begin, these slots, and `hub_walks` of all second ends. The walks from a first end whose
    first step leads to a hub are not made: the sums of the second end to this hub have them.
    """
    indptr_N1, neighbor_M, edge_M, value_M = slots
    degree_N, weight_N = node_values
    first_P, second_P, row_P = pair_3P
    sums_P5, edge_P = np.zeros((len(first_P), 5)), np.full(len(first_P), -1, dtype=np.int32)
    mark_N, is_read_N = np.zeros(len(degree_N), dtype=np.uint8), _unmarked(degree_N)
    read_N, value_N = np.empty(len(degree_N), dtype=np.int32), np.zeros(len(degree_N))
    scratch = mark_N, value_N, is_read_N, read_N
    walk_N2 = np.zeros((len(degree_N), 2))  # plain and weighted sums side by side: one cache line serves both
    end = 0
    while end < len(first_P):
        start, node = end, first_P[end]
        while end < len(first_P) and first_P[end] == node:
            end += 1
        counts = _walk(slots, degree_N, (node, second_P[start:end]), hubs, scratch, walk_N2)
        for pair in range(start, end):
            for slot in range(indptr_N1[second_P[pair]], indptr_N1[second_P[pair] + 1]):
                middle = neighbor_M[slot]
                if middle == node:
                    edge_P[pair] = edge_M[slot]
                if mark_N[middle]:
                    sums_P5[pair, 0] += 1
                    sums_P5[pair, 1] += weight_N[middle]
                    sums_P5[pair, 3] += value_N[middle] * value_M[slot]
                sums_P5[pair, 2] += walk_N2[middle, 0] / degree_N[middle]
                sums_P5[pair, 4] += walk_N2[middle, 1] * value_M[slot]
            _add_by_hubs(slots, degree_N, (node, row_P[pair]), hubs, sums_P5[pair])
        _clear_apart(slots, node, counts, hubs, read_N, walk_N2)
        _unmark_neighbors(indptr_N1, neighbor_M, node, mark_N)
    return edge_P, sums_P5


@njit(nogil=True, cache=True)
def _walk(slots, degree_N, ends, hubs, scratch, walk_N2):
    """Sum a node's two-step walks that no hub is the middle of where its second ends read them.

    Gives the number of these walks, and of the nodes where they are read: -1 where that is at all nodes.
    """
    indptr_N1, neighbor_M, _, value_M = slots
    node, second_P = ends
    mark_N, value_N, is_read_N, read_N = scratch
    num_walks = _mark_apart(indptr_N1, neighbor_M, node, hubs[0], mark_N)
    _write_values(indptr_N1, neighbor_M, value_M, node, value_N)
    num_read = _read_by(indptr_N1, neighbor_M, second_P, num_walks, hubs[0], is_read_N, read_N)
    if num_read >= 0:
        _pull_weighted(slots, degree_N, read_N[:num_read], (mark_N, value_N), walk_N2)
        _spread_to_hubs(slots, degree_N, node, hubs, walk_N2)
    else:
        _spread_weighted(slots, degree_N, node, hubs[0], walk_N2)
    return num_walks, num_read


@njit
def _mark_apart(indptr_N1, neighbor_M, node, hub_N, mark_N):
    """Mark a node's neighbours, hubs otherwise than others; give the number of its two-step walks through others."""
    num_walks = 0
    for slot in range(indptr_N1[node], indptr_N1[node + 1]):
        middle = neighbor_M[slot]
        mark_N[middle] = NEIGHBOR if hub_N[middle] < 0 else HUB
        num_walks += indptr_N1[middle + 1] - indptr_N1[middle] if hub_N[middle] < 0 else 0
    return num_walks


@njit
def _write_values(indptr_N1, neighbor_M, value_M, node, value_N):
    for slot in range(indptr_N1[node], indptr_N1[node + 1]):
        value_N[neighbor_M[slot]] = value_M[slot]


@njit(nogil=True, cache=True)
def _pull_weighted(slots, degree_N, read_X, marks, walk_N2):
    """Sum the two-step walks that end at some nodes, in the order in which `_spread_weighted` adds them."""
    indptr_N1, neighbor_M, _, value_M = slots
    mark_N, value_N = marks
    for node in read_X:
        plain, weighted = 0.0, 0.0
        for slot in range(indptr_N1[node], indptr_N1[node + 1]):
            middle = neighbor_M[slot]
            if mark_N[middle] == NEIGHBOR:
                plain += 1 / degree_N[middle]
                weighted += value_N[middle] * value_M[slot]
        walk_N2[node, 0], walk_N2[node, 1] = plain, weighted


@njit(nogil=True, cache=True)
def _spread_weighted(slots, degree_N, node, hub_N, walk_N2):
    """Add each of a node's two-step walks to the node at its end, but for those that a hub is the middle of."""
    indptr_N1, neighbor_M, _, value_M = slots
    for slot in range(indptr_N1[node], indptr_N1[node + 1]):
        middle = neighbor_M[slot]
        if hub_N[middle] < 0:
            fraction, value = 1 / degree_N[middle], value_M[slot]
            for further in range(indptr_N1[middle], indptr_N1[middle + 1]):
                walk_N2[neighbor_M[further], 0] += fraction
                walk_N2[neighbor_M[further], 1] += value * value_M[further]


@njit(nogil=True, cache=True)
def _spread_to_hubs(slots, degree_N, node, hubs, walk_N2):
    """Add the walks of `_spread_weighted` that end at a hub, in the same order."""
    indptr_N1, neighbor_M, _, value_M = slots
    hub_N, hub_indptr_N1, hub_slot_Y, _ = hubs
    for slot in range(indptr_N1[node], indptr_N1[node + 1]):
        middle = neighbor_M[slot]
        if hub_N[middle] < 0:
            for further in hub_slot_Y[hub_indptr_N1[middle] : hub_indptr_N1[middle + 1]]:
                walk_N2[neighbor_M[further], 0] += 1 / degree_N[middle]
                walk_N2[neighbor_M[further], 1] += value_M[slot] * value_M[further]


@njit(nogil=True, cache=True)
def _add_by_hubs(slots, degree_N, ends, hubs, sums_5):
    """Add the three-step walks of a pair whose first step leads to a hub; `ends` has the row of the second end."""
    _, neighbor_M, _, value_M = slots
    hub_N, hub_indptr_N1, hub_slot_Y, walk_XH2 = hubs
    first, row = ends
    for slot in hub_slot_Y[hub_indptr_N1[first] : hub_indptr_N1[first + 1]]:
        hub = neighbor_M[slot]
        sums_5[2] += walk_XH2[row, hub_N[hub], 0] / degree_N[hub]
        sums_5[4] += walk_XH2[row, hub_N[hub], 1] * value_M[slot]


@njit(nogil=True, cache=True)
def _clear_apart(slots, node, counts, hubs, read_N, walk_N2):
    """Forget the walks of a node: those at hubs and where they were read, or all of them, as `_clear` does."""
    indptr_N1, neighbor_M, _, _ = slots
    hub_N, hub_indptr_N1, hub_slot_Y, _ = hubs
    num_walks, num_read = counts
    walk_N2[read_N[: max(num_read, 0)]] = 0
    if num_read < 0 and num_walks > len(walk_N2):
        walk_N2[:] = 0
        return
    for slot in range(indptr_N1[node], indptr_N1[node + 1]):
        middle = neighbor_M[slot]
        if hub_N[middle] < 0 and num_read < 0:
            for further in range(indptr_N1[middle], indptr_N1[middle + 1]):
                walk_N2[neighbor_M[further]] = 0
        elif hub_N[middle] < 0:
            for further in hub_slot_Y[hub_indptr_N1[middle] : hub_indptr_N1[middle + 1]]:
                walk_N2[neighbor_M[further]] = 0
