"""Scores and labels of pairs -> AUC, average precision, also of resampled nodes; ranks of true targets; calibration.

P scored pairs    B resamples, or bins    S nodes of the pairs    Q queries    C candidates of a query
R resamples that are computed together

Scikit-learn's functions give the same values (to 1e-15), but take 10 to 20 times as long on 2,000 pairs.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dyformer import InvalidInput

HITS = (1, 10, 50)
NUM_BINS = 15
TOGETHER = 64  # the weights of a node in so many resamples are one line of the CPU's cache


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
    positives = np.cumsum(positive_P[order])[last_of_ties]
    precision = positives / (last_of_ties + 1)
    return float(np.sum(np.diff(positives, prepend=0) * precision) / positive_P.sum())


def _mean_ranks(score_P: NDArray[np.floating]) -> NDArray[np.float64]:
    _, group_P, count = np.unique(score_P, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2)[group_P]


def _checked(positive_P: NDArray[np.bool_], score_P: NDArray[np.floating]) -> NDArray[np.bool_]:
    positive_P = np.asarray(positive_P, dtype=bool)
    if positive_P.shape != score_P.shape or positive_P.ndim != 1:
        raise InvalidInput(f"expected one score per pair: found {positive_P.shape} pairs and {score_P.shape} scores")
    if positive_P.all() or not positive_P.any():
        raise InvalidInput(f"expected positive and negative pairs: all {len(positive_P)} pairs are of one kind")
    if not np.isfinite(score_P).all():
        raise InvalidInput(f"expected finite scores: {int((~np.isfinite(score_P)).sum())} of {len(score_P)} are not")
    return positive_P


@njit(nogil=True, cache=True)
def weighted_metrics(weight_BS, source_P, target_P, positive_P, is_last_P):
    """Give AUC and average precision `[B]` where a pair counts as often as the product of its two ends' weights.

    The ends are positions in `weight_BS`; `is_last_P` marks the last pair of each group of tied scores. A resample
    without pairs of both kinds gives NaN. Scikit-learn's functions with `sample_weight` sort the scores at every call.
    """
    num_resamples, num_nodes = weight_BS.shape
    auc_B, precision_B = np.full(num_resamples, np.nan), np.full(num_resamples, np.nan)
    for first in range(0, num_resamples, TOGETHER):
        end = min(first + TOGETHER, num_resamples)
        weight_SR = np.zeros((num_nodes, TOGETHER), weight_BS.dtype)
        for row in range(end - first):  # assignments of whole arrays take seconds to compile, for their errors
            for node in range(num_nodes):
                weight_SR[node, row] = weight_BS[first + row, node]
        auc_R, precision_R = _metrics_together(weight_SR, source_P, target_P, positive_P, is_last_P)
        for row in range(end - first):
            auc_B[first + row], precision_B[first + row] = auc_R[row], precision_R[row]
    return auc_B, precision_B


@njit(nogil=True, cache=True)
def _divide(above_R, precision_R, positives_R, negatives_R):
    for row in range(TOGETHER):
        if positives_R[row] > 0.0 and negatives_R[row] > 0.0:
            above_R[row] /= positives_R[row] * negatives_R[row]
            precision_R[row] /= positives_R[row]
        else:
            above_R[row] = precision_R[row] = np.nan


@njit(nogil=True, cache=True)
def _metrics_together(weight_SR, source_P, target_P, positive_P, is_last_P):
    """Give the same of R resamples, each number by the same sums as in a loop over the pairs of one resample."""
    above_R, precision_R = np.zeros(TOGETHER), np.zeros(TOGETHER)
    positives_R, negatives_R = np.zeros(TOGETHER), np.zeros(TOGETHER)
    group_positives_R, group_negatives_R = np.zeros(TOGETHER), np.zeros(TOGETHER)
    has_positive = False  # the group of tied scores
    for pair in range(len(source_P)):
        has_positive |= positive_P[pair]
        group_R = group_positives_R if positive_P[pair] else group_negatives_R
        source_R, target_R = weight_SR[source_P[pair]], weight_SR[target_P[pair]]
        for row in range(TOGETHER):
            group_R[row] += float(source_R[row]) * float(target_R[row])
        if not is_last_P[pair]:
            continue
        for row in range(TOGETHER):
            # Positive pairs with a higher score count whole, those with an equal score half.
            above_R[row] += group_negatives_R[row] * (positives_R[row] + group_positives_R[row] / 2)
            negatives_R[row] += group_negatives_R[row]
            group_negatives_R[row] = 0.0
        if has_positive:
            for row in range(TOGETHER):
                positives_R[row] += group_positives_R[row]
                if group_positives_R[row] > 0.0:
                    both = positives_R[row] + negatives_R[row]
                    precision_R[row] += group_positives_R[row] * positives_R[row] / both
                group_positives_R[row] = 0.0
            has_positive = False
    _divide(above_R, precision_R, positives_R, negatives_R)
    return above_R, precision_R


def mean_ranks(
    score_Q: NDArray[np.floating], score_QC: NDArray[np.floating], valid_QC: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Rank the true target of each query among its candidates, [Q]; rank 1 is the best.

    Candidates with the same score share their ranks: the true target gets the mean of the ranks that the tied ones take
    up. Padding is marked by `valid_QC`. Raises ValueError for a valid score that is not a finite number.
    """
    broken = int((~np.isfinite(score_Q)).sum() + (~np.isfinite(score_QC) & valid_QC).sum())
    if broken:
        raise InvalidInput(f"expected finite scores: {broken} of {score_Q.size + int(valid_QC.sum())} are not")
    above_Q = ((score_QC > score_Q[:, None]) & valid_QC).sum(axis=1)
    tied_Q = ((score_QC == score_Q[:, None]) & valid_QC).sum(axis=1)
    return 1 + above_Q + tied_Q / 2


def reciprocal_rank(rank_Q: NDArray[np.float64]) -> NDArray[np.float64]:
    """Give 1 / rank, [Q]; the mean over queries is the MRR."""
    return 1 / rank_Q


def hits(rank_Q: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """Give 1 where the true target is among the first k, else 0, [Q]."""
    return (rank_Q <= k).astype(np.float64)


def ndcg(rank_Q: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    """Give the discounted gain of one true target, 1 / log2(1 + rank) among the first k, else 0, [Q]; 1 is the best."""
    return np.where(rank_Q <= k, 1 / np.log2(1 + rank_Q), 0)


def expected_calibration_error(positive_P: NDArray[np.bool_], probability_P: NDArray[np.floating]) -> float:
    """Give the mean of |mean probability - fraction of positives| over NUM_BINS bins, weighted by their pairs.

    The bins divide [0, 1] equally (Guo et al., 2017). Raises ValueError for a value that is no probability.
    """
    _check_probabilities(positive_P, probability_P)
    bin_P = np.minimum((probability_P * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    # The difference of two means of one bin, times the bin's fraction of pairs, is the mean difference over all pairs.
    difference_B = np.bincount(bin_P, probability_P - positive_P, NUM_BINS)
    return float(np.abs(difference_B).sum() / len(bin_P))


def _check_probabilities(positive_P: NDArray[np.bool_], probability_P: NDArray[np.floating]) -> None:
    if np.shape(positive_P) != np.shape(probability_P) or not len(probability_P):
        raise InvalidInput(
            f"expected one probability per pair: found {np.shape(positive_P)} pairs and {np.shape(probability_P)} "
            f"probabilities"
        )
    if not ((probability_P >= 0) & (probability_P <= 1)).all():  # NaN fails as well
        raise InvalidInput(
            f"expected probabilities from 0 to 1: found {np.min(probability_P)} to {np.max(probability_P)}"
        )
