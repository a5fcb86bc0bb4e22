"""PreparedGraph -> batches of linked and unlinked pairs to train on.

P linked pairs    M unlinked pairs    G target nodes    E edges of one step    N nodes
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dyformer.batches import GraphView, SubgraphBatch, graph_view, make_batch
from dyformer.links import Pairs, sample_unlinked
from dyformer.prepared_graph import PreparedGraph

MOST_VIEWS = 64  # as many views of the graph are kept; others are made again


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


@dataclass(frozen=True, kw_only=True)
class PairSizes:
    """How much one batch holds."""

    num_linked: int
    num_negatives: int  # unlinked pairs per linked pair
    num_targets: int  # at most half of the nodes, whatever is asked for: targets are nobody's context
    num_context: int


@dataclass(frozen=True, kw_only=True)
class PairBatch:
    """A subgraph and pairs of positions among its targets."""

    task: LinkTask
    subgraph: SubgraphBatch
    second_view: SubgraphBatch | None
    linked_first_P: Tensor
    linked_second_P: Tensor
    unlinked_first_M: Tensor
    unlinked_second_M: Tensor

    def to(self, device: torch.device) -> "PairBatch":
        """Copy to a device."""
        moved = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor | SubgraphBatch)
        }
        return PairBatch(**{**vars(self), **moved})


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
    """Draws batches for tasks of one graph. A share of each step's edges is never drawn for training: `held_out`."""

    def __init__(self, graph: PreparedGraph, sizes: PairSizes, *, validation_share: float, seed: int) -> None:
        self.graph, self.sizes, self.validation_share, self.seed = graph, sizes, validation_share, seed
        self.view: Callable[[int, int | None], GraphView] = lru_cache(MOST_VIEWS)(self._view)
        self.has_links = lru_cache(None)(self._has_links)

    def batches(
        self, tasks: Sequence[LinkTask], generator: np.random.Generator, *, held_out: bool, two_views: bool
    ) -> Iterator[PairBatch]:
        """One batch for each task."""
        for task in tasks:
            yield self._batch(task, generator, held_out=held_out, two_views=two_views)

    def _has_links(self, task: LinkTask, held_out: bool) -> bool:
        """Say whether the asked step has edges to train on (or held out) among nodes that the view knows."""
        known_N = np.zeros(self.graph.history.snapshots[-1].num_nodes, dtype=np.bool_)
        for snapshot in self.graph.history.snapshots[: task.until]:
            if snapshot.step != task.step or not task.hidden:
                known_N[snapshot.source_E] = True
                known_N[snapshot.target_E] = True
        source_E, target_E = self._part(task, held_out)
        return bool((known_N[source_E] & known_N[target_E]).any())

    def _view(self, until: int, hidden_step: int | None) -> GraphView:
        return graph_view(self.graph, until=until, hidden_step=hidden_step)

    def _batch(self, task: LinkTask, generator: np.random.Generator, *, held_out: bool, two_views: bool) -> PairBatch:
        view = self.view(task.until, task.step if task.hidden else None)
        linked = draw_linked(self._linked(task, view, held_out), self._most_targets(view) // 2, self.sizes, generator)
        pool_G = draw_pool(view, self._most_targets(view) // 2, generator)
        unlinked = draw_unlinked(pool_G, self._step_edges(task), self.sizes.num_negatives * len(linked[0]), generator)
        target_G = np.unique(np.concatenate([*linked, pool_G]))
        places = [torch.from_numpy(np.searchsorted(target_G, node_P)) for node_P in (*linked, *unlinked)]
        return PairBatch(
            task=task,
            subgraph=make_batch(view, target_G, num_context=self.sizes.num_context),
            second_view=make_batch(view, target_G, num_context=self.sizes.num_context, generator=generator)
            if two_views
            else None,
            linked_first_P=places[0],
            linked_second_P=places[1],
            unlinked_first_M=places[2],
            unlinked_second_M=places[3],
        )

    def _most_targets(self, view: GraphView) -> int:
        return max(2, min(self.sizes.num_targets, int(view.known_N.sum()) // 2))

    def _step_edges(self, task: LinkTask) -> Pairs:
        snapshot = self.graph.history.snapshots[task.step - 1]
        return snapshot.source_E, snapshot.target_E

    def _part(self, task: LinkTask, held_out: bool) -> Pairs:
        source_E, target_E = self._step_edges(task)
        draw_E = np.random.default_rng([self.seed, task.step]).random(len(source_E))
        chosen_E = (draw_E < self.validation_share) == held_out
        return source_E[chosen_E], target_E[chosen_E]

    def _linked(self, task: LinkTask, view: GraphView, held_out: bool) -> Pairs:
        """Edges of the asked step between nodes that the view knows.

        A node whose first edge lies in the hidden step is left out: only such nodes would be without any edge, and a
        link of theirs no forecast but a certainty.
        """
        known_N = np.zeros(self.graph.history.snapshots[-1].num_nodes, dtype=np.bool_)
        known_N[: len(view.known_N)] = view.known_N
        source_E, target_E = self._part(task, held_out)
        kept_E = known_N[source_E] & known_N[target_E]
        return source_E[kept_E], target_E[kept_E]


def draw_linked(linked: Pairs, most_ends: int, sizes: PairSizes, generator: np.random.Generator) -> Pairs:
    """Draw `num_linked` different pairs; fewer, where their ends would be more than `most_ends` nodes."""
    order_P = generator.permutation(len(linked[0]))[: sizes.num_linked]
    end_2P = np.stack([linked[0][order_P], linked[1][order_P]], axis=1).ravel()
    is_new_2P = np.zeros(len(end_2P), dtype=np.int64)
    is_new_2P[np.unique(end_2P, return_index=True)[1]] = 1
    num_ends_P = is_new_2P.cumsum()[1::2]
    kept_P = order_P[(num_ends_P <= most_ends) | (np.arange(len(order_P)) == 0)]
    return linked[0][kept_P], linked[1][kept_P]


def draw_pool(view: GraphView, num: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw known nodes, all equally likely: unlinked pairs are drawn among them, as the paper's protocol does."""
    known_K = np.flatnonzero(view.known_N)
    return np.sort(generator.choice(known_K, size=min(max(2, num), len(known_K)), replace=False))


def draw_unlinked(pool_G: NDArray[np.int64], edges: Pairs, num: int, generator: np.random.Generator) -> Pairs:
    """Draw up to `num` distinct pairs of nodes of the pool without an edge among `edges`."""
    inside_E = np.isin(edges[0], pool_G) & np.isin(edges[1], pool_G)
    source_E, target_E = np.searchsorted(pool_G, edges[0][inside_E]), np.searchsorted(pool_G, edges[1][inside_E])
    num_unlinked = len(pool_G) * (len(pool_G) - 1) // 2 - len(source_E)
    first_M, second_M = sample_unlinked(len(pool_G), (source_E, target_E), min(num, num_unlinked), generator)
    return pool_G[first_M], pool_G[second_M]
