"""DynamicGraph -> TemporalUnionGraph: every edge of a window of steps once (paper, section 3.1).

N nodes    N1 = N + 1    E undirected edges, source < target    M = 2 E slots of both directions
T lags    W words of 64 lags    A edges of all steps    D edges of a snapshot    P pairs found
n rows and m columns of a block
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dyformer import InvalidInput
from dyformer.graphs.kernels.union import (
    chosen_rows,
    connected_pairs,
    lower_presence,
    rows_of,
    united_edges,
    younger,
)
from dyformer.graphs.snapshots import DynamicGraph, Snapshot

LAGS_PER_WORD = 64
KEY_BITS = 63  # bits of the keys by which edges are sorted

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]
Words = NDArray[np.uint64]
Rows = tuple[Int64s, Int64s, Int32s]  # indptr, edge indptr, neighbours


@dataclass(frozen=True, kw_only=True)
class TemporalUnionGraph:
    """Unique edges of the steps `first_step` .. `until` over all nodes up to `until`; lag 0 is the step `until`.

    The slots `indptr_N1[i] : indptr_N1[i + 1]` of `neighbor_M` are row i: node i's neighbours in ascending order. Edges
    are numbered in the order of (source, target). The edges of the source i have the numbers
    `edge_indptr_N1[i] : edge_indptr_N1[i + 1]`, and their targets are the last slots of row i. Only the rows and the
    presence bits are stored, in 16 bytes an edge; everything else about edges is computed from them.
    """

    num_nodes: int
    first_step: int
    until: int
    indptr_N1: Int64s
    edge_indptr_N1: Int64s
    neighbor_M: Int32s  # 32 bits, so that distances and PageRank read fewer bytes
    presence_EW: Words  # bit l % 64 of word l // 64: the edge is there at lag l

    @property
    def num_edges(self) -> int:
        """E, the number of unique edges."""
        return len(self.presence_EW)

    @property
    def rows(self) -> Rows:
        """The arrays of the edges that the compiled loops read."""
        return self.indptr_N1, self.edge_indptr_N1, self.neighbor_M

    @cached_property
    def degree(self) -> Int64s:
        """Number of neighbours of each node [N]."""
        return np.diff(self.indptr_N1)

    @property
    def source_E(self) -> Int32s:
        """The lower end of each edge."""
        return np.repeat(np.arange(self.num_nodes, dtype=np.int32), np.diff(self.edge_indptr_N1))

    @property
    def target_E(self) -> Int32s:
        """The higher end of each edge."""
        lower_N = self.indptr_N1[1:] - self.edge_indptr_N1[1:]  # slots of a row before those of its own edges
        return self.neighbor_M[np.arange(self.num_edges) + np.repeat(lower_N, np.diff(self.edge_indptr_N1))]

    @cached_property
    def lower_presence_EW(self) -> Words:
        """The presence bits again, in the order of the slots with an edge's lower end: for `part_of_union`."""
        return lower_presence(self.rows, self.presence_EW)

    @cached_property
    def adjacency(self) -> sparse.csr_array:
        """Symmetric 0/1 adjacency [N, N] in float64, made once and shared: it must not be changed."""
        # Two threads may each make a matrix: the two are equal, and one is kept.
        ones_M = np.ones(len(self.neighbor_M))
        return sparse.csr_array((ones_M, self.neighbor_M, self.indptr_N1), shape=(self.num_nodes, self.num_nodes))


def build_union_graph(
    graph: DynamicGraph, *, until: int, window: int | None = None, hidden_step: int | None = None
) -> TemporalUnionGraph:
    """Unite the newest `window` steps up to `until` (all of them without a window), except a hidden one.

    Source, target and lag of an edge make one 64-bit key, so sorting the keys brings equal edges together. Raises
    ValueError where `until` is not a step of the graph, the window has no step, or keys would be too long.
    """
    if not 1 <= until <= graph.num_steps:
        raise InvalidInput(f"until = {until}: expected one of the graph's steps 1 to {graph.num_steps}")
    first_step = first_step_of(until, window)
    num_nodes = graph.snapshots[until - 1].num_nodes
    node_bits, lag_bits = num_nodes.bit_length(), (until - first_step).bit_length()
    if 2 * node_bits + lag_bits > KEY_BITS:
        raise InvalidInput(
            f"{num_nodes} nodes at {until - first_step + 1} steps are too many to unite: choose a window"
        )
    snapshots = [snapshot for snapshot in graph.snapshots[first_step - 1 : until] if snapshot.step != hidden_step]
    key_A = _keys(snapshots, until, node_bits, lag_bits)
    key_A.sort()
    source_E, target_E, presence_EW = united_edges(key_A, node_bits, lag_bits, _num_words(until - first_step + 1))
    indptr_N1, edge_indptr_N1, neighbor_M = rows_of(source_E, target_E, num_nodes)
    return TemporalUnionGraph(
        num_nodes=num_nodes,
        first_step=first_step,
        until=until,
        indptr_N1=indptr_N1,
        edge_indptr_N1=edge_indptr_N1,
        neighbor_M=neighbor_M,
        presence_EW=presence_EW,
    )


def part_of_union(
    union: TemporalUnionGraph, *, until: int, num_nodes: int, hidden_step: int | None = None
) -> TemporalUnionGraph:
    """Choose the edges of a union's steps up to `until`, except a hidden one, between the nodes known at `until`.

    The result equals that of `build_union_graph` over these steps, by one pass over the edges in place of a sort. A
    slot does not know its edge's number, so the union keeps the presence bits of the slots with lower ends, too.
    Raises ValueError where `until` is not a step of the union.
    """
    if not union.first_step <= until <= union.until:
        raise InvalidInput(f"until = {until}: expected one of the union's steps {union.first_step} to {union.until}")
    num_newer, num_lags = union.until - until, until - union.first_step + 1
    is_seen_T = np.zeros(union.presence_EW.shape[1] * LAGS_PER_WORD, dtype=np.bool_)
    is_seen_T[num_newer : num_newer + num_lags] = True
    if hidden_step is not None and union.first_step <= hidden_step <= until:
        is_seen_T[union.until - hidden_step] = False
    seen_W = np.packbits(is_seen_T, bitorder="little").view("<u8").astype(np.uint64)
    rows, presence_EW = chosen_rows(union.rows, union.lower_presence_EW, union.presence_EW, seen_W, num_nodes)
    indptr_N1, edge_indptr_N1, neighbor_M = rows
    return TemporalUnionGraph(
        num_nodes=num_nodes,
        first_step=union.first_step,
        until=until,
        indptr_N1=indptr_N1,
        edge_indptr_N1=edge_indptr_N1,
        neighbor_M=neighbor_M,
        presence_EW=younger(presence_EW, num_newer, _num_words(num_lags)),
    )


def first_step_of(until: int, window: int | None) -> int:
    """Give the first step of the window that ends with `until`. Raises ValueError for a window without a step."""
    if window is not None and window < 1:
        raise InvalidInput(f"a history window of {window} steps: expected at least 1, or none for the whole history")
    return 1 if window is None else max(1, until - window + 1)


def _keys(snapshots: Sequence[Snapshot], until: int, node_bits: int, lag_bits: int) -> Int64s:
    key_A = np.empty(sum(len(snapshot.source_E) for snapshot in snapshots), dtype=np.int64)
    start = 0
    for snapshot in snapshots:
        key_E = key_A[start : start + len(snapshot.source_E)]
        np.left_shift(snapshot.source_E, node_bits, out=key_E)
        key_E |= snapshot.target_E
        key_E <<= lag_bits
        key_E |= until - snapshot.step
        start += len(key_E)
    return key_A


def _num_words(num_lags: int) -> int:
    return -(-num_lags // LAGS_PER_WORD)


def connections(union: TemporalUnionGraph, rows_n: Int64s, columns_m: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Find the union's edges between two lists of nodes, the columns without repeats.

    Returns:
        Position in `rows_n`, position in `columns_m` and number of each edge [P], by row and then by node number of the
        column. The time grows with the degrees of the rows, not with the number of pairs or nodes.
    """
    row_P, column_P, edge_P = connected_pairs(union.rows, rows_n, columns_m)
    return row_P, column_P, edge_P
