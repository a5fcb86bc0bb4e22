"""Attention with a bias against torch's own, and its gradients against finite differences.

Q asking nodes    K answering nodes    H heads    W width of a head
"""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dyformer.attention import attention


def inputs(num_asking: int = 3, num_answering: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = [(2, num_asking, 4), (2, num_answering, 4), (2, num_answering, 4), (2, num_asking, num_answering)]
    query, key, value, bias = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return query.requires_grad_(), key.requires_grad_(), value.requires_grad_(), bias.requires_grad_()


def exact(query_HQW: Tensor, key_HKW: Tensor, value_HKW: Tensor, bias_HQK: Tensor) -> Tensor:
    return attention(query_HQW, key_HKW, value_HKW, bias_HQK, dropout=0.0)


def test_attention_head_by_head_is_the_fused_one():
    query_HQW, key_HKW, value_HKW, bias_HQK = inputs()
    fused_HQW = functional.scaled_dot_product_attention(query_HQW, key_HKW, value_HKW, attn_mask=bias_HQK)
    torch.testing.assert_close(exact(*inputs()), fused_HQW, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("num_answering", [1, 5])
def test_gradients_equal_finite_differences(num_answering: int):
    assert torch.autograd.gradcheck(exact, inputs(num_answering=num_answering))


def test_rows_split_into_heads_need_not_be_contiguous():
    split = [tensor.detach().transpose(0, 1).contiguous().transpose(0, 1) for tensor in inputs()]
    assert not split[0].is_contiguous()
    torch.testing.assert_close(exact(*split), exact(*inputs()), rtol=1e-12, atol=1e-12)


def test_dropout_hides_answers():
    assert attention(*inputs(), dropout=1.0).abs().sum() == 0
    torch.testing.assert_close(attention(*inputs(), dropout=1e-12), exact(*inputs()), rtol=1e-9, atol=1e-9)
