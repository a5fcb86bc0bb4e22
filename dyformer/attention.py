"""Queries, keys, values and a bias of every pair -> what each query is told (paper, section 3.4).

Q asking nodes    K answering nodes    H heads    W width of a head    D = H x W
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def _heads(row_QD: Tensor, num_heads: int) -> Tensor:
    """Split the width over the heads `[H, Q, W]`; nothing is copied."""
    return row_QD.unflatten(1, (num_heads, -1)).transpose(0, 1)


class _HeadByHead(torch.autograd.Function):
    """Attention whose scores [Q, K] of one head stay in a processor's cache until they are done with.

    torch's fused kernel gives a bias no gradient on a processor, and its way around takes half as long again. A bias
    that is turned around, as the other tower has it, is worked on as it lies in memory.
    """

    @staticmethod
    def forward(ctx: Any, query_QD: Tensor, key_KD: Tensor, value_KD: Tensor, bias_HQK: Tensor) -> Tensor:
        ctx.num_heads = len(bias_HQK)
        query_HQW, key_HKW, value_HKW = (_heads(row, ctx.num_heads) for row in (query_QD, key_KD, value_KD))
        ctx.scale = query_HQW.shape[-1] ** -0.5
        told_QD = torch.empty_like(query_QD)
        if any(ctx.needs_input_grad):
            weight_HQK = torch.empty_like(bias_HQK)
        else:  # nobody comes back for them: all heads write to the same place
            weight_HQK = torch.empty_like(bias_HQK[0]).expand_as(bias_HQK)
        for head, told_QW in enumerate(_heads(told_QD, ctx.num_heads)):
            weight_QK = weight_HQK[head]
            torch.addmm(bias_HQK[head], query_HQW[head], key_HKW[head].T, alpha=ctx.scale, out=weight_QK)
            _softmax(weight_QK)
            torch.mm(weight_QK, value_HKW[head], out=told_QW)
        ctx.save_for_backward(query_QD, key_KD, value_KD, weight_HQK, told_QD)
        return told_QD

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        (grad_QD,) = grad_outputs
        query_QD, key_KD, value_KD, weight_HQK, told_QD = ctx.saved_tensors
        score_HQK = torch.empty_like(weight_HQK)
        found = [torch.empty(row.shape, dtype=row.dtype) for row in (query_QD, key_KD, value_KD)]
        query, key, value, query_HQW, key_HKW, value_HKW, grad_HQW = (
            _heads(row, ctx.num_heads) for row in (*found, query_QD, key_KD, value_KD, grad_QD)
        )
        mean_HQ1 = _heads(grad_QD * told_QD, ctx.num_heads).sum(dim=-1, keepdim=True)  # of the weights' gradient
        for head, (weight_QK, score_QK) in enumerate(zip(weight_HQK, score_HQK, strict=True)):
            torch.mm(weight_QK.T, grad_HQW[head], out=value[head])
            torch.mm(grad_HQW[head], value_HKW[head].T, out=score_QK)
            score_QK.sub_(mean_HQ1[head]).mul_(weight_QK)
            torch.mm(score_QK, key_HKW[head], out=query[head])
            torch.mm(score_QK.T, query_HQW[head], out=key[head])
        return found[0].mul_(ctx.scale), found[1].mul_(ctx.scale), found[2], score_HQK


def _softmax(score_QK: Tensor) -> None:
    """Take the softmax over the answering nodes in place."""
    if score_QK.is_contiguous():
        torch.softmax(score_QK, dim=1, out=score_QK)
    else:
        torch.softmax(score_QK.T, dim=0, out=score_QK.T)


def attention(query_QD: Tensor, key_KD: Tensor, value_KD: Tensor, bias_HQK: Tensor, *, dropout: float) -> Tensor:
    """Softmax attention `[Q, D]` of H heads side by side, with a bias and scaled by 1 / sqrt(W).

    A share `dropout` of its weights is left out.
    """
    if dropout or query_QD.is_cuda:
        query_HQW, key_HKW, value_HKW = (_heads(row, len(bias_HQK)) for row in (query_QD, key_KD, value_KD))
        told_HQW = functional.scaled_dot_product_attention(
            query_HQW, key_HKW, value_HKW, attn_mask=bias_HQK, dropout_p=dropout
        )
        return told_HQW.transpose(0, 1).flatten(1)
    told_QD = _HeadByHead.apply(query_QD, key_KD, value_KD, bias_HQK)
    assert isinstance(told_QD, Tensor)
    return told_QD
