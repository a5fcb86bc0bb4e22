"""A log of events -> training, validation and test, and queries as of the events that are visible to each.

E events    Q queries    N negatives of a query    C candidates
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.logs.time_windows import WindowError, fixed_duration
from dyformer.scoring.event_ranks import ChosenTargets, chosen_targets, with_targets
from dyformer.streams.event_log import EventLog, EventQueries

QUANTILES = (0.70, 0.85)
Split = Literal["validation", "test"]
SPLITS: tuple[Split, ...] = ("validation", "test")
MAX_TARGETS = 2_000  # up to so many, all targets are candidates
NUM_NEGATIVES = 1_000  # of an event otherwise, as in tgbl-uci
HISTORICAL_FRACTION = 0.5
NEGATIVE_SEED = 42
MAX_CANDIDATES = 1 << 24  # sampled ones of the queries that are made at once

Negatives = Mapping[Split, NDArray[np.int32]]
"""Sampled negatives `[Q, N]` of the queries of each split; -1 where an event has fewer."""


class TooFewEvents(InvalidInput):
    """A log whose events or times are too few for three splits."""


@dataclass(frozen=True)
class Visibility:
    """Which events a ranker may read for an event at time t: `strict`, `batch:200` or `window:1h`.

    strict: all events before t. batch:N: the events before the event's batch of N consecutive ones of its split, as in
    the loader of TGB 2.3.0, and of these only the events before t. window:D: the events before t's window of length D,
    which is a duration of the log (`1h`), or a number of steps where it has its own.
    """

    kind: Literal["strict", "batch", "window"] = "strict"
    size: str = ""

    @classmethod
    def parse(cls, text: str) -> "Visibility":
        """Read the text that `str(visibility)` writes. Raises ValueError."""
        kind, _, size = text.partition(":")
        is_number = size.isascii() and size.isdecimal() and int(size) > 0
        if (kind, size) == ("strict", "") and ":" not in text:
            return cls()
        if kind == "batch" and is_number:
            return cls("batch", size)
        if kind == "window" and size:
            return cls("window", size)
        raise InvalidInput(
            f"{text!r} is no visibility: write strict (all events before each one), batch:200 (those before its batch)"
            " or window:1h (those before its hour)"
        )

    def __str__(self) -> str:
        return f"{self.kind}:{self.size}" if self.size else self.kind


@dataclass(frozen=True, kw_only=True)
class EventSplits:
    """Numbers of the first events of validation and test; the log's first events are those of training."""

    first_validation: int
    first_test: int
    num_events: int

    def events(self, split: Split) -> slice:
        """Give the numbers of a split's events."""
        if split == "validation":
            return slice(self.first_validation, self.first_test)
        return slice(self.first_test, self.num_events)


def split_events(log: EventLog) -> EventSplits:
    """Split a log at the quantiles .70 and .85 of its times: training up to the first, validation up to the second.

    Events of one time are in one split. Raises TooFewEvents where a split would be empty.
    """
    if len(log) == 0:
        raise TooFewEvents("the log has no events: expected at least three, at different times")
    first_validation, first_test = np.searchsorted(log.time_E, np.quantile(log.time_E, QUANTILES), side="right")
    splits = EventSplits(first_validation=int(first_validation), first_test=int(first_test), num_events=len(log))
    sizes = [splits.first_validation, *(part.stop - part.start for part in map(splits.events, SPLITS))]
    if min(sizes) == 0:
        raise TooFewEvents(
            f"split by time, the log has {sizes[0]} training, {sizes[1]} validation and {sizes[2]} test events: "
            "expected some in each; give a log with more different times, or choose another protocol"
        )
    return splits


def rankable_events(log: EventLog, splits: EventSplits, split: Split) -> NDArray[np.int64]:
    """Number the events of a split that can be ranked.

    In a log with one side, a source never ranks itself: an event of a source with itself is not ranked.
    """
    part = splits.events(split)
    event_Q = np.arange(part.start, part.stop)
    return event_Q if log.two_sides else event_Q[log.source_E[part] != log.target_E[part]]


def num_visible(log: EventLog, splits: EventSplits, visibility: Visibility) -> NDArray[np.int64]:
    """Count for each event the log's earliest events that are visible to it, [E]: never one of its time or later.

    Raises ValueError for a window that does not fit the log's times.
    """
    before_E = np.searchsorted(log.time_E, log.time_E, side="left")
    if visibility.kind == "batch":
        size, event_E = int(visibility.size), np.arange(len(log))
        first_E = np.zeros(len(log), dtype=np.int64)
        for split in SPLITS:
            first_E[splits.events(split)] = splits.events(split).start
        return np.minimum(first_E + (event_E - first_E) // size * size, before_E)
    if visibility.kind == "window":
        width = _width(log, visibility)
        return np.searchsorted(log.time_E, log.time_E // width * width, side="left")
    return before_E


def _width(log: EventLog, visibility: Visibility) -> int:
    has_steps = log.seconds == 1
    try:
        width = fixed_duration(visibility.size, "step" if has_steps else "us")
    except WindowError as error:
        raise InvalidInput(f"{visibility}: {error}") from error
    width = width if has_steps else round(width * 1e-6 / log.seconds)
    if width < 1:
        raise InvalidInput(f"{visibility}: a window must be at least one unit of the log's times long")
    return width


@dataclass(frozen=True, kw_only=True, eq=False)
class EventTrial:
    """A log whose validation and test events are ranked by methods, with what is visible and the candidates."""

    log: EventLog
    splits: EventSplits
    visibility: Visibility
    negatives: Negatives | None = None  # None: all targets are candidates

    @property
    def candidates(self) -> str:
        """Describe the candidates: "all 1000" or "sampled 1000"."""
        if self.negatives is None:
            return f"all {self.log.num_targets}"
        return f"sampled {self.negatives['test'].shape[1]}"

    @cached_property
    def num_visible_E(self) -> NDArray[np.int64]:
        """Number of the log's earliest events that are visible to each event."""
        return num_visible(self.log, self.splits, self.visibility)

    def queries(self, event_Q: NDArray[np.int64], candidate_QC: NDArray[np.int64] | None = None) -> EventQueries:
        """Give the queries about events; without candidates, every target is one."""
        return EventQueries(
            source_Q=self.log.source_E[event_Q],
            time_Q=self.log.time_E[event_Q],
            num_visible_Q=self.num_visible_E[event_Q],
            candidate_QC=candidate_QC,
        )

    def chosen(self, event_Q: NDArray[np.int64]) -> ChosenTargets:
        """Give the targets that events chose."""
        return chosen_targets(self.log.source_E[event_Q], self.log.time_E[event_Q], self.log.target_E[event_Q])

    def ranked(self, split: Split) -> Iterator[NDArray[np.int64]]:
        """Number the events of a split that are ranked, in parts whose candidates fit into memory."""
        event_Q = rankable_events(self.log, self.splits, split)
        size = len(event_Q)
        if self.negatives is not None:
            size = max(1, MAX_CANDIDATES // (self.negatives[split].shape[1] + 1))
        return (event_Q[first : first + size] for first in range(0, len(event_Q), max(size, 1)))

    def ranked_queries(self, split: Split, event_Q: NDArray[np.int64]) -> EventQueries:
        """Give the queries about ranked events of a split, with their candidates."""
        if self.negatives is None:
            return self.queries(event_Q)
        negative_QN = self.negatives[split][event_Q - self.splits.events(split).start]
        return self.queries(event_Q, with_targets(negative_QN, self.log.target_E[event_Q]))

    @property
    def fitting(self) -> tuple[EventLog, EventQueries, EventQueries]:
        """Give what a method is fitted on: the log up to the last validation event, and the queries of both parts."""
        until_test = replace(self, log=self.log.head(self.splits.first_test))
        return (
            until_test.log,
            until_test.queries(np.arange(self.splits.first_validation)),
            until_test.queries(np.arange(self.splits.first_validation, self.splits.first_test)),
        )


def samples_negatives(log: EventLog) -> bool:
    """Whether a log has too many targets for all of them to be candidates."""
    return log.num_targets > MAX_TARGETS


def sampled_negatives(
    log: EventLog, splits: EventSplits, *, num_negatives: int = NUM_NEGATIVES, seed: int = NEGATIVE_SEED
) -> Negatives:
    """Draw the negatives of every validation and test event by the rule of TGB 2.3.0, "hist_rnd".

    Half are past partners of the source in training, or as many as there are, the rest are other targets. Targets that
    the source chooses at the same time in the same split are none of them. Events of one pair at one time have the
    negatives that were drawn last. The numbers are those of TGB's generator with the same seed and numbers of nodes.
    """
    # TGB's generator is NumPy's old one, whose draws `default_rng` does not repeat.
    generator = np.random.RandomState(seed)
    partners = _partners(log.head(splits.first_validation))
    return {split: _split_negatives(log, splits.events(split), partners, num_negatives, generator) for split in SPLITS}


def _partners(log: EventLog) -> dict[int, NDArray[np.int64]]:
    pair_P = np.unique(log.source_E * log.num_targets + log.target_E)
    source_P, target_P = np.divmod(pair_P, log.num_targets)
    sources, first_S = np.unique(source_P, return_index=True)
    return dict(zip(sources.tolist(), np.split(target_P, first_S[1:]), strict=True))


def _split_negatives(
    log: EventLog,
    part: slice,
    partners: Mapping[int, NDArray[np.int64]],
    num_negatives: int,
    generator: np.random.RandomState,
) -> NDArray[np.int32]:
    source_Q, target_Q = log.source_E[part], log.target_E[part]
    chosen, nobody = chosen_targets(source_Q, log.time_E[part], target_Q), np.empty(0, dtype=np.int64)
    negative_QN = np.full((len(source_Q), num_negatives), -1, dtype=np.int32)
    newest: dict[tuple[int, int], int] = {}  # the last event of each pair and time
    for row, (source, key) in enumerate(zip(source_Q.tolist(), chosen.keys, strict=True)):
        same_time = target_Q[chosen.order_Q[chosen.first_G1[key[0]] : chosen.first_G1[key[0] + 1]]]
        drawn = _drawn(partners.get(source, nobody), same_time, log.num_targets, num_negatives, generator)
        negative_QN[row, : len(drawn)] = drawn
        newest[key] = row
    return negative_QN[np.array([newest[key] for key in chosen.keys], dtype=np.int64)]


def _drawn(
    past: NDArray[np.int64],
    same_time: NDArray[np.int64],
    num_targets: int,
    num_negatives: int,
    generator: np.random.RandomState,
) -> NDArray[np.int64]:
    """Draw the negatives of one event: at first past partners, then targets that are none."""
    is_free_T = np.ones(num_targets, dtype=np.bool_)
    is_free_T[same_time] = False
    historical = past[is_free_T[past]]
    num_historical = min(int(num_negatives * HISTORICAL_FRACTION), len(historical))
    historical = generator.choice(historical, num_historical, replace=False)
    is_free_T[past] = False
    others = np.flatnonzero(is_free_T)
    if num_negatives - num_historical <= len(others):
        others = generator.choice(others, num_negatives - num_historical, replace=False)
    return np.concatenate([historical, others])
