"""Two methods' scores of the same pairs -> how much better one is, and how sure that is.

P pairs    S source nodes    T groups of tied scores    B resamples
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dyformer.evaluation.protocols import ScoredPairs

CONFIDENCE = 0.95

WeightedAuc = Callable[[NDArray[np.float64]], float]


class NotTheSamePairs(ValueError):
    """Two methods that were not evaluated on the same pairs cannot be compared pair by pair."""


def paired_difference(
    challenger: ScoredPairs, champion: ScoredPairs, *, num_resamples: int = 1000, generator: np.random.Generator
) -> tuple[float, float, float]:
    """Give the low end, the mean and the high end of the challenger's AUC less the champion's, in 95 of 100 cases.

    Paired bootstrap over source nodes: a resample draws as many of them as there are, with replacement, and takes all
    their pairs along, the same ones for both methods; pairs of one source are not independent. Percentile interval
    (Efron and Tibshirani, 1993, sections 13.3 and 8.4). A resample without a linked or an unlinked pair says nothing
    and is left out. Raises NotTheSamePairs, and ValueError where no resample has both kinds.
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
            f"{num_resamples} holds a linked and an unlinked pair; evaluate a step with more of both"
        )
    low, high = np.quantile(differences, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(np.mean(differences)), float(high)


def weighted_auc(positive_P: NDArray[np.bool_], score_P: NDArray[np.floating]) -> WeightedAuc:
    """Prepare the AUC of scores for many weightings of their pairs: a pair of weight 2 counts as two."""
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
    """Keep the pairs that no earlier snapshot linked; None where a linked or an unlinked one is missing."""
    kept_P = pairs.new_P
    if not (pairs.positive_P[kept_P].any() and (~pairs.positive_P[kept_P]).any()):
        return None
    names = ("source_P", "target_P", "positive_P", "new_P", "score_P")
    return replace(pairs, **{name: getattr(pairs, name)[kept_P] for name in names})


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
                f"{challenger.method} and {champion.method} were evaluated on other pairs of step {challenger.step} "
                f"({name} differs): evaluate both on one version of the snapshots"
            )
    for pairs in (challenger, champion):
        if not np.isfinite(pairs.score_P).all():
            raise ValueError(f"{pairs.method}: some scores of step {pairs.step} are not finite; train again")
