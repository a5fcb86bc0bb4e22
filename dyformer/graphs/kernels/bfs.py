"""The loops of the bit-parallel search, compiled at first use and cached on disk; they run without Python's lock.

The search starts from up to 512 targets at once. Each node has a bitset of 512 bits, called its row. Bit t is set once
the search from target t has reached the node. A row has eight words of 64 bits, because the processor loads that many
bytes (a cache line) at every random access. A node that no target has reached has no row.

A component's complete row has the bits of all targets in that component. No node of the component can get another bit.
A span is a range of node numbers. Hubs (the nodes with the most neighbours) have the lowest numbers, and each list of
neighbours is ascending, so every list begins with its hubs.

N nodes    N1 = N + 1    M slots of both directions    B bytes of 8 nodes    K components    W = 8 words of a row
R nodes that have a row    X nodes whose rows are updated    S components with targets    V nodes of a block
U = 64 bytes of a row
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

NUM_WORDS = 8

Words = NDArray[np.uint64]
Nodes = NDArray[np.uint32]
Lists = tuple[NDArray[np.int64], Nodes, Nodes]  # indptr_N1, neighbor_M, component_N
Rows = tuple[NDArray[np.uint8], Nodes, Words]
"""Rows of some nodes: `known_B`, a bit set for every node with a row; `index_N`, the index of its row in `row_RW`."""
Complete = tuple[Nodes, Words]
"""Complete rows: `which_K`, the index in `complete_SW` of each component's row."""
Span = tuple[int, int]  # the first node and the one after the last

_NO_BITS = (np.uint64(0),) * NUM_WORDS


@njit
def _with(bits, row_RW, r):
    # The words are written out instead of looped over, because then they stay in registers.
    low = (bits[0] | row_RW[r, 0], bits[1] | row_RW[r, 1], bits[2] | row_RW[r, 2], bits[3] | row_RW[r, 3])
    return (*low, bits[4] | row_RW[r, 4], bits[5] | row_RW[r, 5], bits[6] | row_RW[r, 6], bits[7] | row_RW[r, 7])


@njit
def _put(bits, row_RW, r):
    row_RW[r, 0], row_RW[r, 1], row_RW[r, 2], row_RW[r, 3] = bits[0], bits[1], bits[2], bits[3]
    row_RW[r, 4], row_RW[r, 5], row_RW[r, 6], row_RW[r, 7] = bits[4], bits[5], bits[6], bits[7]


@njit
def _covers(bits, full):
    left = (full[0] & ~bits[0]) | (full[1] & ~bits[1]) | (full[2] & ~bits[2]) | (full[3] & ~bits[3])
    left |= (full[4] & ~bits[4]) | (full[5] & ~bits[5]) | (full[6] & ~bits[6]) | (full[7] & ~bits[7])
    return left == 0


@njit
def _has(known_B, node):
    return (known_B[node >> np.uint32(3)] >> (node & np.uint32(7))) & np.uint32(1)


@njit
def _mark(known_B, node):
    known_B[node >> np.uint32(3)] |= np.uint8(1) << np.uint8(node & np.uint32(7))


@njit(nogil=True, cache=True)
def renumbered(indptr_N1, neighbor_M, node_N, number_N):
    """Renumber the nodes: `node_N[i]` gets the number i; give the new lists of neighbours, each ascending.

    `number_N` is the inverse of `node_N`.
    """
    new_N1 = np.zeros_like(indptr_N1)
    for i in range(len(node_N)):
        new_N1[i + 1] = new_N1[i] + indptr_N1[node_N[i] + 1] - indptr_N1[node_N[i]]
    end_N = new_N1[:-1].copy()
    new_M = np.empty(len(neighbor_M), dtype=np.uint32)
    for i in range(len(node_N)):
        for slot in range(indptr_N1[node_N[i]], indptr_N1[node_N[i] + 1]):
            other = number_N[neighbor_M[slot]]
            new_M[end_N[other]] = i
            end_N[other] += 1
    return new_N1, new_M


@njit(nogil=True, cache=True)
def components(indptr_N1, neighbor_M):
    """Number the connected components by their first nodes: the component of each node, and how many there are.

    Trees of nodes are joined edge by edge (union-find with path halving: Tarjan and van Leeuwen 1984). Their roots are
    the first nodes, so that a node's parent has a lower number, and most parents are soon the root itself.
    """
    parent_N = np.arange(len(indptr_N1) - 1).astype(np.uint32)
    for node in range(len(parent_N)):
        root = parent_N[node]
        for slot in range(indptr_N1[node], indptr_N1[node + 1]):
            other = neighbor_M[slot]
            if other >= node:
                break
            while parent_N[other] != other:
                parent_N[other] = parent_N[parent_N[other]]
                other = parent_N[other]
            if other != root:
                lower = min(root, other)
                parent_N[max(root, other)] = lower
                root = lower
    num_components = 0
    for node in range(len(parent_N)):  # in place: a parent comes before its node, and has its component already
        if parent_N[node] == node:
            parent_N[node] = num_components
            num_components += 1
        else:
            parent_N[node] = parent_N[parent_N[node]]
    return parent_N, num_components


@njit
def _add(bits, node, rows, node_R, num_rows):
    known_B, index_N, row_RW = rows
    if _has(known_B, node):
        _put(_with(bits, row_RW, index_N[node]), row_RW, index_N[node])
        return num_rows
    _mark(known_B, node)
    index_N[node] = num_rows
    node_R[num_rows] = node
    _put(bits, row_RW, num_rows)
    return num_rows + 1


@njit
def _no_rows(num_nodes, most):
    known_B = np.zeros((num_nodes >> 3) + 1, dtype=np.uint8)
    return known_B, np.empty(num_nodes, dtype=np.uint32), np.empty((most, NUM_WORDS), dtype=np.uint64)


@njit(nogil=True, cache=True)
def pushed(lists, node_X, row_XW, span):
    """Add each node's row to the rows of itself and of its neighbours in the span.

    Give the `Rows` of all nodes reached, and these nodes [R]. Nodes of X may repeat.
    """
    indptr_N1, neighbor_M, _ = lists
    num_nodes = len(indptr_N1) - 1
    num_slots = 0
    for node in node_X:
        num_slots += indptr_N1[node + 1] - indptr_N1[node]
    most = min(num_nodes, len(node_X) + min(num_slots, span[1] - span[0]))
    rows = _no_rows(num_nodes, most)
    node_R = np.empty(most, dtype=np.uint32)
    num_rows = 0
    for x in range(len(node_X)):
        bits = _with(_NO_BITS, row_XW, x)
        num_rows = _add(bits, node_X[x], rows, node_R, num_rows)
        for slot in range(indptr_N1[node_X[x]], indptr_N1[node_X[x] + 1]):
            other = neighbor_M[slot]
            if other >= span[1]:
                break
            if other >= span[0]:
                num_rows = _add(bits, other, rows, node_R, num_rows)
    return (rows[0], rows[1], rows[2][:num_rows]), node_R[:num_rows]


@njit(nogil=True, cache=True)
def pulled(lists, node_X, row_XW, rows, span, complete):
    """Add to each node's row the rows of its neighbours in the span; give the new rows [X, W].

    A node's remaining neighbours are skipped once its row is complete.
    """
    indptr_N1, neighbor_M, component_N = lists
    known_B, index_N, row_RW = rows
    which_K, complete_SW = complete
    new_XW = np.empty_like(row_XW)
    for x in range(len(node_X)):
        bits = _with(_NO_BITS, row_XW, x)
        full = _with(_NO_BITS, complete_SW, which_K[component_N[node_X[x]]])
        slot, end = indptr_N1[node_X[x]], indptr_N1[node_X[x] + 1]
        while slot < end and neighbor_M[slot] < span[1]:
            if not slot & 3 and _covers(bits, full):  # a check at every slot costs more than it saves
                break
            if neighbor_M[slot] >= span[0] and _has(known_B, neighbor_M[slot]):
                bits = _with(bits, row_RW, index_N[neighbor_M[slot]])
            slot += 1
        _put(bits, new_XW, x)
    return new_XW


@njit
def _push_block(neighbor_M, slot, end, bits, block, row_VW):
    while slot < end and neighbor_M[slot] < block[1]:
        if neighbor_M[slot] >= block[0]:
            v = neighbor_M[slot] - block[0]
            _put(_with(bits, row_VW, v), row_VW, v)
        slot += 1
    return slot


@njit
def _pull_block(neighbor_M, slot, end, bits, block, row_VW):
    while slot < end and neighbor_M[slot] < block[1]:
        if neighbor_M[slot] >= block[0]:
            bits = _with(bits, row_VW, neighbor_M[slot] - block[0])
        slot += 1
    return slot, bits


@njit(nogil=True, cache=True)
def met(lists, node_R, row_RW, node_X, row_XW, span, length):
    """Add to each node of X the rows of the nodes R two hops away through a node of the span; give the rows [X, W].

    The span is processed in blocks of `length` nodes. Rows are pushed to the nodes of a block and pulled from them
    before the next block begins, because the rows of one block stay in the processor's cache. Rows of the whole span
    would be fetched from memory twice.
    """
    indptr_N1, neighbor_M, _ = lists
    slot_R, slot_X = indptr_N1[node_R], indptr_N1[node_X]
    row_VW = np.empty((length, NUM_WORDS), dtype=np.uint64)
    new_XW = row_XW.copy()
    for first in range(span[0], span[1], length):
        block = (first, min(first + length, span[1]))
        row_VW[:] = 0
        for r in range(len(node_R)):
            bits = _with(_NO_BITS, row_RW, r)
            slot_R[r] = _push_block(neighbor_M, slot_R[r], indptr_N1[node_R[r] + 1], bits, block, row_VW)
        for x in range(len(node_X)):
            bits = _with(_NO_BITS, new_XW, x)
            end = indptr_N1[node_X[x] + 1]
            slot_X[x], bits = _pull_block(neighbor_M, slot_X[x], end, bits, block, row_VW)
            _put(bits, new_XW, x)
    return new_XW


@njit
def _mark_neighbors(lists, node_X, span, known_B):
    indptr_N1, neighbor_M, _ = lists
    num_marked = 0
    for node in node_X:
        for slot in range(indptr_N1[node], indptr_N1[node + 1]):
            other = neighbor_M[slot]
            if other >= span[1]:
                break
            if other >= span[0] and not _has(known_B, other):
                _mark(known_B, other)
                num_marked += 1
    return num_marked


@njit(nogil=True, cache=True)
def neighborhood(lists, node_X, span):
    """Give all neighbours of the nodes that lie in the span [R], ascending.

    `known_B` and `index_N` come first, as in `Rows`: with an array of rows [R, W] they make the neighbours' `Rows`.
    """
    known_B, index_N, _ = _no_rows(len(lists[0]) - 1, 0)
    node_R = np.empty(_mark_neighbors(lists, node_X, span, known_B), dtype=np.uint32)
    num_rows = 0
    for byte in np.flatnonzero(known_B):
        for node in range(8 * byte, 8 * byte + 8):
            if _has(known_B, np.uint32(node)):
                index_N[node] = num_rows
                node_R[num_rows] = node
                num_rows += 1
    return known_B, index_N, node_R


@njit(nogil=True, cache=True)
def rows_at(node_X, rows):
    """Give the rows of the nodes [X, W], all 0 where a node has none."""
    known_B, index_N, row_RW = rows
    row_XW = np.zeros((len(node_X), NUM_WORDS), dtype=np.uint64)
    for x in range(len(node_X)):
        if _has(known_B, node_X[x]):
            _put(_with(_NO_BITS, row_RW, index_N[node_X[x]]), row_XW, x)
    return row_XW


@njit(nogil=True, cache=True)
def complete_rows(component_N, num_components, target_T, bit_TW):
    """Give the complete row of each component. Components without targets have the first row, which is all 0."""
    which_K = np.zeros(num_components, dtype=np.uint32)
    complete_SW = np.zeros((len(target_T) + 1, NUM_WORDS), dtype=np.uint64)
    num_rows = 1
    for t in range(len(target_T)):
        component = component_N[target_T[t]]
        if not which_K[component]:
            which_K[component] = num_rows
            num_rows += 1
        which = which_K[component]
        _put(_with(_with(_NO_BITS, bit_TW, t), complete_SW, which), complete_SW, which)
    return which_K, complete_SW[:num_rows]


@njit(nogil=True, cache=True)
def decrement(code_XU, row_XW):
    """Subtract one from the distance of each target whose bit is set.

    A distance takes one byte, so eight of them are in each word of `code_XU`.
    """
    for x in range(len(row_XW)):
        for w in range(NUM_WORDS):
            word = row_XW[x, w]
            for b in range(8):
                byte = (word >> np.uint64(8 * b)) & np.uint64(0xFF)
                # Copy the byte eight times, keep bit i of copy i, and carry each up to the top of its byte.
                apart = (byte * np.uint64(0x0101010101010101)) & np.uint64(0x8040201008040201)
                ones = (apart + np.uint64(0x7F7F7F7F7F7F7F7F)) >> np.uint64(7)
                code_XU[x, 8 * w + b] -= ones & np.uint64(0x0101010101010101)
