"""DynamicGraph -> PreparedGraph: all data that a method may read as of one step.

For experiments on noisy inputs some edges are left out and others added (paper, Table 3).

N nodes    T steps    E edges of a step    D edges left out    I pairs added
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dyformer.graphs.config import GraphConfig
from dyformer.graphs.snapshots import DynamicGraph, Snapshot, prefix
from dyformer.graphs.union_graph import TemporalUnionGraph, build_union_graph


def with_noise(history: DynamicGraph, fraction: float, *, seed: int) -> DynamicGraph:
    """Change a fraction of the edges of every snapshot; one without noise stays the same object.

    Of `round(fraction * E)` changes half, rounded down, leave out an edge. The others add a uniform pair of nodes known
    at the step that has no edge there, of opposite sides where the log has two, with weight 1; fewer where a snapshot
    has not as many such pairs. The noise of a step depends on the seed and this step alone. The result has no
    interactions, because these would still show the edges that were left out.
    """
    if fraction == 0:
        return history
    snapshots = tuple(_noisy(snapshot, history.side_N, fraction, seed) for snapshot in history.snapshots)
    return replace(history, snapshots=snapshots, interactions=None)


def _noisy(snapshot: Snapshot, side_N: NDArray[np.int8], fraction: float, seed: int) -> Snapshot:
    generator = np.random.default_rng([seed, snapshot.step])
    num_edges, num_nodes = len(snapshot.source_E), snapshot.num_nodes
    num_changes = round(fraction * num_edges)
    left_out_D = generator.choice(num_edges, size=num_changes // 2, replace=False)
    key_E = snapshot.source_E * num_nodes + snapshot.target_E
    key_I = _new_keys(key_E, side_N[:num_nodes], num_changes - len(left_out_D), generator)
    stays_E = np.ones(num_edges, dtype=np.bool_)
    stays_E[left_out_D] = False
    key_E = np.concatenate([key_E[stays_E], key_I])
    weight_E = np.concatenate([snapshot.weight_E[stays_E], np.ones(len(key_I))])
    order_E = np.argsort(key_E)
    return replace(
        snapshot,
        source_E=key_E[order_E] // num_nodes,
        target_E=key_E[order_E] % num_nodes,
        weight_E=weight_E[order_E],
    )


def _new_keys(
    key_E: NDArray[np.int64], side_N: NDArray[np.int8], num: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Draw the keys of `num` distinct pairs, uniformly among those without an edge."""
    num_nodes, num_second = len(side_N), int(np.count_nonzero(side_N))
    has_sides = 0 < num_second < num_nodes
    num_pairs = num_second * (num_nodes - num_second) if has_sides else num_nodes * (num_nodes - 1) // 2
    num = min(num, num_pairs - len(key_E))
    key_I = np.empty(0, dtype=np.int64)
    while len(key_I) < num:
        end_2X = np.sort(generator.integers(num_nodes, size=(2, 2 * num)), axis=0)
        refused_X = (side_N[end_2X[0]] == side_N[end_2X[1]]) if has_sides else (end_2X[0] == end_2X[1])
        drawn_X = (end_2X[0] * num_nodes + end_2X[1])[~refused_X]
        drawn_X = drawn_X[~np.isin(drawn_X, key_E)]
        key_I = np.concatenate([key_I, drawn_X])
        key_I = key_I[np.sort(np.unique(key_I, return_index=True)[1])]  # the first draw of each, in order
    return key_I[:num]


@dataclass(frozen=True, kw_only=True)
class Activity:
    """The steps at which the nodes of a history have edges; the step after the last one means never."""

    degree_TN: NDArray[np.int32]  # edges of each node at the steps 1 .. T
    first_step_N: NDArray[np.int32]  # first step with an edge
    second_step_N: NDArray[np.int32]  # the next step with an edge: the first one where `first_step_N` is hidden


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedGraph:
    """A graph as of the step `until`: no later step, and no node that came later, is in it."""

    config: GraphConfig
    until: int
    history: DynamicGraph  # steps 1 .. until

    @cached_property
    def union(self) -> TemporalUnionGraph:
        """The union graph of the newest `history_window` steps, built at the first use: scorers of pairs need none."""
        return build_union_graph(self.history, until=self.until, window=self.config.history_window)

    @cached_property
    def activity(self) -> Activity:
        """The steps at which each node has edges, counted once for all features."""
        # Training reads it before its threads start, because two threads at once would count twice.
        return count_activity(self.history)


def count_activity(history: DynamicGraph) -> Activity:
    """Count the edges of each node at each step."""
    num_steps, num_nodes = history.num_steps, len(history.node_N)
    degree_TN = np.empty((num_steps, num_nodes), dtype=np.int32)
    first_step_N = np.full(num_nodes, num_steps + 1, dtype=np.int32)
    second_step_N = first_step_N.copy()
    for snapshot in reversed(history.snapshots):
        degree_N = degree_TN[snapshot.step - 1]
        degree_N[:] = np.bincount(snapshot.source_E, minlength=num_nodes)
        degree_N += np.bincount(snapshot.target_E, minlength=num_nodes)
        is_active_N = degree_N > 0
        second_step_N[is_active_N] = first_step_N[is_active_N]
        first_step_N[is_active_N] = snapshot.step
    return Activity(degree_TN=degree_TN, first_step_N=first_step_N, second_step_N=second_step_N)


def prepare_graph(graph: DynamicGraph, *, until: int, config: GraphConfig) -> PreparedGraph:
    """Give a graph as of the step `until`. Raises ValueError where there is no such step."""
    history = with_noise(prefix(graph, until), config.noise, seed=config.noise_seed)
    return PreparedGraph(config=config, until=until, history=history)


def earlier_graph(prepared: PreparedGraph, until: int) -> PreparedGraph:
    """Give a prepared graph as of an earlier step; its noise is the same, and not drawn a second time."""
    return PreparedGraph(config=prepared.config, until=until, history=prefix(prepared.history, until))


def with_window(prepared: PreparedGraph, window: int) -> PreparedGraph:
    """Give the prepared graph with another history window."""
    if prepared.config.history_window == window:
        return prepared
    return replace(prepared, config=replace(prepared.config, history_window=window))
