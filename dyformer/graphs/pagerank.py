"""Joint Personalized PageRank of a set of targets -> their context (paper, section 3.2); the per-node table.

N nodes    G targets    B nodes of a block    K best nodes    A nodes that may be chosen    R nodes with rows
"""

from functools import cache
from importlib.util import find_spec
from types import ModuleType

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from dyformer.graphs.pagerank_solvers import chebyshev, pushed_rows
from dyformer.graphs.union_graph import TemporalUnionGraph

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]
Best = tuple[Int64s, Float64s, Int64s]  # of each row: its best nodes [B, K], their scores [B, K] and their number [B]

NUM_ITERATIONS = 8  # the error shrinks by 0.56 an iteration at teleport 0.15: the order of the best nodes is settled
SMALL_GRAPH = 4_096  # slots up to which the solve goes on to rounding error, as it costs next to nothing
SMALL_ITERATIONS = 50
TABLE_ITERATIONS = 16
TABLE_NODES = 20_000  # more nodes are pushed to instead of solved for
TABLE_NUMBERS = 4_000_000  # numbers in a dense block
PUSH_BLOCK = 512
EPSILON = 1e-4  # residual per neighbour that is left unpushed
TIE = 1e-12  # scores, shares of the best or of 1, that round to the same multiple count as equal


def joint_scores(union: TemporalUnionGraph, targets_G: Int64s, *, teleport: float = 0.15) -> Float64s:
    """Give every node's mean Personalized PageRank [N] of the targets.

    PageRank is linear in its start, so that one solve from the averaged seed vector serves all targets: see
    `pagerank_solvers.chebyshev`. Far from the targets the approximation of a large graph may be below 0. Raises
    ValueError for a teleport outside 0..1 and for no targets.
    """
    _check_teleport(teleport)
    if not len(targets_G):
        raise ValueError("joint PageRank needs at least one target")
    num_iterations = SMALL_ITERATIONS if len(union.neighbor_M) <= SMALL_GRAPH else NUM_ITERATIONS
    kernels = _kernels()
    if kernels is None:
        seed_N = np.bincount(targets_G, minlength=union.num_nodes) / len(targets_G)
        return chebyshev(union.matrix, seed_N, teleport, num_iterations)
    return kernels.chebyshev_scores(union, targets_G, teleport, num_iterations)


def _check_teleport(teleport: float) -> None:
    if not 0 < teleport < 1:
        raise ValueError(f"teleport = {teleport}: expected a probability between 0 and 1")


@cache
def _kernels() -> ModuleType | None:
    if find_spec("numba") is None:
        return None
    from dyformer.graphs.kernels import pagerank as pagerank_kernels

    return pagerank_kernels


def joint_context(
    union: TemporalUnionGraph,
    targets_G: Int64s,
    *,
    num_context: int,
    teleport: float = 0.15,
    generator: np.random.Generator | None = None,
) -> Int64s:
    """Choose up to `num_context` context nodes by their joint score, best first; equal scores by node number.

    With a generator, nodes are drawn without replacement, each draw in proportion to the scores (Gumbel top-K).
    Targets and nodes that no target reaches are never chosen: the context may be shorter, and empty.
    """
    return _chosen(_scores_of_others(union, targets_G, teleport), num_context, generator)


def two_joint_contexts(
    union: TemporalUnionGraph,
    targets_G: Int64s,
    *,
    num_context: int,
    teleport: float = 0.15,
    generator: np.random.Generator,
) -> tuple[Int64s, Int64s]:
    """Choose the best context and a drawn one, as `joint_context` does, with a single solve."""
    score_N = _scores_of_others(union, targets_G, teleport)
    return _chosen(score_N, num_context, None), _chosen(score_N, num_context, generator)


def _scores_of_others(union: TemporalUnionGraph, targets_G: Int64s, teleport: float) -> Float64s:
    score_N = joint_scores(union, targets_G, teleport=teleport)
    score_N[targets_G] = 0
    return score_N


def _chosen(score_N: Float64s, num_context: int, generator: np.random.Generator | None) -> Int64s:
    if generator is None:
        return _best(score_N, num_context, TIE * score_N.max())
    candidate_A = np.flatnonzero(score_N > 0)
    # In the order of log(score) + Gumbel noise, without a logarithm: the noise is -log of an exponential one.
    key_A = score_N[candidate_A] / generator.standard_exponential(len(candidate_A))
    return candidate_A[_best(key_A, num_context, 0)]


def _best(score_A: Float64s, num_best: int, tie: float) -> Int64s:
    """Positions of the largest scores above 0, best first; those that round to a multiple of `tie` by position."""
    least = 0.0
    if 0 < num_best < len(score_A):
        least = np.partition(score_A, -num_best)[-num_best] - 2 * tie
    position_A = np.flatnonzero(score_A >= least if least > 0 else score_A > 0)
    key_A = score_A[position_A]
    if tie > 0:
        key_A = np.round(key_A / tie)
    return position_A[np.argsort(-key_A, kind="stable")[:num_best]]


def pagerank_table(
    union: TemporalUnionGraph, *, top_k: int, teleport: float = 0.15, nodes: Int64s | None = None
) -> pl.DataFrame:
    """Give every node's `top_k` nodes by Personalized PageRank, itself left out: node, neighbor, score, rank from 1.

    With `nodes`, only the rows of these nodes, the same as in the whole table: a part that can be made anywhere. A node
    without neighbours has no rows. Up to TABLE_NODES nodes by Chebyshev iteration, above by forward push, whose error
    at a node is at most EPSILON times its degree. Raises ValueError for a teleport outside 0..1 and a `top_k` below 1.
    """
    _check_teleport(teleport)
    if top_k < 1:
        raise ValueError(f"top_k = {top_k}: expected at least 1")
    node_R = np.arange(union.num_nodes) if nodes is None else nodes
    node_R = node_R[union.degree[node_R] > 0]
    solved = union.num_nodes <= TABLE_NODES
    rows, num_rows = (_solved, TABLE_NUMBERS // max(union.num_nodes, 1)) if solved else (_pushed, PUSH_BLOCK)
    blocks = []
    for start in range(0, len(node_R), num_rows):
        node_B = node_R[start : start + num_rows]
        blocks.append(_block_table(node_B, rows(union, node_B, min(top_k, union.num_nodes), teleport)))
    schema = {"node": pl.Int64, "neighbor": pl.Int64, "score": pl.Float64, "rank": pl.Int64}
    return pl.concat([pl.DataFrame(schema=schema), *blocks])


def _block_table(node_B: Int64s, best: Best) -> pl.DataFrame:
    best_BK, score_BK, num_best_B = best
    row_A, rank_A = np.nonzero(np.arange(best_BK.shape[1]) < num_best_B[:, None])
    neighbor_A, score_A = best_BK[row_A, rank_A], score_BK[row_A, rank_A]
    return pl.DataFrame({"node": node_B[row_A], "neighbor": neighbor_A, "score": score_A, "rank": rank_A + 1})


def _solved(union: TemporalUnionGraph, node_B: Int64s, top_k: int, teleport: float) -> Best:
    seed_NB = np.zeros((union.num_nodes, len(node_B)))
    seed_NB[node_B, np.arange(len(node_B))] = 1
    score_NB = chebyshev(union.matrix, seed_NB, teleport, TABLE_ITERATIONS)
    return _best_of_rows(node_B, sparse.csr_array(score_NB.T), top_k)


def _pushed(union: TemporalUnionGraph, node_B: Int64s, top_k: int, teleport: float) -> Best:
    kernels = _kernels()
    if kernels is None:
        return _best_of_rows(node_B, pushed_rows(union.matrix, node_B, teleport, EPSILON), top_k)
    return kernels.pushed_best(union, node_B, top_k=top_k, teleport=teleport, epsilon=EPSILON, tie=TIE)


def _best_of_rows(node_B: Int64s, rows: sparse.csr_array, top_k: int) -> Best:
    shape = (len(node_B), top_k)
    best_BK, score_BK, num_best_B = np.zeros(shape, np.int64), np.zeros(shape), np.zeros(len(node_B), np.int64)
    rows.sort_indices()
    for row, node in enumerate(node_B.tolist()):
        entries = slice(rows.indptr[row], rows.indptr[row + 1])
        other_A, score_A = rows.indices[entries], rows.data[entries]
        best_K = _best(np.where(other_A == node, 0, score_A), top_k, TIE)
        num_best_B[row] = len(best_K)
        best_BK[row, : len(best_K)], score_BK[row, : len(best_K)] = other_A[best_K], score_A[best_K]
    return best_BK, score_BK, num_best_B
