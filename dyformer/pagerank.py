"""Joint Personalized PageRank of a set of targets -> their context (paper, section 3.2); the per-node table.

N nodes    G targets    B nodes of a block    K context nodes
"""

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from dyformer.union_graph import TemporalUnionGraph, adjacency

NUM_ITERATIONS = 8
TABLE_ITERATIONS = 16
TABLE_BLOCK = 256


def joint_scores(
    union: TemporalUnionGraph, targets_G: NDArray[np.int64], *, teleport: float = 0.15
) -> NDArray[np.float64]:
    """Give every node's mean Personalized PageRank [N] of the targets.

    PageRank is linear in its start, so that one solve from the averaged seed vector serves all targets: Chebyshev
    iteration on I - (1 - teleport) D^-1/2 A D^-1/2, whose eigenvalues lie within 1 -+ (1 - teleport). A target
    without neighbours keeps its restart mass. Raises ValueError for a teleport outside 0..1 and for no targets.
    """
    if not 0 < teleport < 1:
        raise ValueError(f"teleport = {teleport}: expected a probability between 0 and 1")
    if not len(targets_G):
        raise ValueError("joint PageRank needs at least one target")
    seed_N = np.bincount(targets_G, minlength=union.num_nodes) / len(targets_G)
    return _chebyshev(adjacency(union), seed_N[:, None], teleport, NUM_ITERATIONS)[:, 0]


def _chebyshev(
    adjacency_NN: sparse.csr_array, seed_NB: NDArray[np.float64], teleport: float, num_iterations: int
) -> NDArray[np.float64]:
    """Solve pi = teleport * seed + (1 - teleport) * A D^-1 pi, columnwise.

    With x = D^-1/2 pi the matrix is symmetric. The three-term recurrence is that of Golub and Van Loan for a spectrum
    within [teleport, 2 - teleport], its centre being 1.
    """
    degree_N = np.maximum(adjacency_NN.sum(axis=1), 1.0)
    root_N1 = np.sqrt(degree_N)[:, None]
    radius = 1 - teleport
    start_NB = teleport * seed_NB / root_N1
    before_NB, now_NB = np.zeros_like(start_NB), start_NB
    weight = 1.0
    for iteration in range(1, num_iterations):
        weight = 1 / (1 - radius**2 / 2) if iteration == 1 else 1 / (1 - radius**2 * weight / 4)
        residual_NB = start_NB + radius * (adjacency_NN @ (now_NB / root_N1)) / root_N1 - now_NB
        before_NB, now_NB = now_NB, weight * (now_NB + residual_NB - before_NB) + before_NB
    return now_NB * root_N1


def joint_context(
    union: TemporalUnionGraph,
    targets_G: NDArray[np.int64],
    *,
    num_context: int,
    teleport: float = 0.15,
    generator: np.random.Generator | None = None,
) -> NDArray[np.int64]:
    """Choose up to `num_context` context nodes by their joint score, best first; equal scores by node number.

    With a generator, nodes are drawn without replacement, each draw in proportion to the scores (Gumbel top-K).
    Targets and nodes that no target reaches are never chosen: the context may be shorter, and empty.
    """
    score_N = joint_scores(union, targets_G, teleport=teleport)
    score_N[targets_G] = 0
    candidate_A = np.flatnonzero(score_N > 0)
    key_A = np.log(score_N[candidate_A])
    if generator is not None:
        key_A += generator.gumbel(size=len(key_A))
    return candidate_A[np.argsort(-key_A, kind="stable")[:num_context]]


def pagerank_table(union: TemporalUnionGraph, *, top_k: int, teleport: float = 0.15) -> pl.DataFrame:
    """Give every node's `top_k` nodes by Personalized PageRank, itself left out: node, neighbor, score, rank from 1."""
    adjacency_NN = adjacency(union)
    node_N = np.arange(union.num_nodes)
    blocks = []
    for start in range(0, union.num_nodes, TABLE_BLOCK):
        node_B = node_N[start : start + TABLE_BLOCK]
        seed_NB = np.zeros((union.num_nodes, len(node_B)))
        seed_NB[node_B, np.arange(len(node_B))] = 1
        score_BN = _chebyshev(adjacency_NN, seed_NB, teleport, TABLE_ITERATIONS).T
        score_BN[np.arange(len(node_B)), node_B] = 0
        blocks.append(_best(node_B, score_BN, top_k))
    schema = {"node": pl.Int64, "neighbor": pl.Int64, "score": pl.Float64, "rank": pl.Int64}
    return pl.concat([pl.DataFrame(schema=schema), *blocks])


def _best(node_B: NDArray[np.int64], score_BN: NDArray[np.float64], top_k: int) -> pl.DataFrame:
    num_best = min(top_k, score_BN.shape[1])
    best_BK = np.argsort(-score_BN, axis=1, kind="stable")[:, :num_best]
    score_BK = np.take_along_axis(score_BN, best_BK, axis=1)
    frame = pl.DataFrame(
        {
            "node": np.repeat(node_B, num_best),
            "neighbor": best_BK.ravel(),
            "score": score_BK.ravel(),
            "rank": np.tile(np.arange(1, num_best + 1), len(node_B)),
        }
    )
    return frame.filter(pl.col("score") > 0)
