"""Ids of nodes, the state of all events so far and the fitted heads -> a source's best targets as of a time.

K best targets    P targets    E events
"""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.scoring.event_forecaster import FittedEventForecaster
from dyformer.scoring.event_horizon import FittedHorizon
from dyformer.scoring.event_reasons import reasons
from dyformer.streams.event_log import EventLog
from dyformer.streams.event_state import INDEX, EventState, Rest
from dyformer.streams.kernels.tables import caught_up, larger_table, no_rest, table_of
from dyformer.streams.state_tables import TABLES

NUMBERED_AT_ONCE = 1_000  # events, about a millisecond
CONTACTS = [INDEX["contacts"], INDEX["replies"]]


@dataclass(frozen=True, kw_only=True)
class NamedEvents:
    """Events in order of time, with the user's ids as texts."""

    sources: Sequence[str]
    targets: Sequence[str]
    times: Sequence[int] | NDArray[np.int64]  # ascending, in units of the log
    weights: Sequence[float] | NDArray[np.float64]

    @classmethod
    def from_table(cls, events: pl.DataFrame) -> "NamedEvents":
        """Put source, target, time and weight of events in order of time; those of one time stay in their order."""
        ordered = events.sort("time", maintain_order=True)
        return cls(
            sources=ordered["source"].cast(pl.String).to_list(),
            targets=ordered["target"].cast(pl.String).to_list(),
            times=ordered["time"].to_physical().to_numpy(),
            weights=ordered["weight"].to_numpy(),
        )

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.times)

    def without_first(self, number: int) -> "NamedEvents":
        """Give the events but for the first ones."""
        return NamedEvents(**{name: values[number:] for name, values in vars(self).items()}) if number else self


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranking:
    """The best targets of a source as of a time, the best first."""

    source: str
    at: int
    num_events: int  # of the source before that time; 0: it is ranked as a source that has just come
    targets: list[str]
    probability_K: NDArray[np.float64]
    is_new_K: NDArray[np.bool_]  # whether the target is no partner of the source so far, as the state has it
    reasons: list[list[str]]  # none with `with_reasons=False`


@dataclass(frozen=True, kw_only=True, eq=False)
class PairScores:
    """Scores of pairs of one source, in the order of the targets."""

    at: int
    score_P: NDArray[np.float64]  # that of the batch evaluation: it ranks the targets of one source
    probability_P: NDArray[np.float64]  # NaN for a target that is none of the source's candidates
    num_contacts_P: NDArray[np.int64]  # events of source and target; in directed logs with one side of both directions


class PastPartner(NamedTuple):
    """A past partner of a source: its id, the number of their events, and the times of the first and the newest."""

    target: str
    num_events: int
    first: int
    latest: int


@dataclass(kw_only=True, eq=False)
class NodeIds:
    """The user's ids of sources and targets by their numbers; with one side both are the same lists."""

    sources: list[str]
    targets: list[str]
    source_numbers: dict[str, int] = field(init=False)
    target_numbers: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.source_numbers = {name: number for number, name in enumerate(self.sources)}
        self.target_numbers = self.source_numbers
        if self.targets is not self.sources:
            self.target_numbers = {name: number for number, name in enumerate(self.targets)}

    @property
    def two_sides(self) -> bool:
        """Whether sources and targets are different nodes."""
        return self.targets is not self.sources

    def in_other_capitals(self, source: str) -> str | None:
        """Give the source from which an unknown one differs in capitals only.

        The usual spellings alone are tried, because a search of all ids would hold up requests.
        """
        if source in self.source_numbers:
            return None
        spellings = (source.lower(), source.upper(), source.capitalize(), source.title())
        return next((spelling for spelling in spellings if spelling in self.source_numbers), None)

    def numbered(self, events: NamedEvents, rest: Rest = no_rest) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Give the numbers of the ends of events, and numbers to new nodes, source before target."""
        # One number after the other, because other threads wait while an array is made of a list.
        number_E2 = np.fromiter(self._numbers(events, rest), dtype=np.int64, count=2 * len(events)).reshape(-1, 2)
        source_E, target_E = number_E2.T
        return np.ascontiguousarray(source_E), np.ascontiguousarray(target_E)

    def _numbers(self, events: NamedEvents, rest: Rest) -> Iterator[int]:
        for event, (source, target) in enumerate(zip(events.sources, events.targets, strict=True)):
            yield _number(self.sources, self.source_numbers, source)
            yield _number(self.targets, self.target_numbers, target)
            if event % NUMBERED_AT_ONCE == NUMBERED_AT_ONCE - 1:
                rest()


def _number(names: list[str], numbers: dict[str, int], name: str) -> int:
    number = numbers.setdefault(name, len(names))
    if number == len(names):
        names.append(name)
    return number


def load_growth() -> None:
    """Compile what a growth of the tables calls, or read it from the disk: beside requests they would wait for it."""
    for kind in set(TABLES.values()):
        table = table_of(np.zeros(1, dtype=kind), np.empty(0, dtype=np.int32))
        caught_up(larger_table(table, 1), table)


class LiveRanking:
    """A forecaster that every event changes as soon as it is observed; several threads may use it.

    It ranks as of any time after the newest event, from the events before that time. Sources and targets are the
    user's ids as texts.
    """

    def __init__(self, fitted: FittedEventForecaster, state: EventState, ids: NodeIds) -> None:
        self.fitted = fitted
        self.ids = ids
        self._state = state
        self._lock = threading.Lock()  # a query reads what an event changes, and makes waiting events count
        self._num_sources = self._num_targets = 0  # that the state has room for
        self._make_room()

    @property
    def newest_time(self) -> int | None:
        """Time of the newest event; None before the first."""
        return self._state.newest_time

    @property
    def num_events(self) -> int:
        """Number of events observed so far."""
        return self._state.num_events

    @property
    def now(self) -> int:
        """The earliest time at which every event so far counts: one unit of time after the newest."""
        newest = self.newest_time
        return 0 if newest is None else newest + 1

    def copied(self) -> tuple[dict[str, NDArray], NodeIds]:
        """Give copies of the arrays of the state and of the ids, all as of one moment."""
        with self._lock:
            sources = list(self.ids.sources)
            ids = NodeIds(sources=sources, targets=list(self.ids.targets) if self.ids.two_sides else sources)
            return self._state.to_arrays(), ids

    def keep_vectors(self) -> None:
        """Let later events leave the vectors as they are: no event and no query then waits for a decomposition."""
        with self._lock:
            self._state.keep_vectors()

    def grow_ahead(self, rest: Rest = no_rest) -> None:
        """Make room for later events in a thread beside requests, which then need not wait for it; call it often.

        `rest` is called again and again meanwhile; it may wait, so that requests have the processor.
        """
        self._state.grow_ahead(self._lock, rest)

    def observe(self, events: NamedEvents, rest: Rest = no_rest) -> None:
        """Take events that follow those so far, of known nodes and new ones. Raises ValueError for older ones.

        `rest` is called often; it may wait where no other thread uses the ranking yet.
        """
        if len(events) == 0:
            return
        newest = self.newest_time
        if newest is not None and events.times[0] < newest:
            raise InvalidInput(f"expected events from the time {newest} on, got one at {events.times[0]}")
        with self._lock:
            source_E, target_E = self.ids.numbered(events, rest)
            self._state.observe(
                EventLog(
                    source_E=source_E,
                    target_E=target_E,
                    time_E=np.array(events.times, dtype=np.int64),
                    weight_E=np.array(events.weights, dtype=np.float64),
                    num_sources=len(self.ids.sources),
                    num_targets=len(self.ids.targets),
                    two_sides=self.ids.two_sides,
                    seconds=self.fitted.settings.seconds,
                ),
                rest,
            )
            self._make_room()

    def rank(
        self,
        source: str,
        *,
        at: int | None = None,
        k: int = 10,
        with_reasons: bool = True,
        horizon: FittedHorizon | None = None,
    ) -> Ranking:
        """Rank the source's next targets as of a time, by default as of now: at most k, none without a probability.

        The probabilities are those of the batch evaluation for the same events, source and time. A source without an
        event before is ranked by what new sources choose. With a horizon, the probabilities are those that each target
        occurs within it, and the reasons are still those of the next event. Raises ValueError for a time at or before
        an older event.
        """
        with self._lock:
            at = self.now if at is None else at
            number = self._number(source)
            rows = self._state.candidates(number, at=at)
            num_events = self._state.num_events_of(number, at=at)
            of_pairs = None if horizon is None else horizon.probability(self._state, number, rows.target_R, at=at)
        probability_R, score_R = of_pairs or (self.fitted.probabilities(rows),) * 2
        best_K = np.argsort(-score_R, kind="stable")[:k]
        is_new_K = best_K >= rows.num_past_Q[0]
        reasons_K: list[list[str]] = []
        if with_reasons:
            has_steps = self.fitted.settings.seconds == 1
            reasons_K = reasons(self.fitted, rows.row_RF[best_K], is_new_K, has_steps=has_steps)
        return Ranking(
            source=source,
            at=at,
            num_events=num_events,
            targets=[self.ids.targets[target] for target in rows.target_R[best_K].tolist()],
            probability_K=probability_R[best_K],
            is_new_K=is_new_K,
            reasons=reasons_K,
        )

    def scores(self, source: str, targets: Sequence[str], *, at: int | None = None) -> PairScores:
        """Score targets of a source as of a time; an id that no event has as its target has the score 0.

        Raises ValueError like `rank`.
        """
        with self._lock:  # new targets that come meanwhile would get the number of those that are not known
            unknown = len(self.ids.targets)  # a number without events, for which there is room
            target_P = np.array([self.ids.target_numbers.get(name, unknown) for name in targets], dtype=np.int64)
            at = self.now if at is None else at
            number = self._number(source)
            rows = self._state.candidates(number, at=at, target_P=target_P)
            row_PF = self._state.features(number, target_P, at=at)
        [score_P] = self.fitted.scores(rows, target_P[None], unknown + 1)
        if not self.ids.two_sides:
            score_P[target_P == number] = 0
        probability_by_target = dict(zip(rows.target_R.tolist(), self.fitted.probabilities(rows), strict=True))
        return PairScores(
            at=at,
            score_P=score_P,
            probability_P=np.array([probability_by_target.get(target, np.nan) for target in target_P.tolist()]),
            num_contacts_P=np.nan_to_num(row_PF[:, CONTACTS]).sum(axis=1).astype(np.int64),
        )

    def past(self, source: str, count: int) -> list[PastPartner]:
        """List the newest partners of a source, the newest first; none of one without an event."""
        with self._lock:
            contacts = self._state.newest_contacts(self._number(source), count, at=self.now)
        return [PastPartner(self.ids.targets[contact.target], *contact[1:]) for contact in contacts]

    def _number(self, source: str) -> int:
        return self.ids.source_numbers.get(source, len(self.ids.sources))

    def _make_room(self) -> None:
        # One node more than there are, which stands for every source and target that is not known yet. Each growth
        # copies the records of all nodes, so that there is room for many more.
        num_sources, num_targets = len(self.ids.sources) + 1, len(self.ids.targets) + 1
        if num_sources > self._num_sources or num_targets > self._num_targets:
            self._num_sources, self._num_targets = num_sources + num_sources // 8, num_targets + num_targets // 8
            self._state.grow(self._num_sources, self._num_targets)
