"""Dropout against its definition.

B rows    D width
"""

import pytest
import torch

from dyformer.model.dropout import add_dropped


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def test_a_share_is_left_out_and_the_rest_grows_to_the_same_sum():
    row_BD = torch.randn(1001, 7)
    told_BD = (add_dropped(row_BD, torch.ones(1001, 7), 0.3) - row_BD).double()
    is_kept_BD = told_BD > 0.5
    torch.testing.assert_close(told_BD[is_kept_BD], torch.full_like(told_BD[is_kept_BD], 1 / 0.7), rtol=1e-4, atol=0)
    assert told_BD[~is_kept_BD].abs().sum() == 0
    assert is_kept_BD.float().mean() == pytest.approx(0.7, abs=0.02)
    assert is_kept_BD.float().mean(dim=0).sub(0.7).abs().max() < 0.06
    assert not torch.equal(is_kept_BD[:500], is_kept_BD[500:1000])


def test_without_a_share_nothing_is_left_out():
    row_BD, told_BD = torch.randn(2, 3, 5)
    assert torch.equal(add_dropped(row_BD, told_BD, 0.0), row_BD + told_BD)
    assert torch.equal(add_dropped(row_BD, told_BD, 1.0), row_BD)


def test_gradient_flows_through_what_was_kept():
    row_BD, told_BD = torch.randn(4, 5, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    new_BD = add_dropped(row_BD, told_BD, 0.5)
    row_grad_BD, told_grad_BD = torch.autograd.grad(new_BD.sum(), (row_BD, told_BD))
    assert torch.equal(row_grad_BD, torch.ones(4, 5))
    torch.testing.assert_close(told_grad_BD, (new_BD - row_BD).detach() / told_BD.detach())
    assert set(told_grad_BD.unique().tolist()) == {0.0, 2.0}
