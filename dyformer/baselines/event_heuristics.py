"""A log and queries -> scores of targets by one rule: recency, popularity or a memory of pairs, as of each query.

Q queries, n of a block    C candidates
"""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PositiveFloat
from pydantic.dataclasses import dataclass

from dyformer.graphs.config import STRICT
from dyformer.scoring.interfaces import RankEvents
from dyformer.streams.event_log import EventLog, EventQueries
from dyformer.streams.visible_counts import (
    decayed_popularity,
    last_contacts,
    move_fractions,
    query_blocks,
    shared_cosines,
)

HOUR, DAY = 3_600.0, 86_400.0  # seconds


@dataclass(frozen=True, kw_only=True)
class LastPartner:
    """Score 1 for the source's newest partner, and for all that it had at that same time, 0 for the others."""

    def fit_events(self, log: EventLog, training: EventQueries, validation: EventQueries, *, seed: int) -> RankEvents:
        """Nothing is fitted; arguments have no effect."""
        return last_partner_scores


def last_partner_scores(log: EventLog, queries: EventQueries) -> Iterator[NDArray[np.float64]]:
    """Give 1 for a source's newest visible partner, per block [n, C]; it may be none of the candidates."""
    newest_Q = _newest_times(log, queries)
    for block, time_nC in zip(query_blocks(log, queries), _contact_times(log, queries), strict=True):
        yield ((time_nC == newest_Q[block, None]) & (time_nC > -np.inf)).astype(np.float64)


def _newest_times(log: EventLog, queries: EventQueries) -> NDArray[np.float64]:
    """Give the time of the newest visible event of each query's source, [Q], or minus infinity."""
    size = len(log) + 1
    key_E1 = np.concatenate([[-1], np.sort(log.source_E * size + np.arange(len(log)))])
    newest_Q = key_E1[np.searchsorted(key_E1, queries.source_Q * size + queries.num_visible_Q) - 1]
    source_Q, event_Q = np.divmod(newest_Q, size)
    return np.where(source_Q == queries.source_Q, np.append(log.time_E, 0)[event_Q], -np.inf)


def _contact_times(log: EventLog, queries: EventQueries, *, both_ways: bool = False) -> Iterator[NDArray[np.float64]]:
    """Give the time of the newest visible event of source and candidate, per block [n, C], or minus infinity."""
    for event_nC in last_contacts(log, queries, both_ways=both_ways):
        yield np.where(event_nC >= 0, log.time_E[np.maximum(event_nC, 0)], -np.inf)


@dataclass(frozen=True, kw_only=True)
class PairRecency:
    """Rank a source's partners by the time of the newest event with each.

    Targets without such an event have one score, or with `fallback`, below all partners, that of
    `fallback_scores`. With `both_ways` an event counts for both of its ends where each may be a source, as in messages,
    which get replies.
    """

    fallback: bool = False
    both_ways: bool = False

    def fit_events(self, log: EventLog, training: EventQueries, validation: EventQueries, *, seed: int) -> RankEvents:
        """Nothing is fitted; arguments have no effect."""
        return partial(recency_with_fallback if self.fallback else _contact_times, both_ways=self.both_ways)


def recency_with_fallback(
    log: EventLog, queries: EventQueries, *, both_ways: bool = False
) -> Iterator[NDArray[np.float64]]:
    """Give the fraction of the log's past that had gone by at the newest contact, plus 1; else a fallback below 1."""
    times = _contact_times(log, queries, both_ways=both_ways)
    for block, time_nC, fallback_nC in zip(
        query_blocks(log, queries), times, fallback_scores(log, queries), strict=True
    ):
        first = log.time_E[0] if len(log) else 0
        length_n1 = (queries.time_Q[block] - first + 1)[:, None]
        # A new partner's score grows from 0 to 1, a past partner's is at least 1.
        yield np.where(time_nC > -np.inf, 1 + (time_nC - first) / length_n1, fallback_nC / (1 + fallback_nC))


def fallback_scores(log: EventLog, queries: EventQueries) -> Iterator[NDArray[np.float64]]:
    """Score targets for a source that had none of them, per block [n, C].

    20 x fraction of the moves from its last partner + 5 x cosine of the sources of target and last partner + 0.3 x the
    sum of log(1 + popularity) with half-lives of an hour and of a day.
    """
    parts = move_fractions(log, queries), shared_cosines(log, queries)
    popularities = decayed_popularity(log, queries, HOUR), decayed_popularity(log, queries, DAY)
    for fraction_nC, cosine_nC, hour_nC, day_nC in zip(*parts, *popularities, strict=True):
        yield 20 * fraction_nC + 5 * cosine_nC + 0.3 * (np.log1p(hour_nC) + np.log1p(day_nC))


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PairMemory:
    """EdgeBank (Poursafaei et al., 2022) as in TGB 2.3.0: score 1 for pairs in the memory, 0 for the others.

    An `unlimited` memory has all visible pairs. A `window` has those with an event in a time as long as 15 % of the
    time from the first to the last training event; it ends with the newest visible event.
    """

    memory: Literal["unlimited", "window"] = "unlimited"
    window_fraction: Annotated[float, Field(gt=0, le=1)] = 0.15

    def fit_events(self, log: EventLog, training: EventQueries, validation: EventQueries, *, seed: int) -> RankEvents:
        """Measure the time of training; validation has no effect."""
        if self.memory == "unlimited":
            return lambda log, queries: ((event_nC >= 0).astype(np.float64) for event_nC in last_contacts(log, queries))
        width = self.window_fraction * float(training.time_Q[-1] - training.time_Q[0]) if len(training) else 0.0
        return lambda log, queries: _pairs_within(log, queries, width)


def _pairs_within(log: EventLog, queries: EventQueries, width: float) -> Iterator[NDArray[np.float64]]:
    for block, time_nC in zip(query_blocks(log, queries), _contact_times(log, queries), strict=True):
        num_visible_n = queries.num_visible_Q[block]
        end_n = np.where(num_visible_n > 0, log.time_E[np.maximum(num_visible_n - 1, 0)], 0)
        yield (time_nC >= (end_n - width)[:, None]).astype(np.float64)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Popularity:
    """Score a target by its visible events, each worth 0.5^(age / half-life); the half-life is in seconds."""

    half_life: PositiveFloat = DAY

    def fit_events(self, log: EventLog, training: EventQueries, validation: EventQueries, *, seed: int) -> RankEvents:
        """Nothing is fitted; arguments have no effect."""
        return lambda log, queries: decayed_popularity(log, queries, self.half_life)
