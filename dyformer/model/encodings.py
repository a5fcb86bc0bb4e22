"""Distances and connections of pairs -> attention bias (paper, section 3.3).

P pairs of a target and a context node    A connections: pairs with an edge, once for each lag with it
T lags    S distance codes    H heads     D width
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dyformer.model.config import InitialWeights, ModelConfig, ModelSizes
from dyformer.sampling.subgraphs import SubgraphBatch

PADDING_BIAS = -1e4
"""Bias of padding: its weight is 0 beside any real node. Minus infinity gives NaN where padding attends to it."""


class TemporalConnectionEncoding(nn.Module):
    """Attention bias from the lags at which two nodes are connected (paper, eq. of A^TC).

    Averaging over time and projecting commute, so the rows of the table are projected and never the pairs. A pair's
    bias is one constant plus, for each lag with an edge, a difference.
    """

    def __init__(self, num_lags: int, width: int, num_heads: int, initial: InitialWeights = "scaled") -> None:
        super().__init__()
        # E^TC: row 2l for no edge at lag l, row 2l + 1 for an edge. If scaled, all lags start from the same rows,
        # because only the longest prefixes of a history train the oldest lags: random rows would stay noise there.
        num_repeats = num_lags if initial == "scaled" else 1
        self.table = nn.Parameter(torch.randn(2 * num_lags // num_repeats, width).repeat(num_repeats, 1))
        self.aggregation_T = nn.Parameter(torch.zeros(num_lags))
        self.project = nn.Linear(width, num_heads)

    def forward(self, visible_T: Tensor) -> tuple[Tensor, Tensor]:
        """Give the bias `[H]` of a pair without any edge, and the difference `[T, H]` that an edge at each lag makes.

        A lag that is not visible has weight 0, and the weights of the others sum to 1. At least one lag is visible.
        """
        weight_T = torch.softmax(self.aggregation_T.masked_fill(~visible_T, -torch.inf), dim=0)
        row_H = (self.table @ self.project.weight.T).unflatten(0, (-1, 2))
        absent_TH, present_TH = row_H[:, 0], row_H[:, 1]
        return weight_T @ absent_TH + self.project.bias, weight_T[:, None] * (present_TH - absent_TH)


class SpatialDistanceEncoding(nn.Module):
    """Attention bias from the capped shortest-path distance of two nodes (paper, eq. of A^SD)."""

    def __init__(self, max_distance: int, width: int, num_heads: int, initial: InitialWeights = "scaled") -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(max_distance + 1, width))  # E^SD: row 0 for the node itself
        self.project = nn.Linear(width, num_heads)
        if initial == "plain":
            return
        with torch.no_grad():  # the bias starts near -2 x distance, so that untrained attention prefers near nodes
            self.table[:, 0] = -torch.arange(max_distance + 1)
            self.project.weight[:, 0] = 2.0

    def forward(self) -> Tensor:
        """Give the bias `[S, H]` of each distance code."""
        return self.project(self.table)


class _LookUp(torch.autograd.Function):
    """Look-up of many columns of a small table; its gradient is a product, because torch's is a slow scatter."""

    @staticmethod
    def forward(ctx: Any, table_HS: Tensor, code_P: Tensor) -> Tensor:
        ctx.save_for_backward(code_P)
        ctx.num_codes = table_HS.shape[1]
        return table_HS.index_select(1, code_P.int())

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (grad_HP,) = grad_outputs
        (code_P,) = ctx.saved_tensors
        one_hot_SP = grad_HP.new_empty(ctx.num_codes, len(code_P))
        each_S1 = torch.arange(ctx.num_codes, dtype=code_P.dtype, device=code_P.device)[:, None]
        torch.eq(each_S1, code_P, out=one_hot_SP)  # writes floats, because converting a mask takes longer
        return grad_HP @ one_hot_SP.T, None


def distance_bias(code_SH: Tensor, distance_P: Tensor) -> Tensor:
    """Give the bias `[H, P]` of pairs at these distance codes (integers)."""
    bias_HP = _LookUp.apply(code_SH.T.contiguous(), distance_P)
    assert isinstance(bias_HP, Tensor)
    return bias_HP


def add_connections(bias_HP: Tensor, delta_TH: Tensor, pair_A: Tensor, lag_A: Tensor) -> Tensor:
    """Add the difference of each connection to the bias of its pair, in place.

    A pair has a connection for each lag with an edge. The time grows with the connections, not with pairs or lags.
    """
    delta_HA = delta_TH.T.index_select(1, lag_A)
    return bias_HP.scatter_add_(1, pair_A.expand_as(delta_HA), delta_HA)


class AttentionBias(nn.Module):
    """A^TC + A^SD of the pairs of a batch, shared by all layers and, transposed, by both towers.

    `config.encodings` may leave one of the two out, or both; its weights are drawn all the same, so that all others
    begin alike. With `max_hops`, the bias of nodes further from each other is minus infinity.
    """

    def __init__(self, config: ModelConfig, sizes: ModelSizes) -> None:
        super().__init__()
        width, num_heads, initial = config.width, config.num_heads, config.initial_weights
        self.has_connections = config.encodings in ("both", "connections")
        self.has_distances = config.encodings in ("both", "distances")
        self.max_hops = config.max_hops
        self.temporal = TemporalConnectionEncoding(sizes.num_lags, width, num_heads, initial)
        self.spatial = SpatialDistanceEncoding(sizes.max_distance, width, num_heads, initial)

    def forward(self, batch: SubgraphBatch) -> Tensor:
        """Give the bias `[H, G, C]`."""
        code_SH, distance_GC = self.spatial(), batch.distance_GC
        if batch.is_padded:
            distance_GC = distance_GC.clamp(max=len(code_SH) - 1)
        if not self.has_distances:
            code_SH = torch.zeros_like(code_SH)
        if self.has_connections:
            absent_H, delta_TH = self.temporal(batch.visible_T)
            bias_HP = distance_bias(code_SH + absent_H, distance_GC.flatten())
            if batch.is_padded:
                delta_TH = functional.pad(delta_TH, (0, 0, 0, 1))  # no difference for the lag of padding
            pair_A = batch.edge_target_A * distance_GC.shape[1] + batch.edge_context_A
            bias_HP = add_connections(bias_HP, delta_TH, pair_A, batch.edge_lag_A)
        else:
            bias_HP = distance_bias(code_SH, distance_GC.flatten())
        bias_HGC = bias_HP.unflatten(1, distance_GC.shape)
        if self.max_hops is not None:
            bias_HGC = bias_HGC.masked_fill(distance_GC > self.max_hops, -torch.inf)
        return bias_HGC.masked_fill(batch.is_padding_GC(), PADDING_BIAS) if batch.is_padded else bias_HGC
