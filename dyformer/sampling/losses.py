"""Vectors and pairs -> the loss of negative sampling, as in word2vec (Mikolov et al., 2013).

N nodes    D width    P pairs (the positive ones where both are there)    M negative pairs
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional


def negative_sampling_loss(positive_P: Tensor, negative_M: Tensor, negative_weight: float = 1.0) -> Tensor:
    """Mean of -log sigmoid(s) over positives + `negative_weight` x mean of -log sigmoid(-s) over negatives.

    Scores of any shape; a mean over no pairs is 0.
    """
    positive = functional.softplus(-positive_P).sum() / max(positive_P.numel(), 1)
    return positive + negative_weight * functional.softplus(negative_M).sum() / max(negative_M.numel(), 1)


def inner_products(vector_ND: Tensor, source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> Tensor:
    """Give the inner product of the vectors of each pair, [P]."""
    # Rows are copied by index_select, because the gradient of plain indexing is several times as slow.
    source_PD, target_PD = (vector_ND.index_select(0, torch.from_numpy(end_P)) for end_P in (source_P, target_P))
    return (source_PD * target_PD).sum(dim=1)
