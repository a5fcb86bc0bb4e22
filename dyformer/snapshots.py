"""Events -> DynamicGraph of Snapshots (paper, section 2 and Table 1).

N nodes    E undirected edges of one snapshot
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The unique undirected edges of one window; its nodes are all nodes seen so far.

    `step` counts from 1. Edges have `source < target`, are sorted by (source, target) and carry the number of
    interactions as weight. Self-loops are counted, not kept.
    """

    step: int
    start_time: int  # first moment of the window, included (microseconds since the epoch, or the log's own step)
    end_time: int  # last moment of the window, excluded
    source_E: NDArray[np.int64]
    target_E: NDArray[np.int64]
    weight_E: NDArray[np.float64]
    num_interactions: int
    num_self_loops: int
    num_nodes: int  # nodes seen up to and with this step: they are 0 .. num_nodes - 1


@dataclass(frozen=True, kw_only=True)
class DynamicGraph:
    """Snapshots of steps 1..T over nodes numbered by first appearance.

    Node numbers are local to the graph: sorted by first event (time, then log order, source before target), so that
    the nodes known at a step are exactly `range(snapshot.num_nodes)` and a prefix of the log gives a prefix of the
    graph.
    """

    snapshots: tuple[Snapshot, ...]
    node_N: NDArray[np.int64]  # permanent number of each node in the storage's node dictionary
    side_N: NDArray[np.int8]  # 0 and 1 on a bipartite log, all 0 otherwise

    @property
    def num_steps(self) -> int:
        """T, the number of snapshots."""
        return len(self.snapshots)


def prefix(graph: DynamicGraph, until: int) -> DynamicGraph:
    """Give the steps 1 .. until and the nodes known then. Raises ValueError where there is no such step."""
    if not 1 <= until <= graph.num_steps:
        raise ValueError(f"until = {until}: expected one of the graph's steps 1 to {graph.num_steps}")
    num_nodes = graph.snapshots[until - 1].num_nodes
    return DynamicGraph(
        snapshots=graph.snapshots[:until], node_N=graph.node_N[:num_nodes], side_N=graph.side_N[:num_nodes]
    )
