"""TemporalUnionGraph -> joint Personalized PageRank of targets and their context (paper, section 3.2); tables.

On a small graph the scores of all nodes are solved. On a large one mass is pushed from the targets in a few rounds, and
the work follows the mass instead of the graph (locally evolving sets: Zhou et al. 2024).

N nodes    G targets    B nodes of a block    K best nodes    A nodes that may be chosen    R nodes with rows
C candidates
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from dyformer import InvalidInput
from dyformer.graphs.hub_first_graph import hub_first_graph
from dyformer.graphs.kernels import pagerank as kernels
from dyformer.graphs.union_graph import TemporalUnionGraph

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]
Best = tuple[Int64s, Float64s, Int64s]  # best nodes [B, K] of each row, their scores [B, K] and their number [B]

NUM_ITERATIONS = 8  # the error shrinks by 0.56 an iteration at teleport 0.15, which settles the order of the best nodes
SMALL_GRAPH = 4_096  # up to so many slots, the solve continues to rounding error, because that takes little time
SMALL_ITERATIONS = 50
PUSHED_FROM = 1_000_000  # from so many slots on, mass is pushed
CYCLE = 4  # rounds of one Chebyshev polynomial: longer ones overshoot until their last round
CANDIDATES = 4  # nodes for each node of the context whose scores are computed from all their neighbours
TABLE_ITERATIONS = 16
TABLE_NODES = 20_000  # up to so many nodes, rows are solved by Chebyshev iteration; above, by forward push
TABLE_NUMBERS = 4_000_000  # numbers in a dense block
PUSH_BLOCK = 4_096  # rows by one call, which clears some arrays of all nodes
TABLE_BLOCK = 16_384  # nodes whose rows are made into a part of a table at once
EPSILON = 1e-4  # residual per neighbour below which nothing is pushed
TIE = 1e-12  # scores, relative to the best or to 1, that round to the same multiple count as equal


@dataclass(frozen=True, kw_only=True)
class Push:
    """Settings of the push: its rounds, and the least mass for each neighbour that a node pushes."""

    rounds: int = 4
    threshold: float = 2e-6

    def weights(self, teleport: float) -> Float64s:
        """Give the weight of the mass that is pushed in each round [R].

        They are the reciprocal roots of Chebyshev polynomials on the spectrum of the system (Young 1953, On
        Richardson's method): four rounds without a threshold shrink the error to .2, where equal weights give .52.
        """
        sizes = [len(part) for part in np.array_split(np.arange(self.rounds), -(-self.rounds // CYCLE))]
        cosine_R = np.concatenate([np.cos((np.arange(size) + 0.5) * np.pi / size) for size in sizes])
        return 1 / (1 - (1 - teleport) * cosine_R)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Nodes that may be chosen, in a fixed order, and their joint scores; the best are among the first `num_best`."""

    node_A: Int64s
    score_A: Float64s
    num_best: int


def joint_scores(union: TemporalUnionGraph, targets_G: Int64s, *, teleport: float = 0.15) -> Float64s:
    """Give every node's mean Personalized PageRank [N] of the targets.

    PageRank is linear in its seed vector, so one solve from the targets' averaged seeds gives their mean: see
    `chebyshev`. Far from the targets the approximation of a large graph may be below 0. Raises ValueError for a
    teleport outside 0..1 and for no targets.
    """
    _check_joint(targets_G, teleport)
    num_iterations = SMALL_ITERATIONS if len(union.neighbor_M) <= SMALL_GRAPH else NUM_ITERATIONS
    graph = hub_first_graph(union)
    return kernels.chebyshev(*graph.lists[:2], graph.number_N, graph.number_N[targets_G], teleport, num_iterations)


def _check_joint(targets_G: Int64s, teleport: float) -> None:
    _check_teleport(teleport)
    if not len(targets_G):
        raise InvalidInput("joint PageRank needs at least one target")


def _check_teleport(teleport: float) -> None:
    if not 0 < teleport < 1:
        raise InvalidInput(f"teleport = {teleport}: expected a probability between 0 and 1")


def joint_context(
    union: TemporalUnionGraph,
    targets_G: Int64s,
    *,
    num_context: int,
    teleport: float = 0.15,
    push: Push | None = None,
    generator: np.random.Generator | None = None,
) -> Int64s:
    """Choose up to `num_context` context nodes by their joint score, best first; equal scores by node number.

    With a generator, nodes are drawn without replacement, each draw in proportion to the scores (Gumbel top-K).
    Targets and nodes that no target reaches are never chosen: the context may be shorter, and empty. From PUSHED_FROM
    slots on, only nodes that the push reaches are chosen.
    """
    return _chosen(_scores_of_others(union, targets_G, num_context, teleport, push), num_context, generator)


def two_joint_contexts(
    union: TemporalUnionGraph,
    targets_G: Int64s,
    *,
    num_context: int,
    teleport: float = 0.15,
    push: Push | None = None,
    generator: np.random.Generator,
) -> tuple[Int64s, Int64s]:
    """Choose the best context and a drawn one, as `joint_context` does, from the same scores."""
    scores = _scores_of_others(union, targets_G, num_context, teleport, push)
    return _chosen(scores, num_context, None), _chosen(scores, num_context, generator)


def _scores_of_others(
    union: TemporalUnionGraph, targets_G: Int64s, num_context: int, teleport: float, push: Push | None
) -> Scores:
    if len(union.neighbor_M) >= PUSHED_FROM:
        return pushed_scores(union, targets_G, CANDIDATES * num_context, teleport=teleport, push=push or Push())
    score_N = joint_scores(union, targets_G, teleport=teleport)
    score_N[targets_G] = 0
    return Scores(node_A=np.arange(len(score_N)), score_A=score_N, num_best=len(score_N))


def pushed_scores(
    union: TemporalUnionGraph, targets_G: Int64s, num_candidates: int, *, teleport: float = 0.15, push: Push
) -> Scores:
    """Give the approximate joint scores of the nodes that mass pushed from the targets reaches.

    In each round all nodes push at once whose mass for each neighbour is at least the threshold. Where no target has so
    much, all nodes with mass push. The mass that is left after the last round is spread over the targets' components by
    degree, as an endless walk would spread it. The scores of the best `num_candidates` nodes are then computed anew
    from all their neighbours; these nodes come first, by number. Raises ValueError for a teleport outside 0..1 and for
    no targets.
    """
    _check_joint(targets_G, teleport)
    graph = hub_first_graph(union)
    pushed_at = partial(
        kernels.push_rounds, graph.lists, graph.num_slots_K, graph.number_N[targets_G], push.weights(teleport)
    )
    number_A, score_A, slot_N, rest_K = pushed_at(push.threshold, teleport)
    if not len(number_A):  # each target has too many neighbours for its mass, or none at all
        number_A, score_A, slot_N, rest_K = pushed_at(0.0, teleport)
    best_C = _best(score_A, num_candidates, 0)
    best_C = best_C[np.argsort(graph.node_N[number_A[best_C]])]
    score_C = kernels.pull_once(graph.lists, number_A[best_C], slot_N, rest_K, teleport)
    is_other_A = np.ones(len(number_A), dtype=np.bool_)
    is_other_A[best_C] = False
    number_A = np.concatenate([number_A[best_C], number_A[is_other_A]])
    return Scores(
        node_A=graph.node_N[number_A].astype(np.int64),
        score_A=np.concatenate([score_C, score_A[is_other_A]]),
        num_best=len(best_C),
    )


def _chosen(scores: Scores, num_context: int, generator: np.random.Generator | None) -> Int64s:
    if generator is None:
        score_A = scores.score_A[: scores.num_best]
        return scores.node_A[_best(score_A, num_context, TIE * score_A.max(initial=0))]
    candidate_A = np.flatnonzero(scores.score_A > 0)
    # The order of log(score) + Gumbel noise, without a logarithm: Gumbel noise is -log of an exponential number.
    key_A = scores.score_A[candidate_A] / generator.standard_exponential(len(candidate_A))
    return scores.node_A[candidate_A[_best(key_A, num_context, 0)]]


def _best(score_A: Float64s, num_best: int, tie: float) -> Int64s:
    """Give the positions of the largest scores above 0, best first; equal multiples of `tie` by position."""
    least = 0.0
    if 0 < num_best < len(score_A):
        least = np.partition(score_A, -num_best)[-num_best] - 2 * tie
    position_A = np.flatnonzero(score_A >= least if least > 0 else score_A > 0)
    key_A = score_A[position_A]
    if tie > 0:
        key_A = np.round(key_A / tie)
    return position_A[np.argsort(-key_A, kind="stable")[:num_best]]


TABLE_TOP_K = 64  # neighbours that a node has in a stored table, and among its candidates


def pagerank_table(
    union: TemporalUnionGraph, *, top_k: int, teleport: float = 0.15, nodes: Int64s | None = None
) -> pl.DataFrame:
    """Give every node's `top_k` nodes by Personalized PageRank, itself left out: node, neighbor, score, rank from 1.

    With `nodes`, the table has only the rows of these nodes, equal to those of the whole table. A node without
    neighbours has no rows. See `pagerank_rows` for the scores and the errors.
    """
    node_R = np.arange(union.num_nodes) if nodes is None else nodes
    blocks = []
    for start in range(0, max(len(node_R), 1), TABLE_BLOCK):
        node_B = node_R[start : start + TABLE_BLOCK]
        blocks.append(_block_table(node_B, pagerank_rows(union, node_B, top_k=top_k, teleport=teleport)))
    schema = {"node": pl.Int64, "neighbor": pl.Int64, "score": pl.Float64, "rank": pl.Int64}
    return pl.concat([pl.DataFrame(schema=schema), *blocks])


def pagerank_rows(union: TemporalUnionGraph, node_A: Int64s, *, top_k: int, teleport: float = 0.15) -> Best:
    """Give the `top_k` nodes of each row by Personalized PageRank [A, K], best first, their scores and their number.

    A node is not in its own row. Graphs of up to TABLE_NODES nodes are solved by Chebyshev iteration, larger ones by
    forward push. The error of a push at a node is at most EPSILON times its degree. Raises ValueError for a teleport
    outside 0..1 and a `top_k` below 1.
    """
    _check_teleport(teleport)
    if top_k < 1:
        raise InvalidInput(f"top_k = {top_k}: expected at least 1")
    top_k, row_R = min(top_k, union.num_nodes), np.flatnonzero(union.degree[node_A] > 0)
    best_AK, score_AK = np.zeros((len(node_A), top_k), dtype=np.int64), np.zeros((len(node_A), top_k))
    num_best_A = np.zeros(len(node_A), dtype=np.int64)
    solved = union.num_nodes <= TABLE_NODES
    rows, num_rows = (_solved, TABLE_NUMBERS // max(union.num_nodes, 1)) if solved else (_pushed, PUSH_BLOCK)
    for start in range(0, len(row_R), num_rows):
        row_B = row_R[start : start + num_rows]
        best_AK[row_B], score_AK[row_B], num_best_A[row_B] = rows(union, node_A[row_B], top_k, teleport)
    return best_AK, score_AK, num_best_A


def _block_table(node_B: Int64s, best: Best) -> pl.DataFrame:
    best_BK, score_BK, num_best_B = best
    row_A, rank_A = np.nonzero(np.arange(best_BK.shape[1]) < num_best_B[:, None])
    neighbor_A, score_A = best_BK[row_A, rank_A], score_BK[row_A, rank_A]
    return pl.DataFrame({"node": node_B[row_A], "neighbor": neighbor_A, "score": score_A, "rank": rank_A + 1})


def chebyshev(adjacency_NN: sparse.csr_array, seed_NB: Float64s, teleport: float, num_iterations: int) -> Float64s:
    """Solve pi = teleport * seed + (1 - teleport) * A D^-1 pi for one seed [N] or for each column [N, B].

    A is symmetric, weighted or not, and D holds its row sums. With x = D^-1/2 pi the matrix of the system is symmetric
    with eigenvalues within 1 -+ (1 - teleport). The Chebyshev semi-iterative method of Golub and Varga (1961) then
    applies, and reads the graph once an iteration. A seed without neighbours keeps the restart mass; the rest is lost.
    """
    degree_N = np.asarray(adjacency_NN.sum(axis=1), dtype=np.float64)
    root_N = np.sqrt(np.where(degree_N > 0, degree_N, 1)).reshape(-1, *[1] * (seed_NB.ndim - 1))
    walk_N = (1 - teleport) / root_N
    start_NB = teleport * seed_NB / root_N
    before_NB, now_NB = np.zeros_like(start_NB), start_NB
    weight = 2.0
    for _ in range(num_iterations):
        weight = 1 / (1 - (1 - teleport) ** 2 * weight / 4)
        step_NB = walk_N * (adjacency_NN @ (now_NB / root_N))
        step_NB += start_NB
        step_NB -= before_NB
        step_NB *= weight
        step_NB += before_NB
        before_NB, now_NB = now_NB, step_NB
    return now_NB * root_N


def _solved(union: TemporalUnionGraph, node_B: Int64s, top_k: int, teleport: float) -> Best:
    seed_NB = np.zeros((union.num_nodes, len(node_B)))
    seed_NB[node_B, np.arange(len(node_B))] = 1
    score_NB = chebyshev(union.adjacency, seed_NB, teleport, TABLE_ITERATIONS)
    return _best_of_rows(node_B, sparse.csr_array(score_NB.T), top_k)


def _pushed(union: TemporalUnionGraph, node_B: Int64s, top_k: int, teleport: float) -> Best:
    """Give the best of the rows by forward push (Andersen, Chung and Lang 2006).

    The row's node is pushed, then all residuals of at least EPSILON times the degree at once until none is left. A
    remaining residual is scored with the teleport probability, so the error at a node is at most EPSILON times its
    degree.
    """
    graph = hub_first_graph(union)
    threshold_N = EPSILON * np.maximum(np.diff(graph.lists[0]), 1)
    return kernels.best_rows(graph.lists[:2], graph.node_N, threshold_N, graph.number_N[node_B], top_k, teleport, TIE)


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
