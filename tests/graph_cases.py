"""Union graphs of every special case, random ones, and slow exact methods as references."""

from collections.abc import Iterator

import numpy as np
from scipy import sparse
from toy_graphs import Edges, toy_graph

from dyformer.graphs.snapshots import DynamicGraph
from dyformer.graphs.union_graph import TemporalUnionGraph, build_union_graph

STAR: Edges = [(0, node) for node in range(1, 9)]
PATH: Edges = [(node, node + 1) for node in range(9)]
BIPARTITE: Edges = [(a, b) for a in range(3) for b in range(4, 9) if (a + b) % 2]
DISCONNECTED: Edges = [(0, 1), (1, 2), (0, 2), (5, 6), (8, 9)]
NAMED: dict[str, list[Edges]] = {
    "no edge": [[(0, 7)], []],  # the window of one step is empty: all nodes are isolated
    "star": [STAR],
    "path": [PATH],
    "bipartite": [BIPARTITE[:4], BIPARTITE[2:]],
    "disconnected, with isolated nodes": [DISCONNECTED],
    "the same edges again": [PATH, PATH, PATH[:3]],
    "two nodes": [[(0, 1)]],
}


def named_union(name: str) -> TemporalUnionGraph:
    graph = toy_graph(*NAMED[name])
    return build_union_graph(graph, until=graph.num_steps, window=1 if name == "no edge" else None)


def random_graphs(num_graphs: int, *, seed: int) -> Iterator[tuple[DynamicGraph, np.random.Generator]]:
    """Graphs of 2 to 24 nodes and 1 to 4 steps, empty to dense, with recurring pairs and isolated nodes."""
    generator = np.random.default_rng(seed)
    for _ in range(num_graphs):
        num_nodes = int(generator.integers(2, 25))
        steps: list[Edges] = []
        for _ in range(generator.integers(1, 5)):
            pairs = generator.integers(num_nodes, size=(generator.integers(0, 2 * num_nodes), 2))
            steps.append([(int(a), int(b)) for a, b in pairs if a != b])
        steps[0].append((0, num_nodes - 1))
        yield toy_graph(*steps), generator


def dense_adjacency(graph: DynamicGraph, first_step: int, until: int) -> np.ndarray:
    num_nodes = graph.snapshots[until - 1].num_nodes
    adjacency_NN = np.zeros((num_nodes, num_nodes))
    for snapshot in graph.snapshots[first_step - 1 : until]:
        for a, b in zip(snapshot.source_E.tolist(), snapshot.target_E.tolist(), strict=True):
            adjacency_NN[a, b] = adjacency_NN[b, a] = 1
    return adjacency_NN


def dense_union(union: TemporalUnionGraph) -> np.ndarray:
    adjacency_NN = np.zeros((union.num_nodes, union.num_nodes))
    adjacency_NN[union.source_E, union.target_E] = adjacency_NN[union.target_E, union.source_E] = 1
    return adjacency_NN


def pushed_rows(adjacency_NN: sparse.csr_array, node_B: np.ndarray, teleport: float, epsilon: float) -> np.ndarray:
    """PageRank rows [B, N] by forward push (Andersen, Chung and Lang 2006), in dense arrays.

    The row's node is pushed, then all residuals of at least `epsilon` times the degree at once until none is left; a
    remaining residual counts with the teleport probability.
    """
    dense_NN = adjacency_NN.toarray()
    degree_N = np.maximum(dense_NN.sum(axis=1), 1)
    residual_BN = np.eye(len(degree_N))[node_B]
    score_BN = np.zeros_like(residual_BN)
    is_large_BN = residual_BN > 0
    while is_large_BN.any():
        pushed_BN = np.where(is_large_BN, residual_BN, 0)
        score_BN += teleport * pushed_BN
        residual_BN = np.where(is_large_BN, 0, residual_BN) + (1 - teleport) * (pushed_BN / degree_N) @ dense_NN
        is_large_BN = residual_BN >= epsilon * degree_N
    return score_BN + teleport * residual_BN
