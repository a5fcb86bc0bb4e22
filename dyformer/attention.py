"""Queries, keys, values and a bias of every pair -> what each query is told (paper, section 3.4).

Q asking nodes    K answering nodes    H heads    W width of a head
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


class _HeadByHead(torch.autograd.Function):
    """Attention whose scores [Q, K] of one head stay in a processor's cache until they are done with.

    torch's fused kernel gives a bias no gradient on a processor, and its way around takes half as long again.
    """

    @staticmethod
    def forward(ctx: Any, query_HQW: Tensor, key_HKW: Tensor, value_HKW: Tensor, bias_HQK: Tensor) -> Tensor:
        ctx.scale = query_HQW.shape[-1] ** -0.5
        weight_HQK, told_HQW = torch.empty_like(bias_HQK), torch.empty_like(query_HQW)
        for head, weight_QK in enumerate(weight_HQK):
            torch.addmm(bias_HQK[head], query_HQW[head], key_HKW[head].T, alpha=ctx.scale, out=weight_QK)
            torch.softmax(weight_QK, dim=-1, out=weight_QK)
            torch.mm(weight_QK, value_HKW[head], out=told_HQW[head])
        ctx.save_for_backward(query_HQW, key_HKW, value_HKW, weight_HQK, told_HQW)
        return told_HQW

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        (grad_HQW,) = grad_outputs
        query_HQW, key_HKW, value_HKW, weight_HQK, told_HQW = ctx.saved_tensors
        score_HQK = torch.empty_like(weight_HQK)
        query, key, value = torch.empty_like(query_HQW), torch.empty_like(key_HKW), torch.empty_like(value_HKW)
        mean_HQ1 = (grad_HQW * told_HQW).sum(dim=-1, keepdim=True)  # of the weights' gradient, as they weigh it
        for head, (weight_QK, score_QK) in enumerate(zip(weight_HQK, score_HQK, strict=True)):
            torch.mm(weight_QK.T, grad_HQW[head], out=value[head])
            torch.mm(grad_HQW[head], value_HKW[head].T, out=score_QK)
            score_QK.sub_(mean_HQ1[head]).mul_(weight_QK)
            torch.mm(score_QK, key_HKW[head], out=query[head])
            torch.mm(score_QK.T, query_HQW[head], out=key[head])
        return query.mul_(ctx.scale), key.mul_(ctx.scale), value, score_HQK


def attention(query_HQW: Tensor, key_HKW: Tensor, value_HKW: Tensor, bias_HQK: Tensor, *, dropout: float) -> Tensor:
    """Softmax attention `[H, Q, W]` with a bias, scaled by 1 / sqrt(W); `dropout` of its weights are left out."""
    if dropout or query_HQW.is_cuda:
        return functional.scaled_dot_product_attention(
            query_HQW, key_HKW, value_HKW, attn_mask=bias_HQK, dropout_p=dropout
        )
    told_HQW = _HeadByHead.apply(query_HQW, key_HKW, value_HKW, bias_HQK)
    assert isinstance(told_HQW, Tensor)
    return told_HQW
