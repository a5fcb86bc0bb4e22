"""Possible new partners of nodes that got one -> a ranker of them, and its part in the log-odds of new pairs.

P pairs    F inputs of the forecaster
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dyformer.scoring.contact_features import SIDES
from dyformer.scoring.heads import TreesHead, fit_ranking
from dyformer.scoring.labelled_tables import LabelledTable
from dyformer.scoring.link_features import LinkFeatures, names

NUM_ROUNDS = 150
WEIGHT = 1 / 3
"""Of the ranker in the log-odds of a new pair. It knows the order of one node's possible partners, and not which nodes
get one: with a half, links of different nodes are compared worse (docs/experiments/ranking.md)."""
FEWEST_GROUPS = 20
"""Of fewer nodes the ranker would learn chance (not measured)."""


@dataclass(frozen=True, kw_only=True)
class NewPartnerRanker:
    """Trees that rank the possible new partners of a node, and what brings their output to the spread of log-odds."""

    trees: TreesHead
    scale: float
    offset: float
    directed: bool
    weight: float = WEIGHT

    def logits(self, inputs_PF: NDArray[np.floating], recent_P2: NDArray[np.float32]) -> NDArray[np.float64]:
        """Give the output [P] on the scale of log-odds."""
        return self.scale * self.trees.logits(with_products(inputs_PF, recent_P2, directed=self.directed)) + self.offset

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "NewPartnerRanker":
        """Read the values of `record`."""
        return cls(**{**record, "trees": TreesHead(text=record["trees"])})

    def record(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {**vars(self), "trees": self.trees.text}


def recent_activity(
    features: LinkFeatures, source_P: NDArray[np.int64], target_P: NDArray[np.int64], *, directed: bool
) -> NDArray[np.float32]:
    """Give two logarithms of the target of each pair [P, 2]; where pairs have no direction, their sums for both ends.

    These are log1p of the partners in the newest window, and of what was sent and received with a half-life of one.
    """
    of_target_P2 = _activity(features, target_P)
    return of_target_P2 if directed else _activity(features, source_P) + of_target_P2


def _activity(features: LinkFeatures, node_P: NDArray[np.int64]) -> NDArray[np.float32]:
    sent_P, received_P = (features.ends_NF[node_P, SIDES.index(name)] for name in ("log_sent_1", "log_received_1"))
    both_P = np.log1p(np.expm1(sent_P) + np.expm1(received_P))
    return np.column_stack([np.log1p(features.pairs.last_degree_N[node_P]), both_P]).astype(np.float32)


def with_products(
    inputs_PF: NDArray[np.floating], recent_P2: NDArray[np.float32], *, directed: bool
) -> NDArray[np.floating]:
    """Add the activity and its products with paths, by which one-line formulas rank new partners.

    Paths are Adamic-Adar and L3; each counts times the root and times the logarithm of each activity.
    """
    adamic_adar_P, log_l3_P = (inputs_PF[:, names(directed).index(name)] for name in ("adamic_adar", "log_l3"))
    by_activity_P4 = np.hstack([np.sqrt(np.expm1(recent_P2)), recent_P2])
    products = [path_P[:, None] * by_activity_P4 for path_P in (adamic_adar_P, np.expm1(log_l3_P))]
    return np.hstack([inputs_PF, recent_P2, *products]).astype(inputs_PF.dtype, copy=False)


def fit_new_partners(
    table: LabelledTable, logit_P: NDArray[np.float64], *, directed: bool, seed: int
) -> NewPartnerRanker | None:
    """Fit a ranker by LambdaRank on the groups of new pairs `with_products`.

    None below FEWEST_GROUPS groups, unless there are pairs of both kinds, and where all pairs get one output.
    `logit_P` are the heads' log-odds of the pairs, whose mean and spread the output of the ranker gets.
    """
    too_few = len(np.unique(table.group_P)) < FEWEST_GROUPS
    if too_few or table.positive_P.all() or not table.positive_P.any():
        return None
    trees = fit_ranking(table, seed=seed, num_rounds=NUM_ROUNDS)
    ranked_P = trees.logits(table.inputs_PF)
    if np.ptp(ranked_P) == 0:
        return None
    scale = float(logit_P.std() / ranked_P.std())
    offset = float(logit_P.mean() - scale * ranked_P.mean())
    return NewPartnerRanker(trees=trees, scale=scale, offset=offset, directed=directed)
