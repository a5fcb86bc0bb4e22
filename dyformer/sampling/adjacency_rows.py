"""Rows of an adjacency -> the columns that an auto-encoder reconstructs, and its loss (SDNE; Wang et al., 2016).

N nodes    U rows of a batch    C columns to reconstruct
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from dyformer.sampling.adjacency import sparse_tensor


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
