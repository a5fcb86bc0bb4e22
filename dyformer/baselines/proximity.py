"""Union graph of the newest steps -> scores of pairs from the walks and the distance between their ends.

N nodes    P pairs    S distinct sources of the pairs    B sources of a block    C distinct targets
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveInt
from pydantic.dataclasses import dataclass

from dyformer.graphs.config import STRICT
from dyformer.graphs.distances import distance_block
from dyformer.graphs.pagerank import TABLE_ITERATIONS, chebyshev
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.scoring.interfaces import LabelledStep, Score

BLOCK_NUMBERS = 4_000_000
"""Numbers of one block of rows."""


@dataclass(frozen=True, kw_only=True)
class PersonalizedPageRank:
    """Score a pair by the sum of its Personalized PageRanks: of the target from the source, and the other way round."""

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        """Read the union of the newest `history_window` steps; labels have no effect."""
        union, teleport = graph.union, graph.config.teleport

        def score_pairs(source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.float64]:
            rank_P = np.empty(len(source_P))
            source_S, row_P = np.unique(source_P, return_inverse=True)
            for first, source_B in _blocks(source_S, union.num_nodes):
                seed_NB = np.zeros((union.num_nodes, len(source_B)))
                seed_NB[source_B, np.arange(len(source_B))] = 1
                rank_NB = chebyshev(union.adjacency, seed_NB, teleport, TABLE_ITERATIONS)
                here_P = (row_P >= first) & (row_P < first + len(source_B))
                rank_P[here_P] = rank_NB[target_P[here_P], row_P[here_P] - first]
            # PageRank of an undirected graph is symmetric but for the degree: pi_s(t) / d_t = pi_t(s) / d_s.
            return rank_P * (1 + union.degree[source_P] / np.maximum(union.degree[target_P], 1))

        return score_pairs


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ShortestPath:
    """Score a pair by the negative distance of its ends; all distances from `max_distance` on count as equal."""

    max_distance: PositiveInt = 6

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        """Read the union of the newest `history_window` steps; labels have no effect."""
        union = graph.union

        def score_pairs(source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.float64]:
            distance_P = np.empty(len(source_P))
            source_S, row_P = np.unique(source_P, return_inverse=True)
            target_C, column_P = np.unique(target_P, return_inverse=True)
            for first, source_B in _blocks(source_S, len(target_C)):
                distance_BC = distance_block(union, source_B, target_C, max_distance=self.max_distance)
                here_P = (row_P >= first) & (row_P < first + len(source_B))
                distance_P[here_P] = distance_BC[row_P[here_P] - first, column_P[here_P]]
            return -distance_P

        return score_pairs


def _blocks(source_S: NDArray[np.int64], width: int) -> list[tuple[int, NDArray[np.int64]]]:
    """Split sources into blocks of rows of a width: the position of the first source, and the sources."""
    size = max(1, BLOCK_NUMBERS // max(width, 1))
    return [(first, source_S[first : first + size]) for first in range(0, len(source_S), size)]
