"""A log and a length of time -> the probability that each pair occurs within it, as of now.

P pairs    R rows of candidates    S sources    F inputs

The horizons that end with the newest event are the past windows: the newest one calibrates the probabilities, the
four before it fit the heads, the newest of these with weight 1, then 1/2, 1/4 and 1/8.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dyformer.scoring.calibration import Calibration, fit_calibration
from dyformer.scoring.event_forecaster import FEWEST_EVENTS, TooFewPastEvents
from dyformer.scoring.event_pairs import COLUMNS, EVENTS, FittedEventPairs, PairInputs, fitted_events, fitted_heads
from dyformer.scoring.heads import plain_values, with_arrays
from dyformer.scoring.labelled_tables import LabelledTable, stacked
from dyformer.streams.event_log import EventLog
from dyformer.streams.event_state import EventState, StateSettings

NUM_WINDOWS = 4  # that the heads are fitted on
OLDER_WEIGHT = 0.5  # a window's pairs weigh this much of those of the next one
NUM_SOURCES = 300  # of a fitted window: so many with an event in it, and so many of all
NUM_NEGATIVES = 30  # of a source
NUM_CALIBRATED = 1_000  # sources with an event before, active or not, whose candidates calibrate the probabilities


@dataclass(frozen=True, kw_only=True)
class FittedHorizon:
    """Heads of pairs for a length of time, and their calibration."""

    length: int  # in units of the log's time
    pairs: FittedEventPairs
    calibration: Calibration

    def probability(
        self, state: EventState, source: int, target_P: NDArray[np.int64], *, at: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Give the probability [P] that events of a source with targets occur in [at, at + length), and log-odds [P].

        The log-odds order pairs of one probability, too. Only the state's events before `at` are read.
        """
        inputs = PairInputs(state=state, events=self.pairs.events, horizon=self.pairs.horizon, at=at)
        logit_P = self.pairs.logits(inputs(np.full(len(target_P), source), target_P, both_orders=False))
        return self.calibration.probability(logit_P), logit_P

    def record(self) -> dict[str, Any]:
        """Give plain values for JSON, of which `from_record` makes an equal object."""
        calibration = plain_values(self.calibration)
        return {"length": self.length, "pairs": self.pairs.record(), "calibration": calibration}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "FittedHorizon":
        """Read the values of `record`."""
        pairs, calibration = FittedEventPairs.from_record(record["pairs"]), with_arrays(record["calibration"])
        return cls(length=record["length"], pairs=pairs, calibration=Calibration(**calibration))


class _Window(NamedTuple):
    # A past horizon: its start, its events, and the state and the sources before it.
    start: int
    state: EventState
    key_E: NDArray[np.int64]  # of the pairs that occur
    active_S: NDArray[np.int64]
    known_S: NDArray[np.int64]
    num_targets: int


@contextmanager
def naming(horizon: str) -> Iterator[None]:
    """Let the message of TooFewPastEvents begin with the horizon for which the events are too few."""
    try:
        yield
    except TooFewPastEvents as error:
        raise TooFewPastEvents(f"horizon {horizon!r}: {error}") from None


def horizon_starts(time_E: NDArray[np.int64], length: int) -> list[int]:
    """Give the starts of the horizons that events in order of time are fitted on, the newest first.

    The newest ends with the newest event. Raises TooFewPastEvents where there are not two with some events before them.
    """
    end = int(time_E[-1]) + 1 if len(time_E) else 0
    starts = [end - length * number for number in range(1, NUM_WINDOWS + 2)]
    starts = [start for start in starts if np.searchsorted(time_E, start) >= FEWEST_EVENTS]
    if len(starts) < 2:
        raise TooFewPastEvents(
            f"past horizons with at least {FEWEST_EVENTS} events before them: {len(starts)}; expected one to fit on and"
            " a later one to calibrate the probabilities: choose a shorter horizon, or wait for more events"
        )
    return starts


def fit_horizon(log: EventLog, settings: StateSettings, *, length: int, seed: int) -> FittedHorizon:
    """Fit on the horizons of a log that ended with its newest event, and calibrate on the newest one.

    The event forecaster is fitted on the events before the oldest of them. Raises TooFewPastEvents where there are not
    two horizons with some events before them, or one of them has no pair of the state's candidates.
    """
    starts = horizon_starts(log.time_E, length)
    generator = np.random.default_rng(seed)
    earliest = log.head(int(np.searchsorted(log.time_E, starts[-1])))
    events, horizon = fitted_events(EVENTS, earliest, settings, seed), length * settings.seconds
    state, tables = EventState(log.num_sources, log.num_targets, settings), []
    for number, start in reversed(list(enumerate(starts[1:]))):
        window = _window(log, state, start, length)
        inputs = PairInputs(state=state, events=events, horizon=horizon, at=start)
        tables.append(_table(window, inputs, number, generator))
    table = stacked(*reversed(tables))
    _check_labels(table.positive_P)
    heads, scales = fitted_heads(table, seed, ranked=True)
    pairs = FittedEventPairs(
        settings=settings, horizon=horizon, events=events, heads=heads, scales=scales, both_orders=False
    )
    window = _window(log, state, starts[0], length)
    inputs = PairInputs(state=state, events=events, horizon=horizon, at=starts[0])
    source_P, target_P, positive_P = _pairs(window, generator.permutation(window.known_S)[:NUM_CALIBRATED])
    _check_labels(positive_P)
    logit_P = pairs.logits(inputs(source_P, target_P, both_orders=False))
    return FittedHorizon(length=length, pairs=pairs, calibration=fit_calibration(logit_P, positive_P))


def _check_labels(positive_P: NDArray[np.bool_]) -> None:
    if not positive_P.any() or positive_P.all():
        raise TooFewPastEvents(
            "no candidate of a source occurs in the past horizons, or all do: expected some of both; choose another"
            " horizon"
        )


def _window(log: EventLog, state: EventState, start: int, length: int) -> _Window:
    """Let the state observe the events before the start, and give the window."""
    first, end = np.searchsorted(log.time_E, [start, start + length])
    part = slice(state.num_events, int(first))
    state.observe(replace(log, **{name: getattr(log, name)[part] for name in COLUMNS}))
    source_E, target_E = log.source_E[first:end], log.target_E[first:end]
    sources = [log.source_E[:first]]
    if not state.settings.directed:  # an event counts as one of both ends
        source_E, target_E = np.concatenate([source_E, target_E]), np.concatenate([target_E, source_E])
        sources.append(log.target_E[:first])
    known_S = np.unique(np.concatenate(sources))
    active_S = np.intersect1d(source_E, known_S)
    key_E = np.unique(source_E * log.num_targets + target_E)
    return _Window(start, state, key_E, active_S, known_S, log.num_targets)


def _pairs(
    window: _Window, source_S: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Give sources, candidates and labels [P] of the candidates that the state lists for sources."""
    targets = [window.state.candidates(source, at=window.start).target_R.copy() for source in source_S.tolist()]
    source_P = np.repeat(source_S, list(map(len, targets)))
    target_P = np.concatenate([np.zeros(0, dtype=np.int64), *targets])
    return source_P, target_P, np.isin(source_P * window.num_targets + target_P, window.key_E)


def _table(window: _Window, inputs: PairInputs, number: int, generator: np.random.Generator) -> LabelledTable:
    """Give the positive candidates of some sources and some of the others, with their inputs.

    `number` is that of the window, from 0, the newest one. A group is a source in one window.
    """
    drawn = [generator.permutation(source_S)[:NUM_SOURCES] for source_S in (window.active_S, window.known_S)]
    source_P, target_P, positive_P = _pairs(window, np.unique(np.concatenate(drawn)))
    order_P = np.lexsort((generator.random(len(source_P)), positive_P, source_P))
    first_P = np.searchsorted(source_P[order_P], source_P[order_P])
    is_used_P = np.zeros(len(source_P), dtype=np.bool_)
    is_used_P[order_P[np.arange(len(order_P)) - first_P < NUM_NEGATIVES]] = True
    is_used_P |= positive_P
    source_P, target_P = source_P[is_used_P], target_P[is_used_P]
    return LabelledTable(
        inputs_PF=inputs(source_P, target_P, both_orders=False),
        positive_P=positive_P[is_used_P],
        weight_P=np.full(len(source_P), OLDER_WEIGHT**number),
        group_P=source_P * NUM_WINDOWS + number,
    )
