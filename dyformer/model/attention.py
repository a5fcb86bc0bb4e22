"""Queries, keys, values and biases -> attention output (paper, section 3.4).

Q query nodes    G target nodes     H heads              D = H x W
K key nodes      C context nodes    W width of a head    S towers of equal size
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class _Tower:
    """One direction of attention: its query rows, key rows and bias, which is transposed for context queries."""

    query_rows: slice
    key_rows: slice
    index: int
    is_transposed: bool

    def pick(self, tensors_HGC: Sequence[Tensor]) -> Tensor:
        """Pick the tower's tensor `[H, Q, K]` from one tensor for each bias, such as the biases themselves."""
        tensor_HGC = tensors_HGC[self.index]
        return tensor_HGC.transpose(1, 2) if self.is_transposed else tensor_HGC


def _towers(num_queries: int, biases: Sequence[Tensor]) -> list[_Tower]:
    """Give, for each bias, a tower from its targets to its context.

    With more queries than targets, towers from contexts to targets follow. Rows hold all targets, then all contexts.
    """
    num_targets = sum(bias_HGC.shape[1] for bias_HGC in biases)
    both = num_queries > num_targets
    targets = spans_of([bias_HGC.shape[1] for bias_HGC in biases])
    contexts = spans_of([bias_HGC.shape[2] for bias_HGC in biases], start=num_targets if both else 0)
    pairs = list(enumerate(zip(targets, contexts, strict=True)))
    there = [_Tower(query_rows=t, key_rows=c, index=index, is_transposed=False) for index, (t, c) in pairs]
    back = [_Tower(query_rows=c, key_rows=t, index=index, is_transposed=True) for index, (t, c) in pairs]
    return there + back if both else there


def spans_of(sizes: Sequence[int], *, start: int = 0) -> list[slice]:
    """Give the rows of parts of these sizes, one after the other."""
    ends = [start + sum(sizes[: index + 1]) for index in range(len(sizes))]
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _by_head(rows: Sequence[Tensor], num_heads: int) -> Iterator[tuple[Tensor, ...]]:
    """Give the parts `[Q, W]` of each tensor `[Q, D]`, head by head, without a copy."""
    return zip(*(row_QD.unflatten(1, (num_heads, -1)).unbind(1) for row_QD in rows), strict=True)


class _HeadByHead(torch.autograd.Function):
    """Attention head by head, so that the scores [Q, K] of one head stay in the CPU's cache until they are used.

    On a CPU torch's fused kernel has no gradient for a bias, and its fallback takes half as long again. A transposed
    bias is read without a copy.
    """

    @staticmethod
    def forward(ctx: Any, query_QD: Tensor, key_KD: Tensor, value_KD: Tensor, *biases: Tensor) -> Tensor:
        ctx.num_heads, ctx.towers = len(biases[0]), _towers(len(query_QD), biases)
        ctx.scale = (query_QD.shape[1] // ctx.num_heads) ** -0.5
        rows = (query_QD * ctx.scale, key_KD, value_KD)
        output_QD, weights = torch.empty_like(query_QD), []
        for tower in ctx.towers:
            bias_HQK = tower.pick(biases)
            if any(ctx.needs_input_grad):
                weight_HQK = torch.empty_like(bias_HQK)
            else:  # no backward pass reads the weights: all heads write to the same memory
                weight_HQK = torch.empty_like(bias_HQK[0]).expand_as(bias_HQK)
            _forward(tower, rows, bias_HQK, weight_HQK, output_QD)
            weights.append(weight_HQK)
        ctx.save_for_backward(*rows, output_QD, *weights)
        return output_QD

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, ...]:
        (grad_QD,) = grad_outputs
        query_QD, key_KD, value_KD, output_QD, *weights = ctx.saved_tensors
        rows = (query_QD, key_KD, value_KD, grad_QD)
        mean_QH = (grad_QD * output_QD).unflatten(1, (ctx.num_heads, -1)).sum(dim=2)
        mean_HQ = mean_QH.T.contiguous()  # a read with a stride takes as long as a matrix product
        row_grads = tuple(torch.empty(row.shape, dtype=row.dtype) for row in rows[:3])
        bias_grads: list[Tensor] = []  # a transposed tower adds to the gradient that the other tower wrote
        for tower, weight_HQK in zip(ctx.towers, weights, strict=True):
            if not tower.is_transposed:
                bias_grads.append(torch.empty_like(weight_HQK))
            _backward(tower, rows, mean_HQ, weight_HQK, row_grads, tower.pick(bias_grads))
        return row_grads[0].mul_(ctx.scale), *row_grads[1:], *bias_grads


def _forward(tower: _Tower, rows: Sequence[Tensor], bias_HQK: Tensor, weight_HQK: Tensor, output_QD: Tensor) -> None:
    """Write the weights and the output of one tower from the rows' queries (scaled), keys and values."""
    at_Q, at_K = tower.query_rows, tower.key_rows
    heads = _by_head((rows[0][at_Q], rows[1][at_K], rows[2][at_K], output_QD[at_Q]), len(bias_HQK))
    for (query_QW, key_KW, value_KW, output_QW), bias_QK, weight_QK in zip(heads, bias_HQK, weight_HQK, strict=True):
        torch.addmm(bias_QK, query_QW, key_KW.T, out=weight_QK)
        _softmax(weight_QK)
        torch.mm(weight_QK, value_KW, out=output_QW)


def _backward(
    tower: _Tower,
    rows: Sequence[Tensor],
    mean_HQ: Tensor,
    weight_HQK: Tensor,
    row_grads: Sequence[Tensor],
    bias_grad_HQK: Tensor,
) -> None:
    """Write the gradients of one tower's queries, keys, values and bias from the rows and the output's gradient.

    `mean_HQ` is the mean of the gradients of a query's weights, weighted by these weights.
    """
    at_Q, at_K = tower.query_rows, tower.key_rows
    inputs = (rows[0][at_Q], rows[1][at_K], rows[2][at_K], rows[3][at_Q])
    grads = (row_grads[0][at_Q], row_grads[1][at_K], row_grads[2][at_K])
    spare_QK = torch.empty_like(weight_HQK[0])
    for head, (query_QW, key_KW, value_KW, grad_QW, *out) in enumerate(_by_head((*inputs, *grads), len(mean_HQ))):
        weight_QK, score_QK = weight_HQK[head], spare_QK if tower.is_transposed else bias_grad_HQK[head]
        torch.mm(weight_QK.T, grad_QW, out=out[2])
        torch.mm(grad_QW, value_KW.T, out=score_QK)
        score_QK.sub_(mean_HQ[head, at_Q, None]).mul_(weight_QK)
        torch.mm(score_QK, key_KW, out=out[0])
        torch.mm(score_QK.T, query_QW, out=out[1])
        if tower.is_transposed:
            bias_grad_HQK[head].add_(score_QK)


def _softmax(score_QK: Tensor) -> None:
    """Take the softmax over the key nodes in place."""
    if score_QK.is_contiguous():
        torch.softmax(score_QK, dim=1, out=score_QK)
    else:
        torch.softmax(score_QK.T, dim=0, out=score_QK.T)


def attention(
    query_QD: Tensor, key_KD: Tensor, value_KD: Tensor, biases: Sequence[Tensor], *, dropout: float
) -> Tensor:
    """Softmax attention `[Q, D]` of H heads side by side, with biases `[H, G, C]` and scaled by 1 / sqrt(W).

    Either the query rows are the targets of all biases, and the key rows their contexts (which are the same rows where
    all pairs of nodes attend to each other). Or both hold all targets and then all contexts, and attention runs both
    ways. A fraction `dropout` of the weights is dropped.
    """
    if not dropout and not query_QD.is_cuda:
        output_QD = _HeadByHead.apply(query_QD, key_KD, value_KD, *biases)
        assert isinstance(output_QD, Tensor)
        return output_QD
    return fused_attention(query_QD, key_KD, value_KD, biases, dropout=dropout)


def fused_attention(
    query_QD: Tensor, key_KD: Tensor, value_KD: Tensor, biases: Sequence[Tensor], *, dropout: float
) -> Tensor:
    """Give the same, by one call of torch's kernel for all towers of equal size, as is fast on a GPU."""
    rows = query_QD, key_KD, value_KD
    outputs = [
        _fused(towers, rows, biases, dropout) for towers in _of_equal_size(_towers(len(query_QD), biases), biases)
    ]
    return torch.cat(outputs)


def _of_equal_size(towers: Sequence[_Tower], biases: Sequence[Tensor]) -> list[list[_Tower]]:
    """Put towers of one direction together that follow each other and have equal sizes, as those of two views have."""
    together: list[list[_Tower]] = []
    for tower in towers:
        before = together[-1][0] if together else None
        if before is None or (before.is_transposed, before.pick(biases).shape) != (
            tower.is_transposed,
            tower.pick(biases).shape,
        ):
            together.append([])
        together[-1].append(tower)
    return together


def _fused(towers: Sequence[_Tower], rows: Sequence[Tensor], biases: Sequence[Tensor], dropout: float) -> Tensor:
    """Give the output of towers of equal size by one call of torch's kernel.

    It takes four dimensions and a bias whose rows are contiguous. With three, torch computes the weights in memory.
    """
    bias_SHQK = torch.stack([tower.pick(biases) for tower in towers])
    query_QD, key_KD, value_KD = rows
    at_Q = slice(towers[0].query_rows.start, towers[-1].query_rows.stop)
    at_K = slice(towers[0].key_rows.start, towers[-1].key_rows.stop)
    parts = (query_QD[at_Q], key_KD[at_K], value_KD[at_K])
    row_SHQW = (
        part.unflatten(0, (len(towers), -1)).unflatten(2, (bias_SHQK.shape[1], -1)).transpose(1, 2) for part in parts
    )
    output_SHQW = functional.scaled_dot_product_attention(*row_SHQW, attn_mask=bias_SHQK, dropout_p=dropout)
    return output_SHQW.transpose(1, 2).flatten(2).flatten(0, 1)
