"""The bias of pairs against its formula, its gradient against finite differences, and its size.

P pairs    T lags    S distance codes    H heads    A connections
"""

import pytest
import torch
from torch import Tensor

from dyformer.model.encodings import TemporalConnectionEncoding, add_connections, distance_bias

NUM_PAIRS, NUM_LAGS, NUM_HEADS, MAX_DISTANCE = 30, 7, 3, 4
CONNECTIONS = [(0, 0), (0, 6), (4, 3), (29, 1), (4, 0), (17, 5)]  # pair and lag


def drawn(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()


def bias(code_SH: Tensor, delta_TH: Tensor, distance_P: Tensor) -> Tensor:
    pair_A, lag_A = torch.tensor(CONNECTIONS).T
    return add_connections(distance_bias(code_SH, distance_P), delta_TH, pair_A, lag_A)


def distances() -> Tensor:
    return (torch.arange(NUM_PAIRS) % (MAX_DISTANCE + 1)).to(torch.uint8)


def test_bias_is_a_look_up_and_a_sum_over_connections():
    code_SH, delta_TH = drawn(MAX_DISTANCE + 1, NUM_HEADS), drawn(NUM_LAGS, NUM_HEADS)
    found_HP = bias(code_SH, delta_TH, distances())
    for pair in range(NUM_PAIRS):
        expected_H = code_SH[pair % (MAX_DISTANCE + 1)]
        for lag in [lag for other, lag in CONNECTIONS if other == pair]:
            expected_H = expected_H + delta_TH[lag]
        torch.testing.assert_close(found_HP[:, pair], expected_H, rtol=0, atol=1e-10)


def test_gradients_equal_finite_differences():
    inputs = (drawn(MAX_DISTANCE + 1, NUM_HEADS), drawn(NUM_LAGS, NUM_HEADS))
    assert torch.autograd.gradcheck(lambda code_SH, delta_TH: bias(code_SH, delta_TH, distances()), inputs)


@pytest.mark.parametrize("max_distance", [1, 2, 3, 5, 255])
def test_gradient_of_a_look_up_adds_up_all_pairs_of_a_code(max_distance: int):
    code_SH = drawn(max_distance + 1, NUM_HEADS)
    distance_P = torch.arange(max_distance + 1).repeat(3).to(torch.uint8)
    grad_HP = drawn(NUM_HEADS, len(distance_P)).detach()
    (found_SH,) = torch.autograd.grad(distance_bias(code_SH, distance_P), code_SH, grad_HP)
    torch.testing.assert_close(found_SH, grad_HP.unflatten(1, (3, -1)).sum(dim=1).T, rtol=0, atol=1e-10)


def test_gradients_flow_through_the_bias_that_connections_are_added_to():
    base_HP, delta_TH = drawn(NUM_HEADS, NUM_PAIRS), drawn(NUM_LAGS, NUM_HEADS)
    pair_A, lag_A = torch.tensor(CONNECTIONS).T
    assert torch.autograd.gradcheck(
        lambda base_HP, delta_TH: add_connections(base_HP.clone(), delta_TH, pair_A, lag_A), (base_HP, delta_TH)
    )


def test_pairs_without_connections_keep_their_bias():
    base_HP, none_A = drawn(NUM_HEADS, NUM_PAIRS), torch.empty(0, dtype=torch.int64)
    found_HP = add_connections(base_HP.clone(), drawn(NUM_LAGS, NUM_HEADS), none_A, none_A)
    assert torch.equal(found_HP, base_HP)


def test_hidden_lag_counts_neither_absent_nor_present():
    encoding = TemporalConnectionEncoding(NUM_LAGS, 4, NUM_HEADS)
    visible_T = torch.arange(NUM_LAGS) != 2
    absent_H, delta_TH = encoding(visible_T)
    with torch.no_grad():
        encoding.table[4:6] = 100.0
        encoding.aggregation_T[2] = 100.0
    again_H, again_TH = encoding(visible_T)
    assert torch.equal(absent_H, again_H)
    assert torch.equal(delta_TH, again_TH)
    assert delta_TH[2].abs().sum() == 0
