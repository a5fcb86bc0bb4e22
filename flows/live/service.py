"""A log in the store and events that are sent -> a ranking that has all of them, and follows new commits and models.

Events are checked records before they are used. An event is in the file of received events, and the disk has it, before
it counts and before it is acknowledged. The state is that of the newest commit with the received events that no commit
has yet.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from dyformer.logs.contract import TimeRange
from dyformer.logs.time_windows import horizon_length
from dyformer.scoring.event_forecaster import TooFewPastEvents
from dyformer.scoring.event_horizon import FittedHorizon, naming
from dyformer.scoring.live_ranking import LiveRanking, NamedEvents, load_growth
from dyformer.scoring.sent_events import SentEvent, check_era, named_events
from dyformer.streams.event_state import EventState, Rest
from dyformer.streams.kernels.tables import no_rest
from flows.tasks.event_state import make_model, newest_model
from flows.tasks.live import OpenedRanking, checked_horizons, open_horizon, open_ranking, stored_ids
from storage.events import versions
from storage.events.table import history, scan_events
from storage.layout import Layout
from storage.raw.received import ReceivedEvents, WaitingEvents

SECONDS_BETWEEN_LOOKS = 1.0
SECONDS_BETWEEN_FITS = 60.0  # of horizons, because one that fails may take minutes
MOST_ROUNDS, FEW_EVENTS = 5, 200  # of catching up with the events that came while a ranking was made
SECONDS_BETWEEN_LATE = 30.0  # a state is made anew for late events at most so often, because it takes a whole pass
Phase = Callable[[str], AbstractContextManager[Any]]
"""Shows that a part of the work goes on."""

REST = 3.0  # seconds that the thread beside requests waits for each that it computes


def unshown(text: str) -> AbstractContextManager[Any]:
    """Show nothing of a part of the work."""
    return nullcontext()


class Rests:
    """Called again and again by a thread, it waits for a multiple of the time that the thread has computed since.

    So requests have the processor and the interpreter meanwhile. `look`, if any, is called about once a second.
    """

    def __init__(self, look: Callable[[], None] | None = None) -> None:
        self._look, self._computed, self._looked = look, time.thread_time(), time.monotonic()

    def __call__(self) -> None:
        """Wait."""
        time.sleep(REST * (time.thread_time() - self._computed))
        if self._look is not None and time.monotonic() - self._looked > SECONDS_BETWEEN_LOOKS:
            self._look()
            self._looked = time.monotonic()
        self._computed = time.thread_time()


@dataclass(kw_only=True, eq=False)
class _Sent:
    """Events of one request, which wait for the disk."""

    events: list[SentEvent]
    is_done: bool = False
    num_late: int = 0
    problem: BaseException | None = None


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """Events of a request that are on the disk; those that are late count once the state is made anew."""

    num_events: int
    num_late: int


@dataclass(kw_only=True, eq=False)
class LiveService:
    """The ranking of one log, for requests of several threads; `follow` keeps it up to date with the store.

    The horizons, such as "1d", are fitted before the first request. Raises WindowError for one that does not fit the
    log, TooFewPastEvents for one that is too long for it, and ValueError.
    """

    layout: Layout
    dataset: str
    show: Callable[[str], None]
    lengths: Sequence[str] = ()  # of horizons
    phase: Phase = unshown  # of the work before the first request
    opened: OpenedRanking = field(init=False)
    horizons: Mapping[str, FittedHorizon] = field(init=False)
    num_late: int = field(default=0, init=False)  # received events that do not count yet
    problem: str | None = field(default=None, init=False)  # of the newest look at the store

    def __post_init__(self) -> None:
        self._received = ReceivedEvents(layout=self.layout, dataset=self.dataset)
        self._changing = threading.Lock()  # who has it writes events, or replaces the ranking
        self._queue_lock = threading.Lock()
        self._queue: list[_Sent] = []
        self._last_pass = 0.0
        self._stored = TimeRange(first=0, last=0)
        self._files: frozenset[tuple[int, str]] = frozenset()  # of the commits whose events the ranking has
        self._times_taken_back = 0
        self._horizons_of = -1  # version that the horizons are of, or that has too few past events
        self._next_fit = 0.0
        self._fit: threading.Thread | None = None  # that goes on, or has ended
        checked_horizons(self.layout, self.dataset, self.lengths)  # which takes a moment, and a fit minutes
        self._refresh(phase=self.phase)
        self._fit_horizons(self.phase)

    @property
    def ranking(self) -> LiveRanking:
        """The ranking as of now."""
        return self.opened.ranking

    def check_era(self, times: Sequence[int]) -> None:
        """Raise BadEvent for times that do not continue the log."""
        newest = max(self._stored.last, self.ranking.now)
        check_era(times, TimeRange(first=self._stored.first, last=newest), self.opened.time_unit)

    def accept(self, events: list[SentEvent]) -> Accepted:
        """Write events, wait until the disk has them, and let them count. Raises WriteFailed: none was accepted.

        The first of several requests writes the events of all that wait, because they then wait for the disk once. An
        error of this write is that of all these requests.
        """
        sent = _Sent(events=events)
        with self._queue_lock:
            self._queue.append(sent)
        with self._changing:
            if not sent.is_done:
                with self._queue_lock:
                    batch, self._queue = self._queue, []
                self._write(batch)
        if sent.problem is not None:
            raise sent.problem
        return Accepted(num_events=len(events), num_late=sent.num_late)

    def _write(self, batch: list[_Sent]) -> None:
        unit = self.opened.time_unit
        try:
            self._received.append(event.record(unit) for sent in batch for event in sent.events)
        except BaseException as error:  # of any kind, because the others of the batch find an empty queue
            for sent in batch:
                sent.is_done, sent.problem = True, error
            raise
        newest = self.ranking.newest_time
        for sent in batch:
            sent.is_done = True
            sent.num_late = sum(newest is not None and event.time < newest for event in sent.events)
        self._observe(named_events([event for sent in batch for event in sent.events]))

    def _observe(self, events: NamedEvents) -> None:
        """Let events count that are not older than the newest; the others wait for a pass from the beginning."""
        self.num_late += _observed(self.ranking, events, no_rest)

    def follow(self, is_stopping: threading.Event) -> None:
        """Look at the store again and again, until the event is set; what fails is tried at the next look."""
        while not is_stopping.wait(SECONDS_BETWEEN_LOOKS):
            try:
                if self._is_behind():
                    self._refresh(self.opened)
                self._start_fit()
                self._grow_ahead()
                self.problem = None
            except Exception as error:  # noqa: BLE001, because without this thread the server would stand still unseen
                if self.problem != str(error):
                    self.show(f"the newest look at the store failed: {error or type(error).__name__}")
                self.problem = str(error)

    def _grow_ahead(self) -> None:
        self.ranking.grow_ahead(Rests())

    def _start_fit(self) -> None:
        """Fit on a new version in a thread of its own, which holds up no late event and no commit."""
        is_due = self.opened.version != self._horizons_of and time.monotonic() >= self._next_fit
        if is_due and (self._fit is None or not self._fit.is_alive()):
            self._fit = threading.Thread(target=self._refit, daemon=True)
            self._fit.start()

    def _refit(self) -> None:
        version = self.opened.version
        try:
            self._refit_forecaster(version)
            self._fit_horizons()
        except TooFewPastEvents as error:  # in the newest past times; those that were fitted before go on
            stay = f"the horizons stay those of an earlier version of {self.dataset}"
            none = f"no horizon of {self.dataset} is served until its next version"  # after an undo
            self.show(f"{stay if self.horizons else none}: {error}")
            self._horizons_of = version
        except Exception as error:  # noqa: BLE001, because it is tried again
            self.show(f"the horizons could not be fitted: {error or type(error).__name__}")
            self._next_fit = time.monotonic() + SECONDS_BETWEEN_FITS

    def _refit_forecaster(self, version: int) -> None:
        """Fit a forecaster where each stored one was fitted on rows that were taken back; the next look opens it."""
        if newest_model(self.layout, self.dataset) is not None:
            return
        try:
            self.show(
                f"rows that the event forecaster of {self.dataset} was fitted on were taken back: fitting another"
            )
            make_model(self.dataset, version, layout=self.layout)
        except TooFewPastEvents as error:
            self.show(f"the event forecaster of {self.dataset} stays the one before its rows were taken back: {error}")

    def _fit_horizons(self, phase: Phase = unshown) -> None:
        """Fit the horizons on the version of the ranking; requests, events and newer versions do not wait for it.

        Nothing is taken over where events were taken back meanwhile, which the horizons may have read.
        """
        with self._changing:
            opened, times_taken_back = self.opened, self._times_taken_back
        fitted = {}
        for number, name in enumerate(self.lengths, start=1):
            length = horizon_length(name, opened.time_unit)
            with naming(name), phase(f"fitting the horizon {name}, {number} of {len(self.lengths)}"):
                fitted[name] = open_horizon(opened, length, show=self.show, layout=self.layout)
            opened.ranking.rank("", horizon=fitted[name])
        with self._changing:
            if times_taken_back == self._times_taken_back:
                self.horizons, self._horizons_of = fitted, opened.version

    def _is_behind(self) -> bool:
        is_late = self.num_late > 0 and time.monotonic() - self._last_pass > SECONDS_BETWEEN_LATE
        return is_late or not self._is_newest(self.opened)

    def _is_newest(self, opened: OpenedRanking) -> bool:
        newest = versions.newest(self.layout, self.dataset)
        if (newest.number, newest.digest) != (opened.version, opened.digest):
            return False
        return newest_model(self.layout, self.dataset) in (None, opened.model)

    def _refresh(self, earlier: OpenedRanking | None = None, phase: Phase = unshown) -> None:
        """Replace the ranking by that of the newest commit, model and received events.

        The forecaster of the earlier ranking is taken over if it is still the newest, or there is none. With late
        events alone, of the newest commit, no stored state is read, because the new one is made from the beginning.
        """
        rest = no_rest if earlier is None else Rests(self._grow_ahead)  # beside requests
        if earlier is not None and self._is_newest(earlier):
            opened = earlier
        else:
            with phase("reading its forecaster and its events"):
                opened = open_ranking(self.dataset, show=self.show, layout=self.layout, earlier=earlier)
            opened.ranking.keep_vectors()  # until the next commit, so that no request waits for a decomposition
        waiting = WaitingEvents(
            layout=self.layout, dataset=self.dataset, committed=_committed(self.layout, self.dataset, opened.version)
        )
        received, newest = waiting.read(), opened.ranking.newest_time
        events = NamedEvents.from_table(received)
        if opened is earlier or (len(events) and newest is not None and events.times[0] < newest):
            opened = replace(opened, ranking=_from_the_beginning(self.layout, opened, received, rest))
        else:
            opened.ranking.observe(events, rest)
        opened.ranking.grow_ahead(rest)
        times = history(self.layout, self.dataset, opened.version)
        parts = versions.opened(self.layout, self.dataset, opened.version).parts
        committed_files = frozenset((part["version"], part["sha256"]) for part in parts)
        with phase("a first ranking, for which code is compiled once after an installation"):
            _load(opened.ranking)
        num_late = _catch_up(opened.ranking, waiting, rest)
        with self._changing:  # what came meanwhile
            if not self._files <= committed_files:  # some were taken back or dropped, which the horizons may have read
                self.horizons, self._times_taken_back, self._horizons_of = {}, self._times_taken_back + 1, -1
            self._files = committed_files
            self.opened, self.num_late, self._last_pass = opened, num_late, time.monotonic()
            self._stored = TimeRange(first=min(times["first_time"]), last=max(times["last_time"]))
            self._observe(NamedEvents.from_table(waiting.read()))


def _load(ranking: LiveRanking) -> None:
    """Load compiled functions and read the trees, so that no request waits for them."""
    ranking.rank("")
    ranking.scores("", [""])
    load_growth()


def _observed(ranking: LiveRanking, events: NamedEvents, rest: Rest) -> int:
    """Let events count that are not older than the newest; give the number of the others, which are late."""
    newest = ranking.newest_time
    num_late = 0 if newest is None else int(np.searchsorted(events.times, newest))
    ranking.observe(events.without_first(num_late), rest)
    return num_late


def _catch_up(ranking: LiveRanking, waiting: WaitingEvents, rest: Rest) -> int:
    """Let events count that came while a ranking was made, until few are left for which requests wait; as `_observed`.

    So many may come in a long pass that all of them at once would hold up rankings for a tenth of a second.
    """
    num_late = 0
    for _ in range(MOST_ROUNDS):
        events = NamedEvents.from_table(waiting.read())
        num_late += _observed(ranking, events, rest)
        if len(events) < FEW_EVENTS:
            break
    return num_late


def _committed(layout: Layout, dataset: str, version: int) -> frozenset[str]:
    sources = versions.opened(layout, dataset, version).sources
    return frozenset(Path(name).name for source in sources for name in source["files"])


def _from_the_beginning(layout: Layout, opened: OpenedRanking, received: pl.DataFrame, rest: Rest) -> LiveRanking:
    """Make the state from all events of the commits and those received, in order of time."""
    committed = scan_events(layout, opened.dataset, opened.version).sort("ingest", "row").select(received.columns)
    rows = pl.concat([committed.collect().cast(received.schema), received])  # at one time received ones are the last
    ids = stored_ids(layout, opened.dataset, opened.version)
    ranking = LiveRanking(opened.ranking.fitted, EventState(0, 0, opened.ranking.fitted.settings), ids)
    ranking.observe(NamedEvents.from_table(rows.with_columns(pl.col("weight").fill_null(1.0))), rest)
    ranking.keep_vectors()
    return ranking
