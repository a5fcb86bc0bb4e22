"""DynamicGraph -> TemporalUnionGraph: every edge of a window of steps once (paper, section 3.1).

N nodes    N1 = N + 1    E undirected edges, source < target    M = 2 E slots of both directions
W words of 64 lags    P pairs found    n rows, m columns asked for
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dyformer.snapshots import DynamicGraph

LAGS_PER_WORD = 64

Int64s = NDArray[np.int64]
Int32s = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class TemporalUnionGraph:
    """Unique edges of the steps `first_step` .. `until` over all nodes seen by then; lag 0 is the step `until`.

    Edges are sorted by (source, target). The slots `indptr_N1[i] : indptr_N1[i + 1]` hold node i's neighbours in
    ascending order and the number of each one's edge.
    """

    num_nodes: int
    first_step: int
    until: int
    source_E: Int32s
    target_E: Int32s
    edge_first_step_E: Int64s  # the first step of the window with the edge
    presence_EW: NDArray[np.uint64]  # bit l % 64 of word l // 64: the edge is there at lag l
    count_E: Int64s  # number of the window's steps with the edge
    indptr_N1: Int64s
    neighbor_M: Int32s  # 32 bits: half of what distances and PageRank read
    edge_M: Int32s

    @property
    def num_lags(self) -> int:
        """Steps that the window covers."""
        return self.until - self.first_step + 1

    @cached_property
    def degree(self) -> Int64s:
        """Number of neighbours of each node [N]."""
        return np.diff(self.indptr_N1)

    @cached_property
    def matrix(self) -> sparse.csr_array:
        """Symmetric 0/1 adjacency [N, N], made once for all solves."""
        ones_M = np.ones(len(self.neighbor_M))
        return sparse.csr_array((ones_M, self.neighbor_M, self.indptr_N1), shape=(self.num_nodes, self.num_nodes))


def build_union_graph(graph: DynamicGraph, *, until: int, window: int | None = None) -> TemporalUnionGraph:
    """Unite the newest `window` steps up to `until` (all of them without a window).

    Raises ValueError where `until` is no step of the graph or the window has no step.
    """
    if not 1 <= until <= graph.num_steps:
        raise ValueError(f"until = {until}: expected one of the graph's steps 1 to {graph.num_steps}")
    if window is not None and window < 1:
        raise ValueError(f"a history window of {window} steps: expected at least 1, or none for the whole history")
    num_nodes = graph.snapshots[until - 1].num_nodes
    first_step = 1 if window is None else max(1, until - window + 1)
    snapshots = graph.snapshots[first_step - 1 : until]
    key_A = np.concatenate([snapshot.source_E * num_nodes + snapshot.target_E for snapshot in snapshots])
    step_A = np.repeat([snapshot.step for snapshot in snapshots], [len(snapshot.source_E) for snapshot in snapshots])
    key_E, first_E, edge_A, count_E = np.unique(key_A, return_index=True, return_inverse=True, return_counts=True)
    source_E, target_E = (end_E.astype(np.int32) for end_E in np.divmod(key_E, max(num_nodes, 1)))
    indptr_N1, neighbor_M, edge_M = _both_directions(source_E, target_E, num_nodes)
    return TemporalUnionGraph(
        num_nodes=num_nodes,
        first_step=first_step,
        until=until,
        source_E=source_E,
        target_E=target_E,
        edge_first_step_E=step_A[first_E],
        presence_EW=_presence(edge_A, until - step_A, len(key_E), until - first_step + 1),
        count_E=count_E,
        indptr_N1=indptr_N1,
        neighbor_M=neighbor_M,
        edge_M=edge_M,
    )


def _presence(edge_A: Int64s, lag_A: Int64s, num_edges: int, num_lags: int) -> NDArray[np.uint64]:
    presence_EW = np.zeros((num_edges, -(-num_lags // LAGS_PER_WORD)), dtype=np.uint64)
    bit_A = np.left_shift(np.uint64(1), (lag_A % LAGS_PER_WORD).astype(np.uint64))
    # A snapshot has an edge once at most, so that adding sets bits.
    np.add.at(presence_EW, (edge_A, lag_A // LAGS_PER_WORD), bit_A)
    return presence_EW


def _both_directions(source_E: Int32s, target_E: Int32s, num_nodes: int) -> tuple[Int64s, Int32s, Int32s]:
    # Backward slots first: edges are sorted, so a stable sort by row alone leaves each row's neighbours ascending.
    row_M = np.concatenate([target_E, source_E])
    neighbor_M = np.concatenate([source_E, target_E])
    order_M = np.argsort(row_M, kind="stable")
    indptr_N1 = np.concatenate([[0], np.cumsum(np.bincount(row_M, minlength=num_nodes))]).astype(np.int64)
    edge_M = np.tile(np.arange(len(source_E), dtype=np.int32), 2)[order_M]
    return indptr_N1, neighbor_M[order_M], edge_M


def adjacency(union: TemporalUnionGraph) -> sparse.csr_array:
    """Give the symmetric 0/1 adjacency [N, N], in float64; it is shared and must not be changed."""
    return union.matrix


def connections(union: TemporalUnionGraph, rows_n: Int64s, columns_m: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Find the union's edges between two lists of nodes, the columns without repeats.

    Returns:
        Position in `rows_n`, position in `columns_m` and number of the edge, [P] each, in order of the rows and then of
        the columns' node numbers. The work follows the degrees of the rows, not the number of pairs.
    """
    mark_N = np.full(union.num_nodes, -1, dtype=np.int64)
    mark_N[columns_m] = np.arange(len(columns_m))
    row_A, slot_A = _slots(union, rows_n)
    column_A = mark_N[union.neighbor_M[slot_A]]
    found_A = column_A >= 0
    return row_A[found_A], column_A[found_A], union.edge_M[slot_A[found_A]].astype(np.int64)


def _slots(union: TemporalUnionGraph, rows_n: Int64s) -> tuple[Int64s, Int64s]:
    """Give all slots of some nodes, and the position of the node that each belongs to."""
    start_n = union.indptr_N1[rows_n]
    degree_n = union.indptr_N1[rows_n + 1] - start_n
    row_A = np.repeat(np.arange(len(rows_n)), degree_n)
    offset_n = np.cumsum(degree_n) - degree_n
    return row_A, np.arange(len(row_A)) + np.repeat(start_n - offset_n, degree_n)
