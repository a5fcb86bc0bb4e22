"""Targets and their context -> SubgraphBatch (paper, section 3.2).

G target nodes    C context nodes   N nodes known    B targets, then context
E connected target-context pairs    T lags (0 = newest step of the view)    F node features    S snapshot edges
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dyformer.distances import distance_block
from dyformer.pagerank import joint_context
from dyformer.prepared_graph import PreparedGraph
from dyformer.snapshots import DynamicGraph, Snapshot
from dyformer.union_graph import TemporalUnionGraph, build_union_graph, connections


@dataclass(frozen=True, kw_only=True)
class SubgraphBatch:
    """All that the model reads about a set of targets: nothing of it grows with the graph or with pairs x lags."""

    target_G: Tensor  # int64 node numbers
    context_C: Tensor
    target_feature_GF: Tensor  # float32
    context_feature_CF: Tensor
    distance_GC: Tensor  # uint8 codes of distances.py
    edge_target_E: Tensor  # int64 positions among the targets and
    edge_context_E: Tensor  # among the context, of the pairs with an edge at some visible lag
    present_ET: Tensor  # bool: the pair has an edge at the lag
    visible_T: Tensor  # bool: the lag lies in the history and is not hidden

    def to(self, device: torch.device) -> "SubgraphBatch":
        """Copy to a device."""
        return SubgraphBatch(**{name: tensor.to(device, non_blocking=True) for name, tensor in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class GraphView:
    """What batches are made of: a graph as of the step `until`, less a hidden step."""

    until: int
    union: TemporalUnionGraph
    feature_NF: NDArray[np.float32]
    known_N: NDArray[np.bool_]  # nodes with an edge at a visible step
    visible_T: NDArray[np.bool_]
    max_distance: int
    teleport: float


def num_lags(graph: PreparedGraph) -> int:
    """Give T, the lags that a model of this graph can tell apart: its history window, else its whole history."""
    return graph.config.history_window or graph.until


def num_features(graph: PreparedGraph) -> int:
    """Give F, the width of `node_features`."""
    return num_lags(graph) + 5


def graph_view(graph: PreparedGraph, *, until: int, hidden_step: int | None = None) -> GraphView:
    """See a graph as it was at the step `until`, as if `hidden_step` had brought no edge.

    Distances, contexts and features are made without the hidden step too: hiding its lag from the encoding alone would
    leave its edges legible in all of them. Raises ValueError where no step of the history would stay visible.
    """
    if not 1 <= until <= graph.until:
        raise ValueError(f"the graph is prepared for steps 1 to {graph.until}; it cannot be seen as of step {until}")
    history = _without_step(graph.history, until, hidden_step)
    visible_T = _visible_lags(num_lags(graph), until, hidden_step)
    if not visible_T.any():
        raise ValueError(f"as of step {until} no step is visible beside the hidden step {hidden_step}: hide none")
    union = build_union_graph(history, until=until, window=graph.config.history_window)
    first_step_N = _first_active_step(history)
    return GraphView(
        until=until,
        union=union,
        feature_NF=node_features(history, first_step_N, visible_T),
        known_N=first_step_N <= until,
        visible_T=visible_T,
        max_distance=graph.config.max_distance,
        teleport=graph.config.teleport,
    )


def _without_step(graph: DynamicGraph, until: int, hidden_step: int | None) -> DynamicGraph:
    snapshots = tuple(
        _emptied(snapshot) if snapshot.step == hidden_step else snapshot for snapshot in graph.snapshots[:until]
    )
    num_nodes = snapshots[-1].num_nodes
    return DynamicGraph(snapshots=snapshots, node_N=graph.node_N[:num_nodes], side_N=graph.side_N[:num_nodes])


def _emptied(snapshot: Snapshot) -> Snapshot:
    return replace(
        snapshot,
        source_E=snapshot.source_E[:0],
        target_E=snapshot.target_E[:0],
        weight_E=snapshot.weight_E[:0],
        num_interactions=0,
        num_self_loops=0,
    )


def _visible_lags(num_lags: int, until: int, hidden_step: int | None) -> NDArray[np.bool_]:
    lag_T = np.arange(num_lags)
    return (lag_T < until) & (lag_T != (until - hidden_step if hidden_step else -1))


def _first_active_step(history: DynamicGraph) -> NDArray[np.int64]:
    """First step with an edge `[N]`; one more than the last step for a node without any."""
    first_step_N = np.full(len(history.node_N), history.num_steps + 1, dtype=np.int64)
    for snapshot in reversed(history.snapshots):
        first_step_N[snapshot.source_E] = snapshot.step
        first_step_N[snapshot.target_E] = snapshot.step
    return first_step_N


def node_features(
    history: DynamicGraph, first_step_N: NDArray[np.int64], visible_T: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """What the past says about single nodes `[N, F]`.

    log(1 + degree) at each lag, of all lags together and decayed by half a step; recency e^-(steps since last active);
    log(1 + steps since first active); side.
    """
    degree_TN = np.zeros((len(visible_T), len(history.node_N)))
    for lag, snapshot in zip(range(len(visible_T)), reversed(history.snapshots), strict=False):
        ends_S = np.concatenate([snapshot.source_E, snapshot.target_E])
        degree_TN[lag] = np.bincount(ends_S, minlength=degree_TN.shape[1])
    lag_T = np.arange(len(visible_T))
    active_TN = degree_TN > 0
    recency_N = np.where(active_TN.any(axis=0), np.exp(-active_TN.argmax(axis=0)), 0.0)
    columns = [
        *np.log1p(degree_TN),
        np.log1p(degree_TN.sum(axis=0)),
        np.log1p((0.5**lag_T) @ degree_TN),
        recency_N,
        np.log1p(history.num_steps + 1 - first_step_N),
        history.side_N,
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def make_batch(
    view: GraphView,
    target_G: NDArray[np.int64],
    *,
    num_context: int,
    generator: np.random.Generator | None = None,
) -> SubgraphBatch:
    """Choose the context of distinct targets and look up everything between the two.

    The context is the top `num_context` of the joint PageRank, or, with a generator, a sample in proportion to it (the
    second view of pre-training). It may be shorter, and empty where the targets have no neighbour.
    """
    context_C = joint_context(
        view.union, target_G, num_context=num_context, teleport=view.teleport, generator=generator
    )
    edge_target_E, edge_context_E, edge_E = connections(view.union, target_G, context_C)
    return SubgraphBatch(
        target_G=torch.from_numpy(target_G),
        context_C=torch.from_numpy(context_C),
        target_feature_GF=torch.from_numpy(view.feature_NF[target_G]),
        context_feature_CF=torch.from_numpy(view.feature_NF[context_C]),
        distance_GC=torch.from_numpy(distance_block(view.union, target_G, context_C, max_distance=view.max_distance)),
        edge_target_E=torch.from_numpy(edge_target_E),
        edge_context_E=torch.from_numpy(edge_context_E),
        present_ET=torch.from_numpy(_presence(view, edge_E)),
        visible_T=torch.from_numpy(view.visible_T),
    )


def _presence(view: GraphView, edge_E: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Unpack the presence bits of union edges: `[E, T]`."""
    lag_T = np.arange(len(view.visible_T))
    word_EW = view.union.presence_EW[edge_E]
    num_words = word_EW.shape[1]
    bit_ET = word_EW[:, np.minimum(lag_T // 64, num_words - 1)] >> (lag_T % 64).astype(np.uint64)
    return ((bit_ET & np.uint64(1)) == 1) & (lag_T < 64 * num_words)


def node_batches(num_nodes: int, num_targets: int) -> list[NDArray[np.int64]]:
    """Cut nodes 0 .. num_nodes - 1 into batches that depend on their number alone.

    A target sees no other target, so at most an eighth of the nodes are asked together.
    """
    size = max(1, min(num_targets, -(-num_nodes // 8)))
    return [np.arange(start, min(start + size, num_nodes)) for start in range(0, num_nodes, size)]
