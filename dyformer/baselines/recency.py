"""Interactions of a history -> scores of pairs from their age in continuous time.

N nodes    P pairs    R interactions    K distinct ordered pairs
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, PositiveFloat
from pydantic.dataclasses import dataclass

from dyformer.graphs.config import STRICT
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.graphs.snapshots import interactions_of
from dyformer.sampling.pairs import distinct
from dyformer.scoring.interfaces import LabelledStep, Score
from dyformer.scoring.labelled_tables import pair_features
from dyformer.scoring.pair_features import path_scores

HALF_LIFE = 1.0  # windows


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecayedContacts:
    """Interactions of nodes that differ, each worth 0.5^(age / half-life); the age is measured in windows."""

    num_nodes: int
    key_K: NDArray[np.int64]  # source * num_nodes + target, sorted
    contact_K: NDArray[np.float64]  # decayed number of interactions from the source to the target
    activity_N: NDArray[np.float64]  # decayed number of interactions of a node, in either direction

    def sent(self, source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.float64]:
        """Give the decayed number of interactions from each source to its target, [P]."""
        return _looked_up(self.key_K, self.contact_K, source_P * self.num_nodes + target_P, 0)


def _looked_up(
    key_K: NDArray[np.int64], value_K: NDArray[np.float64], key_P: NDArray[np.int64], missing: float
) -> NDArray[np.float64]:
    if not len(key_K):
        return np.full(len(key_P), missing)
    found_P = np.minimum(np.searchsorted(key_K, key_P), len(key_K) - 1)
    return np.where(key_K[found_P] == key_P, value_K[found_P], missing)


def decayed_contacts(graph: PreparedGraph, half_life: float = HALF_LIFE) -> DecayedContacts:
    """Count the interactions of a history, the newer ones more. Raises ValueError for a graph without interactions."""
    interactions, num_nodes = interactions_of(graph.history), len(graph.history.node_N)
    differs_R = interactions.source_R != interactions.target_R
    source_R, target_R = interactions.source_R[differs_R], interactions.target_R[differs_R]
    value_R = 0.5 ** ((graph.until - interactions.position_R[differs_R]) / half_life)
    key_R = source_R * num_nodes + target_R
    key_K = distinct(key_R)
    end_2R, contact_K = np.concatenate([source_R, target_R]), np.zeros(len(key_K))
    np.add.at(contact_K, np.searchsorted(key_K, key_R), value_R)
    activity_N = np.bincount(end_2R, np.tile(value_R, 2), num_nodes).astype(np.float64)
    return DecayedContacts(num_nodes=num_nodes, key_K=key_K, contact_K=contact_K, activity_N=activity_N)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ContactRecency:
    """Score a pair by its decayed contacts: sent + 0.7 received + 1e-5 times the target's activity.

    The activity orders the targets that had no contact with the source. Where both orders are the same pair, as in an
    undirected graph and in the paper's protocol, a received contact counts as much as a sent one, and the activity is
    that of both ends.
    """

    half_life: PositiveFloat = HALF_LIFE
    received_weight: NonNegativeFloat = 0.7
    activity_weight: NonNegativeFloat = 1e-5

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        """Count the contacts of the history; of labels only counts whether their pairs have a direction."""
        contacts = decayed_contacts(graph, self.half_life)
        directed = graph.history.directed and (not labelled or labelled[0].directed)
        received_weight = self.received_weight if directed else 1.0

        def score_pairs(source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.float64]:
            contact_P = contacts.sent(source_P, target_P) + received_weight * contacts.sent(target_P, source_P)
            activity_P = contacts.activity_N[target_P] + (0 if directed else contacts.activity_N[source_P])
            return contact_P + self.activity_weight * activity_P

        return score_pairs


@dataclass(frozen=True, kw_only=True, config=STRICT)
class LatestContact:
    """Rank a source's past partners by the time of the newest interaction in either direction, then other targets.

    A partner's score is 1 + the fraction of the history that had gone by then; with `newest_only` it is that of the
    source's newest partner alone (of several at one time all), and the others are like strangers. A stranger's is
    a / (1 + a) for the target's activity a, decayed with the half-life in windows. Where both orders are the same pair,
    the newest partner is that of either end, and the activity that of both.
    """

    newest_only: bool = False
    half_life: PositiveFloat = HALF_LIFE

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        """Find the newest contacts of the history; of labels only counts whether their pairs have a direction."""
        activity_N = decayed_contacts(graph, self.half_life).activity_N
        num_nodes, key_K, position_K, newest_N = _latest_contacts(graph)
        directed = graph.history.directed and (not labelled or labelled[0].directed)

        def score_pairs(source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.float64]:
            position_P = _looked_up(key_K, position_K, source_P * num_nodes + target_P, -np.inf)
            is_partner_P = position_P > -np.inf
            activity_P = activity_N[target_P] + (0 if directed else activity_N[source_P])
            if self.newest_only:
                newest_P = newest_N[source_P] if directed else np.minimum(newest_N[source_P], newest_N[target_P])
                is_partner_P &= position_P >= newest_P
            return np.where(is_partner_P, 1 + position_P / graph.until, activity_P / (1 + activity_P))

        return score_pairs


def _latest_contacts(graph: PreparedGraph) -> tuple[int, NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Give the number of nodes, the sorted keys [K] of pairs, and the newest positions of each and of each node."""
    interactions, num_nodes = interactions_of(graph.history), len(graph.history.node_N)
    source_2R = np.concatenate([interactions.source_R, interactions.target_R])
    target_2R = np.concatenate([interactions.target_R, interactions.source_R])
    differs_2R, position_2R = source_2R != target_2R, np.tile(interactions.position_R, 2)
    key_2R, newest_N = source_2R * num_nodes + target_2R, np.full(num_nodes, -np.inf)
    key_K = distinct(key_2R[differs_2R])
    position_K = np.full(len(key_K), -np.inf)
    np.maximum.at(position_K, np.searchsorted(key_K, key_2R[differs_2R]), position_2R[differs_2R])
    np.maximum.at(newest_N, source_2R[differs_2R], position_2R[differs_2R])
    return num_nodes, key_K, position_K, newest_N


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ActiveAdamicAdar:
    """Score a pair by its Adamic-Adar score times the decayed activity of both ends."""

    half_life: PositiveFloat = HALF_LIFE

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        """Read the union of the history and count its contacts; labels have no effect."""
        activity_N = decayed_contacts(graph, self.half_life).activity_N
        features = pair_features(graph)

        def score_pairs(source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.float64]:
            return path_scores(features, source_P, target_P)[1] * activity_N[source_P] * activity_N[target_P]

        return score_pairs
