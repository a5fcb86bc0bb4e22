"""DynAERNN: snapshots -> vectors that forecast a node's adjacency row (dyngraph2vec; Goyal et al., 2020).

N nodes    U rows of a batch    L look-back    H, I hidden widths    D width    C columns to forecast
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn
from torch.nn import functional

from dyformer import InvalidInput
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.sampling.adjacency import adjacency, input_tensor, reconstruction_losses, row_targets, window_snapshots
from dyformer.sampling.pairs import node_batches
from dyformer.sampling.seeded import seeded

if TYPE_CHECKING:
    from dyformer.baselines.dynaernn.method import DynAERNN

EMBEDDED_NODES = 2048  # of one batch of vectors


def node_vectors(settings: "DynAERNN", graph: PreparedGraph, *, seed: int) -> NDArray[np.float32]:
    """Train on the window, and give the vectors as of its newest step. Raises ValueError for a window of one."""
    num_nodes, snapshots = len(graph.history.node_N), window_snapshots(graph)
    if len(snapshots) < 2:
        raise InvalidInput("DynAERNN forecasts a snapshot from those before it: expected a window of 2, found 1")
    window = [adjacency(snapshot, num_nodes) for snapshot in snapshots]
    look_back = min(settings.look_back, len(window) - 1)
    with seeded(seed):
        model = RowForecaster(num_nodes, settings.hidden, settings.width)
    _train(settings, model, window, look_back, np.random.default_rng(seed))
    vector_ND = np.empty((num_nodes, settings.width), dtype=np.float32)
    with torch.no_grad():
        for node_U in node_batches(num_nodes, EMBEDDED_NODES):
            vector_ND[node_U] = model.encode([matrix[node_U] for matrix in window[-look_back:]]).numpy()
    return vector_ND


def _train(
    settings: "DynAERNN",
    model: "RowForecaster",
    window: Sequence[sparse.csr_array],
    look_back: int,
    generator: np.random.Generator,
) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    for _ in range(settings.epochs):
        for step in generator.permutation(np.arange(look_back, len(window))):
            history, following = window[step - look_back : step], window[step]
            node_N = generator.permutation(active_nodes([*history, following]))
            for first in range(0, len(node_N), settings.batch_rows):
                node_U = node_N[first : first + settings.batch_rows]
                targets = row_targets(following[node_U], settings.num_empty, generator)
                vector_UD = model.encode([matrix[node_U] for matrix in history])
                output_UC = model.decode(vector_UD, targets.column_C)
                optimizer.zero_grad()
                reconstruction_losses(output_UC, targets, settings.edge_factor).mean().backward()
                optimizer.step()


def active_nodes(matrices: Sequence[sparse.csr_array]) -> np.ndarray:
    """List the nodes with an edge in one of the adjacencies."""
    return np.flatnonzero(sum(np.diff(matrix.indptr) for matrix in matrices))


class RowForecaster(nn.Module):
    """Sparse rows [U, N] of several steps -> vectors [U, D] -> chosen columns of the next step's rows."""

    def __init__(self, num_nodes: int, hidden: tuple[int, int], width: int) -> None:
        super().__init__()
        outer, inner = hidden
        self.first_NH, self.last_NH = (
            nn.Parameter(nn.init.xavier_uniform_(torch.empty(num_nodes, outer))) for _ in range(2)
        )
        self.first_H, self.last_N = nn.Parameter(torch.zeros(outer)), nn.Parameter(torch.zeros(num_nodes))
        self.inner = nn.Linear(outer, inner)
        self.lstm = nn.LSTM(inner, width, num_layers=2, batch_first=True)
        self.decoder = nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, outer), nn.ReLU())

    def encode(self, history: Sequence[sparse.csr_array]) -> Tensor:
        """Give the vectors [U, D] of nodes from their rows at each step, the newest last."""
        hidden = [torch.sparse.mm(input_tensor(rows_UN), self.first_NH) + self.first_H for rows_UN in history]
        input_ULI = functional.relu(self.inner(functional.relu(torch.stack(hidden, dim=1))))
        return self.lstm(input_ULI)[0][:, -1]

    def decode(self, vector_UD: Tensor, column_C: Tensor) -> Tensor:
        """Forecast some columns [U, C] of the nodes' next rows."""
        return self.decoder(vector_UD) @ self.last_NH.index_select(0, column_C).T + self.last_N[column_C]
