"""Events before a moment -> whether each pair occurs in the horizon after it: the event forecaster, pair by pair.

P pairs    F inputs    R rows of candidates    E events

The horizon is a length of time. The event forecaster gives the probability p that a source's next event has a target;
with n, the number of events that the source is expected to have in the horizon, the pair occurs with the chance
1 - exp(-n p) if events are independent. This chance, p, its rank and the counts of the event state are the inputs of
heads, which past windows fit.
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.graphs.snapshots import DynamicGraph, interactions_of
from dyformer.sampling.pairs import Pairs
from dyformer.scoring.event_forecaster import EventForecaster, FittedEventForecaster, TooFewPastEvents, fit_on_past
from dyformer.scoring.heads import Head, fit_scaled_heads, head_from_record, mean_logits, plain_values
from dyformer.scoring.interfaces import LabelledStep, Score
from dyformer.scoring.labelled_tables import LabelledTable, check_labelled, digest_of, labelled_table, stacked
from dyformer.streams.event_log import EventLog
from dyformer.streams.event_state import INDEX, EventState, StateSettings, names

HALF_LIVES = (1 / 16, 1 / 4, 1.0, 4.0)
"""Of the counts, in horizons."""

NUM_EVENTS = 5_000
"""The newest events that the event forecaster is fitted on: 50,000 and six times the rounds ranked no better."""

NOT_COUNTED = ("ranks", "vectors")  # groups of features; those of vectors are missing for past partners
COUNTED = np.array([INDEX[name] for group, part in names().items() if group not in NOT_COUNTED for name in part])
NUM_FITTED = 8  # event forecasters, and heads, that a process keeps, each of some hundred kilobytes
EVENTS = EventForecaster(half_lives=HALF_LIVES, rank=0, gate_rounds=60, past_rounds=80, new_rounds=40)
BLOCK_PAIRS = 1 << 18
LARGEST = np.finfo(np.float32).max
COLUMNS = ("source_E", "target_E", "time_E", "weight_E")

# The ranking of a step, the calibration of the next one and a backtest fit on the same events and pairs.
_EVENTS: dict[Any, FittedEventForecaster | None] = {}
_HEADS: dict[Any, tuple[tuple[Head, ...], tuple[float, ...]]] = {}


@dataclass(frozen=True, kw_only=True)
class FittedEventPairs:
    """An event forecaster, and heads that read it; the log-odds of a pair are the mean of theirs, scaled."""

    settings: StateSettings
    horizon: float  # in seconds of the settings
    events: FittedEventForecaster | None  # None: the past was too short to fit one
    heads: tuple[Head, ...]
    scales: tuple[float, ...]
    both_orders: bool  # whether a pair is without direction: its inputs are the mean and the difference of both orders

    def logits(self, inputs_PF: NDArray[np.floating]) -> NDArray[np.float64]:
        """Give the log-odds [P] of pairs."""
        return mean_logits(self.heads, self.scales, inputs_PF)

    def record(self) -> dict[str, Any]:
        """Give plain values for JSON, of which `from_record` makes an equal object."""
        return {
            "settings": asdict(self.settings),
            "horizon": self.horizon,
            "events": None if self.events is None else self.events.record(),
            "heads": list(map(plain_values, self.heads)),
            "scales": self.scales,
            "both_orders": self.both_orders,
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "FittedEventPairs":
        """Read the values of `record`."""
        events = record["events"]
        return cls(
            settings=StateSettings.from_record(record["settings"]),
            horizon=record["horizon"],
            events=None if events is None else FittedEventForecaster.from_record(events),
            heads=tuple(map(head_from_record, record["heads"])),
            scales=tuple(record["scales"]),
            both_orders=record["both_orders"],
        )


@dataclass(frozen=True, kw_only=True)
class PairInputs:
    """The inputs of pairs as of a time, from a state that has observed the events before it."""

    state: EventState
    events: FittedEventForecaster | None
    horizon: float
    at: int

    def __call__(
        self, source_P: NDArray[np.int64], target_P: NDArray[np.int64], *, both_orders: bool
    ) -> NDArray[np.floating]:
        """Give the inputs [P, F]; of a pair without direction their mean in both orders, and the difference."""
        one_PF = self._ordered(source_P, target_P)
        if not both_orders:
            return one_PF
        other_PF = self._ordered(target_P, source_P)
        return np.hstack([(one_PF + other_PF) / 2, np.abs(one_PF - other_PF)])

    def _ordered(self, source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.floating]:
        inputs_PF = np.empty((len(source_P), len(COUNTED) + 3), dtype=np.float32)
        order_P = np.argsort(source_P, kind="stable")
        sources, first_S = np.unique(source_P[order_P], return_index=True)
        for source, own_P in zip(sources.tolist(), np.split(order_P, first_S[1:]), strict=True):
            inputs_PF[own_P] = self._of_source(source, target_P[own_P])
        return inputs_PF

    def _of_source(self, source: int, target_P: NDArray[np.int64]) -> NDArray[np.floating]:
        row_PF = self.state.features(source, target_P, at=self.at)
        probability_P, rank_P = self._next_targets(source, target_P)
        chance_P = -np.expm1(-self._expected_events(row_PF) * probability_P)
        # A mean of weights may be beyond numbers of 32 bits.
        counted_PF = np.clip(row_PF[:, COUNTED].astype(np.float64), -LARGEST, LARGEST)
        # Ages and counts have long tails, and some differences of times are negative.
        counted_PF = np.sign(counted_PF) * np.log1p(np.abs(counted_PF))
        least = np.finfo(np.float32).tiny
        own_PF = [np.log(np.maximum(probability_P, least)), np.log(rank_P), np.log(np.maximum(chance_P, least))]
        return np.column_stack([counted_PF, *own_PF]).astype(np.float32)

    def _expected_events(self, row_PF: NDArray[np.float32]) -> NDArray[np.float64]:
        """Give the number of events that the source has in the horizon at its decayed rate of about so long."""
        half_lives = np.array(self.state.settings.half_lives)
        nearest = int(np.abs(np.log(half_lives / self.horizon)).argmin())
        decayed_P = np.nan_to_num(row_PF[:, INDEX[f"source_{nearest}"]].astype(np.float64))
        return decayed_P * np.log(2) * self.horizon / half_lives[nearest]

    def _next_targets(
        self, source: int, target_P: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Give the probability of each target to be the source's next, and its rank; NaN without candidates."""
        missing = np.full(len(target_P), np.nan)
        if self.events is None:
            return missing, missing
        rows = self.state.candidates(source, at=self.at, target_P=target_P)
        if not len(rows.target_R):
            return missing, missing
        # Numbers of the targets among these alone, because an array of all targets is too long for each source.
        target_X, number_X = np.unique(np.concatenate([rows.target_R, target_P]), return_inverse=True)
        rows = replace(rows, target_R=number_X[: len(rows.target_R)])
        [score_P] = self.events.scores(rows, number_X[None, len(rows.target_R) :], len(target_X))
        probability_R = np.sort(self.events.probabilities(rows))
        return score_P, 1.0 + len(probability_R) - np.searchsorted(probability_R, score_P, side="right")


def fitted_events(
    method: EventForecaster, log: EventLog, settings: StateSettings, seed: int
) -> FittedEventForecaster | None:
    """Fit the event forecaster on a log, or return what was fitted on an equal one; None on too short a log."""
    left_out = max(method.left_out, 1 - NUM_EVENTS / max(len(log), 1))
    of_state = {"directed": settings.directed, "half_lives": settings.half_lives, "rank": settings.rank}
    method = replace(method, **of_state, left_out=left_out)
    key = _digest_of(log), method, seed
    if key in _EVENTS:
        return _EVENTS[key]
    try:
        fitted = fit_on_past(method, log, seed=seed)
    except TooFewPastEvents:
        fitted = None
    return _remembered(_EVENTS, key, fitted)


@dataclass(frozen=True, kw_only=True)
class EventPairForecaster:
    """Score pairs by the event forecaster and the event state as of the start of the window, by heads on past windows.

    The event forecaster is fitted on the events before the oldest labelled window, so that it has not read the events
    of any labelled one: its probabilities are as good there as in the forecast window. The state has all events.
    """

    events: EventForecaster = EVENTS
    seed: int = 0

    def fit_pairs(self, graph: PreparedGraph, labelled: Sequence[LabelledStep]) -> Score:
        """Fit on the labelled pairs and return the scores of pairs for the step after `graph.until`.

        Raises ValueError without a labelled step, where their pairs are all of one kind, or a history has no
        interactions.
        """
        check_labelled(labelled)
        log, settings = _event_log(graph.history), self._settings(graph.history)
        ascending = sorted(labelled, key=lambda step: step.before.until)
        earlier = log.head(_num_events(ascending[0].before.history))
        events = fitted_events(self.events, earlier, settings, self.seed)
        both_orders = not labelled[0].directed and not settings.two_sides
        state, tables = EventState(log.num_sources, log.num_targets, settings), []
        for step in ascending:
            inputs = _inputs_after(state, events, log, step.before)
            ends = _oriented(graph.history, step.examples.source_P, step.examples.target_P)
            tables.append(labelled_table(step, inputs(*ends, both_orders=both_orders)))
        heads, scales = fitted_heads(stacked(*reversed(tables)), self.seed, ranked=labelled[0].ranked)
        fitted = FittedEventPairs(
            settings=settings, horizon=1.0, events=events, heads=heads, scales=scales, both_orders=both_orders
        )
        return EventPairScore(fitted=fitted, inputs=_inputs_after(state, events, log, graph), graph=graph)

    def _settings(self, history: DynamicGraph) -> StateSettings:
        two_sides = bool(history.side_N.any())
        return StateSettings(
            two_sides=two_sides,
            seconds=_event_log(history).seconds,
            directed=history.directed or two_sides,
            half_lives=self.events.half_lives,
            rank=self.events.rank,
        )


@dataclass(frozen=True, kw_only=True)
class EventPairScore:
    """The scores of a fitted method for the step after `graph.until`."""

    fitted: FittedEventPairs
    inputs: PairInputs
    graph: PreparedGraph
    one_at_a_time: AbstractContextManager[bool] = field(default_factory=Lock, repr=False)
    """The state has room for the candidates of one query alone."""

    def __call__(self, source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray[np.float64]:
        """Score pairs [P]."""
        logit_P = np.empty(len(source_P))
        source_P, target_P = _oriented(self.graph.history, source_P, target_P)
        for first in range(0, len(source_P), BLOCK_PAIRS):  # so that the inputs of many pairs take bounded memory
            block = slice(first, first + BLOCK_PAIRS)
            with self.one_at_a_time:
                inputs_PF = self.inputs(source_P[block], target_P[block], both_orders=self.fitted.both_orders)
            logit_P[block] = self.fitted.logits(inputs_PF)
        return expit(logit_P)


def score_as_of(fitted: FittedEventPairs, graph: PreparedGraph) -> EventPairScore:
    """Give the scores of a fitted method for the step after `graph.until`."""
    log, settings = _event_log(graph.history), fitted.settings
    log = replace(log, seconds=settings.seconds)
    state = EventState(log.num_sources, log.num_targets, settings)
    return EventPairScore(fitted=fitted, inputs=_inputs_after(state, fitted.events, log, graph), graph=graph)


def _event_log(history: DynamicGraph) -> EventLog:
    """Give the interactions of a history as events whose unit of time is a window of middle length.

    Both ends have the numbers of the graph's nodes, also on a log with two sides. Raises ValueError without
    interactions.
    """
    rows, num_nodes = interactions_of(history), len(history.node_N)
    lengths = [snapshot.end_time - snapshot.start_time for snapshot in history.snapshots]
    return EventLog(
        source_E=rows.source_R,
        target_E=rows.target_R,
        time_E=rows.time_R,
        weight_E=rows.weight_R,
        num_sources=num_nodes,
        num_targets=num_nodes,
        two_sides=bool(history.side_N.any()),
        seconds=1 / float(np.median(lengths)),
    )


def _num_events(history: DynamicGraph) -> int:
    return sum(snapshot.num_interactions for snapshot in history.snapshots)


def _inputs_after(
    state: EventState, events: FittedEventForecaster | None, log: EventLog, before: PreparedGraph
) -> PairInputs:
    """Let the state observe the events of a history that it has not yet, and give the inputs as of its end."""
    part = slice(state.num_events, _num_events(before.history))
    state.observe(replace(log, **{name: getattr(log, name)[part] for name in COLUMNS}))
    newest = state.newest_time
    end = before.history.snapshots[-1].end_time
    # Windows of equal counts of rows may end at the time of their last event, which counts, too.
    return PairInputs(state=state, events=events, horizon=1.0, at=end if newest is None else max(end, newest + 1))


def _oriented(history: DynamicGraph, source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> Pairs:
    """Give pairs of two sides as source and target; pairs without direction may have them the other way."""
    is_turned_P = history.side_N[source_P] > history.side_N[target_P]
    return np.where(is_turned_P, target_P, source_P), np.where(is_turned_P, source_P, target_P)


def fitted_heads(table: LabelledTable, seed: int, *, ranked: bool) -> tuple[tuple[Head, ...], tuple[float, ...]]:
    """Fit the heads, or return those that were fitted on an equal table."""
    key = digest_of(table), seed, ranked
    if key in _HEADS:
        return _HEADS[key]
    return _remembered(_HEADS, key, fit_scaled_heads(table, seed=seed, ranked=ranked))


def _digest_of(log: EventLog) -> str:
    digest = hashlib.sha256(f"{log.num_sources} {log.num_targets} {log.two_sides} {log.seconds!r}".encode())
    for name in COLUMNS:
        digest.update(np.ascontiguousarray(getattr(log, name)).data)
    return digest.hexdigest()


def _remembered(known: dict[Any, Any], key: Any, fitted: Any) -> Any:
    known[key] = fitted
    for oldest in list(known)[:-NUM_FITTED]:
        known.pop(oldest, None)
    return fitted
