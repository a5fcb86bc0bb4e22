"""Scores of the same pairs by two methods -> the difference of their AUC, with its interval.

P pairs    S source nodes    T groups of tied scores    B resamples
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dyformer.evaluation.scored_pairs import ScoredPairs

CONFIDENCE = 0.95

WeightedAuc = Callable[[NDArray[np.float64]], float]


class NotTheSamePairs(ValueError):
    """Two methods were evaluated on different pairs, so they cannot be compared pair by pair."""


def paired_difference(
    challenger: ScoredPairs, champion: ScoredPairs, *, num_resamples: int = 1000, generator: np.random.Generator
) -> tuple[float, float, float]:
    """Give low end, mean and high end of the 95 % interval of the challenger's AUC less the champion's.

    A paired bootstrap over source nodes, because pairs of one source are not independent. A resample draws as many
    sources as there are, with replacement; both methods are evaluated on all their pairs. Percentile interval
    (Efron and Tibshirani, 1993, sections 13.3 and 8.4). A resample without pairs of both kinds is left out.
    Raises NotTheSamePairs, and ValueError where no resample has pairs of both kinds.
    """
    _check_same_pairs(challenger, champion)
    source_S, source_P = np.unique(challenger.source_P, return_inverse=True)
    positive_P = challenger.positive_P
    first, second = (weighted_auc(positive_P, pairs.score_P) for pairs in (challenger, champion))
    differences = []
    for _ in range(num_resamples):
        drawn_S = np.bincount(generator.integers(len(source_S), size=len(source_S)), minlength=len(source_S))
        weight_P = drawn_S[source_P].astype(np.float64)
        if weight_P[positive_P].any() and weight_P[~positive_P].any():
            differences.append(first(weight_P) - second(weight_P))
    if not differences:
        raise ValueError(
            f"step {challenger.step}: {len(positive_P)} pairs of {len(source_S)} source nodes, and no resample of "
            f"{num_resamples} holds a positive and a negative pair; evaluate a step with more of both"
        )
    low, high = np.quantile(differences, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(np.mean(differences)), float(high)


def weighted_auc(positive_P: NDArray[np.bool_], score_P: NDArray[np.floating]) -> WeightedAuc:
    """Give the AUC of scores as a function of the weights of their pairs; a pair of weight 2 counts as two.

    Scikit-learn's AUC with sample weights sorts the scores at every call, a thousand times for one interval.
    """
    order_P = np.argsort(score_P, kind="stable")
    positive_P, score_P = positive_P[order_P], score_P[order_P]
    first_T = np.flatnonzero(np.diff(score_P, prepend=-np.inf))

    def weighted(weight_P: NDArray[np.float64]) -> float:
        weight_P = weight_P[order_P]
        positive_T = np.add.reduceat(weight_P * positive_P, first_T)
        negative_T = np.add.reduceat(weight_P * ~positive_P, first_T)
        below_T = np.cumsum(negative_T) - negative_T / 2  # ties count half
        return float(positive_T @ below_T / (positive_T.sum() * negative_T.sum()))

    return weighted


def new_pairs(pairs: ScoredPairs) -> ScoredPairs | None:
    """Give the pairs that no earlier snapshot linked, or None unless positive and negative ones are among them."""
    new_P = pairs.new_P
    if not (pairs.positive_P[new_P].any() and (~pairs.positive_P[new_P]).any()):
        return None
    names = ("source_P", "target_P", "positive_P", "new_P", "score_P")
    return replace(pairs, **{name: getattr(pairs, name)[new_P] for name in names})


def _check_same_pairs(challenger: ScoredPairs, champion: ScoredPairs) -> None:
    for name in ("step", "seed", "family"):
        found, expected = getattr(challenger, name), getattr(champion, name)
        if found != expected:
            raise NotTheSamePairs(
                f"{challenger.method} was evaluated on {name} {found}, {champion.method} on {name} {expected}: "
                f"evaluate both on the same pairs"
            )
    for name in ("source_P", "target_P", "positive_P"):
        if not np.array_equal(getattr(challenger, name), getattr(champion, name)):
            raise NotTheSamePairs(
                f"{challenger.method} and {champion.method} were evaluated on different pairs of step "
                f"{challenger.step} ({name} differs): evaluate both on one version of the snapshots"
            )
    for pairs in (challenger, champion):
        if not np.isfinite(pairs.score_P).all():
            raise ValueError(f"{pairs.method}: some scores of step {pairs.step} are not finite; train again")
