"""History -> past-only features of pairs of nodes, for any number of pairs in bounded memory.

N nodes             P pairs       F features    S row nodes of a block    C column nodes of a block
E edges of a union  M slots of its matrix   X edges of all snapshots
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from dyformer import InvalidInput
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.sampling.pairs import pair_keys

FEATURE_NAMES = (
    "seen",
    "num_steps_linked",
    "inverse_steps_since_link",
    "log_common_neighbors",
    "adamic_adar",
    "log_l3",
    "sum_log_degree",
    "product_log_degree",
    "difference_log_degree",
    "sum_log_last_degree",
    "product_log_last_degree",
    "sum_activity",
    "product_activity",
    "sum_log_step_degree",
)

BLOCK_PAIRS = 1 << 20  # whose ends are compared at once

PathScores = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class UnionEdges:
    """The distinct pairs of a history, sorted, and the steps at which they were linked."""

    num_nodes: int
    num_steps: int
    key_E: NDArray[np.int64]  # source * num_nodes + target
    count_E: NDArray[np.float32]  # number of snapshots with the pair
    decayed_E: NDArray[np.float64]  # sum of 0.5^age over the snapshots with the pair, age 0 in the newest one
    last_step_E: NDArray[np.int32]  # newest step with the pair

    @property
    def source_E(self) -> NDArray[np.int64]:
        """The lower end of each edge."""
        return self.key_E // self.num_nodes

    @property
    def target_E(self) -> NDArray[np.int64]:
        """The higher end of each edge."""
        return self.key_E % self.num_nodes


@dataclass(frozen=True, kw_only=True)
class PairFeatures:
    """Summary of a history to compute features of any pair from; its size depends on edges and nodes alone."""

    edges: UnionEdges
    union: sparse.csr_array  # [N, N] 0/1: linked in some snapshot
    degree_N: NDArray[np.float64]  # number of neighbours in the union
    last_degree_N: NDArray[np.float64]  # number of neighbours in the newest snapshot
    step_degree_N: NDArray[np.float64]  # number of neighbours in a snapshot, summed over snapshots
    active_step_N: NDArray[np.int64]  # newest step with an edge; 0: none

    @cached_property
    def walk(self) -> sparse.csr_array:
        """D^-1/2 A D^-1/2 of the union [N, N], stored in the same slots as the union."""
        row_M = np.repeat(np.arange(len(self.degree_N)), np.diff(self.union.indptr))
        value_M = 1 / np.sqrt(self.degree_N[row_M] * self.degree_N[self.union.indices])
        return sparse.csr_array((value_M, self.union.indices, self.union.indptr), shape=self.union.shape)

    @cached_property
    def end_terms(self) -> tuple[NDArray[np.float64], ...]:
        """Terms of one node in the features of its pairs, [N] each: three logarithms of degrees, and its recency."""
        degrees = (self.degree_N, self.last_degree_N, self.step_degree_N)
        recency_N = np.exp(self.active_step_N - float(self.edges.num_steps))
        return (*(np.log1p(degree_N) for degree_N in degrees), recency_N)

    def table(self, source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.float64]:
        """Give the features [P, F] of pairs, in the order of FEATURE_NAMES; the direction of a pair does not matter.

        Raises ValueError for a node that is not in the history.
        """
        edge_P = find_edges(self.edges, source_P, target_P)
        paths = path_scores(self, source_P, target_P)
        return np.column_stack(feature_columns(self, source_P, target_P, edge_P, paths))

    def block(self, row_S: NDArray[np.int64], column_C: NDArray[np.int64]) -> NDArray[np.float64]:
        """Give the features [F, S, C] of every row node with every column node: `table` for whole rows, faster.

        The pair of a node with itself has no meaning here. Raises ValueError for a node that is not in the history.
        """
        source_P, target_P = np.repeat(row_S, len(column_C)), np.tile(column_C, len(row_S))
        edge_P = find_edges(self.edges, source_P, target_P)
        paths = _path_block(self, row_S, column_C)
        columns = feature_columns(self, source_P, target_P, edge_P, paths)
        return np.stack(columns).reshape(len(FEATURE_NAMES), len(row_S), len(column_C))


def union_edges(history: DynamicGraph) -> UnionEdges:
    """Merge the snapshots of a history into its distinct pairs."""
    num_nodes = history.snapshots[-1].num_nodes
    keys = [pair_keys(num_nodes, snapshot.source_E, snapshot.target_E) for snapshot in history.snapshots]
    step_X = np.repeat([snapshot.step for snapshot in history.snapshots], [len(key) for key in keys]).astype(np.int32)
    key_E, edge_X = np.unique(np.concatenate(keys), return_inverse=True)
    last_step_E = np.zeros(len(key_E), dtype=np.int32)
    np.maximum.at(last_step_E, edge_X, step_X)
    return UnionEdges(
        num_nodes=num_nodes,
        num_steps=history.num_steps,
        key_E=key_E,
        count_E=np.bincount(edge_X, minlength=len(key_E)).astype(np.float32),
        decayed_E=np.bincount(edge_X, 0.5 ** (history.num_steps - step_X), len(key_E)).astype(np.float64),
        last_step_E=last_step_E,
    )


def edge_values(
    edges: UnionEdges, value_E: NDArray[np.generic], source_P: NDArray[np.int64], target_P: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Look up the value [P] of each pair among the union's edges; 0 where a pair was never linked."""
    return values_at(find_edges(edges, source_P, target_P), value_E)


def find_edges(edges: UnionEdges, source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.int64]:
    """Find the union's edge of each pair, [P]; -1 where a pair was never linked."""
    check_known(edges.num_nodes, source_P, target_P)
    key_P = pair_keys(edges.num_nodes, source_P, target_P)
    if not len(edges.key_E):
        return np.full(len(key_P), -1)
    order_P = np.argsort(key_P)  # neighbouring searches then read the same part of the edges: 5 times as fast for 10M
    edge_P = np.empty_like(key_P)
    edge_P[order_P] = np.minimum(np.searchsorted(edges.key_E, key_P[order_P]), len(edges.key_E) - 1)
    return np.where(edges.key_E[edge_P] == key_P, edge_P, -1)


def values_at(edge_P: NDArray[np.integer], value_E: NDArray[np.generic]) -> NDArray[np.float64]:
    """Give the value [P] of each edge of `find_edges`; 0 where there is none."""
    if not len(value_E):
        return np.zeros(len(edge_P))
    return np.where(edge_P >= 0, value_E[edge_P], 0).astype(np.float64)


def check_known(num_nodes: int, source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> None:
    """Raise ValueError for a pair with a node outside `range(num_nodes)`."""
    for node_P in (source_P, target_P):
        if len(node_P) and not 0 <= node_P.min() <= node_P.max() < num_nodes:
            raise InvalidInput(
                f"found pairs of nodes {node_P.min()} to {node_P.max()}: expected nodes of the history, "
                f"0 to {num_nodes - 1}"
            )


def edge_degree(edges: UnionEdges, value_E: NDArray[np.generic]) -> NDArray[np.float64]:
    """Sum the values of each node's edges, [N]."""
    ends = np.concatenate([edges.source_E, edges.target_E])
    return np.bincount(ends, np.tile(value_E, 2), edges.num_nodes).astype(np.float64)


def adjacency(edges: UnionEdges) -> sparse.csr_array:
    """Give the union's symmetric 0/1 adjacency [N, N]."""
    # With 32-bit indices the walks read half as many bytes.
    kind = np.int32 if edges.num_nodes < 2**31 else np.int64
    source_E, target_E = edges.source_E.astype(kind), edges.target_E.astype(kind)
    ends = (np.concatenate([source_E, target_E]), np.concatenate([target_E, source_E]))
    shape = (edges.num_nodes, edges.num_nodes)
    return sparse.csr_array((np.ones(len(ends[0])), ends), shape=shape)


def prepare_pair_features(history: DynamicGraph) -> PairFeatures:
    """Summarise a history (all snapshots before the predicted one) for the features of any pair."""
    edges = union_edges(history)
    union = adjacency(edges)
    degree_N = edge_degree(edges, np.ones(len(edges.key_E)))
    active_step_N = np.zeros(edges.num_nodes, dtype=np.int64)
    for end_E in (edges.source_E, edges.target_E):
        np.maximum.at(active_step_N, end_E, edges.last_step_E)
    return PairFeatures(
        edges=edges,
        union=union,
        degree_N=degree_N,
        last_degree_N=edge_degree(edges, edges.last_step_E == edges.num_steps),
        step_degree_N=edge_degree(edges, edges.count_E),
        active_step_N=active_step_N,
    )


def path_scores(features: PairFeatures, source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> PathScores:
    """Give common neighbours, Adamic-Adar (natural logarithm) and degree-normalised 3-paths (L3) of pairs, each [P].

    L3 is the entry of the cubed D^-1/2 A D^-1/2 (Kovacs et al., 2019, with symmetric normalisation).
    """
    from dyformer.graphs.kernels.paths import path_sums  # late, because numba takes half a second to import

    check_known(features.edges.num_nodes, source_P, target_P)
    order_P = grouped_by_busier_end(features.degree_N, source_P, target_P)
    first_P, second_P = busier_end_first(features.degree_N, source_P[order_P], target_P[order_P])
    degree_N, union = features.degree_N, features.union
    scores_3P = np.empty((3, len(order_P)))
    scores_3P[:, order_P] = path_sums(
        union.indptr, union.indices, degree_N, adamic_adar_weight(degree_N), first_P, second_P
    )
    return scores_3P[0], scores_3P[1], l3_score(degree_N, source_P, target_P, scores_3P[2])


def l3_score(
    degree_N: NDArray[np.float64], source_P: NDArray[np.int64], target_P: NDArray[np.int64], walk_P: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Normalise the three-step walks [P] of `path_sums` by the degrees of both ends."""
    # A node without neighbours has no walks, so its zeros are divided by 1.
    return walk_P / np.sqrt(np.maximum(degree_N[source_P] * degree_N[target_P], 1))


def _path_block(features: PairFeatures, row_S: NDArray[np.int64], column_C: NDArray[np.int64]) -> PathScores:
    union_SN = features.union[row_S]
    weighted_SN = union_SN.multiply(adamic_adar_weight(features.degree_N)).tocsr()
    products = (
        union_SN @ features.union,
        weighted_SN @ features.union,
        features.walk[row_S] @ features.walk @ features.walk,
    )
    common_P, adamic_P, l3_P = (product.toarray()[:, column_C].ravel() for product in products)
    return common_P, adamic_P, l3_P


def adamic_adar_weight(degree_N: NDArray[np.float64]) -> NDArray[np.float64]:
    """Give the weight of a common neighbour by its degree."""
    # A node between two others has at least two neighbours.
    return 1 / np.log(np.maximum(degree_N, 2))


def feature_columns(
    features: PairFeatures,
    source_P: NDArray[np.int64],
    target_P: NDArray[np.int64],
    edge_P: NDArray[np.integer],
    paths: PathScores,
) -> list[NDArray[np.float64]]:
    """Give the columns [P] of FEATURE_NAMES from the edges (`find_edges`) and the paths (`path_scores`) of pairs."""
    edges = features.edges
    common_P, adamic_P, l3_P = paths
    last_step_P = values_at(edge_P, edges.last_step_E)
    seen_P = (edge_P >= 0).astype(np.float64)
    return [
        seen_P,
        values_at(edge_P, edges.count_E),
        seen_P / (edges.num_steps + 1 - last_step_P),
        np.log1p(common_P),
        adamic_P,
        np.log1p(1e4 * l3_P),
        *_end_features(features, source_P, target_P),
    ]


def _end_features(
    features: PairFeatures, source_P: NDArray[np.int64], target_P: NDArray[np.int64]
) -> list[NDArray[np.float64]]:
    degree_N, last_N, steps_N, active_N = features.end_terms
    return [
        degree_N[source_P] + degree_N[target_P],
        degree_N[source_P] * degree_N[target_P],
        np.abs(degree_N[source_P] - degree_N[target_P]),
        last_N[source_P] + last_N[target_P],
        last_N[source_P] * last_N[target_P],
        active_N[source_P] + active_N[target_P],
        active_N[source_P] * active_N[target_P],
        steps_N[source_P] + steps_N[target_P],
    ]


def busier_end_first(
    degree_N: NDArray[np.float64], source_P: NDArray[np.int64], target_P: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Order the ends of each pair: the one with more neighbours first, of equal ones the one with the lower number.

    Busy ends are few, and their rows are expensive; the other ends have few neighbours to visit.
    """
    low_P, high_P = np.minimum(source_P, target_P), np.maximum(source_P, target_P)
    swap_P = degree_N[high_P] > degree_N[low_P]
    return np.where(swap_P, high_P, low_P), np.where(swap_P, low_P, high_P)


def grouped_by_busier_end(
    degree_N: NDArray[np.float64], source_P: NDArray[np.int64], target_P: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Order pairs [P] so that those with one busier end, from which they are walked, follow each other.

    It takes 8 bytes a pair, and some 16 while it is made.
    """
    busier_P = np.empty(len(source_P), dtype=np.int32 if len(degree_N) < 2**31 else np.int64)
    for block in slices(len(source_P), BLOCK_PAIRS):
        busier_P[block], _ = busier_end_first(degree_N, source_P[block], target_P[block])
    return np.argsort(busier_P, kind="stable")


def slices(num: int, size: int) -> Iterator[slice]:
    """Divide `num` rows into slices of `size`; the last one may be shorter."""
    for first in range(0, num, size):
        yield slice(first, min(first + size, num))
