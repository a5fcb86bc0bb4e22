"""PreparedGraph -> AsOfGraph -> SubgraphBatch of targets and their context (paper, section 3.2).

G target nodes    C context nodes   N nodes known    B nodes
E connected target-context pairs    T lags (0 = the step `until`)    F node features    V visible lags
A edges of these pairs, one for each lag with an edge    K words of 64 lags with an edge    U nodes of two contexts
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from dyformer import InvalidInput
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.distances import distance_block
from dyformer.graphs.hub_first_graph import with_own_numbers
from dyformer.graphs.pagerank import PUSHED_FROM, Push, joint_context, two_joint_contexts
from dyformer.graphs.prepared_graph import Activity, PreparedGraph
from dyformer.graphs.union_graph import (
    LAGS_PER_WORD,
    TemporalUnionGraph,
    build_union_graph,
    connections,
    first_step_of,
    part_of_union,
)


@dataclass(frozen=True, kw_only=True)
class SubgraphBatch:
    """All data that the model reads for a set of targets; no tensor grows with the graph or with pairs x lags.

    The pairs are those of a target and a context node. For a model with one tower, the rows G and the columns C of the
    pairs are all nodes of the batch: first the targets and then the context.
    """

    target_G: Tensor  # int64 node numbers
    context_C: Tensor
    target_feature_GF: Tensor  # float32
    context_feature_CF: Tensor
    distance_GC: Tensor  # uint8 codes of distances.py
    edge_target_A: Tensor  # int64 position of the target of a pair with an edge
    edge_context_A: Tensor  # position of the pair's context node
    edge_lag_A: Tensor  # visible lag at which the pair has the edge
    visible_T: Tensor  # bool: the lag lies in the history and is not hidden
    num_targets: int | None = None  # of a padded batch, the targets that are not padding

    @property
    def is_padded(self) -> bool:
        """Whether the batch has the sizes of a padded one, whether or not it has padding."""
        return self.num_targets is not None

    def is_padding_GC(self) -> Tensor:
        """Mark the pairs `[G, C]` of which a node is padding."""
        return self.distance_GC == PADDING[1]

    def tensors(self) -> list[Tensor]:
        """List the tensors in the order of the fields."""
        return [value for value in vars(self).values() if isinstance(value, Tensor)]

    def to(self, device: torch.device) -> "SubgraphBatch":
        """Copy to a device."""
        return with_each_tensor(self, lambda tensor: tensor.to(device, non_blocking=True))


PADDING = -1, 255
"""Node number and distance code of padding, which no node and no distance of a graph has."""
FEWEST_CONNECTIONS = 1024  # room for connections in a padded batch; more where needed, in powers of two


def padded(batches: Sequence[SubgraphBatch], *, num_targets: int, num_context: int) -> list[SubgraphBatch]:
    """Give batches of fixed sizes, for which a GPU replays its kernels; no real node attends to padding.

    Batches without context stay as they are. Connections of padding have lag T, which makes no difference.
    """
    if not all(len(batch.context_C) for batch in batches):
        return list(batches)
    sizes = [(len(batch.target_G), len(batch.context_C), len(batch.edge_lag_A)) for batch in batches]
    targets, context, connections = (max(numbers) for numbers in zip(*sizes, strict=True))
    connections = max(FEWEST_CONNECTIONS, 1 << (connections - 1).bit_length())
    return [_padded(batch, max(num_targets, targets), max(num_context, context), connections) for batch in batches]


def _padded(batch: SubgraphBatch, num_targets: int, num_context: int, num_connections: int) -> SubgraphBatch:
    sizes = len(batch.target_G), len(batch.context_C)
    row_G, column_C = torch.arange(sizes[0]), torch.arange(sizes[1])
    shape = (num_targets, num_context)
    if batch.distance_GC.shape != sizes:  # all pairs: the context stands after the padding of targets
        row_G = column_C = torch.cat([row_G, num_targets + column_C])
        shape = (sum(shape), sum(shape))
    node, far = PADDING
    distance_GC = batch.distance_GC.new_full(shape, far)
    distance_GC[row_G[:, None], column_C] = batch.distance_GC
    targets, context = num_targets - sizes[0], num_context - sizes[1]
    connections = num_connections - len(batch.edge_lag_A)
    return SubgraphBatch(
        target_G=pad(batch.target_G, (0, targets), value=node),
        context_C=pad(batch.context_C, (0, context), value=node),
        target_feature_GF=pad(batch.target_feature_GF, (0, 0, 0, targets)),
        context_feature_CF=pad(batch.context_feature_CF, (0, 0, 0, context)),
        distance_GC=distance_GC,
        edge_target_A=pad(row_G[batch.edge_target_A], (0, connections)),
        edge_context_A=pad(column_C[batch.edge_context_A], (0, connections)),
        edge_lag_A=pad(batch.edge_lag_A, (0, connections), value=len(batch.visible_T)),
        visible_T=batch.visible_T,
        num_targets=sizes[0],
    )


def padded_batches(tensors: Sequence[Tensor]) -> list[SubgraphBatch]:
    """Give padded batches from the tensors of each, one after the other; all their targets count."""
    names = [field.name for field in fields(SubgraphBatch) if field.name != "num_targets"]
    parts = (tensors[start : start + len(names)] for start in range(0, len(tensors), len(names)))
    return [SubgraphBatch(**dict(zip(names, part, strict=True)), num_targets=len(part[0])) for part in parts]


def with_each_tensor(record: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Give a copy of a record with every tensor in it changed, also in nested records."""

    def changed(value: Any) -> Any:
        if isinstance(value, Tensor):
            return change(value)
        return with_each_tensor(value, change) if is_dataclass(value) else value

    return replace(record, **{field.name: changed(getattr(record, field.name)) for field in fields(record)})


@dataclass(frozen=True, kw_only=True)
class AsOfGraph:
    """A graph as of the step `until` without a hidden step, from which batches are made."""

    until: int
    union: TemporalUnionGraph
    activity: Activity  # activity of the whole graph, of which only visible steps may be read
    first_step_N: NDArray[np.int32]  # first visible step with an edge; until + 1 for a node without
    side_N: NDArray[np.int8]
    visible_T: NDArray[np.bool_]
    max_distance: int
    teleport: float
    push: Push

    @cached_property
    def known_N(self) -> NDArray[np.bool_]:
        """Nodes with an edge at a visible step."""
        return self.first_step_N <= self.until


def num_lags(graph: PreparedGraph) -> int:
    """Give T, the lags that a model of this graph encodes: its history window, else its whole history."""
    return graph.config.history_window or graph.until


def num_features(graph: PreparedGraph) -> int:
    """Give F, the width of `node_features`."""
    return num_lags(graph) + 5


def as_of_graph(
    graph: PreparedGraph, *, until: int, hidden_step: int | None = None, is_brief: bool = False
) -> AsOfGraph:
    """Give the graph as of the step `until`, without the edges of `hidden_step`.

    Distances, contexts and features are made without the hidden step too, because they would otherwise leak its edges
    to the model. A graph that `is_brief`, for a few batches, is not renumbered where it is large. Raises ValueError
    where no step of the history would stay visible.
    """
    if not 1 <= until <= graph.until:
        raise InvalidInput(f"the graph is prepared for steps 1 to {graph.until}; it cannot be given as of step {until}")
    visible_T = _visible_lags(num_lags(graph), until, hidden_step)
    if not visible_T.any():
        raise InvalidInput(f"as of step {until} no step is visible beside the hidden step {hidden_step}: hide none")
    num_nodes = graph.history.snapshots[until - 1].num_nodes
    union = _visible_union(graph, until, hidden_step)
    if is_brief and _is_large(union):
        union = with_own_numbers(union)
    return AsOfGraph(
        until=until,
        union=union,
        activity=graph.activity,
        first_step_N=_first_visible_step(graph.activity, until, hidden_step, num_nodes),
        side_N=graph.history.side_N[:num_nodes],
        visible_T=visible_T,
        max_distance=_max_distance(graph.config, union),
        teleport=graph.config.teleport,
        push=Push(rounds=graph.config.push_rounds, threshold=graph.config.push_threshold),
    )


def _max_distance(config: GraphConfig, union: TemporalUnionGraph) -> int:
    return min(config.max_distance, config.large_max_distance) if _is_large(union) else config.max_distance


def _is_large(union: TemporalUnionGraph) -> bool:
    return len(union.neighbor_M) >= PUSHED_FROM


def _visible_lags(num_lags: int, until: int, hidden_step: int | None) -> NDArray[np.bool_]:
    lag_T = np.arange(num_lags)
    return (lag_T < until) & (lag_T != (until - hidden_step if hidden_step else -1))


def _visible_union(graph: PreparedGraph, until: int, hidden_step: int | None) -> TemporalUnionGraph:
    if until == graph.until and hidden_step is None:
        return graph.union
    window = graph.config.history_window
    if first_step_of(until, window) < graph.union.first_step:  # the window of an earlier step begins before
        return build_union_graph(graph.history, until=until, window=window, hidden_step=hidden_step)
    num_nodes = graph.history.snapshots[until - 1].num_nodes
    return part_of_union(graph.union, until=until, num_nodes=num_nodes, hidden_step=hidden_step)


def _first_visible_step(activity: Activity, until: int, hidden_step: int | None, num_nodes: int) -> NDArray[np.int32]:
    first_N, second_N = activity.first_step_N[:num_nodes], activity.second_step_N[:num_nodes]
    visible_N = first_N if hidden_step is None else np.where(first_N == hidden_step, second_N, first_N)
    return np.minimum(visible_N, until + 1).astype(np.int32)


def node_features(graph: AsOfGraph, node_B: NDArray[np.int64]) -> NDArray[np.float32]:
    """Give the structural features of single nodes `[B, F]`.

    The features are log(1 + degree) at each lag; log(1 + degree) summed over the lags, without weights and with weights
    that halve from lag to lag; e^-(steps since the node was last active); log(1 + steps since it was first active); and
    its side.
    """
    lag_V = np.flatnonzero(graph.visible_T)
    degree_BT = np.zeros((len(node_B), len(graph.visible_T)))
    degree_BT[:, lag_V] = graph.activity.degree_TN[graph.until - 1 - lag_V[:, None], node_B].T
    is_active_BT = degree_BT > 0
    recency_B = np.where(is_active_BT.any(axis=1), np.exp(-is_active_BT.argmax(axis=1)), 0.0)
    feature_BF = np.empty((len(node_B), degree_BT.shape[1] + 5), dtype=np.float32)
    feature_BF[:, :-5] = np.log1p(degree_BT)
    feature_BF[:, -5] = np.log1p(degree_BT.sum(axis=1))
    feature_BF[:, -4] = np.log1p(degree_BT @ 0.5 ** np.arange(degree_BT.shape[1]))
    feature_BF[:, -3] = recency_B
    feature_BF[:, -2] = np.log1p(graph.until + 1 - graph.first_step_N[node_B])
    feature_BF[:, -1] = graph.side_N[node_B]
    return feature_BF


def make_batch(
    graph: AsOfGraph, target_G: NDArray[np.int64], *, num_context: int | None, all_pairs: bool = False
) -> SubgraphBatch:
    """Choose the context of distinct targets, and look up the features, distances and edges of both.

    The context is the top `num_context` of the joint PageRank, by default as many as targets. It may be shorter, and
    empty where the targets have no neighbour. With `all_pairs` the pairs are those of a model with one tower.
    """
    num_context = len(target_G) if num_context is None else num_context
    context_C = joint_context(graph.union, target_G, num_context=num_context, teleport=graph.teleport, push=graph.push)
    return (_with_all_pairs if all_pairs else _subgraph)(graph, target_G, context_C)


def make_two_views(
    graph: AsOfGraph,
    target_G: NDArray[np.int64],
    *,
    num_context: int | None,
    generator: np.random.Generator,
    all_pairs: bool = False,
) -> tuple[SubgraphBatch, SubgraphBatch]:
    """Make the batch of `make_batch`, and one whose context is drawn in proportion to the joint PageRank."""
    contexts = two_joint_contexts(
        graph.union,
        target_G,
        num_context=len(target_G) if num_context is None else num_context,
        teleport=graph.teleport,
        push=graph.push,
        generator=generator,
    )
    if all_pairs:
        first, second = (_with_all_pairs(graph, target_G, context_C) for context_C in contexts)
        return first, second
    either_U = np.union1d(*contexts)
    distance_GU = _distances(graph, target_G, either_U)  # one search for both contexts
    first, second = (
        _subgraph(graph, target_G, context_C, np.take(distance_GU, np.searchsorted(either_U, context_C), axis=1))
        for context_C in contexts
    )
    return first, second


def _distances(graph: AsOfGraph, target_G: NDArray[np.int64], context_C: NDArray[np.int64]) -> NDArray[np.uint8]:
    return distance_block(graph.union, target_G, context_C, max_distance=graph.max_distance)


def _with_all_pairs(graph: AsOfGraph, target_G: NDArray[np.int64], context_C: NDArray[np.int64]) -> SubgraphBatch:
    """Look up the pairs of all nodes of a batch."""
    node_B = np.concatenate([target_G, context_C])
    pairs = _subgraph(graph, node_B, node_B)
    targets, context = slice(None, len(target_G)), slice(len(target_G), None)
    return replace(
        pairs,
        target_G=pairs.target_G[targets],
        context_C=pairs.context_C[context],
        target_feature_GF=pairs.target_feature_GF[targets],
        context_feature_CF=pairs.context_feature_CF[context],
    )


def _subgraph(
    graph: AsOfGraph,
    target_G: NDArray[np.int64],
    context_C: NDArray[np.int64],
    distance_GC: NDArray[np.uint8] | None = None,
) -> SubgraphBatch:
    distance_GC = _distances(graph, target_G, context_C) if distance_GC is None else distance_GC
    edge_target_E, edge_context_E, edge_E = connections(graph.union, target_G, context_C)
    pair_A, lag_A = _lags(graph.union.presence_EW[edge_E])
    return SubgraphBatch(
        target_G=torch.from_numpy(target_G),
        context_C=torch.from_numpy(context_C),
        target_feature_GF=torch.from_numpy(node_features(graph, target_G)),
        context_feature_CF=torch.from_numpy(node_features(graph, context_C)),
        distance_GC=torch.from_numpy(distance_GC),
        edge_target_A=torch.from_numpy(edge_target_E[pair_A]),
        edge_context_A=torch.from_numpy(edge_context_E[pair_A]),
        edge_lag_A=torch.from_numpy(lag_A),
        visible_T=torch.from_numpy(graph.visible_T),
    )


def _lags(presence_EW: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Unpack presence bits: the pair `[A]` and the lag `[A]` of each."""
    pair_K, word_K = np.nonzero(presence_EW)  # few pairs have an edge at many lags of a long history
    bytes_K8 = presence_EW[pair_K, word_K].astype("<u8").view(np.uint8).reshape(-1, 8)
    word_A, bit_A = np.nonzero(np.unpackbits(bytes_K8, axis=1, bitorder="little"))
    return pair_K[word_A], LAGS_PER_WORD * word_K[word_A] + bit_A
