"""Union graph and history -> the pairs that a forecast compares on a graph too large to compare all pairs.

N nodes    A query nodes    B bridges    T popular neighbours    C candidates    K nodes of a PageRank row
"""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dyformer.graphs.pagerank import TABLE_TOP_K, Best, pagerank_rows
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.sampling.pairs import Pairs
from dyformer.scoring.labelled_tables import pair_features

NUM_BRIDGES, NUM_POPULAR, NUM_CANDIDATES = 10, 20, 100
BLOCK_NODES = 20_000  # their candidates take some ten megabytes


@dataclass(frozen=True, kw_only=True)
class Bridges:
    """The lists in which the candidates of all nodes are found; -1 stands where a node has fewer."""

    union: sparse.csr_array  # [N, N], sorted
    bridge_NB: NDArray[np.int32]
    popular_NT: NDArray[np.int32]


def bridges_of(
    union: sparse.csr_array, *, bipartite: bool, num_bridges: int = NUM_BRIDGES, num_popular: int = NUM_POPULAR
) -> Bridges:
    """List `num_bridges` bridges of each node, and its `num_popular` most popular neighbours.

    The bridges are its least popular neighbours (the Adamic-Adar index weighs these most). On a `bipartite` log they
    are the bridges of these, so that partners are three edges away, on the other side.
    """
    from dyformer.scoring.kernels.candidates import first_neighbors, longer_bridges  # late, as numba is slow to import

    bridge_NB = first_neighbors(union.indptr, union.indices, num_bridges, most_popular=False)
    popular_NT = first_neighbors(union.indptr, union.indices, num_popular, most_popular=True)
    return Bridges(union=union, bridge_NB=longer_bridges(bridge_NB) if bipartite else bridge_NB, popular_NT=popular_NT)


def candidates(
    bridges: Bridges, query_A: NDArray[np.int64], near: Best, *, num_candidates: int = NUM_CANDIDATES
) -> Pairs:
    """Give pairs to score on a graph too large to score all pairs: query nodes in their order, and partners, sorted.

    A partner is `near` by the node's PageRank row, or is one of the most popular neighbours of one of its bridges.
    Pairs with an edge are left out. A node has at most `num_candidates` partners, the best by score, then by
    popularity, then by number.
    """
    from dyformer.scoring.kernels.candidates import best_candidates  # late, as above

    slots = bridges.union.indptr, bridges.union.indices
    candidate_AC = best_candidates(slots, query_A, bridges.bridge_NB, bridges.popular_NT, near, num_candidates)
    row_P, column_P = np.nonzero(candidate_AC >= 0)
    return query_A[row_P], candidate_AC[row_P, column_P]


# The lists of a graph, for all of its queries; an entry goes when its graph goes.
_BRIDGES: WeakKeyDictionary[PreparedGraph, Bridges] = WeakKeyDictionary()


def candidate_pairs(prepared: PreparedGraph, query_A: NDArray[np.int64] | None = None) -> Pairs:
    """Return nodes and their possible partners, for a graph too large to compare all pairs.

    The partners of a node are near by PageRank, popular two hops away, or were linked with it before. They depend on
    no other query node.
    """
    linked = pair_features(prepared).union
    if prepared not in _BRIDGES:
        _BRIDGES[prepared] = bridges_of(linked, bipartite=len(np.unique(prepared.history.side_N)) > 1)
    node_A = np.arange(len(prepared.history.side_N)) if query_A is None else query_A
    parts = []
    for first in range(0, max(len(node_A), 1), BLOCK_NODES):
        block_A = node_A[first : first + BLOCK_NODES]
        near = pagerank_rows(prepared.union, block_A, top_k=TABLE_TOP_K, teleport=prepared.config.teleport)
        parts.append(candidates(_BRIDGES[prepared], block_A, near))
    rows = linked[node_A]
    node_P, partner_P = map(np.concatenate, zip(*parts, strict=True))
    return (
        np.concatenate([node_P, np.repeat(node_A, np.diff(rows.indptr))]),
        np.concatenate([partner_P, rows.indices.astype(np.int64)]),
    )
