"""GraphSAGE: union graph of the window -> vectors made of sampled neighbours' inputs (Hamilton et al., 2017).

N nodes    U nodes of a layer's inputs    B nodes of its outputs    K sampled neighbours of each    P pairs
I, O width of inputs and outputs    Q negative nodes
"""

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn
from torch.nn import functional

from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.sampling.losses import inner_products, negative_sampling_loss
from dyformer.sampling.negative_sampling import drawn, noise
from dyformer.sampling.pairs import Pairs, node_batches
from dyformer.sampling.seeded import seeded
from dyformer.sampling.walks import random_walks

if TYPE_CHECKING:
    from dyformer.baselines.graphsage.method import Aggregator, GraphSAGE

EMBEDDED_NODES = 1024  # of one batch of vectors


def node_vectors(settings: "GraphSAGE", graph: PreparedGraph, *, seed: int) -> NDArray[np.float32]:
    """Train on the union graph, and give the vectors of all nodes."""
    generator, edges = np.random.default_rng(seed), graph.union.adjacency
    num_nodes = len(graph.history.node_N)
    vector_ND = np.empty((num_nodes, settings.width), dtype=np.float32)
    with seeded(seed):
        model = SampledNetwork(num_nodes, settings.width, settings.aggregator, settings.fan_out)
    if graph.union.num_edges:
        _train(settings, model, edges, generator)
    with torch.no_grad():
        for node_B in node_batches(num_nodes, EMBEDDED_NODES):
            vector_ND[node_B] = model(edges, node_B, generator).numpy()
    return vector_ND


def _train(
    settings: "GraphSAGE", model: "SampledNetwork", edges: sparse.csr_array, generator: np.random.Generator
) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    walk_SL = random_walks(edges, generator, num_walks=settings.num_walks, length=settings.walk_length)
    noise_N = noise(np.diff(edges.indptr))
    num_pairs = settings.epochs * len(walk_SL) * (settings.walk_length - 1)
    for _ in range(min(settings.batches, math.ceil(num_pairs / settings.batch_pairs))):
        ends = (
            *pairs_with_starts(walk_SL, settings.batch_pairs, generator),
            drawn(noise_N, settings.num_negatives, generator),
        )
        node_B = np.unique(np.concatenate(ends))
        source_P, target_P, negative_Q = (np.searchsorted(node_B, nodes) for nodes in ends)
        vector_BO = model(edges, node_B, generator)
        positive_P = inner_products(vector_BO, source_P, target_P)
        source_PO, negative_QO = (vector_BO[torch.from_numpy(nodes)] for nodes in (source_P, negative_Q))
        # The article sums over the negatives of a pair.
        loss = negative_sampling_loss(positive_P, source_PO @ negative_QO.T, settings.num_negatives)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def pairs_with_starts(walk_SL: NDArray[np.int32], num: int, generator: np.random.Generator) -> Pairs:
    """Draw `num` pairs of a walk's start and another of its nodes; drop pairs of a node with itself."""
    row_P = generator.integers(len(walk_SL), size=num)
    start_P, other_P = walk_SL[row_P, 0], walk_SL[row_P, generator.integers(1, walk_SL.shape[1], size=num)]
    differs_P = start_P != other_P
    return start_P[differs_P].astype(np.int64), other_P[differs_P].astype(np.int64)


def sampled_neighbours(
    edges: sparse.csr_array, node_B: NDArray[np.int64], num: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Draw neighbours with repeats, [B, K]; those of a node without neighbours are the number N, which is no node's.

    The number N has no neighbours either.
    """
    num_nodes = len(edges.indptr) - 1
    degree_B = np.append(np.diff(edges.indptr), 0)[node_B]
    slot_BK = edges.indptr[node_B][:, None] + (generator.random((len(node_B), num)) * degree_B[:, None]).astype(
        np.int64
    )
    known_B = degree_B > 0
    neighbour_BK = np.full((len(node_B), num), num_nodes, dtype=np.int64)
    neighbour_BK[known_B] = edges.indices[slot_BK[known_B]]
    return neighbour_BK


class SampledNetwork(nn.Module):
    """Two layers over id embeddings, each for the nodes that the next one reads."""

    def __init__(self, num_nodes: int, width: int, aggregator: "Aggregator", fan_out: tuple[int, int]) -> None:
        super().__init__()
        # As in the authors' code, the last input stands for the neighbours of all nodes that have none.
        self.id_NI = nn.Parameter(torch.empty(num_nodes + 1, width))
        self.layers = nn.ModuleList(AGGREGATORS[aggregator](width, width) for _ in range(2))
        for weight in self.parameters():
            nn.init.xavier_uniform_(weight) if weight.dim() == 2 else nn.init.zeros_(weight)
        self.fan_out = fan_out

    def forward(self, edges: sparse.csr_array, node_B: NDArray[np.int64], generator: np.random.Generator) -> Tensor:
        """Give the vectors [B, O] of some nodes, of length 1."""
        near_BK = sampled_neighbours(edges, node_B, self.fan_out[1], generator)
        inner_B = np.unique(np.concatenate([node_B, near_BK.ravel()]))
        far_BK = sampled_neighbours(edges, inner_B, self.fan_out[0], generator)
        hidden_UI = functional.relu(self.layers[0](self.id_NI, *map(torch.from_numpy, (inner_B, far_BK))))
        positions = (torch.from_numpy(np.searchsorted(inner_B, nodes)) for nodes in (node_B, near_BK))
        return functional.normalize(self.layers[1](hidden_UI, *positions), dim=1)


class MeanWithSelf(nn.Module):
    """A linear map of the mean over the neighbours and the node itself: "gcn"."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_inputs, num_outputs, bias=False)

    def forward(self, input_UI: Tensor, node_B: Tensor, neighbour_BK: Tensor) -> Tensor:
        """Give the outputs [B, O] of nodes from the inputs of them and their neighbours."""
        return self.linear(rows(input_UI, torch.cat([node_B[:, None], neighbour_BK], dim=1)).mean(dim=1))


class BesideSelf(nn.Module):
    """Half of the width from the node's own input, the other half from its aggregated neighbours."""

    def __init__(self, num_inputs: int, num_outputs: int, num_aggregated: int) -> None:
        super().__init__()
        self.own = nn.Linear(num_inputs, num_outputs // 2, bias=False)
        self.near = nn.Linear(num_aggregated, num_outputs - num_outputs // 2, bias=False)

    def forward(self, own_BI: Tensor, near_BI: Tensor) -> Tensor:
        """Give the outputs [B, O]."""
        return torch.cat([self.own(own_BI), self.near(near_BI)], dim=1)


class Mean(nn.Module):
    """The mean over the neighbours: "mean"."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.output = BesideSelf(num_inputs, num_outputs, num_inputs)

    def forward(self, input_UI: Tensor, node_B: Tensor, neighbour_BK: Tensor) -> Tensor:
        """Give the outputs [B, O] of nodes from the inputs of them and their neighbours."""
        return self.output(input_UI.index_select(0, node_B), rows(input_UI, neighbour_BK).mean(dim=1))


class MaxPool(nn.Module):
    """The maximum over the neighbours of a layer of four times the width, with a ReLU: "max-pool"."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.pool = nn.Linear(num_inputs, 4 * num_outputs)
        self.output = BesideSelf(num_inputs, num_outputs, 4 * num_outputs)

    def forward(self, input_UI: Tensor, node_B: Tensor, neighbour_BK: Tensor) -> Tensor:
        """Give the outputs [B, O] of nodes from the inputs of them and their neighbours."""
        # Each distinct neighbour goes through the layer once.
        node_V, position_BK = neighbour_BK.unique(return_inverse=True)
        pooled_VO = functional.relu(self.pool(input_UI.index_select(0, node_V)))
        return self.output(input_UI.index_select(0, node_B), rows(pooled_VO, position_BK).amax(dim=1))


class Lstm(nn.Module):
    """The last state of an LSTM over the neighbours, whose order is random: "lstm"."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(num_inputs, num_outputs, batch_first=True)
        self.output = BesideSelf(num_inputs, num_outputs, num_outputs)

    def forward(self, input_UI: Tensor, node_B: Tensor, neighbour_BK: Tensor) -> Tensor:
        """Give the outputs [B, O] of nodes from the inputs of them and their neighbours."""
        _, (state_1BO, _) = self.lstm(rows(input_UI, neighbour_BK))
        return self.output(input_UI.index_select(0, node_B), state_1BO[0])


def rows(input_UI: Tensor, node_BK: Tensor) -> Tensor:
    """Give the inputs of nodes, [B, K, I]."""
    return input_UI.index_select(0, node_BK.flatten()).unflatten(0, node_BK.shape)


AGGREGATORS: "dict[Aggregator, type[nn.Module]]" = {
    "gcn": MeanWithSelf,
    "mean": Mean,
    "max-pool": MaxPool,
    "lstm": Lstm,
}
