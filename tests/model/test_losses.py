"""The losses against their equations, written with loops."""

import math

import pytest
import torch

from dyformer.model.losses import link_loss, normalised_view_loss, ranking_loss, view_loss


def log_sigmoid(value: float) -> float:
    return -math.log(1 + math.exp(-value))


def test_link_loss_is_the_papers_with_means_and_a_weight():
    positives, negatives, weight = [0.3, -1.2, 2.0], [0.5, -0.4], 0.1
    expected = -sum(log_sigmoid(score) for score in positives) / 3
    expected -= weight * sum(math.log(1 - 1 / (1 + math.exp(-score))) for score in negatives) / 2
    found = link_loss(
        torch.tensor(positives, dtype=torch.float64),
        torch.tensor(negatives, dtype=torch.float64),
        negative_weight=weight,
    )
    assert float(found) == pytest.approx(expected, rel=1e-12)


def test_link_loss_without_pairs_of_a_kind_counts_the_other_kind_alone():
    score, none = torch.tensor([0.7]), torch.empty(0)
    assert float(link_loss(score, none, negative_weight=1.0)) == pytest.approx(-log_sigmoid(0.7))
    assert float(link_loss(none, none, negative_weight=1.0)) == 0.0


def test_link_loss_stays_finite_for_scores_of_any_size():
    loss = link_loss(torch.tensor([-1e4]), torch.tensor([1e4]), negative_weight=1.0)
    assert float(loss) == pytest.approx(2e4)


def test_view_loss_is_summed_over_width_and_averaged_over_rows():
    first = [[1.0, 2.0], [0.0, -1.0], [3.0, 0.5]]
    second = [[0.5, 2.5], [1.0, 1.0], [3.0, 0.0]]
    expected = 0.0
    for row, other in zip(first, second, strict=True):
        expected += 2 * sum((a - b) ** 2 for a, b in zip(row, other, strict=True)) / 3
    assert float(view_loss(torch.tensor(first), torch.tensor(second))) == pytest.approx(expected)


def test_gradient_of_each_view_treats_the_other_as_constant():
    first = torch.tensor([[1.0, 2.0]], requires_grad=True)
    second = torch.tensor([[0.0, 4.0]], requires_grad=True)
    view_loss(first, second).backward()
    assert first.grad is not None
    assert second.grad is not None
    assert first.grad.tolist() == [[2.0, -4.0]]
    assert second.grad.tolist() == [[-2.0, 4.0]]


def test_normalised_view_loss_compares_each_view_with_its_prediction_from_the_other():
    first, second = [3.0, 4.0], [5.0, 12.0]
    predicted_first, predicted_second = [0.0, 2.0], [8.0, 6.0]  # unit vectors (0, 1) and (4/5, 3/5)
    expected = (3 / 5) ** 2 + (1 - 4 / 5) ** 2 + (4 / 5 - 5 / 13) ** 2 + (3 / 5 - 12 / 13) ** 2
    rows = [torch.tensor([row]) for row in (first, second, predicted_first, predicted_second)]
    assert float(normalised_view_loss(rows[0], rows[1], rows[2], rows[3])) == pytest.approx(expected)


def test_normalised_views_of_one_direction_have_loss_zero_and_get_no_gradient():
    first = torch.tensor([[3.0, 4.0]], requires_grad=True)
    second = torch.tensor([[0.6, 0.8]], requires_grad=True)
    predicted = torch.tensor([[0.3, 0.4]], requires_grad=True)
    loss = normalised_view_loss(first, second, predicted, predicted)
    assert float(loss.detach()) == pytest.approx(0.0, abs=1e-6)
    loss.backward()
    assert first.grad is None
    assert second.grad is None


def test_ranking_loss_is_the_mean_log_softmax_of_each_end_among_its_negatives():
    score = torch.randn(5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    negative = torch.tensor([[i != j and {i, j} not in ({0, 1}, {2, 3}) for j in range(5)] for i in range(5)])
    negative[4] = negative[:, 4] = False
    expected = 0.0
    for query, key in ((0, 1), (2, 3), (1, 0), (3, 2)):
        rest = sum(math.exp(score[query, k]) for k in range(5) if negative[query, k])
        expected -= math.log(math.exp(score[query, key]) / (math.exp(score[query, key]) + rest)) / 4
    first, second = torch.tensor([0, 2]), torch.tensor([1, 3])
    assert float(ranking_loss(score, first, second, negative)) == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(
        lambda given: ranking_loss(given, first, second, negative), (score.requires_grad_(),)
    )


def test_ranking_loss_without_negatives_or_without_pairs_is_0_and_has_a_gradient():
    score, none = torch.ones(2, 2, requires_grad=True), torch.empty(0, dtype=torch.int64)
    loss = ranking_loss(score, torch.tensor([0]), torch.tensor([1]), torch.zeros(2, 2, dtype=torch.bool))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert score.grad is not None
    assert not score.grad.any()
    assert float(ranking_loss(score, none, none, torch.ones(2, 2, dtype=torch.bool)).detach()) == 0.0
