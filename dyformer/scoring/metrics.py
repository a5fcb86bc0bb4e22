"""Scores against what came true -> AUC, average precision, and ranks of the true partners.

P scored pairs    Q queries (one true partner each)    C candidates of a query
"""

import numpy as np
from numpy.typing import NDArray


def auc(positive_P: NDArray[np.bool_], score_P: NDArray[np.floating]) -> float:
    """Give the area under the ROC curve: the chance that a linked pair outscores an unlinked one, ties counting half.

    The Mann-Whitney statistic from mean ranks. Raises ValueError without at least one pair of each kind, and for a
    score that is not a finite number.
    """
    positive_P = _checked(positive_P, score_P)
    num_positives, num_negatives = int(positive_P.sum()), int((~positive_P).sum())
    rank_sum = _mean_ranks(score_P)[positive_P].sum()
    return float((rank_sum - num_positives * (num_positives + 1) / 2) / (num_positives * num_negatives))


def average_precision(positive_P: NDArray[np.bool_], score_P: NDArray[np.floating]) -> float:
    """Give sum over thresholds of (recall gained) x precision; tied pairs cross a threshold together.

    Raises ValueError without at least one pair of each kind, and for a score that is not a finite number.
    """
    positive_P = _checked(positive_P, score_P)
    order = np.argsort(-score_P, kind="stable")
    last_of_ties = np.append(np.flatnonzero(np.diff(score_P[order])), len(order) - 1)
    found = np.cumsum(positive_P[order])[last_of_ties]
    precision = found / (last_of_ties + 1)
    return float(np.sum(np.diff(found, prepend=0) * precision) / positive_P.sum())


def rank_of_true(true_score_Q: NDArray[np.floating], candidate_score_QC: NDArray[np.floating]) -> NDArray[np.float64]:
    """Rank each query's true partner among its candidates, 1 the best; ties get the mean rank.

    `candidate_score_QC` holds the other candidates only, NaN where one is filtered (a known partner).
    """
    true_Q1 = true_score_Q[:, None]
    above_Q = (candidate_score_QC > true_Q1).sum(axis=1)
    tied_Q = (candidate_score_QC == true_Q1).sum(axis=1)
    return 1.0 + above_Q + tied_Q / 2


def mrr(rank_Q: NDArray[np.floating]) -> float:
    """Give the mean reciprocal rank of the true partners."""
    return float(np.mean(1.0 / _ranks(rank_Q)))


def hits(rank_Q: NDArray[np.floating], k: int) -> float:
    """Give the share of true partners whose mean rank is at most `k`."""
    return float(np.mean(_ranks(rank_Q) <= k))


def _ranks(rank_Q: NDArray[np.floating]) -> NDArray[np.floating]:
    if not len(rank_Q):
        raise ValueError("no query to average over: expected at least one rank")
    return rank_Q


def _mean_ranks(score_P: NDArray[np.floating]) -> NDArray[np.float64]:
    _, group_P, count = np.unique(score_P, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[group_P]


def _checked(positive_P: NDArray[np.bool_], score_P: NDArray[np.floating]) -> NDArray[np.bool_]:
    positive_P = np.asarray(positive_P, dtype=bool)
    if positive_P.shape != score_P.shape or positive_P.ndim != 1:
        raise ValueError(f"expected one score per pair: found {positive_P.shape} pairs and {score_P.shape} scores")
    if positive_P.all() or not positive_P.any():
        raise ValueError(f"expected linked and unlinked pairs: all {len(positive_P)} pairs are of one kind")
    if not np.isfinite(score_P).all():
        raise ValueError(f"expected finite scores: {int((~np.isfinite(score_P)).sum())} of {len(score_P)} are not")
    return positive_P
