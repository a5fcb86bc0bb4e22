"""DynamicGraph -> PreparedGraph: all data that a method may read as of one step.

N nodes    T steps
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dyformer.graphs.config import GraphConfig
from dyformer.graphs.noise import with_noise
from dyformer.graphs.snapshots import DynamicGraph, prefix
from dyformer.graphs.union_graph import TemporalUnionGraph, build_union_graph, extend_union_graph


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
    extended_union: TemporalUnionGraph | None = None  # `union`, where it was extended from the step before

    @cached_property
    def union(self) -> TemporalUnionGraph:
        """The union graph of the newest `history_window` steps, built at the first use: scorers of pairs need none."""
        if self.extended_union is not None:
            return self.extended_union
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
    return PreparedGraph(config=config, until=until, history=_history(graph, until, config))


def with_window(prepared: PreparedGraph, window: int) -> PreparedGraph:
    """Give the prepared graph with another history window."""
    if prepared.config.history_window == window:
        return prepared
    return replace(prepared, config=replace(prepared.config, history_window=window), extended_union=None)


def _history(graph: DynamicGraph, until: int, config: GraphConfig) -> DynamicGraph:
    return with_noise(prefix(graph, until), config.noise, seed=config.noise_seed)


def one_step_on(prepared: PreparedGraph, graph: DynamicGraph) -> PreparedGraph:
    """Give the prepared graph one step later; a union graph that loses no step is extended instead of built anew.

    Raises ValueError where the graph has no later step.
    """
    window = prepared.config.history_window
    if window is not None and prepared.until >= window:
        return prepare_graph(graph, until=prepared.until + 1, config=prepared.config)
    history = _history(graph, prepared.until + 1, prepared.config)
    union = extend_union_graph(prepared.union, history.snapshots[-1])
    return PreparedGraph(config=prepared.config, until=history.num_steps, history=history, extended_union=union)
