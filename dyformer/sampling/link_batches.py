"""PreparedGraph -> batches of positive and negative pairs to train on, and of links of the whole history.

P positive pairs    M negative pairs    G target nodes    E edges of one step    N nodes    L links of all steps
A edges with an end in a pool    U distinct nodes of a batch    B nodes of a subgraph
K known nodes, or pairs with an edge in some step
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from threading import Condition
from typing import TypeVar

import cachetools
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.graphs.snapshots import Snapshot
from dyformer.sampling.pairs import Pairs, crossed, is_among, pair_keys, past_pair_keys, sample_negatives
from dyformer.sampling.subgraphs import (
    AsOfGraph,
    SubgraphBatch,
    as_of_graph,
    make_batch,
    make_two_views,
    padded,
    with_each_tensor,
)

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
MAX_CACHED_GRAPHS = 16_000_000  # edges and nodes of cached graphs, about 100 bytes each
MAX_CACHED_POSITIVES = 32_000_000  # positive pairs of cached tasks, 8 bytes each


@dataclass(frozen=True, kw_only=True)
class HistoryLinks:
    """Links of several steps: a pair counts once for each step that has it."""

    num_nodes: int
    source_L: NDArray[np.int32]
    target_L: NDArray[np.int32]
    cumulative_L: NDArray[np.float64]  # probability that a draw is this link or one before it
    positive_key_K: NDArray[np.int64]  # sorted keys of pairs that are not negatives, held-out links included
    side_N: NDArray[np.int8]

    def draw_positives(self, num: int, generator: np.random.Generator) -> Pairs:
        """Draw `num` links with repeats, each in proportion to its weight."""
        link_P = np.searchsorted(self.cumulative_L, generator.random(num), side="right")
        return self.source_L[link_P].astype(np.int64), self.target_L[link_P].astype(np.int64)

    def draw_negatives(self, num: int, generator: np.random.Generator, *, positives: Pairs, hard: float) -> Pairs:
        """Draw `num` pairs of known nodes, all equally likely, and drop those with an edge in some step.

        The nodes of a fraction `hard` of them are ends of the given positive pairs.
        """
        num_hard = round(hard * num)
        source_M, target_M = generator.integers(self.num_nodes, size=(2, num - num_hard))
        if num_hard:
            hard_source_M, hard_target_M = crossed(positives, self.side_N, num_hard, generator)
            source_M, target_M = np.concatenate([source_M, hard_source_M]), np.concatenate([target_M, hard_target_M])
        is_positive_M = is_among(pair_keys(self.num_nodes, source_M, target_M), self.positive_key_K)
        is_negative_M = ~is_positive_M & (source_M != target_M)
        return source_M[is_negative_M], target_M[is_negative_M]


def history_links(
    snapshots: Sequence[Snapshot], held_out: Sequence[NDArray[np.bool_]], side_N: NDArray[np.int8], *, half_life: float
) -> HistoryLinks:
    """Collect the links of some steps without the held-out ones.

    A link is half as likely to be drawn as one that is `half_life` steps newer.
    """
    trained = [np.flatnonzero(~held_out_E) for held_out_E in held_out]
    ages = [snapshots[-1].step - snapshot.step for snapshot in snapshots]
    age_L = np.repeat(ages, [len(edge_E) for edge_E in trained])
    weight_L = np.cumsum(0.5 ** (age_L / half_life))
    num_nodes = snapshots[-1].num_nodes
    return HistoryLinks(
        num_nodes=num_nodes,
        source_L=_ends([snapshot.source_E[edge_E] for snapshot, edge_E in zip(snapshots, trained, strict=True)]),
        target_L=_ends([snapshot.target_E[edge_E] for snapshot, edge_E in zip(snapshots, trained, strict=True)]),
        cumulative_L=weight_L / weight_L[-1] if len(weight_L) else weight_L,
        positive_key_K=past_pair_keys(snapshots, num_nodes),
        side_N=side_N[:num_nodes],
    )


def _ends(parts: list[NDArray[np.int64]]) -> NDArray[np.int32]:
    return np.concatenate(parts).astype(np.int32)


def cached(compute: Callable[[Key], Value], *, size: Callable[[Value], int], max_size: int) -> Callable[[Key], Value]:
    """Cache the values used last, as long as their sizes sum to at most `max_size`; a larger value is cached alone.

    A thread that needs a value which another thread computes waits for it. Different values are computed concurrently.
    """
    values: cachetools.LRUCache[Key, Value] = cachetools.LRUCache(
        max_size, getsizeof=lambda value: min(size(value), max_size)
    )
    return cachetools.cached(values, condition=Condition())(compute)


@dataclass(frozen=True, kw_only=True)
class LinkTask:
    """Predict the links of `step` from the graph as of `until`, in which one step may be hidden."""

    until: int
    step: int
    hidden: bool

    @property
    def lag(self) -> int:
        """Lag of the step that is reconstructed."""
        return self.until - self.step

    @property
    def as_of(self) -> tuple[int, int | None]:
        """Newest step of the graph from which links are predicted, and the step hidden in it."""
        return self.until, self.step if self.hidden else None


@dataclass(frozen=True, kw_only=True)
class PairSizes:
    """Sizes of a batch."""

    num_positives: int
    num_negatives: int  # for each positive pair
    num_targets: int  # at most half of the nodes, because targets cannot be context
    num_context: int | None  # None: as many as targets
    all_pairs: bool = False  # whether batches are made for a model with one tower
    num_history_links: int = 0  # links of all steps, for the loss of the id embeddings
    half_life: float = 4.0  # steps of age that halve the probability of drawing a history link
    hard_negatives: float = 0.0  # fraction of the negative pairs whose nodes are ends of positive pairs
    ranked: bool = False  # whether batches have `negative_GG`


@dataclass(frozen=True, kw_only=True)
class LabelledPairs:
    """Positive and negative pairs, int64."""

    positive_first_P: Tensor
    positive_second_P: Tensor
    negative_first_M: Tensor
    negative_second_M: Tensor


@dataclass(frozen=True, kw_only=True)
class PairBatch:
    """A subgraph, pairs of positions among its targets, and pairs of nodes from the links of the history."""

    task: LinkTask
    subgraph: SubgraphBatch
    second_view: SubgraphBatch | None
    pairs: LabelledPairs
    history: LabelledPairs | None
    node_U: Tensor  # all nodes of the subgraphs and of `history`, sorted and each once
    negative_GG: Tensor | None = None  # bool: the pair of targets is negative, for a loss that ranks all targets

    def to(self, device: torch.device) -> "PairBatch":
        """Copy to a device, asynchronously from pinned memory."""
        return with_each_tensor(self, lambda tensor: tensor.to(device, non_blocking=True))

    def padded(self, sizes: PairSizes) -> "PairBatch":
        """Give its subgraphs the sizes of the largest ones."""
        subgraphs = [self.subgraph] if self.second_view is None else [self.subgraph, self.second_view]
        num_targets, num_context = sizes.num_targets, sizes.num_context or sizes.num_targets
        first, *second = padded(subgraphs, num_targets=num_targets, num_context=num_context)
        return replace(self, subgraph=first, second_view=second[0] if second else None)

    def pinned(self) -> "PairBatch":
        """Copy to pinned memory, from which a GPU copies asynchronously."""
        return with_each_tensor(self, Tensor.pin_memory)


def forecast_tasks(until: int) -> list[LinkTask]:
    """Give a task for each forecast in the history: step t + 1 <= `until` from steps 1 .. t (paper, section 4.2)."""
    return [LinkTask(until=step - 1, step=step, hidden=False) for step in range(2, until + 1)]


def reconstruction_tasks(until: int, num_lags: int, *, hidden: bool) -> list[LinkTask]:
    """Give a task for every step of every prefix of the history, within the lags of the model (paper, section 4.1).

    The paper averages over all lags alike. Training draws newer steps more often, by `step_half_life`.
    """
    return [
        LinkTask(until=prefix, step=step, hidden=hidden)
        for prefix in range(2, until + 1)
        for step in range(max(1, prefix - num_lags + 1), prefix + 1)
    ]


class PairSource:
    """Draws batches for tasks of one graph. A fraction of each step's edges is held out from training.

    Any number of threads may draw at once.
    """

    def __init__(self, graph: PreparedGraph, sizes: PairSizes, *, validation_fraction: float, seed: int) -> None:
        self.graph, self.sizes, self.validation_fraction, self.seed = graph, sizes, validation_fraction, seed
        self._history = self._history_links() if sizes.num_history_links else None
        self._as_of_graph = cached(self._make_as_of_graph, size=_graph_size, max_size=MAX_CACHED_GRAPHS)
        self._positive_edges = cached(self._find_positive_edges, size=len, max_size=MAX_CACHED_POSITIVES)
        self.has_links = cache(self._has_links)

    def batches(
        self, tasks: Sequence[LinkTask], generator: np.random.Generator, *, held_out: bool, two_views: bool
    ) -> Iterator[PairBatch]:
        """Yield one batch for each task, each from a random stream of its own."""
        for task, stream in zip(tasks, generator.spawn(len(tasks)), strict=True):
            yield self.batch(task, stream, held_out=held_out, two_views=two_views)

    def batch(self, task: LinkTask, generator: np.random.Generator, *, held_out: bool, two_views: bool) -> PairBatch:
        """Draw the batch of a task."""
        graph = self._as_of_graph(task.as_of)
        max_ends = self._max_targets(graph) // 2
        positives = draw_positives(self._positives(task, held_out), max_ends, self.sizes, generator)
        pool_G = draw_pool(graph, max_ends, generator)
        num_negatives = self.sizes.num_negatives * len(positives[0])
        num_hard = round(self.sizes.hard_negatives * num_negatives)
        negatives = draw_negatives(pool_G, self._step_edges(task), num_negatives - num_hard, generator)
        if num_hard:
            hard = hard_negatives(positives, self._step_edges(task), self.graph.history.side_N, num_hard, generator)
            negatives = np.concatenate([negatives, hard], axis=1)
        target_G = np.unique(np.concatenate([*positives, pool_G]))
        first, second = self._subgraphs(graph, target_G, generator if two_views else None)
        history = None if held_out else self._history_pairs(generator)
        return PairBatch(
            task=task,
            subgraph=first,
            second_view=second,
            pairs=labelled(*(np.searchsorted(target_G, node_P) for node_P in (*positives, *negatives))),
            history=history,
            node_U=distinct_nodes([first] if second is None else [first, second], history),
            negative_GG=self._negatives_of(target_G, task, graph) if self.sizes.ranked else None,
        )

    def _subgraphs(
        self, graph: AsOfGraph, target_G: NDArray[np.int64], generator: np.random.Generator | None
    ) -> tuple[SubgraphBatch, SubgraphBatch | None]:
        num_context, all_pairs = self.sizes.num_context, self.sizes.all_pairs
        if generator is None:
            return make_batch(graph, target_G, num_context=num_context, all_pairs=all_pairs), None
        return make_two_views(graph, target_G, num_context=num_context, all_pairs=all_pairs, generator=generator)

    def _history_pairs(self, generator: np.random.Generator) -> LabelledPairs | None:
        if self._history is None or not len(self._history.source_L):
            return None
        num = self.sizes.num_history_links
        positives = self._history.draw_positives(num, generator)
        num_negatives, hard = num * self.sizes.num_negatives, self.sizes.hard_negatives
        return labelled(
            *positives, *self._history.draw_negatives(num_negatives, generator, positives=positives, hard=hard)
        )

    def _negatives_of(self, target_G: NDArray[np.int64], task: LinkTask, graph: AsOfGraph) -> Tensor:
        """Mark the pairs of targets [G, G] without an edge in the step; on a bipartite log of different sides."""
        side_G = graph.side_N[target_G]
        negative_GG = side_G[:, None] != side_G if side_G.any() else ~np.eye(len(target_G), dtype=np.bool_)
        source_E, target_E = edges_inside(target_G, self._step_edges(task))
        negative_GG[source_E, target_E] = negative_GG[target_E, source_E] = False
        return torch.from_numpy(negative_GG)

    def _history_links(self) -> HistoryLinks:
        """Collect the links to train on, of the steps within the model's lags."""
        snapshots = self.graph.history.snapshots[self.graph.union.first_step - 1 :]
        held_out = [self._is_held_out(snapshot.step) for snapshot in snapshots]
        return history_links(snapshots, held_out, self.graph.history.side_N, half_life=self.sizes.half_life)

    def _is_held_out(self, step: int) -> NDArray[np.bool_]:
        """Mark the edges of a step that are held out from training."""
        num_edges = len(self.graph.history.snapshots[step - 1].source_E)
        return np.random.default_rng([self.seed, step]).random(num_edges) < self.validation_fraction

    def graphs_fit_cache(self, tasks: Sequence[LinkTask]) -> bool:
        """Check whether the graphs of all these tasks fit the cache at once."""
        untils = [until for until, _ in {task.as_of for task in tasks}]
        return sum(self._max_size(until) for until in untils) <= MAX_CACHED_GRAPHS

    def _max_size(self, until: int) -> int:
        history = self.graph.history
        window = history.snapshots[:until][-(self.graph.config.history_window or until) :]
        return history.snapshots[until - 1].num_nodes + sum(len(snapshot.source_E) for snapshot in window)

    def _has_links(self, task: LinkTask, held_out: bool) -> bool:
        """Check whether the task has positive pairs to train on (or held-out ones)."""
        return len(self._positive_edges((task, held_out))) > 0

    def _make_as_of_graph(self, as_of: tuple[int, int | None]) -> AsOfGraph:
        until, hidden_step = as_of
        return as_of_graph(self.graph, until=until, hidden_step=hidden_step, is_brief=True)

    def _max_targets(self, graph: AsOfGraph) -> int:
        return max(2, min(self.sizes.num_targets, int(graph.known_N.sum()) // 2))

    def _step_edges(self, task: LinkTask) -> Pairs:
        snapshot = self.graph.history.snapshots[task.step - 1]
        return snapshot.source_E, snapshot.target_E

    def _positives(self, task: LinkTask, held_out: bool) -> Pairs:
        source_E, target_E = self._step_edges(task)
        edge_P = self._positive_edges((task, held_out))
        return source_E[edge_P], target_E[edge_P]

    def _find_positive_edges(self, key: tuple[LinkTask, bool]) -> NDArray[np.int64]:
        """Give the numbers of the edges of the step to predict: those to train on, or those held out.

        Both ends of an edge are known nodes.

        A node whose first edge lies in the hidden step is not known. Only such nodes have no visible edge, so their
        link would be certain and not predicted.
        """
        task, held_out = key
        source_E, target_E = self._step_edges(task)
        is_drawn_E = self._is_held_out(task.step) == held_out
        known_N = self._known(task)
        return np.flatnonzero(is_drawn_E & known_N[source_E] & known_N[target_E])

    def _known(self, task: LinkTask) -> NDArray[np.bool_]:
        """Mark the nodes with a visible edge: a node of the hidden step needs an edge in another step too."""
        first_step_N, second_step_N = self.graph.activity.first_step_N, self.graph.activity.second_step_N
        known_N = first_step_N <= task.until
        return known_N & ((first_step_N != task.step) | (second_step_N <= task.until)) if task.hidden else known_N


def labelled(*node_P: NDArray[np.int64]) -> LabelledPairs:
    """Give the first and second nodes of positive and then of negative pairs as tensors."""
    return LabelledPairs(
        **{field.name: torch.from_numpy(nodes) for field, nodes in zip(fields(LabelledPairs), node_P, strict=True)}
    )


def distinct_nodes(subgraphs: Sequence[SubgraphBatch], history: LabelledPairs | None) -> Tensor:
    """Give all nodes of subgraphs and of pairs, sorted and each once.

    Marked instead of sorted: the 45,000 ends of a batch on 5,000 nodes take 0.2 ms instead of 1.7, 5,000 ends on a
    million nodes 0.17 ms instead of 0.47.
    """
    nodes = [node_B for subgraph in subgraphs for node_B in (subgraph.target_G, subgraph.context_C)]
    nodes += [] if history is None else [getattr(history, field.name) for field in fields(LabelledPairs)]
    node_B = torch.cat(nodes).numpy()
    has_N = np.zeros(node_B.max(initial=-1) + 1, dtype=np.bool_)
    has_N[node_B] = True
    return torch.from_numpy(np.flatnonzero(has_N))


def _graph_size(graph: AsOfGraph) -> int:
    return graph.union.num_nodes + graph.union.num_edges


def draw_positives(positives: Pairs, max_ends: int, sizes: PairSizes, generator: np.random.Generator) -> Pairs:
    """Draw up to `num_positives` different pairs, whose ends are at most `max_ends` nodes."""
    num_pairs = len(positives[0])
    order_P = generator.choice(num_pairs, size=min(sizes.num_positives, num_pairs), replace=False)
    end_2P = np.stack([positives[0][order_P], positives[1][order_P]], axis=1).ravel()
    is_new_2P = np.zeros(len(end_2P), dtype=np.int64)
    is_new_2P[np.unique(end_2P, return_index=True)[1]] = 1
    num_ends_P = is_new_2P.cumsum()[1::2]
    drawn_P = order_P[(num_ends_P <= max_ends) | (np.arange(len(order_P)) == 0)]
    return positives[0][drawn_P], positives[1][drawn_P]


def draw_pool(graph: AsOfGraph, num: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw known nodes, all equally likely; negative pairs are drawn among them, as in the paper's protocol."""
    known_K = np.flatnonzero(graph.known_N)
    return np.sort(generator.choice(known_K, size=min(max(2, num), len(known_K)), replace=False))


def draw_negatives(pool_G: NDArray[np.int64], edges: Pairs, num: int, generator: np.random.Generator) -> Pairs:
    """Draw up to `num` distinct pairs of nodes of the pool that are not among `edges`, which are sorted."""
    positives = edges_inside(pool_G, edges)
    num_negatives = len(pool_G) * (len(pool_G) - 1) // 2 - len(positives[0])
    first_M, second_M = sample_negatives(len(pool_G), positives, min(num, num_negatives), generator)
    return pool_G[first_M], pool_G[second_M]


def hard_negatives(
    positives: Pairs, edges: Pairs, side_N: NDArray[np.int8], num: int, generator: np.random.Generator
) -> Pairs:
    """Draw `num` pairs of ends of different positive pairs, with repeats; drop those among the sorted `edges`."""
    first_M, second_M = crossed(positives, side_N, num, generator)
    num_nodes = len(side_N)  # edges may have nodes that are not known yet
    is_edge_M = is_among(pair_keys(num_nodes, first_M, second_M), pair_keys(num_nodes, *edges))
    is_negative_M = (first_M != second_M) & ~is_edge_M
    return first_M[is_negative_M], second_M[is_negative_M]


def edges_inside(pool_G: NDArray[np.int64], edges: Pairs) -> Pairs:
    """Give the edges between nodes of a sorted pool, as positions in it; only these nodes' edges are read."""
    source_E, target_E = edges
    start_G, end_G = (np.searchsorted(source_E, pool_G, side) for side in ("left", "right"))
    num_G = end_G - start_G
    source_A = np.repeat(np.arange(len(pool_G)), num_G)
    node_B = target_E[np.arange(len(source_A)) + np.repeat(end_G - np.cumsum(num_G), num_G)]
    target_A = np.searchsorted(pool_G, node_B)
    is_inside_A = pool_G[np.minimum(target_A, len(pool_G) - 1)] == node_B
    return source_A[is_inside_A], target_A[is_inside_A]
