"""Snapshots -> links of the whole history, newer ones drawn more often, to train the nodes' id embeddings on.

L links of all steps    K pairs with an edge in some step    P positive pairs    M negative pairs
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dyformer.graphs.snapshots import Snapshot
from dyformer.sampling.pairs import Pairs, crossed, is_among, pair_keys, past_pair_keys


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
