"""Attention with a bias against torch's own, and its gradients against finite differences.

Q query nodes    K key nodes    H heads    D width of all heads
"""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dyformer.model import attention as module
from dyformer.model.attention import attention, fused_attention


def inputs(num_queries: int = 3, num_keys: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = [(num_queries, 8), (num_keys, 8), (num_keys, 8), (2, num_queries, num_keys)]
    query, key, value, bias = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return query.requires_grad_(), key.requires_grad_(), value.requires_grad_(), bias.requires_grad_()


def exact(query_QD: Tensor, key_KD: Tensor, value_KD: Tensor, bias_HQK: Tensor) -> Tensor:
    return attention(query_QD, key_KD, value_KD, [bias_HQK], dropout=0.0)


def transposed(query_QD: Tensor, key_KD: Tensor, value_KD: Tensor, bias_HQK: Tensor) -> Tensor:
    """The same attention, with the bias transposed in memory, as for the other tower."""
    return exact(query_QD, key_KD, value_KD, bias_HQK.transpose(1, 2).contiguous().transpose(1, 2))


def test_attention_head_by_head_is_the_fused_one():
    query_QD, key_KD, value_KD, bias_HQK = inputs()
    split = [row.reshape(len(row), 2, 4).transpose(0, 1) for row in (query_QD, key_KD, value_KD)]
    fused_HQW = functional.scaled_dot_product_attention(*split, attn_mask=bias_HQK)
    expected_QD = torch.cat([fused_HQW[0], fused_HQW[1]], dim=1)
    for form in (exact, transposed):
        torch.testing.assert_close(form(*inputs()), expected_QD, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", [exact, transposed])
def test_attention_without_gradients_is_the_same(form: Callable[..., Tensor]):
    found_QD = form(*(tensor.detach() for tensor in inputs()))
    assert torch.equal(found_QD, form(*inputs()).detach())


class LargestMemory(TorchDispatchMode):
    """Records the size of the largest tensor that is allocated, except a given one."""

    def __init__(self, known: Tensor) -> None:
        super().__init__()
        self.known, self.numel = known.untyped_storage().data_ptr(), 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        storages = [leaf.untyped_storage() for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        sizes = [storage.nbytes() // 4 for storage in storages if storage.data_ptr() != self.known]
        self.numel = max(self.numel, *sizes, 0)
        return made


def test_attention_without_gradients_holds_the_weights_of_one_head_at_a_time():
    query_QD, key_KD, value_KD, bias_HQK = torch.randn(40, 16), *torch.randn(2, 50, 16), torch.randn(8, 40, 50)
    with LargestMemory(bias_HQK) as largest:
        attention(query_QD, key_KD, value_KD, [bias_HQK], dropout=0.0)
    assert largest.numel == 40 * 50


@pytest.mark.parametrize("num_keys", [1, 5])
@pytest.mark.parametrize("form", [exact, transposed])
def test_gradients_equal_finite_differences(form: Callable[..., Tensor], num_keys: int):
    assert torch.autograd.gradcheck(form, inputs(num_keys=num_keys))


def test_rows_may_be_parts_of_wider_ones():
    wide = [torch.cat([tensor, tensor], dim=-1).detach() for tensor in inputs()]
    part = [tensor[..., : tensor.shape[-1] // 2] for tensor in wide]
    assert not part[0].is_contiguous()
    torch.testing.assert_close(exact(*part), exact(*inputs()), rtol=1e-12, atol=1e-12)


def test_dropout_drops_attention_weights():
    query_QD, key_KD, value_KD, bias_HQK = inputs()
    assert attention(query_QD, key_KD, value_KD, [bias_HQK], dropout=1.0).abs().sum() == 0
    whole_QD = attention(query_QD, key_KD, value_KD, [bias_HQK], dropout=1e-12)
    torch.testing.assert_close(whole_QD, exact(*inputs()), rtol=1e-9, atol=1e-9)


def batches(*sizes: tuple[int, int]) -> tuple[tuple[Tensor, Tensor, Tensor], list[Tensor]]:
    """Return queries, keys and values of all targets and then all contexts of batches, and the batches' biases."""
    generator = torch.Generator().manual_seed(4)
    num_rows = sum(map(sum, sizes))
    shapes = [(num_rows, 8)] * 3 + [(2, num_targets, num_context) for num_targets, num_context in sizes]
    drawn = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    return (drawn[0], drawn[1], drawn[2]), drawn[3:]


def one_by_one(rows: Sequence[Tensor], biases: list[Tensor]) -> Tensor:
    """Return the attention of each batch's targets over its context, and the reverse, each by torch's own function."""
    sizes = [bias.shape[1] for bias in biases] + [bias.shape[2] for bias in biases]
    query, key, value = (row.reshape(len(row), 2, 4).transpose(0, 1).split(sizes, dim=1) for row in rows)
    num = len(biases)
    outputs = [
        functional.scaled_dot_product_attention(query[i], key[i + num], value[i + num], attn_mask=biases[i])
        for i in range(num)
    ] + [
        functional.scaled_dot_product_attention(query[i + num], key[i], value[i], attn_mask=biases[i].transpose(1, 2))
        for i in range(num)
    ]
    return torch.cat([output_HQW.transpose(0, 1).flatten(1) for output_HQW in outputs])


BATCHES = [((3, 5),), ((3, 5), (2, 4)), ((4, 2), (1, 1), (2, 3))]


@pytest.mark.parametrize("dropout", [0.0, 1e-12])  # above 0: the code path of a GPU; 1e-12 drops no weight
@pytest.mark.parametrize("sizes", BATCHES)
def test_both_towers_of_several_batches_equal_each_tower_alone(sizes: tuple[tuple[int, int], ...], dropout: float):
    rows, biases = batches(*sizes)
    found_BD, expected_BD = attention(*rows, biases, dropout=dropout), one_by_one(rows, biases)
    torch.testing.assert_close(found_BD, expected_BD, rtol=1e-9, atol=1e-9)
    grad_BD = torch.randn(found_BD.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found, expected = (
        torch.autograd.grad(output_BD, [*rows, *biases], grad_BD) for output_BD in (found_BD, expected_BD)
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dropout", [0.0, 1e-12])
@pytest.mark.parametrize("sizes", BATCHES)
def test_targets_alone_have_the_output_that_they_have_with_both_towers(
    sizes: tuple[tuple[int, int], ...], dropout: float
):
    (query_BD, key_BD, value_BD), biases = batches(*sizes)
    num = sum(num_targets for num_targets, _ in sizes)
    found_GD = attention(query_BD[:num], key_BD[num:], value_BD[num:], biases, dropout=dropout)
    expected_BD = one_by_one([query_BD, key_BD, value_BD], biases)
    torch.testing.assert_close(found_GD, expected_BD[:num], rtol=1e-9, atol=1e-9)


def test_gradients_of_both_towers_equal_finite_differences():
    rows, biases = batches((3, 5), (2, 4))

    def output(query_BD: Tensor, key_BD: Tensor, value_BD: Tensor, *biases: Tensor) -> Tensor:
        return attention(query_BD, key_BD, value_BD, biases, dropout=0.0)

    assert torch.autograd.gradcheck(output, (*rows, *biases))


SUBGRAPHS = {
    "two of equal size": [(3, 5), (3, 5)],
    "targets as many as context": [(4, 4), (4, 4)],
    "two of different size": [(3, 5), (3, 4)],
    "one": [(3, 5)],
}


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize(
    ("name", "num_calls"), [(name, num) for name, num in zip(SUBGRAPHS, [1, 1, 2, 1], strict=True)]
)
def test_towers_of_equal_size_are_one_call_of_the_fused_kernel(
    name: str, num_calls: int, both_ways: bool, monkeypatch: pytest.MonkeyPatch
):
    sizes, generator = SUBGRAPHS[name], torch.Generator().manual_seed(3)
    num_targets, num_contexts = (sum(size[axis] for size in sizes) for axis in (0, 1))
    num_queries, num_keys = (num_targets + num_contexts,) * 2 if both_ways else (num_targets, num_contexts)
    shapes = [(num_queries, 8), (num_keys, 8), (num_keys, 8), *((2, *size) for size in sizes)]
    tensors = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    query_QD, key_KD, value_KD, *biases = tensors
    kernel, calls = functional.scaled_dot_product_attention, []

    def counted(*rows: Tensor, attn_mask: Tensor, dropout_p: float) -> Tensor:
        calls.append([row.shape for row in (*rows, attn_mask)])
        assert attn_mask.is_contiguous()
        return kernel(*rows, attn_mask=attn_mask, dropout_p=dropout_p)

    monkeypatch.setattr(module.functional, "scaled_dot_product_attention", counted)
    found = fused_attention(query_QD, key_KD, value_KD, biases, dropout=0.0)
    expected = attention(query_QD, key_KD, value_KD, biases, dropout=0.0)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    weights = torch.randn(found.shape, generator=generator)
    grads = [torch.autograd.grad((output * weights).sum(), tensors) for output in (found, expected)]
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert len(calls) == num_calls * (1 + both_ways)
    assert {len(shape) for call in calls for shape in call} == {4}
