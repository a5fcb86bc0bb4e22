"""What is known before a step -> levels of evidence of its nodes, and the slices of queries that metrics are given for.

Q queries    N nodes known one step before    T steps    X nodes, with repeats
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dyformer.graphs.snapshots import DynamicGraph, Snapshot
from dyformer.sampling.pairs import past_pair_keys
from dyformer.sampling.ranking_queries import RankingQueries, step_pairs

LEVELS = {"none": 0, "one": 1, "few": 2, "many": 5}
"""Name of a level -> the least number of past partners."""
KNOWN = "known"
NUM_DECILES = 10
AGES = {"1": (1, 1), "2-4": (2, 4), "5+": (5, np.inf)}  # steps since a node came


def num_partners(snapshots: Sequence[Snapshot]) -> NDArray[np.int64]:
    """Count the distinct partners of each node [N] in all snapshots; a node alone with itself has none."""
    num_nodes = snapshots[-1].num_nodes
    key_K = past_pair_keys(snapshots, num_nodes)
    return np.bincount(np.concatenate([key_K // num_nodes, key_K % num_nodes]), minlength=num_nodes)


def evidence(num_X: NDArray[np.int64]) -> NDArray[np.str_]:
    """Give the level [X] of numbers of partners."""
    level_X = np.searchsorted(list(LEVELS.values()), num_X, side="right") - 1
    return np.array(list(LEVELS))[level_X]


def query_slices(graph: DynamicGraph, queries: RankingQueries) -> dict[str, NDArray[np.bool_]]:
    """Mark the queries [Q] of each slice; a slice without a query is left out.

    - known: all queries, whose ends are known before.
    - new, repeat: whether the pair was linked before.
    - inactive_ends=0, 1, 2: number of ends without an interaction in the newest snapshot before the step.
    - degree_decile=1 .. 10: of the source's number of past partners, among the queries; equal degrees share a decile.
    - evidence=none, one, few, many: level of the end with fewer past partners.
    - age=1, 2-4, 5+: steps since the younger end came.
    - side=0, 1: side of the source, on a bipartite log.

    Only the graph before the step is read.
    """
    source_Q, target_Q, step = queries.source_Q, queries.target_Q, queries.step
    num_nodes = graph.snapshots[step - 2].num_nodes
    active_N = np.zeros(num_nodes, dtype=np.bool_)
    for end_R in step_pairs(graph, step - 1):
        active_N[end_R] = True
    num_inactive_Q = 2 - active_N[source_Q].astype(np.int64) - active_N[target_Q]
    partners_N = num_partners(graph.snapshots[: step - 1])
    level_Q = evidence(np.minimum(partners_N[source_Q], partners_N[target_Q]))
    decile_Q, age_Q = _deciles(partners_N[source_Q]), _ages(graph, step, np.maximum(source_Q, target_Q))
    slices = {KNOWN: np.ones(len(source_Q), dtype=np.bool_), "new": queries.new_Q, "repeat": ~queries.new_Q}
    slices |= {f"inactive_ends={number}": num_inactive_Q == number for number in range(3)}
    slices |= {f"degree_decile={number}": decile_Q == number for number in range(1, NUM_DECILES + 1)}
    slices |= {f"evidence={level}": level_Q == level for level in LEVELS}
    slices |= {f"age={name}": (age_Q >= low) & (age_Q <= high) for name, (low, high) in AGES.items()}
    if graph.side_N.any():
        slices |= {f"side={side}": graph.side_N[source_Q] == side for side in (0, 1)}
    return {name: mask_Q for name, mask_Q in slices.items() if mask_Q.any()}


def _deciles(degree_Q: NDArray[np.int64]) -> NDArray[np.int64]:
    if not len(degree_Q):
        return degree_Q
    bounds = np.quantile(degree_Q, np.arange(1, NUM_DECILES) / NUM_DECILES)
    return 1 + np.searchsorted(bounds, degree_Q, side="left")


def _ages(graph: DynamicGraph, step: int, node_Q: NDArray[np.int64]) -> NDArray[np.int64]:
    """Give the steps since each node came: nodes are numbered by first appearance, so the larger is the younger."""
    num_nodes_T = [snapshot.num_nodes for snapshot in graph.snapshots[: step - 1]]
    return step - 1 - np.searchsorted(num_nodes_T, node_Q, side="right")
