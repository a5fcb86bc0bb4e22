"""A user's own method in one file: vectors from random walks, similar to node2vec (Grover and Leskovec, 2016)."""

from dataclasses import dataclass

import numpy as np

from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.scoring.interfaces import Embed


@dataclass(frozen=True, kw_only=True)
class Walks:
    """Factorise the counts of two nodes near each other on random walks over the union of the history."""

    width: int = 8
    num_walks: int = 10
    length: int = 5

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        num_nodes, generator = len(graph.history.node_N), np.random.default_rng(seed)
        neighbours: list[list[int]] = [[node] for node in range(num_nodes)]  # a node may stay where it is
        for snapshot in graph.history.snapshots:
            for source, target in zip(snapshot.source_E.tolist(), snapshot.target_E.tolist(), strict=True):
                neighbours[source].append(target)
                neighbours[target].append(source)
        near_NN = np.zeros((num_nodes, num_nodes))
        for start in np.tile(np.arange(num_nodes), self.num_walks).tolist():
            node = start
            for _ in range(self.length):
                node = neighbours[node][generator.integers(len(neighbours[node]))]
                near_NN[start, node] += 1
        left_NW, value_W, _ = np.linalg.svd(np.log1p(near_NN + near_NN.T))
        vector_NW = (left_NW[:, : self.width] * np.sqrt(value_W[: self.width])).astype(np.float32)
        return lambda node_B: vector_NW[node_B]
