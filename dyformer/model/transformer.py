"""The two-tower graph transformer (paper, section 3).

G target nodes     Q query nodes             T lags     D width                    P pairs of nodes
C context nodes    K key nodes               H heads    O width of id embedding    F node features
N known nodes      B nodes of both towers    A connections: edges of pairs, one for each lag    S = D - O
U distinct nodes of a batch and of its history links
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dyformer.model.attention import attention, spans_of
from dyformer.model.config import InitialWeights, ModelConfig, ModelSizes, PairScore, Precision
from dyformer.model.cuda_graphs import Recordings, replayed
from dyformer.model.encodings import AttentionBias
from dyformer.sampling.subgraphs import SubgraphBatch, padded_batches

LEVELS = 1 << 16  # a fraction is rounded to a multiple of 1 / LEVELS
LINK_SCALE = 5.0  # scores start between -LINK_SCALE and LINK_SCALE, because vectors have about unit length
LINK_OFFSET = -LINK_SCALE / 2  # pairs start with a score of about 0, because untrained vectors are much alike
ID_DEVIATION = 0.02  # standard deviation of an id embedding before training: small, because it is noise


def add_dropped(row_BD: Tensor, update_BD: Tensor, fraction: float) -> Tensor:
    """Give `row + dropout(update)`: a `fraction` of the update's numbers is dropped, the others are scaled up.

    Each number takes 16 of a random number's 64 bits. torch draws one for each, which takes five times as long.
    """
    if not 0 < fraction < 1 or row_BD.is_cuda:
        return row_BD + functional.dropout(update_BD, fraction)
    num_dropped = round(fraction * LEVELS)
    drawn = torch.randint(-(2**63), 2**63 - 1, (-(-update_BD.numel() // 4),)).view(torch.int16)
    mask_BD = torch.empty_like(update_BD, requires_grad=False)
    torch.ge(drawn[: update_BD.numel()].view_as(update_BD), num_dropped - LEVELS // 2, out=mask_BD)
    return torch.addcmul(row_BD, update_BD, mask_BD, value=LEVELS / (LEVELS - num_dropped))


class TwoTowerLayer(nn.Module):
    """Targets attend to the context and the context to the targets, with the same weights (paper, section 3.4).

    Rows of both towers and of several batches are one tensor, because norms and projections treat every row alike. All
    targets come first, and then all contexts.
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
        if config.initial_weights == "plain":
            return
        for linear in (self.value, self.out):  # with torch's default, a third of this, messages have little effect
            nn.init.orthogonal_(linear.weight, gain=1.5)

    def forward(self, row_BD: Tensor, biases: Sequence[Tensor]) -> Tensor:
        """Update both towers `[B, D]`, each from the rows that the other had before the layer.

        With biases `[H, B, B]` of all pairs of the nodes of each batch, which then follow each other in the rows, these
        nodes are one tower.
        """
        normed_BD = self.attention_norm(row_BD)
        return self.updated(row_BD, self.message(normed_BD, normed_BD, biases))

    def targets(self, row_BD: Tensor, biases: Sequence[Tensor]) -> Tensor:
        """Update the targets `[G, D]` alone."""
        num_targets = sum(bias_HGC.shape[1] for bias_HGC in biases)
        normed_GD, normed_CD = self.attention_norm(row_BD).tensor_split([num_targets])
        return self.updated(row_BD[:num_targets], self.message(normed_GD, normed_CD, biases))

    def message(self, query_QD: Tensor, key_KD: Tensor, biases: Sequence[Tensor]) -> Tensor | None:
        """Give the projected attention output `[Q, D]`; None for batches without context."""
        if not biases[0].numel():
            return None
        rows = self.query(query_QD), self.key(key_KD), self.value(key_KD)
        return self.out(attention(*rows, biases, dropout=self.attention_dropout if self.training else 0.0))

    def updated(self, row_BD: Tensor, message_BD: Tensor | None) -> Tensor:
        """Add the message, if there is one, and then the output of the feed-forward network."""
        dropout = self.residual_dropout if self.training else 0.0
        if message_BD is not None:
            row_BD = add_dropped(row_BD, message_BD, dropout)
        return add_dropped(row_BD, self.feed_forward(self.feed_forward_norm(row_BD)), dropout)


class _Rows(torch.autograd.Function):
    """Look-up of different rows of a large table; its gradient has these rows alone, and none twice."""

    @staticmethod
    def forward(ctx: Any, table_NO: Tensor, node_U: Tensor) -> Tensor:
        ctx.save_for_backward(node_U)
        ctx.shape = table_NO.shape
        return table_NO.index_select(0, node_U)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (grad_UO,) = grad_outputs
        (node_U,) = ctx.saved_tensors
        index_1U = node_U[None]
        return torch.sparse_coo_tensor(index_1U, grad_UO, ctx.shape, is_coalesced=True, check_invariants=False), None


@dataclass(frozen=True, kw_only=True)
class IdRows:
    """The id embeddings of the nodes of a batch."""

    node_U: Tensor  # sorted, each once
    row_UO: Tensor

    def index(self, node_B: Tensor) -> Tensor:
        """Give the rows of nodes that are among them."""
        return torch.searchsorted(self.node_U, node_B)


class NodeInput(nn.Module):
    """A node's input: its id embedding beside its structural features, by default a quarter and the rest of the width.

    With id embeddings alone, of the whole width, this is the paper's linear map of one-hot vectors. A node whose id
    embedding was never trained has zeros instead, and `id_dropout` trains the model for such nodes.
    """

    trained_N: Tensor

    def __init__(self, config: ModelConfig, sizes: ModelSizes) -> None:
        super().__init__()
        self.id_dropout, self.id_width = config.id_dropout, config.id_width
        self.structure_width = config.width - config.id_width
        self.has_structure = "structure" in config.inputs
        if self.id_width:
            self.id_NO = nn.Parameter(_initial_ids(sizes.num_nodes, self.id_width, config.initial_weights))
            self.register_buffer("trained_N", torch.zeros(sizes.num_nodes, dtype=torch.bool))
        if self.has_structure:
            self.linear_structure = nn.Linear(sizes.num_features, self.structure_width)
            self.combined_structure = nn.Sequential(
                nn.Linear(sizes.num_features, self.structure_width),
                nn.GELU(),
                nn.Linear(self.structure_width, self.structure_width),
            )

    def id_embedding(self, node_B: Tensor, ids: "IdRows | None" = None) -> Tensor:
        """Give id embeddings `[B, O]`, with zeros for dropped nodes in training and for untrained ones afterwards.

        Negative nodes are padding.
        """
        if not self.id_width:
            return torch.zeros(node_B.shape[0], 0, device=node_B.device)
        if not self.training:
            return self.id_NO[node_B] * self.trained_N[node_B, None]
        ids = self.ids(node_B[node_B >= 0].unique()) if ids is None else ids
        is_used_B = (torch.rand(node_B.shape[0], device=node_B.device) >= self.id_dropout) & (node_B >= 0)
        self.mark_trained(node_B, is_used_B)
        return ids.row_UO.index_select(0, ids.index(node_B)) * is_used_B[:, None]

    def ids(self, node_U: Tensor) -> "IdRows":
        """Read the id embeddings of all nodes of a batch, sorted and each once, so that their gradients are rows, too.

        The list of nodes is made with the batch, because a GPU waits where the size of a result is not known before.
        """
        if not self.id_width:
            return IdRows(node_U=node_U, row_UO=torch.zeros(len(node_U), 0, device=node_U.device))
        row_UO = _Rows.apply(self.id_NO, node_U)
        assert isinstance(row_UO, Tensor)
        return IdRows(node_U=node_U, row_UO=row_UO)

    def mark_trained(self, node_B: Tensor, is_used_B: Tensor) -> None:
        """Count nodes as trained from now on whose rows the loss uses; a node may be used once and dropped once.

        A loss of validation trains nothing, and counts none.
        """
        if self.training:
            self.trained_N.index_put_((node_B,), is_used_B, accumulate=True)  # of bools, "or"

    def structure(self, feature_BF: Tensor) -> Tensor:
        """Give structural rows `[B, S]`: a linear map of the features, which a decoder can read, plus a network."""
        if not self.has_structure:
            return feature_BF.new_zeros(feature_BF.shape[0], self.structure_width)
        return self.linear_structure(feature_BF) + self.combined_structure(feature_BF)


def _initial_ids(num_nodes: int, width: int, initial: InitialWeights) -> Tensor:
    if initial == "scaled":
        return ID_DEVIATION * torch.randn(num_nodes, width)
    return num_nodes**-0.5 * (2 * torch.rand(num_nodes, width) - 1)  # as of torch's linear map of one-hot vectors


def pair_scores(vector_GD: Tensor, weight_D: Tensor, first_P: Tensor, second_P: Tensor) -> Tensor:
    """Give weighted inner products `[P]` of the vectors at two lists of positions (paper, LinkPredLoss)."""
    # index_select, because its backward pass adds in a fixed order and that of indexing does not.
    return (vector_GD.index_select(0, first_P) * vector_GD.index_select(0, second_P)) @ weight_D


def signs(width: int) -> Tensor:
    """Give the signs `[D]` of a score's products: minus for every fourth, plus for the others.

    Links between the two sides of a log need the minus, because a plain inner product favours pairs of like nodes.
    """
    return torch.where(torch.arange(width) % 4 == 3, -1.0, 1.0)


class LinkScore(nn.Module):
    """The score of a link: a weighted inner product plus an offset, or the inner product alone as in the paper."""

    weight_D: Tensor
    offset: Tensor

    def __init__(self, width: int, kind: PairScore) -> None:
        super().__init__()
        if kind == "plain":
            self.register_buffer("weight_D", torch.ones(width), persistent=False)
            self.register_buffer("offset", torch.zeros(()), persistent=False)
            return
        self.weight_D = nn.Parameter(LINK_SCALE * signs(width))
        self.offset = nn.Parameter(torch.tensor(LINK_OFFSET))

    def forward(self, vector_GD: Tensor, first_P: Tensor, second_P: Tensor) -> Tensor:
        """Give scores `[P]` of pairs of positions."""
        return pair_scores(vector_GD, self.weight_D, first_P, second_P) + self.offset

    def all_pairs(self, vector_GD: Tensor) -> Tensor:
        """Give scores `[G, G]` of all pairs."""
        return (vector_GD * self.weight_D) @ vector_GD.T + self.offset


class TemporalDecoder(nn.Module):
    """One linear decoder per lag: inner products of e_i(t) = Linear_t(h_i) score links at that lag (paper, L_recon).

    The signs and the offset per lag of weighted scores are not in the paper.
    """

    sign_D: Tensor
    offset_T: Tensor

    def __init__(self, num_lags: int, config: ModelConfig) -> None:
        super().__init__()
        new = self._near_identity if config.initial_weights == "scaled" else _square
        self.lags = nn.ModuleList(new(config.width) for _ in range(num_lags))
        is_plain = config.pair_score == "plain"
        self.register_buffer("sign_D", torch.ones(config.width) if is_plain else signs(config.width), persistent=False)
        if is_plain:
            self.register_buffer("offset_T", torch.zeros(num_lags), persistent=False)
        else:
            self.offset_T = nn.Parameter(torch.full((num_lags,), LINK_OFFSET))

    def forward(self, vector_GD: Tensor, first_P: Tensor, second_P: Tensor, lag: int) -> Tensor:
        """Give scores `[P]` of pairs of positions at one lag."""
        return pair_scores(self.lags[lag](vector_GD), self.sign_D, first_P, second_P) + self.offset_T[lag]

    def _near_identity(self, width: int) -> nn.Linear:
        linear = _square(width)
        with torch.no_grad():
            linear.weight.add_(LINK_SCALE**0.5 * torch.eye(width))
        return linear


def _square(width: int) -> nn.Linear:
    return nn.Linear(width, width)


def mixed_precision(device: torch.device, precision: Precision) -> torch.autocast:
    """Lower the precision of matrix products on a GPU; rows, norms and softmax keep float32.

    Products outside the layers take their inputs with 10 instead of 23 bits there (TF32), for the whole process.
    """
    is_lowered = device.type == "cuda" and precision == "bfloat16"
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high" if is_lowered else "highest")
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=is_lowered)


class DyFormer(nn.Module):
    """Targets and their context -> vectors of the targets."""

    node_N: Tensor

    def __init__(self, config: ModelConfig, sizes: ModelSizes) -> None:
        super().__init__()
        self.gpu_precision: Precision = config.gpu_precision
        self.has_one_tower = config.towers == "one"  # of targets and context; their layers are the same
        self.register_buffer("node_N", torch.arange(sizes.num_nodes))  # permanent number of each node
        self.inputs = NodeInput(config, sizes)
        self.bias = AttentionBias(config, sizes)
        self.layers = nn.ModuleList(TwoTowerLayer(config) for _ in range(config.num_layers))
        self.norm = None if config.output == "plain" else nn.LayerNorm(config.width - config.id_width)
        if self.norm is not None:
            nn.init.constant_(self.norm.weight, config.width**-0.5)  # vectors of about unit length
        self.link = LinkScore(config.width, config.pair_score)
        self.id_link = LinkScore(config.id_width, config.pair_score)
        self.temporal = TemporalDecoder(sizes.num_lags, config)
        self.view = nn.Linear(config.width, config.width)  # predicts one view from the other, for normalised views
        self.recordings = Recordings()  # of a GPU's kernels

    def forward(self, batch: SubgraphBatch, ids: IdRows | None = None) -> Tensor:
        """Give the vectors `[G, D]` of the targets."""
        return self.views([batch], ids)[0]

    def views(self, batches: Sequence[SubgraphBatch], ids: IdRows | None = None) -> tuple[Tensor, ...]:
        """Give the vectors `[G, D]` of each batch's targets: H_tgt of the last layer, plain or normalised.

        In a normalised one the id embedding replaces the last O columns of H_tgt, because pre-training fits it to the
        node's links. Batches do not depend on each other; with two towers all have a context, or none has.
        """
        mixed_precision(self.node_N.device, self.gpu_precision)  # first, because it counts for all below
        nodes = _rows([(batch.target_G, batch.context_C) for batch in batches], by_batch=self.has_one_tower)
        id_BO = self.inputs.id_embedding(torch.cat(nodes), ids)
        if not all(batch.is_padded for batch in batches):
            return self._vectors(batches, id_BO)
        inputs = [id_BO, *(tensor for batch in batches for tensor in batch.tensors())]
        if id_BO.is_cuda:
            mode = self.training, torch.are_deterministic_algorithms_enabled()
            all_GD = replayed(self.recordings, self._of_tensors, self.parameters(), inputs, mode)
        else:
            all_GD = self._of_tensors(*inputs)
        return tuple(vector_GD[: batch.num_targets] for vector_GD, batch in zip(all_GD, batches, strict=True))

    def _of_tensors(self, id_BO: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Give the vectors of padded batches, whose tensors follow each other."""
        return self._vectors(padded_batches(tensors), id_BO)

    def _vectors(self, batches: Sequence[SubgraphBatch], id_BO: Tensor) -> tuple[Tensor, ...]:
        features = _rows(
            [(batch.target_feature_GF, batch.context_feature_CF) for batch in batches], by_batch=self.has_one_tower
        )
        structure_BS = self.inputs.structure(torch.cat(features))
        row_BD = torch.cat([structure_BS, id_BO], dim=1)
        biases = [self.bias(batch) for batch in batches]
        *layers, last = self.layers
        with mixed_precision(self.node_N.device, self.gpu_precision):
            for layer in layers:
                row_BD = layer(row_BD, biases)
            assert isinstance(last, TwoTowerLayer)
            # No later layer reads the context.
            row_BD = last(row_BD, biases) if self.has_one_tower else last.targets(row_BD, biases)
        targets = _target_rows(batches, by_batch=self.has_one_tower)
        if self.norm is None:
            return tuple(row_BD[rows] for rows in targets)
        width = structure_BS.shape[1]
        return tuple(torch.cat([self.norm(row_BD[rows, :width]), id_BO[rows]], dim=1) for rows in targets)


def _rows(parts: Sequence[tuple[Tensor, Tensor]], *, by_batch: bool) -> list[Tensor]:
    """Put the rows of targets and of context of each batch in their order.

    All targets come first and then all contexts; or, `by_batch`, the targets and the context of each batch in turn.
    """
    if by_batch:
        return [rows for both in parts for rows in both]
    assert len({len(context) > 0 for _, context in parts}) == 1
    return [*(targets for targets, _ in parts), *(context for _, context in parts)]


def _target_rows(batches: Sequence[SubgraphBatch], *, by_batch: bool) -> list[slice]:
    """Give the rows of each batch's targets."""
    sizes = [(len(batch.target_G), len(batch.context_C)) for batch in batches]
    for batch, size in zip(batches, sizes, strict=True):
        assert tuple(batch.distance_GC.shape) == ((sum(size),) * 2 if by_batch else size)
    if by_batch:
        return spans_of([number for size in sizes for number in size])[::2]
    return spans_of([num_targets for num_targets, _ in sizes])
