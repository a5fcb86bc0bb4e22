"""A log and queries -> a weighted sum of pair memory, popularity and moves, with weights chosen on validation.

Q queries, n of a block    C candidates    K parts of the sum
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from pydantic import PositiveFloat
from pydantic.dataclasses import dataclass

from dyformer.graphs.config import STRICT
from dyformer.scoring.event_ranks import chosen_targets, event_ranks, mean_reciprocal_rank
from dyformer.scoring.interfaces import RankEvents
from dyformer.streams.event_log import EventLog, EventQueries
from dyformer.streams.visible_counts import decayed_popularity, last_contacts, move_fractions, query_blocks

WEIGHTS = (0.0, 0.0001, 0.001, 0.01, 0.1, 1.0)  # of popularity and co-occurrence, beside 1 for the memory
NUM_CHOICE = 2_000  # validation queries by which weights are chosen
MAX_CHOICE_CELLS = 1 << 22  # their scores of one part
HOUR = 3_600.0


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EventMixture:
    """An interpolation in the manner of Base3 (Kondrup, 2025): memory of pairs, popularity, co-occurrence.

    The memory of a past partner is 1 / (1 + hours since its newest event with the source), the popularity is decayed
    and divided by the greatest one among the candidates, and co-occurrence is the fraction of the moves from the
    source's last partner. With `both_ways` the memory is of the newest event of either direction, where each end may be
    a source, as in messages, which get replies.
    """

    half_life: PositiveFloat = 24 * HOUR  # of popularity, in seconds
    both_ways: bool = False

    def fit_events(self, log: EventLog, training: EventQueries, validation: EventQueries, *, seed: int) -> RankEvents:
        """Choose the weights with the best MRR on at most 2,000 validation queries, evenly spread.

        In a log with one side, events of a source with itself are none of them, because no source ranks itself.
        """
        target_Q = log.target_E[len(training) :]
        row_Q = np.arange(len(validation)) if log.two_sides else np.flatnonzero(validation.source_Q != target_Q)
        most = min(NUM_CHOICE, MAX_CHOICE_CELLS // max(log.num_targets, 1))
        row_Q = row_Q[:: max(1, -(-len(row_Q) // max(most, 1)))]
        names = ("source_Q", "time_Q", "num_visible_Q")
        queries = EventQueries(**{name: getattr(validation, name)[row_Q] for name in names})
        chosen = chosen_targets(queries.source_Q, queries.time_Q, target_Q[row_Q])
        blocks = list(self.parts(log, queries))

        def value(weight_K: NDArray[np.float64]) -> float:
            return mean_reciprocal_rank(event_ranks((block @ weight_K for block in blocks), log, queries, chosen))

        best_K = max(all_weights(), key=value)
        return lambda log, queries: (block @ best_K for block in self.parts(log, queries))

    def parts(self, log: EventLog, queries: EventQueries) -> Iterator[NDArray[np.float64]]:
        """Give memory, popularity and co-occurrence, each from 0 to 1, per block [n, C, K]."""
        events = last_contacts(log, queries, both_ways=self.both_ways)
        parts = events, decayed_popularity(log, queries, self.half_life), move_fractions(log, queries)
        for block, event_nC, popularity_nC, fraction_nC in zip(query_blocks(log, queries), *parts, strict=True):
            age_nC = (queries.time_Q[block][:, None] - log.time_E[np.maximum(event_nC, 0)]) * log.seconds
            memory_nC = np.where(event_nC >= 0, 1 / (1 + age_nC / HOUR), 0)
            most_n1 = popularity_nC.max(axis=1, keepdims=True, initial=0)
            fame_nC = np.divide(popularity_nC, most_n1, out=np.zeros_like(popularity_nC), where=most_n1 > 0)
            yield np.stack([memory_nC, fame_nC, fraction_nC], axis=-1)


def all_weights() -> Iterator[NDArray[np.float64]]:
    """Give all weights [K] that are tried; the memory's is 1."""
    return (np.array([1.0, second, third]) for second in WEIGHTS for third in WEIGHTS)
