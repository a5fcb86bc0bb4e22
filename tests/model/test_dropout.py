"""Dropout against its definition.

B rows    D width
"""

import pytest
import torch

from dyformer.model.transformer import add_dropped


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def test_a_fraction_is_dropped_and_the_rest_grows_to_the_same_sum():
    row_BD = torch.randn(1001, 7)
    dropped_BD = (add_dropped(row_BD, torch.ones(1001, 7), 0.3) - row_BD).double()
    is_whole_BD = dropped_BD > 0.5
    torch.testing.assert_close(
        dropped_BD[is_whole_BD], torch.full_like(dropped_BD[is_whole_BD], 1 / 0.7), rtol=1e-4, atol=0
    )
    assert dropped_BD[~is_whole_BD].abs().sum() == 0
    assert is_whole_BD.float().mean() == pytest.approx(0.7, abs=0.02)
    assert is_whole_BD.float().mean(dim=0).sub(0.7).abs().max() < 0.06
    assert not torch.equal(is_whole_BD[:500], is_whole_BD[500:1000])


def test_fractions_of_zero_and_one_drop_nothing_and_everything():
    row_BD, update_BD = torch.randn(2, 3, 5)
    assert torch.equal(add_dropped(row_BD, update_BD, 0.0), row_BD + update_BD)
    assert torch.equal(add_dropped(row_BD, update_BD, 1.0), row_BD)


def test_gradient_flows_through_the_numbers_that_were_not_dropped():
    row_BD, update_BD = torch.randn(4, 5, requires_grad=True), torch.randn(4, 5, requires_grad=True)
    new_BD = add_dropped(row_BD, update_BD, 0.5)
    row_grad_BD, update_grad_BD = torch.autograd.grad(new_BD.sum(), (row_BD, update_BD))
    assert torch.equal(row_grad_BD, torch.ones(4, 5))
    torch.testing.assert_close(update_grad_BD, (new_BD - row_BD).detach() / update_BD.detach())
    assert set(update_grad_BD.unique().tolist()) == {0.0, 2.0}
