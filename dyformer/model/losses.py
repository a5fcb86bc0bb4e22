"""Scores or vectors -> losses: link prediction and agreement of two views (paper, section 4).

G target nodes    P positive pairs    M negative pairs    D width
"""

from torch import Tensor
from torch.nn import functional


def link_loss(positive_score_P: Tensor, negative_score_M: Tensor, *, negative_weight: float) -> Tensor:
    """Mean of -log sigmoid(s) over positives + `negative_weight` x mean of -log(1 - sigmoid(s)) over negatives.

    The paper sums over pairs and calls the weight the negative sampling ratio. A mean over no pairs is 0.
    """
    positive = functional.softplus(-positive_score_P).sum() / max(positive_score_P.numel(), 1)
    negative = functional.softplus(negative_score_M).sum() / max(negative_score_M.numel(), 1)
    return positive + negative_weight * negative


def view_loss(first_GD: Tensor, second_GD: Tensor) -> Tensor:
    """Squared distance of two views, with a gradient to one of them in each term (paper, L_view).

    ||first - SG(second)||^2 + ||SG(first) - second||^2, summed over the width and averaged over rows.
    """
    to_first = (first_GD - second_GD.detach()).square().sum(dim=-1)
    to_second = (first_GD.detach() - second_GD).square().sum(dim=-1)
    return (to_first + to_second).mean()


def normalised_view_loss(
    first_GD: Tensor, second_GD: Tensor, predicted_first_GD: Tensor, predicted_second_GD: Tensor
) -> Tensor:
    """Squared distance of each view, without gradient, to its prediction from the other view, as unit vectors.

    After SimSiam (arXiv 2011.10566).
    """
    unit_first_GD = functional.normalize(first_GD.detach(), dim=-1)
    unit_second_GD = functional.normalize(second_GD.detach(), dim=-1)
    to_first = (functional.normalize(predicted_first_GD, dim=-1) - unit_first_GD).square().sum(dim=-1)
    to_second = (functional.normalize(predicted_second_GD, dim=-1) - unit_second_GD).square().sum(dim=-1)
    return (to_first + to_second).mean()
