"""History and a linear score -> the pairs that a forecast looks at closely: each node's best partners.

N nodes    S rows of a block    C columns of a block    P pairs    R retrieved pairs    A query nodes
"""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from dyformer import InvalidInput
from dyformer.sampling.pairs import Pairs, distinct, ordered_keys
from dyformer.scoring.decoder import LinkDecoder, slopes
from dyformer.scoring.link_features import Walks
from dyformer.scoring.pair_features import (
    PairFeatures,
    PathScores,
    adamic_adar_weight,
    check_known,
    find_edges,
    grouped_by_busier_end,
    path_scores,
    slices,
    values_at,
)
from dyformer.streams.blas import one_blas_thread

MAX_NODES = 50_000
"""Up to so many nodes, all admissible pairs are compared; in a larger graph, only given candidates are."""

BLOCK_PAIRS = 400_000
"""Pairs compared at once; a block takes about 30 MB."""


WalksOf = Callable[[NDArray[np.int64], NDArray[np.int64]], Walks]
"""The ends of pairs -> the walks between them, which `LinkFeatures` reads, too."""


class Retrieved(NamedTuple):
    """Pairs of a node and a possible partner, grouped by node."""

    node_R: NDArray[np.int64]
    partner_R: NDArray[np.int64]
    linked_R: NDArray[np.bool_]  # whether the pair was linked before, in either direction
    walks: Walks | None = None  # where they were made to compare the pairs

    @classmethod
    def of_table(cls, table: pl.DataFrame) -> "Retrieved":
        """Read the columns node, partner and linked_before of a table of forecasts."""
        node, partner, linked_before = (table[column].to_numpy() for column in ("node", "partner", "linked_before"))
        return cls(node, partner, linked_before)

    def rows(self, index_R: NDArray[np.integer] | NDArray[np.bool_]) -> "Retrieved":
        """Give some of the pairs."""
        walks = None if self.walks is None else self.walks.rows(index_R)
        return Retrieved(self.node_R[index_R], self.partner_R[index_R], self.linked_R[index_R], walks)


@one_blas_thread  # see fit_decoder
def retrieve(
    features: PairFeatures,
    decoder: LinkDecoder,
    side_N: NDArray[np.int8],
    *,
    k: int,
    candidates_of: Callable[[], Pairs] | None = None,
    query_A: NDArray[np.int64] | None = None,
    walks_of: WalksOf | None = None,
) -> Retrieved:
    """Give the best partners of every node, or of `query_A`: at most `k` new ones and `k` that it was linked with.

    The best have the highest log-odds of a decoder of pair features; equal ones are taken by node number. A pair is
    admissible if its nodes differ and lie on opposite sides where the log has two. With `candidates_of`, which gives
    nodes and possible partners of each (duplicates allowed), only these are compared, and where `walks_of` is given,
    by the walks that it gives, which the result has. Memory is bounded by BLOCK_PAIRS and the number of candidates.
    Raises ValueError for more than MAX_NODES nodes without candidates, and for unknown query nodes.
    """
    is_query_N = _query_mask(len(side_N), query_A)
    if candidates_of is not None:
        pairs = _admissible(candidates_of(), side_N, is_query_N)  # the candidates are freed before the walks are made
        return _best_of_pairs(features, decoder, pairs, k, walks_of)
    if len(side_N) > MAX_NODES:
        raise InvalidInput(
            f"{len(side_N)} nodes are too many to compare all pairs (up to {MAX_NODES}): give candidates"
        )
    logits = _Logits(features, decoder)
    has_paths_of_two = len(np.unique(side_N)) == 1  # no two nodes of opposite sides have a common neighbour
    parts = []
    for row_S, column_C in _row_blocks(side_N, is_query_N):
        logit_SC = logits.of_block(row_S, column_C, has_paths_of_two=has_paths_of_two)
        logit_SC[row_S[:, None] == column_C] = -np.inf
        linked_SC = features.union[row_S].toarray()[:, column_C] > 0
        for is_linked in (False, True):
            row_R, column_R = _best_of_rows(np.where(linked_SC == is_linked, logit_SC, -np.inf), k)
            parts.append(Retrieved(row_S[row_R], column_C[column_R], np.full(len(row_R), is_linked)))
    return _grouped(parts)


def best_of_nodes(
    node_R: NDArray[np.int64], partner_R: NDArray[np.int64], score_R: NDArray[np.float64], k: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Give the positions of each node's `k` best pairs, by node and rank, and their ranks from 1.

    The pairs are grouped by node, in ascending order. Equal scores are ranked by the partner's number.
    """
    from dyformer.scoring.kernels.candidates import best_of_groups  # late, as numba is slow to import

    return best_of_groups(node_R, partner_R, score_R, k)


class _Logits:
    """The log-odds of pairs, without a table of their features.

    Most features are a term of one end, or a product of such terms, so the log-odds of whole rows of pairs are a
    product of matrices; the paths are sparse products, and what past links add is a sparse matrix.
    """

    def __init__(self, features: PairFeatures, decoder: LinkDecoder) -> None:
        slope_F, self.offset = slopes(decoder)
        self.features = features
        seen, count, inverse, self.common, self.adamic, self.l3, *ends = slope_F
        sum_degree, product_degree, self.difference, sum_last, product_last, sum_active, product_active, sum_steps = (
            ends
        )
        degree_N, last_N, steps_N, active_N = features.end_terms
        self.term_N = sum_degree * degree_N + sum_last * last_N + sum_active * active_N + sum_steps * steps_N
        self.factor_N3 = np.stack([degree_N, last_N, active_N], axis=1)
        self.slope_3 = np.array([product_degree, product_last, product_active])
        self.degree_N = degree_N
        edges = features.edges
        self.past_E = seen + count * edges.count_E + inverse / (edges.num_steps + 1 - edges.last_step_E)

    @cached_property
    def past(self) -> sparse.csr_array:
        """What past links add to the log-odds of their pairs [N, N]."""
        edges, past = self.features.edges, self.features.union.copy()
        row_M = np.repeat(np.arange(edges.num_nodes), np.diff(past.indptr))
        past.data = self.past_E[find_edges(edges, row_M, past.indices.astype(np.int64))]
        return past

    def of_pairs(
        self,
        source_P: NDArray[np.int64],
        target_P: NDArray[np.int64],
        edge_P: NDArray[np.integer],
        paths: PathScores,
    ) -> NDArray[np.float64]:
        """Give the log-odds [P] of some pairs from their edges (-1: none) and paths."""
        common_P, adamic_P, l3_P = paths
        logit_P = self.offset + (self.term_N[source_P] + self.term_N[target_P])
        for slope, value_N in zip(self.slope_3, self.factor_N3.T, strict=True):
            logit_P += slope * (value_N[source_P] * value_N[target_P])
        logit_P += self.difference * np.abs(self.degree_N[source_P] - self.degree_N[target_P])
        logit_P += values_at(edge_P, self.past_E)
        return logit_P + self.common * np.log1p(common_P) + self.adamic * adamic_P + self.l3 * np.log1p(1e4 * l3_P)

    def of_block(
        self, row_S: NDArray[np.int64], column_C: NDArray[np.int64], *, has_paths_of_two: bool
    ) -> NDArray[np.float64]:
        """Give the log-odds [S, C] of whole rows of pairs."""
        features = self.features
        logit_SC = (self.factor_N3[row_S] * self.slope_3) @ self.factor_N3[column_C].T
        logit_SC += self.offset + self.term_N[row_S, None] + self.term_N[column_C]
        logit_SC += self.difference * np.abs(self.degree_N[row_S, None] - self.degree_N[column_C])
        logit_SC += self.past[row_S].toarray()[:, column_C]
        walks_SN = (features.walk[row_S] @ features.walk).toarray()
        logit_SC += self.l3 * np.log1p(1e4 * (features.walk[column_C] @ walks_SN.T).T)
        if has_paths_of_two:
            union_SN = features.union[row_S]
            weighted_SN = union_SN.multiply(adamic_adar_weight(features.degree_N)).tocsr()
            logit_SC += self.common * np.log1p((union_SN @ features.union).toarray()[:, column_C])
            logit_SC += self.adamic * (weighted_SN @ features.union).toarray()[:, column_C]
        return logit_SC


def _query_mask(num_nodes: int, query_A: NDArray[np.int64] | None) -> NDArray[np.bool_]:
    if query_A is None:
        return np.ones(num_nodes, dtype=np.bool_)
    check_known(num_nodes, query_A, query_A)
    is_query_N = np.zeros(num_nodes, dtype=np.bool_)
    is_query_N[query_A] = True
    return is_query_N


def _row_blocks(
    side_N: NDArray[np.int8], is_query_N: NDArray[np.bool_]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    sides = np.unique(side_N)
    for side in sides:
        rows = np.flatnonzero((side_N == side) & is_query_N)
        column_C = np.flatnonzero((side_N != side) | (len(sides) == 1))
        # The sparse products are held as dense rows, so a row has as many values as the graph has nodes.
        num_blocks = -(-len(rows) // max(1, BLOCK_PAIRS // len(side_N)))
        for row_S in np.array_split(rows, num_blocks) if len(rows) else ():
            yield row_S, column_C


def _best_of_rows(logit_SC: NDArray[np.float64], k: int) -> Pairs:
    """Give rows and columns of the `k` highest finite values of each row; ties go to the first columns."""
    num_columns = logit_SC.shape[1]
    if num_columns > k:
        least_S = np.partition(logit_SC, num_columns - k, axis=1)[:, num_columns - k]
    else:
        least_S = np.full(len(logit_SC), -np.inf)
    row_X, column_X = np.nonzero((logit_SC >= least_S[:, None]) & (logit_SC > -np.inf))
    best_X, _ = best_of_nodes(row_X, column_X, logit_SC[row_X, column_X], k)
    return row_X[best_X], column_X[best_X]


def _admissible(candidates: Pairs, side_N: NDArray[np.int8], is_query_N: NDArray[np.bool_]) -> Pairs:
    node_P, partner_P = candidates
    same_side_P = side_N[node_P] == side_N[partner_P]
    refused_P = (node_P == partner_P) | (same_side_P & (len(np.unique(side_N)) > 1)) | ~is_query_N[node_P]
    key_P = distinct(ordered_keys(len(side_N), node_P, partner_P)[~refused_P])
    return key_P // len(side_N), key_P % len(side_N)


def _best_of_pairs(
    features: PairFeatures, decoder: LinkDecoder, pairs: Pairs, k: int, walks_of: WalksOf | None
) -> Retrieved:
    logits, logit_P = _Logits(features, decoder), np.empty(len(pairs[0]))
    walks = None if walks_of is None else walks_of(*pairs)
    if walks is None:
        edge_P = find_edges(features.edges, *pairs)
        # Pairs that are walked from one end go together, because the walks are expensive.
        order_P = grouped_by_busier_end(features.degree_N, *pairs)
        for block in slices(len(order_P), BLOCK_PAIRS):
            block_B = order_P[block]
            ends = pairs[0][block_B], pairs[1][block_B]
            logit_P[block_B] = logits.of_pairs(*ends, edge_P[block_B], path_scores(features, *ends))
    else:
        edge_P = walks.edge_P
        for block in slices(len(logit_P), BLOCK_PAIRS):
            ends = pairs[0][block], pairs[1][block]
            paths = walks.rows(block).path_scores(features.degree_N, *ends)
            logit_P[block] = logits.of_pairs(*ends, edge_P[block], paths)
    every = Retrieved(*pairs, edge_P >= 0, walks)
    parts = []
    for is_linked in (False, True):
        is_own_P = every.linked_R == is_linked
        best_P, _ = best_of_nodes(*pairs, np.where(is_own_P, logit_P, -np.inf), k)  # the others come last
        parts.append(best_P[is_own_P[best_P]])
    found_R = np.concatenate(parts)
    del logit_P  # the rows are copied, while all pairs and walks are still here
    return every.rows(found_R[np.argsort(every.node_R[found_R], kind="stable")])


def _grouped(parts: list[Retrieved]) -> Retrieved:
    """Put parts together, grouped by node."""
    none = np.empty(0, dtype=np.int64)
    node_R = np.concatenate([none, *(part.node_R for part in parts)])
    partner_R = np.concatenate([none, *(part.partner_R for part in parts)])
    linked_R = np.concatenate([none.astype(np.bool_), *(part.linked_R for part in parts)])
    return Retrieved(node_R, partner_R, linked_R).rows(np.argsort(node_R, kind="stable"))
