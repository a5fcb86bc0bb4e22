"""DynGEM: snapshots -> vectors of an auto-encoder of adjacency rows, warm-started each step (Goyal et al., 2018).

N nodes    E edges of a snapshot    U rows of a batch    H hidden width    D width    C columns to reconstruct
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn

from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.sampling.adjacency import (
    RowTargets,
    adjacency,
    input_tensor,
    reconstruction_losses,
    row_targets,
    window_snapshots,
)
from dyformer.sampling.pairs import Pairs, node_batches
from dyformer.sampling.seeded import seeded

if TYPE_CHECKING:
    from dyformer.baselines.dyngem.method import DynGEM

EMBEDDED_NODES = 2048  # of one batch of vectors


def node_vectors(settings: "DynGEM", graph: PreparedGraph, *, seed: int) -> NDArray[np.float32]:
    """Train on the snapshots of the window in turn, and encode the rows of the newest one."""
    generator, num_nodes = np.random.default_rng(seed), len(graph.history.node_N)
    window = [adjacency(snapshot, num_nodes) for snapshot in window_snapshots(graph)]
    with seeded(seed):
        model = RowAutoEncoder(num_nodes, settings.hidden, settings.width)
    epochs = settings.first_epochs
    for matrix in window:
        if matrix.nnz:
            _train(settings, model, matrix, epochs, generator)
            epochs = settings.epochs
    vector_ND = np.empty((num_nodes, settings.width), dtype=np.float32)
    with torch.no_grad():
        for node_U in node_batches(num_nodes, EMBEDDED_NODES):
            vector_ND[node_U] = model.encode(input_tensor(window[-1][node_U])).numpy()
    return vector_ND


def _train(
    settings: "DynGEM",
    model: "RowAutoEncoder",
    matrix: sparse.csr_array,
    epochs: int,
    generator: np.random.Generator,
) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    for _ in range(epochs):
        for ends in edge_batches(matrix, settings.batch_edges, generator):
            node_U = np.unique(np.concatenate(ends))
            rows_UN = matrix[node_U]
            targets = row_targets(rows_UN, settings.num_empty, generator)
            code_UD = model.encode(input_tensor(rows_UN))
            output_UC = model.decode(code_UD, targets.column_C)
            source_E, target_E = (torch.from_numpy(np.searchsorted(node_U, end_E)) for end_E in ends)
            loss = _loss(settings, code_UD, output_UC, targets, source_E, target_E) + _penalty(settings, model)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def _loss(
    settings: "DynGEM",
    code_UD: Tensor,
    output_UC: Tensor,
    targets: RowTargets,
    source_E: Tensor,
    target_E: Tensor,
) -> Tensor:
    """Mean over edges of both ends' reconstruction losses + alpha x their squared distance (SDNE, equation 5)."""
    loss_U = reconstruction_losses(output_UC, targets, settings.edge_factor)
    distance_E = (code_UD.index_select(0, source_E) - code_UD.index_select(0, target_E)).square().sum(dim=1)
    return (loss_U[source_E] + loss_U[target_E] + settings.first_order * distance_E).mean()


def _penalty(settings: "DynGEM", model: "RowAutoEncoder") -> Tensor:
    weights = [weight for weight in model.parameters() if weight.dim() == 2]
    sums = [settings.l1 * weight.abs().sum() + settings.l2 * weight.square().sum() for weight in weights]
    return torch.stack(sums).sum()


def edge_batches(matrix: sparse.csr_array, size: int, generator: np.random.Generator) -> Iterator[Pairs]:
    """Yield each edge of a symmetric matrix once, in random order and batches of a size."""
    source_E, target_E = sparse.triu(matrix, k=1).coords
    order_E = generator.permutation(len(source_E))
    for first in range(0, len(order_E), size):
        batch = order_E[first : first + size]
        yield source_E[batch].astype(np.int64), target_E[batch].astype(np.int64)


class RowAutoEncoder(nn.Module):
    """An encoder of sparse rows [U, N], and a decoder of chosen columns of them."""

    def __init__(self, num_nodes: int, hidden: tuple[int, int], width: int) -> None:
        super().__init__()
        outer, inner = hidden
        self.first_NH, self.last_NH = (
            nn.Parameter(nn.init.xavier_uniform_(torch.empty(num_nodes, outer))) for _ in range(2)
        )
        self.first_H, self.last_N = nn.Parameter(torch.zeros(outer)), nn.Parameter(torch.zeros(num_nodes))
        self.encoder = nn.Sequential(nn.ReLU(), nn.Linear(outer, inner), nn.ReLU(), nn.Linear(inner, width))
        self.decoder = nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, outer), nn.ReLU())

    def encode(self, rows_UN: Tensor) -> Tensor:
        """Give the codes [U, D] of sparse rows."""
        return self.encoder(torch.sparse.mm(rows_UN, self.first_NH) + self.first_H)

    def decode(self, code_UD: Tensor, column_C: Tensor) -> Tensor:
        """Reconstruct some columns [U, C] of the rows."""
        return self.decoder(code_UD) @ self.last_NH.index_select(0, column_C).T + self.last_N[column_C]
