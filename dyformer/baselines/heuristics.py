"""History -> scores of pairs: the three simple formulas, which need no fit.

N nodes    P pairs    E edges of the union of the history
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Literal, get_args
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.scoring.interfaces import LabelledStep, Score
from dyformer.scoring.labelled_tables import pair_features
from dyformer.scoring.pair_features import (
    PathScores,
    UnionEdges,
    edge_degree,
    edge_values,
    path_scores,
    union_edges,
)

Memory = Literal["ever", "last", "decayed"]
"""Value of an edge: always 1, 1 only in the newest snapshot, or the sum of 0.5^age over its snapshots (newest: 0)."""

PathKind = Literal["common_neighbors", "adamic_adar", "l3"]
"""Kinds of paths, in the order of path_scores."""

LONGEST_LIST = 1_000_000  # pairs; of a longer list no paths stay in memory, as those of a million are 24 MB
NUM_NEWEST = 2  # lists of pairs whose paths are at hand: the queries of a step, and the pairs of its first stage

_NEWEST: WeakKeyDictionary[PreparedGraph, dict[bytes, PathScores]] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class EdgeBank:
    """Score a pair by the value of its own edge (EdgeBank; Poursafaei et al., 2022)."""

    memory: Memory

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        """Read the edges of the history; labels have no effect."""
        edges = union_edges(graph.history)
        return partial(edge_values, edges, _edge_value(edges, self.memory))


@dataclass(frozen=True, kw_only=True)
class PreferentialAttachment:
    """Score a pair by the product of its ends' degrees, each the sum of the values of a node's edges."""

    memory: Memory

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        """Sum the degrees over the history; labels have no effect."""
        edges = union_edges(graph.history)
        degree_N = edge_degree(edges, _edge_value(edges, self.memory))
        return lambda source_P, target_P: degree_N[source_P] * degree_N[target_P]


@dataclass(frozen=True, kw_only=True)
class NeighbourPaths:
    """Score a pair by the paths between its ends in the union of the history.

    "common_neighbors": the number of paths of length 2. "adamic_adar": the sum of 1 / ln(degree) over common neighbours
    (Adamic and Adar, 2003). "l3": the pair's entry of (D^-1/2 A D^-1/2)^3, normalised paths of length 3.
    """

    kind: PathKind

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        """Read the union of the history; labels have no effect."""
        index = get_args(PathKind).index(self.kind)
        return lambda source_P, target_P: _paths(graph, source_P, target_P)[index].copy()


@dataclass(frozen=True, kw_only=True)
class RecentPaths:
    """Score a pair by its paths times sqrt((1 + r_i)(1 + r_j)), r the degree of an end in the newest snapshot.

    For one source this orders new partners by their paths to it times the square root of their recent degree.
    """

    kind: PathKind

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        """Read the history; labels have no effect."""
        index = get_args(PathKind).index(self.kind)
        root_N = np.sqrt(1 + pair_features(graph).last_degree_N)

        def score_pairs(source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.float64]:
            return _paths(graph, source_P, target_P)[index] * root_N[source_P] * root_N[target_P]

        return score_pairs


def _paths(graph: PreparedGraph, source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> PathScores:
    """Give the paths of pairs, or those of one of the newest calls: five baselines score the same lists in turn."""
    newest, digest = _NEWEST.setdefault(graph, {}), blake2b(np.stack([source_P, target_P]).tobytes()).digest()
    paths = newest.pop(digest, None)  # another thread may take it at the same time, and then computes equal ones
    paths = paths or path_scores(pair_features(graph), source_P, target_P)
    if len(source_P) <= LONGEST_LIST:
        newest[digest] = paths
    for oldest in list(newest)[:-NUM_NEWEST]:
        newest.pop(oldest, None)
    return paths


def _edge_value(edges: UnionEdges, memory: Memory) -> NDArray[np.generic]:
    if memory == "decayed":
        return edges.decayed_E
    return np.ones(len(edges.key_E)) if memory == "ever" else edges.last_step_E == edges.num_steps
