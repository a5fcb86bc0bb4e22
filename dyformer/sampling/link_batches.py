"""PreparedGraph -> batches of linked and unlinked pairs to train on.

P linked pairs    M unlinked pairs    G target nodes    E edges of one step    N nodes    K known nodes
A edges with an end in a pool
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.sampling.cache import Kept
from dyformer.sampling.history_links import HistoryLinks, history_links
from dyformer.sampling.pairs import Pairs, sample_negatives
from dyformer.sampling.subgraphs import (
    AsOfGraph,
    SubgraphBatch,
    as_of_graph,
    make_batch,
    make_two_views,
    with_each_tensor,
)

KEPT_VIEWS = 16_000_000  # edges and nodes of the views that are kept, about 100 bytes each
KEPT_LINKS = 32_000_000  # linked pairs of the tasks that are kept, 8 bytes each


@dataclass(frozen=True, kw_only=True)
class LinkTask:
    """Tell the links of `step` from the graph as of `until`; a step of that history is hidden from it, or is not."""

    until: int
    step: int
    hidden: bool

    @property
    def lag(self) -> int:
        """Lag of the step asked, of a reconstruction."""
        return self.until - self.step

    @property
    def view(self) -> tuple[int, int | None]:
        """Last step of the view that is asked, and the step hidden from it."""
        return self.until, self.step if self.hidden else None


@dataclass(frozen=True, kw_only=True)
class PairSizes:
    """How much one batch holds."""

    num_positives: int
    num_negatives: int  # unlinked pairs per linked pair
    num_targets: int  # at most half of the nodes, whatever is asked for: targets are nobody's context
    num_context: int
    num_history_links: int = 0  # links of any step, to learn the nodes' id embeddings from
    half_life: float = 4.0  # such a link is drawn half as often as one so many steps newer


@dataclass(frozen=True, kw_only=True)
class LabelledPairs:
    """Linked and unlinked pairs, int64."""

    positive_first_P: Tensor
    positive_second_P: Tensor
    negative_first_M: Tensor
    negative_second_M: Tensor


@dataclass(frozen=True, kw_only=True)
class PairBatch:
    """A subgraph, pairs of positions among its targets, and pairs of nodes that the history linked or did not."""

    task: LinkTask
    subgraph: SubgraphBatch
    second_view: SubgraphBatch | None
    pairs: LabelledPairs
    history: LabelledPairs | None

    def to(self, device: torch.device) -> "PairBatch":
        """Copy to a device; from pinned memory the copy goes on while the caller does."""
        return with_each_tensor(self, lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> "PairBatch":
        """Copy to memory from which a GPU reads without waiting."""
        return with_each_tensor(self, Tensor.pin_memory)


def forecast_tasks(until: int) -> list[LinkTask]:
    """Every forecast that the history up to `until` can check: step t + 1 from steps 1 .. t (paper, section 4.2)."""
    return [LinkTask(until=step - 1, step=step, hidden=False) for step in range(2, until + 1)]


def reconstruction_tasks(until: int, num_lags: int, *, hidden: bool) -> list[LinkTask]:
    """Every step of every prefix, within the lags that the model can tell apart (paper, section 4.1)."""
    return [
        LinkTask(until=prefix, step=step, hidden=hidden)
        for prefix in range(2, until + 1)
        for step in range(max(1, prefix - num_lags + 1), prefix + 1)
    ]


class PairSource:
    """Draws batches for tasks of one graph. A share of each step's edges is never drawn for training: `held_out`.

    Any number of threads may draw at once.
    """

    def __init__(self, graph: PreparedGraph, sizes: PairSizes, *, validation_fraction: float, seed: int) -> None:
        self.graph, self.sizes, self.validation_fraction, self.seed = graph, sizes, validation_fraction, seed
        self._history = self._history_links() if sizes.num_history_links else None
        self._views = Kept(self._view, size=_view_size, most=KEPT_VIEWS)
        self._links = Kept(self._linked_places, size=len, most=KEPT_LINKS)
        self.has_links = cache(self._has_links)

    def batches(
        self, tasks: Sequence[LinkTask], generator: np.random.Generator, *, held_out: bool, two_views: bool
    ) -> Iterator[PairBatch]:
        """One batch for each task, each with random numbers of its own."""
        for task, own in zip(tasks, generator.spawn(len(tasks)), strict=True):
            yield self.batch(task, own, held_out=held_out, two_views=two_views)

    def batch(self, task: LinkTask, generator: np.random.Generator, *, held_out: bool, two_views: bool) -> PairBatch:
        """Draw the batch of a task."""
        view = self._views(task.view)
        most_ends = self._most_targets(view) // 2
        linked = draw_positives(self._linked(task, held_out), most_ends, self.sizes, generator)
        pool_G = draw_pool(view, most_ends, generator)
        unlinked = draw_negatives(pool_G, self._step_edges(task), self.sizes.num_negatives * len(linked[0]), generator)
        target_G = np.unique(np.concatenate([*linked, pool_G]))
        first, second = self._subgraphs(view, target_G, generator if two_views else None)
        return PairBatch(
            task=task,
            subgraph=first,
            second_view=second,
            pairs=labelled(*(np.searchsorted(target_G, node_P) for node_P in (*linked, *unlinked))),
            history=None if held_out else self._history_pairs(generator),
        )

    def _subgraphs(
        self, view: AsOfGraph, target_G: NDArray[np.int64], generator: np.random.Generator | None
    ) -> tuple[SubgraphBatch, SubgraphBatch | None]:
        if generator is None:
            return make_batch(view, target_G, num_context=self.sizes.num_context), None
        return make_two_views(view, target_G, num_context=self.sizes.num_context, generator=generator)

    def _history_pairs(self, generator: np.random.Generator) -> LabelledPairs | None:
        if self._history is None or not len(self._history.source_L):
            return None
        num = self.sizes.num_history_links
        linked = self._history.draw_positives(num, generator)
        return labelled(*linked, *self._history.draw_negatives(num * self.sizes.num_negatives, generator))

    def _history_links(self) -> HistoryLinks:
        """Links to train on of the steps that a model of this graph can tell apart."""
        snapshots = self.graph.history.snapshots[self.graph.union.first_step - 1 :]
        left_out = [self._is_held_out(snapshot.step) for snapshot in snapshots]
        return history_links(snapshots, left_out, half_life=self.sizes.half_life)

    def _is_held_out(self, step: int) -> NDArray[np.bool_]:
        """Say which edges of a step are never trained on."""
        num_edges = len(self.graph.history.snapshots[step - 1].source_E)
        return np.random.default_rng([self.seed, step]).random(num_edges) < self.validation_fraction

    def keeps_views(self, tasks: Sequence[LinkTask]) -> bool:
        """Say whether the views of all these tasks are kept at once."""
        untils = [until for until, _ in {task.view for task in tasks}]
        return sum(self._most_size(until) for until in untils) <= KEPT_VIEWS

    def _most_size(self, until: int) -> int:
        history = self.graph.history
        seen = history.snapshots[:until][-(self.graph.config.history_window or until) :]
        return history.snapshots[until - 1].num_nodes + sum(len(snapshot.source_E) for snapshot in seen)

    def _has_links(self, task: LinkTask, held_out: bool) -> bool:
        """Say whether the asked step has edges to train on (or held out) among nodes that the view knows."""
        return len(self._links((task, held_out))) > 0

    def _view(self, asked: tuple[int, int | None]) -> AsOfGraph:
        until, hidden_step = asked
        return as_of_graph(self.graph, until=until, hidden_step=hidden_step)

    def _most_targets(self, view: AsOfGraph) -> int:
        return max(2, min(self.sizes.num_targets, int(view.known_N.sum()) // 2))

    def _step_edges(self, task: LinkTask) -> Pairs:
        snapshot = self.graph.history.snapshots[task.step - 1]
        return snapshot.source_E, snapshot.target_E

    def _linked(self, task: LinkTask, held_out: bool) -> Pairs:
        source_E, target_E = self._step_edges(task)
        place_P = self._links((task, held_out))
        return source_E[place_P], target_E[place_P]

    def _linked_places(self, asked: tuple[LinkTask, bool]) -> NDArray[np.int64]:
        """Places, in the asked step, of its edges to train on (or held out) between nodes that the view knows.

        A node whose first edge lies in the hidden step is left out: only such nodes would be without any edge, and a
        link of theirs no forecast but a certainty.
        """
        task, held_out = asked
        source_E, target_E = self._step_edges(task)
        is_asked_E = self._is_held_out(task.step) == held_out
        known_N = self._known(task)
        return np.flatnonzero(is_asked_E & known_N[source_E] & known_N[target_E])

    def _known(self, task: LinkTask) -> NDArray[np.bool_]:
        """Nodes with an edge in a step of the view: in the hidden one and an earlier or later one too."""
        first_step_N, second_step_N = self.graph.activity.first_step_N, self.graph.activity.second_step_N
        is_seen_N = first_step_N <= task.until
        return is_seen_N & ((first_step_N != task.step) | (second_step_N <= task.until)) if task.hidden else is_seen_N


def labelled(*node_P: NDArray[np.int64]) -> LabelledPairs:
    """Give four lists, of linked first and second and unlinked first and second nodes, to a model."""
    return LabelledPairs(
        **{field.name: torch.from_numpy(nodes) for field, nodes in zip(fields(LabelledPairs), node_P, strict=True)}
    )


def _view_size(view: AsOfGraph) -> int:
    return view.union.num_nodes + view.union.num_edges


def draw_positives(linked: Pairs, most_ends: int, sizes: PairSizes, generator: np.random.Generator) -> Pairs:
    """Draw `num_positives` different pairs; fewer, where their ends would be more than `most_ends` nodes."""
    num_pairs = len(linked[0])
    order_P = generator.choice(num_pairs, size=min(sizes.num_positives, num_pairs), replace=False)
    end_2P = np.stack([linked[0][order_P], linked[1][order_P]], axis=1).ravel()
    is_new_2P = np.zeros(len(end_2P), dtype=np.int64)
    is_new_2P[np.unique(end_2P, return_index=True)[1]] = 1
    num_ends_P = is_new_2P.cumsum()[1::2]
    kept_P = order_P[(num_ends_P <= most_ends) | (np.arange(len(order_P)) == 0)]
    return linked[0][kept_P], linked[1][kept_P]


def draw_pool(view: AsOfGraph, num: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw known nodes, all equally likely: unlinked pairs are drawn among them, as the paper's protocol does."""
    known_K = np.flatnonzero(view.known_N)
    return np.sort(generator.choice(known_K, size=min(max(2, num), len(known_K)), replace=False))


def draw_negatives(pool_G: NDArray[np.int64], edges: Pairs, num: int, generator: np.random.Generator) -> Pairs:
    """Draw up to `num` distinct pairs of nodes of the pool without an edge among `edges`, which are sorted."""
    linked = edges_inside(pool_G, edges)
    num_negatives = len(pool_G) * (len(pool_G) - 1) // 2 - len(linked[0])
    first_M, second_M = sample_negatives(len(pool_G), linked, min(num, num_negatives), generator)
    return pool_G[first_M], pool_G[second_M]


def edges_inside(pool_G: NDArray[np.int64], edges: Pairs) -> Pairs:
    """Give the edges between nodes of a sorted pool, as positions in it: of sorted edges only these nodes' are read."""
    source_E, target_E = edges
    start_G, end_G = (np.searchsorted(source_E, pool_G, side) for side in ("left", "right"))
    num_G = end_G - start_G
    source_A = np.repeat(np.arange(len(pool_G)), num_G)
    node_A = target_E[np.arange(len(source_A)) + np.repeat(end_G - np.cumsum(num_G), num_G)]
    target_A = np.searchsorted(pool_G, node_A)
    is_inside_A = pool_G[np.minimum(target_A, len(pool_G) - 1)] == node_A
    return source_A[is_inside_A], target_A[is_inside_A]
