"""DySAT: snapshots -> vectors by attention to the neighbours of a step, then to older steps (Sankar et al., 2020).

N nodes    U nodes of a batch    D width    H heads    W width of one head    T steps of the window
E entries: a node of the batch and one of its neighbours, or itself    P positive pairs    C centers    K negative nodes
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn
from torch.nn import functional

from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.sampling.adjacency import adjacency, window_snapshots
from dyformer.sampling.losses import inner_products, negative_sampling_loss
from dyformer.sampling.negative_sampling import drawn, noise
from dyformer.sampling.pairs import node_batches
from dyformer.sampling.seeded import seeded
from dyformer.sampling.walks import WalkContexts, random_walks, walk_contexts

if TYPE_CHECKING:
    from dyformer.baselines.dysat.method import DySAT

SLOPE = 0.2  # of the leaky ReLU of graph attention
EMBEDDED_NODES = 2048  # of one batch of vectors


def node_vectors(settings: "DySAT", graph: PreparedGraph, *, seed: int) -> NDArray[np.float32]:
    """Train on the window, and give the vectors as of its newest step."""
    generator, num_nodes = np.random.default_rng(seed), len(graph.history.node_N)
    window = [adjacency(snapshot, num_nodes) for snapshot in window_snapshots(graph)]
    vector_ND = np.empty((num_nodes, settings.width), dtype=np.float32)
    with seeded(seed):
        model = TwoAttentions(
            (num_nodes, len(window), settings.width),
            (settings.structural_heads, settings.temporal_heads),
            (settings.structural_dropout, settings.temporal_dropout),
        )
        _train(settings, model, window, generator)
    with torch.no_grad():
        model.eval()
        for node_U in node_batches(num_nodes, EMBEDDED_NODES):
            vector_ND[node_U] = model(window, node_U)[:, -1].numpy()
    return vector_ND


def _train(
    settings: "DySAT", model: "TwoAttentions", window: Sequence[sparse.csr_array], generator: np.random.Generator
) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    num_nodes = len(model.id_ND)
    sources = [(step, _source(settings, matrix, generator)) for step, matrix in enumerate(window) if matrix.nnz]
    order_N = np.empty(0, dtype=np.int64)
    for _ in range(_num_batches(settings, num_nodes) if sources else 0):
        order_N = order_N if len(order_N) else generator.permutation(num_nodes)
        node_B, order_N = order_N[: settings.batch_nodes], order_N[settings.batch_nodes :]
        drawn_pairs = [(step, *_draw(settings, source, node_B, generator)) for step, source in sources]
        node_U = np.unique(np.concatenate([nodes for _, *ends in drawn_pairs for nodes in ends]))
        vector_UTD = model(window, node_U)
        losses = [
            _loss(settings, vector_UTD[:, step], *(np.searchsorted(node_U, nodes) for nodes in ends))
            for step, *ends in drawn_pairs
        ]
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        optimizer.step()


def _num_batches(settings: "DySAT", num_nodes: int) -> int:
    passes = math.inf if settings.epochs is None else settings.epochs
    return int(min(settings.batches, passes * math.ceil(num_nodes / settings.batch_nodes)))


def _source(
    settings: "DySAT", matrix: sparse.csr_array, generator: np.random.Generator
) -> tuple[WalkContexts, NDArray]:
    walk_SL = random_walks(matrix, generator, num_walks=settings.num_walks, length=settings.walk_length)
    return walk_contexts(walk_SL, len(matrix.indptr) - 1), noise(np.diff(matrix.indptr))


def _draw(
    settings: "DySAT",
    source: tuple[WalkContexts, NDArray],
    node_B: NDArray[np.int64],
    generator: np.random.Generator,
) -> tuple[NDArray[np.int64], ...]:
    """Draw centers [P], the nodes near them [P] and negatives [K]."""
    contexts, noise_N = source
    pairs = contexts.draw(node_B, settings.num_positives, settings.walk_window, generator)
    return *pairs, drawn(noise_N, settings.num_negatives, generator)


def _loss(
    settings: "DySAT",
    vector_UD: Tensor,
    center_P: NDArray[np.int64],
    context_P: NDArray[np.int64],
    negative_K: NDArray[np.int64],
) -> Tensor:
    center_PD, negative_KD = (vector_UD[torch.from_numpy(nodes)] for nodes in (center_P, negative_K))
    positive_P = inner_products(vector_UD, center_P, context_P)
    return negative_sampling_loss(positive_P, center_PD @ negative_KD.T, settings.negative_weight)


class TwoAttentions(nn.Module):
    """Structural and temporal self-attention over id embeddings."""

    def __init__(self, sizes: tuple[int, int, int], heads: tuple[int, int], dropouts: tuple[float, float]) -> None:
        super().__init__()
        num_nodes, num_steps, width = sizes
        self.id_ND = nn.Parameter(torch.randn(num_nodes, width) / math.sqrt(width))
        self.structural = StructuralAttention(width, heads[0], dropouts[0])
        self.position_TD = nn.Parameter(torch.randn(num_steps, width) / math.sqrt(width))
        self.temporal = TemporalAttention(width, heads[1], dropouts[1])

    def forward(self, window: Sequence[sparse.csr_array], node_U: NDArray[np.int64]) -> Tensor:
        """Give the vectors [U, T, D] of some nodes at each step of a window of adjacencies [N, N]."""
        value_ND = self.structural.value(self.id_ND)
        input_UD = self.id_ND.index_select(0, torch.from_numpy(node_U))
        steps = [input_UD + self.structural(value_ND, *neighbours(matrix, node_U)) for matrix in window]
        return self.temporal(torch.stack(steps, dim=1) + self.position_TD)


def neighbours(matrix: sparse.csr_array, node_U: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Give each entry's row among the given nodes [E] and its node [E]: the neighbours of the nodes, and themselves."""
    rows = matrix[node_U]
    row_E = np.repeat(np.arange(len(node_U)), np.diff(rows.indptr))
    row_E = np.concatenate([row_E, np.arange(len(node_U))])
    return torch.from_numpy(row_E), torch.from_numpy(np.concatenate([rows.indices, node_U]).astype(np.int64))


class StructuralAttention(nn.Module):
    """Graph attention (Velickovic et al., 2018) of nodes to their neighbours in one snapshot, with an ELU."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.value = nn.Linear(width, width, bias=False)
        self.query_HW, self.key_HW = (
            nn.Parameter(nn.init.xavier_uniform_(torch.empty(num_heads, width // num_heads))) for _ in range(2)
        )

    def forward(self, value_ND: Tensor, row_E: Tensor, node_E: Tensor) -> Tensor:
        """Give the mean of the values of each row's entries, weighted by attention, [U, D].

        The entries are those of `neighbours`, where the rows' own nodes come last.
        """
        num_rows = int(row_E[-1]) + 1
        value_EHW = value_ND.index_select(0, node_E).view(len(node_E), self.num_heads, -1)
        query_UH = (value_EHW[-num_rows:] * self.query_HW).sum(dim=2)
        logit_EH = functional.leaky_relu(query_UH[row_E] + (value_EHW * self.key_HW).sum(dim=2), SLOPE)
        weight_EH = functional.dropout(row_softmax(logit_EH, row_E, num_rows), self.dropout, self.training)
        output_UHW = torch.zeros(num_rows, *value_EHW.shape[1:]).index_add(0, row_E, weight_EH[:, :, None] * value_EHW)
        return functional.elu(output_UHW.flatten(1))


def row_softmax(logit_EH: Tensor, row_E: Tensor, num_rows: int) -> Tensor:
    """Give the softmax over the entries of each row."""
    index_EH = row_E[:, None].expand_as(logit_EH)
    top_UH = logit_EH.new_zeros(num_rows, logit_EH.shape[1])
    top_UH = top_UH.scatter_reduce(0, index_EH, logit_EH.detach(), "amax", include_self=False)
    weight_EH = torch.exp(logit_EH - top_UH[row_E])
    return weight_EH / torch.zeros_like(top_UH).index_add(0, row_E, weight_EH)[row_E]


class TemporalAttention(nn.Module):
    """Attention of a node at each step to itself at that step and older ones, and a feed-forward layer."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.projections = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(3))
        self.feed_forward = nn.Linear(width, width)

    def forward(self, input_UTD: Tensor) -> Tensor:
        """Give the vectors [U, T, D]."""
        query, key, value = (
            projection(input_UTD).unflatten(2, (self.num_heads, -1)).transpose(1, 2) for projection in self.projections
        )
        dropout = self.dropout if self.training else 0.0
        output_UHTW = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        output_UTD = output_UHTW.transpose(1, 2).flatten(2)
        return input_UTD + output_UTD + functional.relu(self.feed_forward(output_UTD))
