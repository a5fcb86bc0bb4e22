"""Queries, keys, values and biases of pairs -> what each query is told (paper, section 3.4).

Q asking nodes     G target nodes     H heads              D = H x W
K answering nodes  C context nodes    W width of a head
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class _Tower:
    """Rows that ask, rows that answer, and which bias is theirs; it is turned where the context asks."""

    asking: slice
    answering: slice
    place: int
    is_turned: bool

    def seen(self, tensors_HGC: Sequence[Tensor]) -> Tensor:
        """The tower's bias `[H, Q, K]`, or whatever else each bias has one of."""
        tensor_HGC = tensors_HGC[self.place]
        return tensor_HGC.transpose(1, 2) if self.is_turned else tensor_HGC


def _towers(num_asking: int, biases: Sequence[Tensor]) -> list[_Tower]:
    """Targets ask the context of their own bias and, where more rows ask than there are targets, the context asks them.

    Targets of all biases stand first, then their contexts.
    """
    num_targets = sum(bias_HGC.shape[1] for bias_HGC in biases)
    both = num_asking > num_targets
    of_targets = _spans([bias_HGC.shape[1] for bias_HGC in biases], start=0)
    of_context = _spans([bias_HGC.shape[2] for bias_HGC in biases], start=num_targets if both else 0)
    pairs = list(enumerate(zip(of_targets, of_context, strict=True)))
    towers = [_Tower(asking=mine, answering=other, place=place, is_turned=False) for place, (mine, other) in pairs]
    turned = [_Tower(asking=other, answering=mine, place=place, is_turned=True) for place, (mine, other) in pairs]
    return towers + turned if both else towers


def _spans(sizes: Sequence[int], *, start: int) -> list[slice]:
    ends = [start + sum(sizes[: place + 1]) for place in range(len(sizes))]
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _by_head(rows: Sequence[Tensor], num_heads: int) -> Iterator[tuple[Tensor, ...]]:
    """Give `[Q, W]` of each tensor `[Q, D]`, head by head; nothing is copied."""
    return zip(*(row_QD.unflatten(1, (num_heads, -1)).unbind(1) for row_QD in rows), strict=True)


class _HeadByHead(torch.autograd.Function):
    """Attention whose scores [Q, K] of one head stay in a processor's cache until they are done with.

    torch's fused kernel gives a bias no gradient on a processor, and its way around takes half as long again. A bias
    that is turned around, as the other tower has it, is worked on as it lies in memory.
    """

    @staticmethod
    def forward(ctx: Any, query_QD: Tensor, key_KD: Tensor, value_KD: Tensor, *biases: Tensor) -> Tensor:
        ctx.num_heads, ctx.towers = len(biases[0]), _towers(len(query_QD), biases)
        ctx.scale = (query_QD.shape[1] // ctx.num_heads) ** -0.5
        rows = (query_QD * ctx.scale, key_KD, value_KD)
        told_QD, weights = torch.empty_like(query_QD), []
        for tower in ctx.towers:
            bias_HQK = tower.seen(biases)
            if any(ctx.needs_input_grad):
                weight_HQK = torch.empty_like(bias_HQK)
            else:  # nobody comes back for them: all heads write to the same place
                weight_HQK = torch.empty_like(bias_HQK[0]).expand_as(bias_HQK)
            _ask(tower, rows, bias_HQK, weight_HQK, told_QD)
            weights.append(weight_HQK)
        ctx.save_for_backward(*rows, told_QD, *weights)
        return told_QD

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, ...]:
        (grad_QD,) = grad_outputs
        query_QD, key_KD, value_KD, told_QD, *weights = ctx.saved_tensors
        rows = (query_QD, key_KD, value_KD, grad_QD)
        mean_QH = (grad_QD * told_QD).unflatten(1, (ctx.num_heads, -1)).sum(dim=2)
        mean_HQ = mean_QH.T.contiguous()  # read with a stride, it would take as long as a product
        found = tuple(torch.empty(row.shape, dtype=row.dtype) for row in rows[:3])
        scores: list[Tensor] = []  # gradients of biases: a tower that asks the other way round adds to what is there
        for tower, weight_HQK in zip(ctx.towers, weights, strict=True):
            if not tower.is_turned:
                scores.append(torch.empty_like(weight_HQK))
            _answer(tower, rows, mean_HQ, weight_HQK, found, tower.seen(scores))
        return found[0].mul_(ctx.scale), *found[1:], *scores


def _ask(tower: _Tower, rows: Sequence[Tensor], bias_HQK: Tensor, weight_HQK: Tensor, told_QD: Tensor) -> None:
    """Write the weights of one tower, and what they tell, from the rows' queries (scaled), keys and values."""
    asking, answering = tower.asking, tower.answering
    heads = _by_head((rows[0][asking], rows[1][answering], rows[2][answering], told_QD[asking]), len(bias_HQK))
    for (query_QW, key_KW, value_KW, told_QW), bias_QK, weight_QK in zip(heads, bias_HQK, weight_HQK, strict=True):
        torch.addmm(bias_QK, query_QW, key_KW.T, out=weight_QK)
        _softmax(weight_QK)
        torch.mm(weight_QK, value_KW, out=told_QW)


def _answer(
    tower: _Tower,
    rows: Sequence[Tensor],
    mean_HQ: Tensor,
    weight_HQK: Tensor,
    found: Sequence[Tensor],
    bias_grad_HQK: Tensor,
) -> None:
    """Write the gradients of one tower's queries, keys, values and bias from these rows and the gradient of the told.

    `mean_HQ` is the mean of the gradients of an asking node's weights, each counted as much as its weight.
    """
    asking, answering = tower.asking, tower.answering
    inputs = (rows[0][asking], rows[1][answering], rows[2][answering], rows[3][asking])
    outputs = (found[0][asking], found[1][answering], found[2][answering])
    spare_QK = torch.empty_like(weight_HQK[0])
    for head, (query_QW, key_KW, value_KW, grad_QW, *room) in enumerate(_by_head((*inputs, *outputs), len(mean_HQ))):
        weight_QK, score_QK = weight_HQK[head], spare_QK if tower.is_turned else bias_grad_HQK[head]
        torch.mm(weight_QK.T, grad_QW, out=room[2])
        torch.mm(grad_QW, value_KW.T, out=score_QK)
        score_QK.sub_(mean_HQ[head, asking, None]).mul_(weight_QK)
        torch.mm(score_QK, key_KW, out=room[0])
        torch.mm(score_QK.T, query_QW, out=room[1])
        if tower.is_turned:
            bias_grad_HQK[head].add_(score_QK)


def _softmax(score_QK: Tensor) -> None:
    """Take the softmax over the answering nodes in place."""
    if score_QK.is_contiguous():
        torch.softmax(score_QK, dim=1, out=score_QK)
    else:
        torch.softmax(score_QK.T, dim=0, out=score_QK.T)


def attention(
    query_QD: Tensor, key_KD: Tensor, value_KD: Tensor, biases: Sequence[Tensor], *, dropout: float
) -> Tensor:
    """Softmax attention `[Q, D]` of H heads side by side, with biases `[H, G, C]` and scaled by 1 / sqrt(W).

    Q and K are the targets of all biases, one after the other, and their contexts; or both are all targets and then
    all contexts, and the contexts ask their targets too. A share `dropout` of the weights is left out.
    """
    if not dropout and not query_QD.is_cuda:
        told_QD = _HeadByHead.apply(query_QD, key_KD, value_KD, *biases)
        assert isinstance(told_QD, Tensor)
        return told_QD
    told = []
    for tower in _towers(len(query_QD), biases):
        rows = (query_QD[tower.asking], key_KD[tower.answering], value_KD[tower.answering])
        row_HQW = (row_QD.unflatten(1, (len(biases[0]), -1)).transpose(0, 1) for row_QD in rows)
        told_HQW = functional.scaled_dot_product_attention(*row_HQW, attn_mask=tower.seen(biases), dropout_p=dropout)
        told.append(told_HQW.transpose(0, 1).flatten(1))
    return torch.cat(told)
