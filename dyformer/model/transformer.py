"""The two-tower graph transformer (paper, section 3).

G target nodes     Q asking nodes         T lags    D width            P pairs of nodes
C context nodes    K answering nodes      H heads   W width of a head  F node features
N known nodes      B both towers' nodes   A connections: edges of pairs, once for each lag
O width of a node's id embedding
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from dyformer.model.attention import attention
from dyformer.model.config import ModelConfig, Precision
from dyformer.model.dropout import add_dropped
from dyformer.model.encodings import (
    SpatialDistanceEncoding,
    TemporalConnectionEncoding,
    add_connections,
    distance_bias,
)
from dyformer.sampling.subgraphs import SubgraphBatch

LINK_SCALE = 5.0  # vectors are of about unit length: scores start within this much either way
LINK_OFFSET = -LINK_SCALE / 2  # untrained vectors are much alike: their pairs start with a score of about 0
ID_DEVIATION = 0.02  # of nodes' id embeddings before training: what is not learnt must not count


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """What the graph decides about the model."""

    num_nodes: int
    num_features: int
    num_lags: int
    max_distance: int  # D_max


class AttentionBias(nn.Module):
    """A^TC + A^SD of the pairs of a batch, shared by all layers and, transposed, by both towers."""

    def __init__(self, config: ModelConfig, sizes: ModelSizes) -> None:
        super().__init__()
        self.temporal = TemporalConnectionEncoding(sizes.num_lags, config.width, config.num_heads)
        self.spatial = SpatialDistanceEncoding(sizes.max_distance, config.width, config.num_heads)

    def forward(self, batch: SubgraphBatch) -> Tensor:
        """Bias `[H, G, C]`."""
        absent_H, delta_TH = self.temporal(batch.visible_T)
        bias_HP = distance_bias(self.spatial() + absent_H, batch.distance_GC.flatten())
        pair_A = batch.edge_target_A * batch.distance_GC.shape[1] + batch.edge_context_A
        bias_HP = add_connections(bias_HP, delta_TH, pair_A, batch.edge_lag_A)
        return bias_HP.unflatten(1, batch.distance_GC.shape)


class TwoTowerLayer(nn.Module):
    """Targets ask the context and the context asks the targets, with the same weights (paper, section 3.4).

    Rows of both towers and of several batches stand in one tensor, all targets first and then all contexts, so that
    what treats rows alike is done once.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_dropout, self.residual_dropout = config.attention_dropout, config.residual_dropout
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.query = nn.Linear(config.width, config.width)
        self.key = nn.Linear(config.width, config.width)
        self.value = nn.Linear(config.width, config.width)
        self.out = nn.Linear(config.width, config.width)
        self.feed_forward = nn.Sequential(
            nn.Linear(config.width, config.feed_forward_width),
            nn.GELU(),
            nn.Linear(config.feed_forward_width, config.width),
        )
        for linear in (self.value, self.out):  # torch's own start is a third of this, and neighbours are hardly heard
            nn.init.orthogonal_(linear.weight, gain=1.5)

    def forward(self, row_BD: Tensor, biases: Sequence[Tensor]) -> Tensor:
        """Update both towers `[B, D]` from the rows that they had before the layer: each hears no row of its own."""
        normed_BD = self.attention_norm(row_BD)
        return self.updated(row_BD, self.told(normed_BD, normed_BD, biases))

    def targets(self, row_BD: Tensor, biases: Sequence[Tensor]) -> Tensor:
        """Update the targets `[G, D]` alone."""
        num_targets = sum(bias_HGC.shape[1] for bias_HGC in biases)
        normed_GD, normed_CD = self.attention_norm(row_BD).tensor_split([num_targets])
        return self.updated(row_BD[:num_targets], self.told(normed_GD, normed_CD, biases))

    def told(self, asking_QD: Tensor, answering_KD: Tensor, biases: Sequence[Tensor]) -> Tensor | None:
        """What attention brings to each asking row, of all heads together; None, if there is nobody to ask."""
        if not biases[0].numel():
            return None
        rows = self.query(asking_QD), self.key(answering_KD), self.value(answering_KD)
        return self.out(attention(*rows, biases, dropout=self.attention_dropout if self.training else 0.0))

    def updated(self, row_BD: Tensor, told_BD: Tensor | None) -> Tensor:
        """Add what attention told, if there was anybody to hear, and what the feed-forward layer makes of it."""
        share = self.residual_dropout if self.training else 0.0
        if told_BD is not None:
            row_BD = add_dropped(row_BD, told_BD, share)
        return add_dropped(row_BD, self.feed_forward(self.feed_forward_norm(row_BD)), share)


class NodeInput(nn.Module):
    """What a node is called (a learned vector of its own) and what the past says about its place in the graph.

    The two stand beside each other, a quarter of the width for the first. A node that no training batch held counts
    with a zero vector of its own, which `id_dropout` makes a common sight.
    """

    trained_N: Tensor

    def __init__(self, config: ModelConfig, sizes: ModelSizes) -> None:
        super().__init__()
        self.id_dropout, self.id_width = config.id_dropout, config.id_width
        self.structure_width = config.width - config.id_width
        self.has_structure = "structure" in config.inputs
        if self.id_width:
            self.id_NO = nn.Parameter(ID_DEVIATION * torch.randn(sizes.num_nodes, self.id_width))
            self.register_buffer("trained_N", torch.zeros(sizes.num_nodes, dtype=torch.bool))
        if self.has_structure:
            self.linear_structure = nn.Linear(sizes.num_features, self.structure_width)
            self.combined_structure = nn.Sequential(
                nn.Linear(sizes.num_features, self.structure_width),
                nn.GELU(),
                nn.Linear(self.structure_width, self.structure_width),
            )

    def forward(self, node_B: Tensor, feature_BF: Tensor) -> tuple[Tensor, Tensor]:
        """Give the vectors of the nodes' structure `[B, D - O]` and their own ones `[B, O]`."""
        return self.structure(feature_BF), self.own(node_B)

    def own(self, node_B: Tensor) -> Tensor:
        """In training all nodes count as trained, less those dropped."""
        if not self.id_width:
            return torch.zeros(node_B.shape[0], 0, device=node_B.device)
        if not self.training:
            return self.id_NO[node_B] * self.trained_N[node_B, None]
        kept_B = torch.rand(node_B.shape[0], device=node_B.device) >= self.id_dropout
        return self.rows(node_B) * kept_B[:, None]

    def rows(self, node_B: Tensor) -> Tensor:
        """Own vectors `[B, O]` to be trained."""
        self.trained_N.index_fill_(0, node_B, True)
        return functional.embedding(node_B, self.id_NO, sparse=True)

    def structure(self, feature_BF: Tensor) -> Tensor:
        """Linear and combined features: alone, the first leave a decoder all that they say."""
        if not self.has_structure:
            return feature_BF.new_zeros(feature_BF.shape[0], self.structure_width)
        return self.linear_structure(feature_BF) + self.combined_structure(feature_BF)


def pair_scores(vector_GD: Tensor, weight_D: Tensor, first_P: Tensor, second_P: Tensor) -> Tensor:
    """Weighted inner products `[P]` of the vectors at two lists of positions (paper, LinkPredLoss)."""
    # index_select, because its backward pass adds in a fixed order where that of indexing does not.
    return (vector_GD.index_select(0, first_P) * vector_GD.index_select(0, second_P)) @ weight_D


def signs(width: int) -> Tensor:
    """Signs `[D]` of a score: most values count for nodes that are alike, every fourth for nodes that differ.

    A plain inner product scores no pair above both nodes with themselves, as links between two sides of a log ask for.
    """
    return torch.where(torch.arange(width) % 4 == 3, -1.0, 1.0)


class LinkScore(nn.Module):
    """Weighted inner product: the score of fine-tuning, of the form of the paper's decoder on the Hadamard product."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight_D = nn.Parameter(LINK_SCALE * signs(width))
        self.offset = nn.Parameter(torch.tensor(LINK_OFFSET))

    def forward(self, vector_GD: Tensor, first_P: Tensor, second_P: Tensor) -> Tensor:
        """Scores `[P]` of pairs of positions."""
        return pair_scores(vector_GD, self.weight_D, first_P, second_P) + self.offset


class TemporalDecoder(nn.Module):
    """One linear decoder per lag: inner products of e_i(t) = Linear_t(h_i) say who was linked then (paper, L_recon).

    Signs and an offset per lag are ours.
    """

    sign_D: Tensor

    def __init__(self, num_lags: int, width: int) -> None:
        super().__init__()
        self.lags = nn.ModuleList(self._near_identity(width) for _ in range(num_lags))
        self.offset_T = nn.Parameter(torch.full((num_lags,), LINK_OFFSET))
        self.register_buffer("sign_D", signs(width), persistent=False)

    def forward(self, vector_GD: Tensor, first_P: Tensor, second_P: Tensor, lag: int) -> Tensor:
        """Scores `[P]` of pairs of positions at one lag."""
        return pair_scores(self.lags[lag](vector_GD), self.sign_D, first_P, second_P) + self.offset_T[lag]

    def _near_identity(self, width: int) -> nn.Linear:
        linear = nn.Linear(width, width)
        with torch.no_grad():
            linear.weight.add_(LINK_SCALE**0.5 * torch.eye(width))
        return linear


def mixed_precision(device: torch.device, precision: Precision) -> torch.autocast:
    """Let products on a GPU have a lower precision; rows, norms and softmax keep theirs, as all does elsewhere."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda" and precision == "bfloat16")


class DyFormer(nn.Module):
    """Targets and their context -> vectors of the targets."""

    node_N: Tensor

    def __init__(self, config: ModelConfig, sizes: ModelSizes) -> None:
        super().__init__()
        self.gpu_precision: Precision = config.gpu_precision
        self.register_buffer("node_N", torch.arange(sizes.num_nodes))  # permanent number of each node
        self.inputs = NodeInput(config, sizes)
        self.bias = AttentionBias(config, sizes)
        self.layers = nn.ModuleList(TwoTowerLayer(config) for _ in range(config.num_layers))
        self.norm = nn.LayerNorm(config.width - config.id_width)
        nn.init.constant_(self.norm.weight, config.width**-0.5)  # vectors of about unit length
        self.link = LinkScore(config.width)
        self.id_link = LinkScore(config.id_width)
        self.temporal = TemporalDecoder(sizes.num_lags, config.width)
        self.view = nn.Linear(
            config.width, config.width
        )  # predicts one view from the other, where views are normalised

    def forward(self, batch: SubgraphBatch) -> Tensor:
        """Vectors `[G, D]` of the targets."""
        return self.views([batch])[0]

    def views(self, batches: Sequence[SubgraphBatch]) -> tuple[Tensor, ...]:
        """Vectors `[G, D]` of each batch's targets: H_tgt of the last layer, normalised, beside their id embeddings.

        What the layers make of a node's id embedding is replaced by that vector itself, which pre-training makes say
        with whom the node is linked. Batches hear nothing of each other; all have a context, or none.
        """
        assert len({len(batch.context_C) > 0 for batch in batches}) == 1
        sizes = [len(batch.target_G) for batch in batches]
        nodes = [batch.target_G for batch in batches] + [batch.context_C for batch in batches]
        features = [batch.target_feature_GF for batch in batches] + [batch.context_feature_CF for batch in batches]
        structure_BS, id_BO = self.inputs(torch.cat(nodes), torch.cat(features))
        row_BD = torch.cat([structure_BS, id_BO], dim=1)
        biases = [self.bias(batch) for batch in batches]
        *layers, last = self.layers
        with mixed_precision(row_BD.device, self.gpu_precision):
            for layer in layers:
                row_BD = layer(row_BD, biases)
            assert isinstance(last, TwoTowerLayer)
            target_GD = last.targets(row_BD, biases)  # nobody reads the context any more
        vector_GD = torch.cat([self.norm(target_GD[:, : structure_BS.shape[1]]), id_BO[: len(target_GD)]], dim=1)
        return vector_GD.split(sizes)
