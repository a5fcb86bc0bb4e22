"""Joint Personalized PageRank of a set of targets -> their context (paper, section 3.2); the per-node table.

N nodes    G targets    B nodes of a block    K best nodes    A nodes that may be chosen    E entries of sparse rows
"""

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse

from dyformer.union_graph import TemporalUnionGraph

NUM_ITERATIONS = 8  # the error shrinks by 0.56 an iteration at teleport 0.15: the order of the best nodes is settled
SMALL_GRAPH = 4_096  # slots up to which the solve goes on to rounding error, as it costs next to nothing
SMALL_ITERATIONS = 50
TABLE_ITERATIONS = 16
TABLE_NODES = 20_000  # more nodes are pushed to instead of solved for
TABLE_NUMBERS = 4_000_000  # numbers in a dense block
PUSH_BLOCK = 512
EPSILON = 1e-4  # residual per neighbour that is left unpushed
TIE = 12  # decimals, of the best score, from which on two scores count as equal


def joint_scores(
    union: TemporalUnionGraph, targets_G: NDArray[np.int64], *, teleport: float = 0.15
) -> NDArray[np.float64]:
    """Give every node's mean Personalized PageRank [N] of the targets.

    PageRank is linear in its start, so that one solve from the averaged seed vector serves all targets: Chebyshev
    iteration on I - (1 - teleport) D^-1/2 A D^-1/2, whose eigenvalues lie within 1 -+ (1 - teleport). A target
    without neighbours keeps its restart mass, `teleport`, and the rest of its walk is lost. Far from the targets the
    approximation of a large graph may be below 0. Raises ValueError for a teleport outside 0..1 and for no targets.
    """
    _check_teleport(teleport)
    if not len(targets_G):
        raise ValueError("joint PageRank needs at least one target")
    seed_N = np.bincount(targets_G, minlength=union.num_nodes) / len(targets_G)
    num_iterations = SMALL_ITERATIONS if len(union.neighbor_M) <= SMALL_GRAPH else NUM_ITERATIONS
    return _chebyshev(union, seed_N, teleport, num_iterations)


def _check_teleport(teleport: float) -> None:
    if not 0 < teleport < 1:
        raise ValueError(f"teleport = {teleport}: expected a probability between 0 and 1")


def _chebyshev(
    union: TemporalUnionGraph, seed_NB: NDArray[np.float64], teleport: float, num_iterations: int
) -> NDArray[np.float64]:
    """Solve pi = teleport * seed + (1 - teleport) * A D^-1 pi for one seed [N] or for each column [N, B].

    With x = D^-1/2 pi the matrix is symmetric, and the Chebyshev semi-iterative method of Golub and Varga applies: its
    interval is centred at 1, and every iteration reads the graph once.
    """
    degree_N = np.maximum(union.degree, 1.0)
    root_N = np.sqrt(degree_N).reshape(-1, *[1] * (seed_NB.ndim - 1))
    walk_N = (1 - teleport) / root_N
    start_NB = teleport * seed_NB / root_N
    before_NB, now_NB = np.zeros_like(start_NB), start_NB
    weight = 2.0
    for _ in range(num_iterations):
        weight = 1 / (1 - (1 - teleport) ** 2 * weight / 4)
        step_NB = walk_N * (union.matrix @ (now_NB / root_N))
        step_NB += start_NB
        step_NB -= before_NB
        step_NB *= weight
        step_NB += before_NB
        before_NB, now_NB = now_NB, step_NB
    return now_NB * root_N


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
    score_A = score_N[candidate_A]
    if generator is not None:
        key_A = np.log(score_A) + generator.gumbel(size=len(score_A))
    else:  # rounded, so that nodes of equal standing do not fall apart by the order of a sum
        key_A = np.round(score_A / score_A.max(initial=0), TIE)
    return candidate_A[_best(key_A, num_context)]


def _best(key_A: NDArray[np.float64], num_best: int) -> NDArray[np.int64]:
    """Positions of the largest keys, best first, equal keys in order of position."""
    position_A = np.arange(len(key_A))
    if 0 < num_best < len(key_A):
        position_A = np.flatnonzero(key_A >= np.partition(key_A, -num_best)[-num_best])
    return position_A[np.argsort(-key_A[position_A], kind="stable")[:num_best]]


def pagerank_table(union: TemporalUnionGraph, *, top_k: int, teleport: float = 0.15) -> pl.DataFrame:
    """Give every node's `top_k` nodes by Personalized PageRank, itself left out: node, neighbor, score, rank from 1.

    Up to TABLE_NODES nodes by Chebyshev iteration, above by forward push (Andersen, Chung and Lang 2006), whose error
    at a node is at most EPSILON times its degree. Raises ValueError for a teleport outside 0..1 and a `top_k` below 1.
    """
    _check_teleport(teleport)
    if top_k < 1:
        raise ValueError(f"top_k = {top_k}: expected at least 1")
    solved = union.num_nodes <= TABLE_NODES
    rows, num_rows = (_solved_rows, TABLE_NUMBERS // max(union.num_nodes, 1)) if solved else (_pushed_rows, PUSH_BLOCK)
    node_N = np.flatnonzero(union.degree)
    blocks = [
        _best_of_rows(node_B, rows(union, node_B, teleport), top_k)
        for node_B in (node_N[start : start + num_rows] for start in range(0, len(node_N), num_rows))
    ]
    schema = {"node": pl.Int64, "neighbor": pl.Int64, "score": pl.Float64, "rank": pl.Int64}
    return pl.concat([pl.DataFrame(schema=schema), *blocks])


def _solved_rows(union: TemporalUnionGraph, node_B: NDArray[np.int64], teleport: float) -> sparse.csr_array:
    seed_NB = np.zeros((union.num_nodes, len(node_B)))
    seed_NB[node_B, np.arange(len(node_B))] = 1
    return sparse.csr_array(_chebyshev(union, seed_NB, teleport, TABLE_ITERATIONS).T)


def _pushed_rows(union: TemporalUnionGraph, node_B: NDArray[np.int64], teleport: float) -> sparse.csr_array:
    """Push all large residuals at once until none is left; what stays counts with its restart share."""
    shape = (len(node_B), union.num_nodes)
    indptr = np.arange(len(node_B) + 1)
    residual = sparse.csr_array((np.ones(len(node_B)), node_B, indptr), shape=shape)
    degree_N = np.maximum(union.degree, 1.0)
    parts = []
    while True:
        large_E = residual.data >= EPSILON * degree_N[residual.indices]
        if not large_E.any():
            return _summed([*parts, teleport * residual], shape)
        pushed = _entries(residual, large_E)
        parts.append(teleport * pushed)
        spread = pushed.copy()
        spread.data *= (1 - teleport) / degree_N[pushed.indices]
        residual = _entries(residual, ~large_E) + spread @ union.matrix


def _summed(parts: list[sparse.csr_array], shape: tuple[int, int]) -> sparse.csr_array:
    # All at once: adding each round to a growing sum took most of the time.
    entries = [part.tocoo().coords for part in parts]
    row_E, column_E = (np.concatenate([coords[axis] for coords in entries]) for axis in (0, 1))
    value_E = np.concatenate([part.data for part in parts])
    return sparse.coo_array((value_E, (row_E, column_E)), shape=shape).tocsr()


def _entries(rows: sparse.csr_array, kept_E: NDArray[np.bool_]) -> sparse.csr_array:
    indptr = np.concatenate([[0], np.cumsum(kept_E)])[rows.indptr]
    return sparse.csr_array((rows.data[kept_E], rows.indices[kept_E], indptr), shape=rows.shape)


def _best_of_rows(node_B: NDArray[np.int64], rows: sparse.csr_array, top_k: int) -> pl.DataFrame:
    blocks = []
    for node, start, end in zip(node_B.tolist(), rows.indptr[:-1], rows.indptr[1:], strict=True):
        other_A, score_A = np.asarray(rows.indices[start:end]), np.asarray(rows.data[start:end], dtype=np.float64)
        kept_A = (score_A > 0) & (other_A != node)
        other_A, score_A = other_A[kept_A], score_A[kept_A]
        order_A = np.argsort(other_A)
        best_K = order_A[_best(score_A[order_A], top_k)]
        blocks.append((node, other_A[best_K], score_A[best_K]))
    sizes = [len(other_K) for _, other_K, _ in blocks]
    return pl.DataFrame(
        {
            "node": np.repeat(node_B, sizes),
            "neighbor": np.concatenate([other_K for _, other_K, _ in blocks]).astype(np.int64),
            "score": np.concatenate([score_K for *_, score_K in blocks]),
            "rank": np.concatenate([np.arange(1, size + 1) for size in sizes]),
        }
    )
