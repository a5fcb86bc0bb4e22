"""Snapshots of the history window -> sparse adjacency matrices, for scipy and for torch.

N nodes    E edges of a snapshot    M stored entries of a matrix
"""

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.graphs.snapshots import Snapshot


def window_snapshots(graph: PreparedGraph, *, until: int | None = None) -> tuple[Snapshot, ...]:
    """Give the newest `history_window` snapshots up to `until`, by default all that the graph's methods read."""
    snapshots = graph.history.snapshots[: graph.until if until is None else until]
    return snapshots[-(graph.config.history_window or len(snapshots)) :]


def adjacency(snapshot: Snapshot, num_nodes: int | None = None) -> sparse.csr_array:
    """Give the symmetric 0/1 adjacency [N, N] in float32, without weights, over the nodes known at the snapshot.

    With `num_nodes` it has so many rows; those of later nodes are empty.
    """
    size = snapshot.num_nodes if num_nodes is None else num_nodes
    row_M = np.concatenate([snapshot.source_E, snapshot.target_E])
    column_M = np.concatenate([snapshot.target_E, snapshot.source_E])
    return sparse.csr_array((np.ones(len(row_M), dtype=np.float32), (row_M, column_M)), shape=(size, size))


def gcn_matrix(adjacency: sparse.csr_array) -> Tensor:
    """Give D^-1/2 (A + I) D^-1/2 as a sparse tensor, with D the row sums of A + I (Kipf and Welling, 2017)."""
    num_nodes = len(adjacency.indptr) - 1
    looped = (adjacency + sparse.eye_array(num_nodes)).tocoo()
    scale_N = 1 / np.sqrt(looped.sum(axis=1))
    row_M, column_M = looped.coords
    return sparse_tensor(row_M, column_M, scale_N[row_M] * looped.data * scale_N[column_M], (num_nodes, num_nodes))


def sparse_tensor(row_M: np.ndarray, column_M: np.ndarray, value_M: np.ndarray, shape: tuple[int, ...]) -> Tensor:
    """Give a sparse float32 tensor; entries at equal positions are summed."""
    index_2M = torch.from_numpy(np.stack([row_M, column_M]).astype(np.int64))
    value = torch.from_numpy(np.asarray(value_M, dtype=np.float32))
    return torch.sparse_coo_tensor(index_2M, value, shape, check_invariants=False).coalesce()
