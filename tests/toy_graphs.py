"""Small graphs that tests write down literally, and random ones."""

from dataclasses import replace

import numpy as np

from dyformer.graphs.interactions import Interactions
from dyformer.graphs.snapshots import DynamicGraph, Snapshot, interactions_in

Edges = list[tuple[int, int]]
MOMENTS = 1000  # moments in the window of a step


def toy_graph(*steps: Edges, sides: list[int] | None = None) -> DynamicGraph:
    """One snapshot per list of edges; nodes known at a step are all up to the largest number named so far.

    Each listed edge is an interaction in the listed direction. Those of a step are spread evenly over its window.
    """
    snapshots, num_nodes = [], 0
    for step, edges in enumerate(steps, start=1):
        ends_R2 = np.sort(np.array(edges, dtype=np.int64).reshape(-1, 2), axis=1)
        ends_E2, weight_E = np.unique(ends_R2, axis=0, return_counts=True)
        num_nodes = max(num_nodes, int(ends_E2.max(initial=-1)) + 1)
        snapshots.append(
            Snapshot(
                step=step,
                start_time=step * MOMENTS,
                end_time=(step + 1) * MOMENTS,
                source_E=ends_E2[:, 0],
                target_E=ends_E2[:, 1],
                weight_E=weight_E.astype(np.float64),
                num_interactions=len(edges),
                num_self_loops=0,
                num_nodes=num_nodes,
            )
        )
    side_N = np.zeros(num_nodes, dtype=np.int8) if sides is None else np.array(sides, dtype=np.int8)
    interactions = spread(snapshots, [edge for edges in steps for edge in edges])
    return DynamicGraph(
        snapshots=tuple(snapshots), node_N=np.arange(num_nodes), side_N=side_N, interactions=interactions
    )


def with_snapshots(graph: DynamicGraph, *snapshots: Snapshot) -> DynamicGraph:
    """Give the graph other snapshots, and interactions that agree with them: each edge as often as it weighs."""
    ends = [
        np.repeat(np.stack([s.source_E, s.target_E], axis=1), s.weight_E.astype(int), axis=0).tolist()
        for s in snapshots
    ]
    rows = [(source, target) for step in ends for source, target in step]
    return replace(graph, snapshots=snapshots, interactions=spread(list(snapshots), rows))


def spread(snapshots: list[Snapshot], rows: Edges) -> Interactions:
    """Spread directed rows, in order of time, evenly over the windows of their snapshots."""
    time_R = np.concatenate(
        [np.linspace(s.start_time, s.end_time, s.num_interactions, endpoint=False, dtype=np.int64) for s in snapshots]
    )
    source_R, target_R = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    return interactions_in(snapshots, source_R, target_R, time_R, np.ones(len(rows)))


def random_graph(generator: np.random.Generator, *, num_nodes: int, num_steps: int, num_edges: int) -> DynamicGraph:
    """Every step links random pairs of all nodes; the first names the last node, so that all are known."""
    steps = []
    for _ in range(num_steps):
        pairs = generator.integers(num_nodes, size=(num_edges, 2))
        steps.append([(int(a), int(b)) for a, b in pairs if a != b])
    steps[0].append((0, num_nodes - 1))
    return toy_graph(*steps)
