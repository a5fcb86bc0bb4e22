"""Scores of true targets and of their candidates -> ranks and their metrics; probabilities -> calibration.

Q queries    C candidates of a query    P pairs    B bins
"""

import numpy as np
from numpy.typing import NDArray

HITS = (1, 10, 50)
NUM_BINS = 15


def mean_ranks(
    score_Q: NDArray[np.floating], score_QC: NDArray[np.floating], valid_QC: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Rank the true target of each query among its candidates, [Q]; rank 1 is the best.

    Candidates with the same score share their ranks: the true target gets the mean of the ranks that the tied ones take
    up. Padding is marked by `valid_QC`. Raises ValueError for a valid score that is not a finite number.
    """
    broken = int((~np.isfinite(score_Q)).sum() + (~np.isfinite(score_QC) & valid_QC).sum())
    if broken:
        raise ValueError(f"expected finite scores: {broken} of {score_Q.size + int(valid_QC.sum())} are not")
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


def brier(positive_P: NDArray[np.bool_], probability_P: NDArray[np.floating]) -> float:
    """Give the mean squared difference of probabilities and labels (Brier, 1950). Raises ValueError."""
    _check_probabilities(positive_P, probability_P)
    return float(np.mean((probability_P - positive_P) ** 2))


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
        raise ValueError(
            f"expected one probability per pair: found {np.shape(positive_P)} pairs and {np.shape(probability_P)} "
            f"probabilities"
        )
    if not ((probability_P >= 0) & (probability_P <= 1)).all():  # NaN fails as well
        raise ValueError(
            f"expected probabilities from 0 to 1: found {np.min(probability_P)} to {np.max(probability_P)}"
        )
