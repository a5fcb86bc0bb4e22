"""Vectors, a fitted decoder and the history -> each node's most probable new partners.

N nodes    D width of a vector    P pairs    F pair features    S rows of a block    C columns of a block
A query nodes    R links to rank    B nodes whose pairs a decoder is fitted on
"""

from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import expit
from threadpoolctl import threadpool_limits

from dyformer.graphs.snapshots import DynamicGraph
from dyformer.sampling.pairs import Pairs, distinct, known_edges, node_batches, nodes_known_before, pair_keys
from dyformer.scoring.decoder import LinkDecoder, slopes
from dyformer.scoring.pair_features import (
    FEATURE_NAMES,
    PairFeatures,
    UnionEdges,
    adjacency,
    busier_end_first,
    check_known,
    edge_values,
    prepare_pair_features,
    union_edges,
)

MAX_NODES = 50_000
"""Up to so many nodes, all admissible pairs are scored; in a larger graph, only given candidates are."""

BLOCK_PAIRS = 400_000
"""Pairs scored at once; their features take 45 MB."""

DECODER_LINKS = 10_000
"""Approximate limit on the positive pairs to fit on; in a step with more, only pairs among some nodes are taken."""

LINKS_SCHEMA = pl.Schema({"node": pl.Int64(), "rank": pl.Int64(), "partner": pl.Int64(), "score": pl.Float64()})


@threadpool_limits.wrap(limits=1, user_api="blas")  # see fit_decoder
def top_links(
    vectors_ND: NDArray[np.floating],
    decoder: LinkDecoder,
    history: DynamicGraph,
    *,
    k: int,
    candidates: Pairs | None = None,
    query_A: NDArray[np.int64] | None = None,
) -> pl.DataFrame:
    """Rank the `k` most probable new partners of every node, or of `query_A`: node, rank (from 1), partner, score.

    A pair is admissible if its nodes differ, were never linked, and lie on opposite sides where the log has two.
    With `candidates` (either direction, duplicates allowed) only these pairs are ranked. The score is the decoder's
    probability; equal scores are ranked by node number. A node without an admissible partner has no row. Memory is
    bounded by BLOCK_PAIRS. Raises ValueError for vectors that are not finite or do not fit the
    history or the decoder, for k < 1, and for more than MAX_NODES nodes without candidates.
    """
    _check(vectors_ND, decoder, history, k)
    is_query_N = _query_mask(len(history.side_N), query_A)
    features = prepare_pair_features(history) if decoder.kind == "features" else None
    edges = union_edges(history)
    if candidates is not None:
        pairs = _admissible(candidates, edges, history.side_N)
        return _best_of_pairs(pairs, _pair_logits(vectors_ND, decoder, features, pairs), k, is_query_N)
    if len(vectors_ND) > MAX_NODES:
        raise ValueError(
            f"{len(vectors_ND)} nodes are too many to score all pairs (up to {MAX_NODES}): give candidates"
        )
    union = adjacency(edges)
    best = []
    for row_S, column_C in _row_blocks(history.side_N, is_query_N):
        logit_SC = _block_logits(vectors_ND, decoder, features, row_S, column_C)
        logit_SC[union[row_S].toarray()[:, column_C] > 0] = -np.inf
        logit_SC[row_S[:, None] == column_C] = -np.inf
        best.append(_best_of_rows(row_S, column_C, logit_SC, k))
    return pl.concat([pl.DataFrame(schema=LINKS_SCHEMA), *best]).sort("node", "rank")


def last_active(history: DynamicGraph, num_nodes: int) -> NDArray[np.int64]:
    """Give the `num_nodes` nodes with the newest last link, sorted; ties go to the smallest numbers.

    Nodes without a link are left out. Raises ValueError for less than one node.
    """
    if num_nodes < 1:
        raise ValueError(f"forecasts for {num_nodes} nodes: expected at least 1")
    active_step_N = np.zeros(len(history.node_N), dtype=np.int64)
    for snapshot in history.snapshots:
        active_step_N[snapshot.source_E] = snapshot.step
        active_step_N[snapshot.target_E] = snapshot.step
    order_N = np.argsort(-active_step_N, kind="stable")[:num_nodes]
    return np.sort(order_N[active_step_N[order_N] > 0])


def decoder_nodes(graph: DynamicGraph, step: int, *, num_targets: int, seed: int) -> NDArray[np.int64]:
    """Give the nodes known before `step` whose pairs a decoder is fitted on, sorted.

    These are all nodes, unless the step has many more links than DECODER_LINKS. Then whole batches of `embed` are
    drawn, because a batch costs the same for one node as for all. About DECODER_LINKS links lie among their nodes.
    """
    num_nodes = nodes_known_before(graph, step)
    num_positives = len(known_edges(graph.snapshots[step - 1], num_nodes)[0])
    batches = node_batches(num_nodes, num_targets)
    fraction = min(1.0, (DECODER_LINKS / max(num_positives, 1)) ** 0.5)
    generator = np.random.default_rng([seed, step])
    drawn = generator.choice(len(batches), size=max(1, round(fraction * len(batches))), replace=False)
    return np.concatenate([batches[index] for index in np.sort(drawn)])


def _check(vectors_ND: NDArray[np.floating], decoder: LinkDecoder, history: DynamicGraph, k: int) -> None:
    num_nodes = history.snapshots[-1].num_nodes
    if vectors_ND.ndim != 2 or len(vectors_ND) != num_nodes:
        raise ValueError(f"found vectors of shape {vectors_ND.shape}: expected a row for each of {num_nodes} nodes")
    if not np.isfinite(vectors_ND).all():
        raise ValueError("expected finite vectors to forecast from: some are NaN or infinite; train again")
    num_inputs = vectors_ND.shape[1] + (len(FEATURE_NAMES) if decoder.kind == "features" else 0)
    if num_inputs != len(decoder.mean_F):
        raise ValueError(
            f"the decoder of kind {decoder.kind!r} reads {len(decoder.mean_F)} inputs, vectors of width "
            f"{vectors_ND.shape[1]} give {num_inputs}: fit it on vectors of this width"
        )
    if k < 1:
        raise ValueError(f"k = {k}: expected at least one partner per node")


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


def _block_logits(
    vectors_ND: NDArray[np.floating],
    decoder: LinkDecoder,
    features: PairFeatures | None,
    row_S: NDArray[np.int64],
    column_C: NDArray[np.int64],
) -> NDArray[np.float64]:
    # sum_d slope_d x_d y_d is one product of matrices, so the vectors' products are never stored pair by pair.
    slope_F, offset = slopes(decoder)
    width = vectors_ND.shape[1]
    logit_SC = (vectors_ND[row_S] * slope_F[:width]) @ vectors_ND[column_C].T.astype(np.float64) + offset
    if features is not None:
        logit_SC += np.tensordot(slope_F[width:], features.block(row_S, column_C), axes=1)
    return logit_SC


def _best_of_rows(
    row_S: NDArray[np.int64], column_C: NDArray[np.int64], logit_SC: NDArray[np.float64], k: int
) -> pl.DataFrame:
    columns = [_best_columns(logit_C, k) for logit_C in logit_SC]
    size_S = [len(best) for best in columns]
    position_R = np.repeat(np.arange(len(row_S)), size_S)
    best_R = np.concatenate(columns)
    return pl.DataFrame(
        {
            "node": row_S[position_R],
            "rank": np.concatenate([np.arange(1, size + 1) for size in size_S]),
            "partner": column_C[best_R],
            "score": expit(logit_SC[position_R, best_R]),
        },
        schema=LINKS_SCHEMA,
    )


def _best_columns(logit_C: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    num_best = min(k, len(logit_C))
    if not num_best:
        return np.empty(0, dtype=np.int64)
    least = np.partition(logit_C, len(logit_C) - num_best)[len(logit_C) - num_best]
    enough = np.flatnonzero((logit_C >= least) & (logit_C > -np.inf))
    return enough[np.argsort(-logit_C[enough], kind="stable")][:num_best]


def _admissible(candidates: Pairs, edges: UnionEdges, side_N: NDArray[np.int8]) -> Pairs:
    known_P = edge_values(edges, edges.count_E, *candidates) > 0
    same_side_P = side_N[candidates[0]] == side_N[candidates[1]]
    refused_P = known_P | (candidates[0] == candidates[1]) | (same_side_P & (len(np.unique(side_N)) > 1))
    key_P = distinct(pair_keys(edges.num_nodes, candidates[0], candidates[1])[~refused_P])
    return key_P // edges.num_nodes, key_P % edges.num_nodes


def _pair_logits(
    vectors_ND: NDArray[np.floating], decoder: LinkDecoder, features: PairFeatures | None, pairs: Pairs
) -> NDArray[np.float64]:
    order_P = np.arange(len(pairs[0]))
    if features is not None:  # pairs of one busy end go together, because its walks are expensive
        order_P = np.argsort(busier_end_first(features.degree_N, *pairs)[0], kind="stable")
    logit_P, (slope_F, offset), width = np.empty(len(order_P)), slopes(decoder), vectors_ND.shape[1]
    for block_P in np.array_split(order_P, -(-len(order_P) // (BLOCK_PAIRS // 10)) or 1):
        source_P, target_P = pairs[0][block_P], pairs[1][block_P]
        slope_PD = vectors_ND[source_P] * slope_F[:width]
        logit_P[block_P] = np.einsum("pd,pd->p", slope_PD, vectors_ND[target_P]) + offset
        if features is not None:
            logit_P[block_P] += features.table(source_P, target_P) @ slope_F[width:]
    return logit_P


def _best_of_pairs(pairs: Pairs, logit_P: NDArray[np.float64], k: int, is_query_N: NDArray[np.bool_]) -> pl.DataFrame:
    first_P, second_P = pairs
    forward_P, backward_P = is_query_N[first_P], is_query_N[second_P]
    node_R = np.concatenate([first_P[forward_P], second_P[backward_P]])
    partner_R = np.concatenate([second_P[forward_P], first_P[backward_P]])
    logit_R = np.concatenate([logit_P[forward_P], logit_P[backward_P]])
    order_R = np.lexsort((partner_R, -logit_R, node_R))
    node_R, partner_R, logit_R = node_R[order_R], partner_R[order_R], logit_R[order_R]
    rank_R = np.arange(len(node_R)) - np.searchsorted(node_R, node_R) + 1
    best = rank_R <= k
    columns = {"node": node_R[best], "rank": rank_R[best], "partner": partner_R[best], "score": expit(logit_R[best])}
    return pl.DataFrame(columns, schema=LINKS_SCHEMA)
