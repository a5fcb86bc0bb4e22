"""Scores and what came of their pairs -> probabilities that rise with the score.

P pairs    L distinct scores    B ends of levels
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Probabilities by score: a rising step function, linear between its levels; constant beyond the outer ones."""

    score_B: NDArray[np.float64]
    probability_B: NDArray[np.float64]

    def probability(self, score_P: NDArray[np.float64]) -> NDArray[np.float64]:
        """Give the probabilities [P] of scores."""
        return np.interp(score_P, self.score_B, self.probability_B)


def fit_calibration(score_P: NDArray[np.float64], positive_P: NDArray[np.bool_]) -> Calibration:
    """Fit probabilities that rise with the score: isotonic regression (Zadrozny and Elkan, 2002).

    Each level is the fraction of positives among its pairs and one more pair of the mean probability, so that few
    pairs never give 0 or 1.
    """
    from sklearn.isotonic import isotonic_regression  # late, because scikit-learn takes a second to import

    order_P = np.lexsort((positive_P, score_P))
    score_P, label_P = score_P[order_P], positive_P[order_P].astype(np.float64)
    first_L = np.flatnonzero(np.diff(score_P, prepend=-np.inf) > 0)  # equal scores have one level
    num_L = np.diff(np.append(first_L, len(score_P)))
    sum_L = np.add.reduceat(label_P, first_L)
    level_L = isotonic_regression(sum_L / num_L, sample_weight=num_L.astype(np.float64))
    first_B = np.flatnonzero(np.diff(level_L, prepend=-np.inf) > 0)
    num_B, sum_B = np.add.reduceat(num_L, first_B), np.add.reduceat(sum_L, first_B)
    level_B = np.maximum.accumulate((sum_B + label_P.mean()) / (num_B + 1))
    last_B = np.append(first_B[1:], len(first_L)) - 1
    ends_B2 = np.stack([score_P[first_L[first_B]], score_P[first_L[last_B]]], axis=1)
    return Calibration(score_B=ends_B2.ravel(), probability_B=np.repeat(level_B, 2))
