"""All links of a history, newer ones more often, to learn the nodes' id embeddings from.

L links of all steps    K pairs linked at some step    P linked pairs drawn    M unlinked pairs drawn
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dyformer.graphs.snapshots import Snapshot
from dyformer.sampling.pairs import Pairs, is_among, pair_keys, past_pair_keys


@dataclass(frozen=True, kw_only=True)
class HistoryLinks:
    """Links of several steps: a pair counts once for each step that links it."""

    num_nodes: int
    source_L: NDArray[np.int32]
    target_L: NDArray[np.int32]
    share_L: NDArray[np.float64]  # of all draws those up to and with each link
    linked_key_K: NDArray[np.int64]  # pairs that are never drawn as unlinked: those of links left out, too

    def draw_positives(self, num: int, generator: np.random.Generator) -> Pairs:
        """Draw `num` links, each in proportion to its weight; a link may come twice."""
        place_P = np.searchsorted(self.share_L, generator.random(num), side="right")
        return self.source_L[place_P].astype(np.int64), self.target_L[place_P].astype(np.int64)

    def draw_negatives(self, num: int, generator: np.random.Generator) -> Pairs:
        """Draw `num` pairs of known nodes, all equally likely, and leave out those that some step links."""
        source_M, target_M = generator.integers(self.num_nodes, size=(2, num))
        is_positive_M = is_among(pair_keys(self.num_nodes, source_M, target_M), self.linked_key_K)
        kept_M = ~is_positive_M & (source_M != target_M)
        return source_M[kept_M], target_M[kept_M]


def history_links(
    snapshots: Sequence[Snapshot], left_out: Sequence[NDArray[np.bool_]], *, half_life: float
) -> HistoryLinks:
    """Collect the links of some steps, less those left out: one is half as likely as one `half_life` steps newer."""
    kept = [np.flatnonzero(~left_out_E) for left_out_E in left_out]
    age_L = np.repeat([snapshots[-1].step - snapshot.step for snapshot in snapshots], [len(places) for places in kept])
    weight_L = np.cumsum(0.5 ** (age_L / half_life))
    num_nodes = snapshots[-1].num_nodes
    return HistoryLinks(
        num_nodes=num_nodes,
        source_L=_ends([snapshot.source_E[places] for snapshot, places in zip(snapshots, kept, strict=True)]),
        target_L=_ends([snapshot.target_E[places] for snapshot, places in zip(snapshots, kept, strict=True)]),
        share_L=weight_L / weight_L[-1] if len(weight_L) else weight_L,
        linked_key_K=past_pair_keys(snapshots, num_nodes),
    )


def _ends(parts: list[NDArray[np.int64]]) -> NDArray[np.int32]:
    return np.concatenate(parts).astype(np.int32)
