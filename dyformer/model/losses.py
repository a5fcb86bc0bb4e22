"""Scores or vectors -> losses: link prediction and agreement of two views (paper, section 4).

G target nodes    P positive pairs    M negative pairs    D width
"""

import torch
from torch import Tensor
from torch.nn import functional


def link_loss(positive_score_P: Tensor, negative_score_M: Tensor, *, negative_weight: float) -> Tensor:
    """Mean of -log sigmoid(s) over positives + `negative_weight` x mean of -log(1 - sigmoid(s)) over negatives.

    The paper sums over pairs and calls the weight the negative sampling ratio. A mean over no pairs is 0.
    """
    positive = functional.softplus(-positive_score_P).sum() / max(positive_score_P.numel(), 1)
    negative = functional.softplus(negative_score_M).sum() / max(negative_score_M.numel(), 1)
    return positive + negative_weight * negative


def ranking_loss(score_GG: Tensor, first_P: Tensor, second_P: Tensor, negative_GG: Tensor) -> Tensor:
    """Mean of -log(e^s_ij / (e^s_ij + sum of e^s_ik over the negative k of i)) over the positive (i, j) and (j, i).

    It is the softmax loss of i's link among the targets with which it has none; a positive of i competes with no other
    one. A mean over no pairs is 0.
    """
    query_A, key_A = torch.cat([first_P, second_P]), torch.cat([second_P, first_P])
    # -1e9 instead of minus infinity, of which a row without negatives would have a gradient of NaN.
    rest_G = score_GG.masked_fill(~negative_GG, -1e9).logsumexp(dim=1)
    loss_A = functional.softplus(rest_G.index_select(0, query_A) - score_GG[query_A, key_A])
    return loss_A.sum() / max(loss_A.numel(), 1)


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
