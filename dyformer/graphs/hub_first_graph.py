"""TemporalUnionGraph -> its lists of neighbours with the nodes numbered hubs first.

N nodes    N1 = N + 1    M slots of both directions    X nodes    K components
"""

from dataclasses import dataclass, replace
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from dyformer.graphs.kernels.bfs import Lists, Nodes, components, renumbered
from dyformer.graphs.union_graph import TemporalUnionGraph

NUM_HUBS = 4_096  # the hubs' bitsets fit in a core's own cache, and nearly every short path passes through a hub
SMALL_GRAPH = 32_768  # in a graph of at most this many nodes, all nodes are hubs

_renumbering = Lock()


@dataclass(frozen=True, kw_only=True)
class HubFirstGraph:
    """A union graph whose nodes are renumbered by their number of neighbours, most first, and its components."""

    number_N: Nodes  # new number of each node
    node_N: Nodes  # node of each new number
    lists: Lists
    num_slots_K: NDArray[np.int64]  # neighbours of all nodes of a component
    num_hubs: int

    @property
    def num_nodes(self) -> int:
        """N, the number of nodes."""
        return len(self.number_N)

    @property
    def num_components(self) -> int:
        """K, the number of components."""
        return len(self.num_slots_K)

    def num_slots(self, node_X: Nodes) -> int:
        """Sum the numbers of neighbours of some nodes."""
        indptr_N1 = self.lists[0]
        return int((indptr_N1[node_X.astype(np.int64) + 1] - indptr_N1[node_X]).sum())


def hub_first_graph(union: TemporalUnionGraph) -> HubFirstGraph:
    """Renumber a union graph's nodes, once: the result is stored with the union graph."""
    with _renumbering:  # a cached property has no lock, so two threads would renumber twice, in twice the memory
        stored = vars(union)
        if "hub_first_graph" not in stored:
            stored["hub_first_graph"] = _hubs_first(union)
        return stored["hub_first_graph"]


def with_own_numbers(union: TemporalUnionGraph) -> TemporalUnionGraph:
    """Give the graph to be searched with the numbers that its nodes have, as one without hubs.

    Renumbering takes as long as the contexts and distances of some twenty batches, and makes a batch of a large graph a
    tenth faster. What is found is the same, but for the last bits of scores, which depend on the order of sums, and for
    what is drawn by them.
    """
    number_N = np.arange(union.num_nodes, dtype=np.uint32)
    rows = union.indptr_N1, union.neighbor_M.view(np.uint32)  # without a copy: no number is negative
    copied = replace(union)  # another object with the same arrays
    vars(copied)["hub_first_graph"] = _graph(number_N, number_N, rows, num_hubs=0)
    return copied


def _hubs_first(union: TemporalUnionGraph) -> HubFirstGraph:
    # The kernels are compiled for one type of each array, so the union graph's arrays are converted to it.
    indptr_N1 = union.indptr_N1.astype(np.int64)
    node_N = np.argsort(-np.diff(indptr_N1), kind="stable").astype(np.uint32)
    number_N = np.empty_like(node_N)
    number_N[node_N] = np.arange(len(node_N), dtype=np.uint32)
    rows = renumbered(indptr_N1, union.neighbor_M.astype(np.uint32), node_N, number_N)
    return _graph(number_N, node_N, rows, num_hubs=NUM_HUBS if len(node_N) > SMALL_GRAPH else len(node_N))


def _graph(number_N: Nodes, node_N: Nodes, rows: tuple[NDArray[np.int64], Nodes], *, num_hubs: int) -> HubFirstGraph:
    component_N, num_components = components(*rows)
    return HubFirstGraph(
        number_N=number_N,
        node_N=node_N,
        lists=(*rows, component_N),
        num_slots_K=np.bincount(component_N, np.diff(rows[0]), minlength=num_components).astype(np.int64),
        num_hubs=num_hubs,
    )
