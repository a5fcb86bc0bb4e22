"""Attention with a bias against torch's own, and its gradients against finite differences.

Q asking nodes    K answering nodes    H heads    D width of all heads
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dyformer.attention import attention


def inputs(num_asking: int = 3, num_answering: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = [(num_asking, 8), (num_answering, 8), (num_answering, 8), (2, num_asking, num_answering)]
    query, key, value, bias = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return query.requires_grad_(), key.requires_grad_(), value.requires_grad_(), bias.requires_grad_()


def exact(query_QD: Tensor, key_KD: Tensor, value_KD: Tensor, bias_HQK: Tensor) -> Tensor:
    return attention(query_QD, key_KD, value_KD, bias_HQK, dropout=0.0)


def turned(query_QD: Tensor, key_KD: Tensor, value_KD: Tensor, bias_HQK: Tensor) -> Tensor:
    """The same with a bias that lies in memory as the other tower has it."""
    return exact(query_QD, key_KD, value_KD, bias_HQK.transpose(1, 2).contiguous().transpose(1, 2))


def test_attention_head_by_head_is_the_fused_one():
    query_QD, key_KD, value_KD, bias_HQK = inputs()
    split = [row.reshape(len(row), 2, 4).transpose(0, 1) for row in (query_QD, key_KD, value_KD)]
    fused_HQW = functional.scaled_dot_product_attention(*split, attn_mask=bias_HQK)
    expected_QD = torch.cat([fused_HQW[0], fused_HQW[1]], dim=1)
    for form in (exact, turned):
        torch.testing.assert_close(form(*inputs()), expected_QD, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", [exact, turned])
def test_attention_is_the_same_where_no_gradient_is_asked_for(form: Callable[..., Tensor]):
    found_QD = form(*(tensor.detach() for tensor in inputs()))
    assert torch.equal(found_QD, form(*inputs()).detach())


@pytest.mark.parametrize("num_answering", [1, 5])
@pytest.mark.parametrize("form", [exact, turned])
def test_gradients_equal_finite_differences(form: Callable[..., Tensor], num_answering: int):
    assert torch.autograd.gradcheck(form, inputs(num_answering=num_answering))


def test_rows_may_be_parts_of_wider_ones():
    wide = [torch.cat([tensor, tensor], dim=-1).detach() for tensor in inputs()]
    part = [tensor[..., : tensor.shape[-1] // 2] for tensor in wide]
    assert not part[0].is_contiguous()
    torch.testing.assert_close(exact(*part), exact(*inputs()), rtol=1e-12, atol=1e-12)


def test_dropout_hides_answers():
    assert attention(*inputs(), dropout=1.0).abs().sum() == 0
    torch.testing.assert_close(attention(*inputs(), dropout=1e-12), exact(*inputs()), rtol=1e-9, atol=1e-9)
