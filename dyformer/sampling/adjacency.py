"""Snapshots of the history window -> sparse adjacency matrices, and rows of them that an auto-encoder reconstructs.

N nodes    E edges of a snapshot    M stored entries of a matrix    U rows of a batch    C columns to reconstruct

The loss of the reconstruction is that of SDNE (Wang et al., 2016).
"""

from dataclasses import dataclass

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


@dataclass(frozen=True, kw_only=True)
class RowTargets:
    """Columns of rows: all that have an edge in one of the rows, and a sample of the empty ones."""

    column_C: Tensor  # int64
    target_UC: Tensor  # float32
    weight_C: Tensor  # 1, or the number of empty columns for which a sampled one stands


def row_targets(rows_UN: sparse.csr_array, num_empty: int, generator: np.random.Generator) -> RowTargets:
    """Take the columns with an edge and at most `num_empty` others, so that a batch of a large graph stays small."""
    num_nodes = rows_UN.shape[1]  # pyright: ignore[reportOptionalSubscript]
    used_C = np.unique(rows_UN.indices).astype(np.int64)
    empty_C = np.setdiff1d(np.arange(num_nodes), used_C, assume_unique=True)
    sampled_C = empty_C
    if num_empty < len(empty_C):
        sampled_C = generator.choice(empty_C, size=num_empty, replace=False)
    column_C = np.concatenate([used_C, sampled_C])
    weight_C = np.ones(len(column_C), dtype=np.float32)
    weight_C[len(used_C) :] = len(empty_C) / max(len(sampled_C), 1)
    target_UC = rows_UN[:, column_C].toarray().astype(np.float32)
    return RowTargets(
        column_C=torch.from_numpy(column_C),
        target_UC=torch.from_numpy(target_UC),
        weight_C=torch.from_numpy(weight_C),
    )


def reconstruction_losses(output_UC: Tensor, targets: RowTargets, beta: float) -> Tensor:
    """Give each row's sum of ((output - target) x b)^2 over all columns, [U]; b is `beta` for an edge, else 1."""
    factor_UC = torch.where(targets.target_UC > 0, beta, 1.0)
    return ((output_UC - targets.target_UC) * factor_UC).square() @ targets.weight_C


def input_tensor(rows_UN: sparse.csr_array) -> Tensor:
    """Give rows as a sparse tensor."""
    entries = rows_UN.tocoo()
    row_M, column_M = entries.coords
    num_rows, num_nodes = len(rows_UN.indptr) - 1, rows_UN.shape[1]  # pyright: ignore[reportOptionalSubscript]
    return sparse_tensor(row_M, column_M, entries.data, (num_rows, num_nodes))
