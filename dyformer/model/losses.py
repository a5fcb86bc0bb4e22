"""What training minimises: link prediction, temporal reconstruction and agreement of two views (paper, section 4).

G target nodes    P linked pairs    M unlinked pairs    D width
"""

from torch import Tensor
from torch.nn import functional


def link_loss(positive_score_P: Tensor, negative_score_M: Tensor, *, negative_weight: float) -> Tensor:
    """Mean of -log sigmoid(s) over linked pairs + `negative_weight` x mean of -log(1 - sigmoid(s)) over unlinked pairs.

    The paper sums over pairs and calls the weight its negative sampling ratio. A side without pairs adds nothing.
    """
    linked = functional.softplus(-positive_score_P).sum() / max(positive_score_P.numel(), 1)
    unlinked = functional.softplus(negative_score_M).sum() / max(negative_score_M.numel(), 1)
    return linked + negative_weight * unlinked


def view_loss(first_GD: Tensor, second_GD: Tensor) -> Tensor:
    """Squared distance of two views, each moving while the other stands (paper, L_view).

    ||first - SG(second)||^2 + ||SG(first) - second||^2 with rows averaged and the width summed.
    """
    first_moves = (first_GD - second_GD.detach()).square().sum(dim=-1)
    second_moves = (first_GD.detach() - second_GD).square().sum(dim=-1)
    return (first_moves + second_moves).mean()


def normalised_view_loss(
    first_GD: Tensor, second_GD: Tensor, predicted_first_GD: Tensor, predicted_second_GD: Tensor
) -> Tensor:
    """`view_loss` of unit vectors, each predicted from the other view (after SimSiam, arXiv 2011.10566)."""
    first_GD, second_GD = (
        functional.normalize(first_GD.detach(), dim=-1),
        functional.normalize(second_GD.detach(), dim=-1),
    )
    first_moves = (functional.normalize(predicted_first_GD, dim=-1) - second_GD).square().sum(dim=-1)
    second_moves = (functional.normalize(predicted_second_GD, dim=-1) - first_GD).square().sum(dim=-1)
    return (first_moves + second_moves).mean()
