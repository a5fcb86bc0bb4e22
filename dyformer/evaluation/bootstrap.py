"""Scored pairs of some steps -> resamples of their nodes, and with them the distribution of a metric.

B resamples    S nodes of the pairs    P pairs of one step    T steps
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
NUM_RESAMPLES = 1000
MIN_RESAMPLES = 200
MAX_WORK = 50_000_000  # resamples x pairs: a few tenths of a second


@dataclass(frozen=True, kw_only=True)
class NodeResamples:
    """How often each node was drawn in each resample; a pair then counts as the product of its two ends' numbers.

    This is the two-way bootstrap, the pigeonhole bootstrap of Owen (2007) with the weights of Owen and Eckles (2012):
    pairs with a common source or a common target are not independent, and resampling sources alone makes intervals
    too narrow wherever many pairs share a popular target. Both ends are drawn from one set of nodes, since a node may
    be the source of one pair and the target of another. Where only the pairs vary, and no node matters, the intervals
    are up to 1.7 times as wide as they need be.
    """

    node_S: NDArray[np.int64]  # sorted
    weight_BS: NDArray[np.uint8]


def node_resamples(
    ends: Sequence[NDArray[np.int64]],
    *,
    num_resamples: int | None = None,
    generator: np.random.Generator,
    later: Sequence[NDArray[np.int64]] = (),
) -> NodeResamples:
    """Draw resamples of all nodes in `ends`, the sources and targets of the pairs of all steps.

    A node has the same number in all steps, because it is the same node. A negative end is no node and counts once, so
    that pairs with one end are resampled by the other. Without `num_resamples` there are 1,000, and
    fewer, at least 200, for more than 50,000 pairs. `later` are ends of pairs that only later steps give: their further
    nodes are drawn after the others, whose numbers they do not change.
    """
    if num_resamples is None:
        num_pairs = sum(map(len, ends)) // 2
        num_resamples = int(np.clip(MAX_WORK // max(num_pairs, 1), MIN_RESAMPLES, NUM_RESAMPLES))
    none = np.empty(0, dtype=np.int64)
    first_S = np.unique(np.concatenate([*ends, none]))
    further_S = np.setdiff1d(np.concatenate([*later, none]), first_S)
    node_S = np.union1d(first_S, further_S)
    weight_BS = np.empty((num_resamples, len(node_S)), dtype=np.uint8)
    for drawn_S in (first_S, further_S):
        column_S = np.searchsorted(node_S, drawn_S)
        for weight_S in weight_BS:
            weight_S[column_S] = generator.poisson(size=len(drawn_S))
    weight_BS[:, node_S < 0] = 1
    return NodeResamples(node_S=node_S, weight_BS=weight_BS)


def resampled_metrics(
    resamples: NodeResamples,
    source_P: NDArray[np.int64],
    target_P: NDArray[np.int64],
    positive_P: NDArray[np.bool_],
    score_P: NDArray[np.floating],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Give the AUC and the average precision `[B]` of each resample, NaN for one without pairs of both kinds."""
    # late, because numba takes half a second to import
    from dyformer.scoring.metrics import weighted_metrics

    order_P = np.argsort(-score_P, kind="stable")
    is_last_P = np.diff(score_P[order_P], append=np.nan) != 0  # the last pair of each group of ties
    source_P, target_P = (np.searchsorted(resamples.node_S, end_P[order_P]) for end_P in (source_P, target_P))
    return weighted_metrics(resamples.weight_BS, source_P, target_P, positive_P[order_P], is_last_P)


def interval(value_B: NDArray[np.float64]) -> tuple[float, float]:
    """Give the ends of the 95 % percentile interval (Efron and Tibshirani, 1993, section 13.3).

    Resamples without pairs of both kinds, which are NaN, are left out. Without any other both ends are NaN.
    """
    value_B = value_B[np.isfinite(value_B)]
    if not len(value_B):
        return np.nan, np.nan
    low, high = np.quantile(value_B, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
