"""Events -> the probability of each target to be the next of a source: a gate, past partners, and new ones.

R rows of candidates    F features    Q queries    P parts: past partners and new ones of each query
C candidates    D targets    K best targets

P(target) = (1 - P(new)) x softmax over the past partners, or P(new) x P(retrieved | new) x softmax over the new ones
that the state's lists hold. A target without a row follows below these, by its newly won partners. The features are
those of `dyformer.streams.event_state`.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import numpy as np
from numba import njit
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from dyformer import InvalidInput
from dyformer.graphs.config import OR_LIST, STRICT
from dyformer.logs.counts import counted
from dyformer.scoring.event_heads import Done, GateHead, GroupHead, fit_gate, fit_groups, softmax, unreported
from dyformer.scoring.event_tables import FitTables, fit_tables
from dyformer.scoring.trees import need_openmp
from dyformer.streams.event_log import EventLog, EventQueries
from dyformer.streams.event_state import HALF_LIVES, RANK, CandidateRows, StateSettings, candidate_rows


@njit(nogil=True, cache=True)
def _spread_scores(score_QC, probability_R, target_R, start_Q1, candidate_QC, num_targets):
    # Where a candidate has a row, its probability replaces its score. `row_D` maps targets to rows of one query.
    row_D = np.full(num_targets, -1)
    for query in range(len(start_Q1) - 1):
        for row in range(start_Q1[query], start_Q1[query + 1]):
            row_D[target_R[row]] = row
        for column in range(score_QC.shape[1]):
            row = row_D[candidate_QC[query, column]] if candidate_QC.shape[1] else row_D[column]
            if row >= 0:
                score_QC[query, column] = probability_R[row]
        for row in range(start_Q1[query], start_Q1[query + 1]):
            row_D[target_R[row]] = -1


def _past_and_new(part_P: NDArray[np.int64]) -> tuple[Any, Any]:
    """Choose the rows of past partners and those of new ones, of queries with these numbers of both in turn."""
    if len(part_P) == 2:  # of one query they stand together: nothing is copied
        return slice(part_P[0]), slice(part_P[0], None)
    is_new_R = np.repeat(np.arange(len(part_P)) % 2 == 1, part_P)
    return ~is_new_R, is_new_R


@dataclasses.dataclass(frozen=True, kw_only=True)
class FittedEventForecaster:
    """The three heads, and the settings of the state whose features they read."""

    settings: StateSettings
    gate: GateHead
    past: GroupHead
    new: GroupHead
    retrieved: float  # fraction of new targets that the state's lists hold

    def __call__(self, log: EventLog, queries: EventQueries) -> Iterator[NDArray[np.float64]]:
        """Give the scores [n, C] of consecutive queries, a `RankEvents`.

        A candidate with a row has its probability. One without has a positive score below all of these, or 0 if no
        visible event has it as its target. With one side the source itself has 0.
        """
        first = 0
        for rows in candidate_rows(log, queries, self.settings):
            end = first + len(rows.num_past_Q)
            every = np.zeros((end - first, 0), dtype=np.int64)
            candidate_QC = every if queries.candidate_QC is None else queries.candidate_QC[first:end]
            score_QC = self.scores(rows, candidate_QC, log.num_targets)
            if not log.two_sides:
                columns_QC = candidate_QC if candidate_QC.shape[1] else np.arange(log.num_targets)
                score_QC[columns_QC == queries.source_Q[first:end, None]] = 0
            yield score_QC
            first = end

    def scores(self, rows: CandidateRows, candidate_QC: NDArray[np.int64], num_targets: int) -> NDArray[np.float64]:
        """Give the scores [n, C] of the queries of `rows`, whose `rest_QC` has the same candidates."""
        probability_R = self.probabilities(rows)
        start_Q1 = np.concatenate([[0], np.cumsum(rows.num_past_Q + rows.num_new_Q)])
        padded_R = np.append(probability_R, np.inf)  # so that a query without rows has a part, too
        least_Q = np.minimum.reduceat(padded_R, start_Q1[:-1])
        least_Q = np.where(np.diff(start_Q1) > 0, least_Q, 1.0)
        score_QC = least_Q[:, None] * (0.5 + np.arctan(rows.rest_QC.astype(np.float64)) / np.pi)
        _spread_scores(score_QC, probability_R, rows.target_R, start_Q1, candidate_QC, num_targets)
        return score_QC

    def probabilities(self, rows: CandidateRows) -> NDArray[np.float64]:
        """Give the probability [R] that a candidate is the target of its query's event."""
        num_queries = len(rows.num_past_Q)
        part_P = np.stack([rows.num_past_Q, rows.num_new_Q], axis=1).ravel()  # past and new ones of each query
        start_P1 = np.zeros(2 * num_queries + 1, dtype=np.int64)
        np.cumsum(part_P, out=start_P1[1:])
        logit_R = np.empty(len(rows.row_RF))
        for head, chosen_R in zip((self.past, self.new), _past_and_new(part_P), strict=True):
            logit_R[chosen_R] = head.logits(rows.row_RF[chosen_R])
        new_Q = np.ones(num_queries)
        has_past_Q = rows.num_past_Q > 0
        new_Q[has_past_Q] = self.gate.probability(rows.row_RF[start_P1[:-1:2][has_past_Q]])
        probability_P = np.stack([1 - new_Q, new_Q * self.retrieved], axis=1).ravel()
        return softmax(logit_R, start_P1) * np.repeat(probability_P, part_P)

    def record(self) -> dict[str, Any]:
        """Give plain values for JSON, of which `from_record` makes an equal object."""
        return dataclasses.asdict(self)

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "FittedEventForecaster":
        """Read the values of `record`."""
        return cls(
            settings=StateSettings.from_record(record["settings"]),
            gate=GateHead.from_record(record["gate"]),
            past=GroupHead.from_record(record["past"]),
            new=GroupHead.from_record(record["new"]),
            retrieved=record["retrieved"],
        )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EventForecaster:
    """Rank a source's next target by counts of all events so far: three small models of boosted trees.

    The heads are fitted on the training events; validation chooses numbers of rounds and makes probabilities of
    outputs. The first events of the log are left out, because little is known then.
    """

    directed: bool = True  # with one side: False lets an event count for both of its ends
    half_lives: Annotated[tuple[PositiveFloat, ...], OR_LIST] = HALF_LIVES  # in seconds
    rank: NonNegativeInt = RANK  # of the decomposition of contacts whose vectors rank new partners; 0: none
    left_out: Annotated[float, Field(ge=0, lt=1)] = 0.1  # fraction of the training events, the earliest ones
    gate_rounds: PositiveInt = 120
    past_rounds: PositiveInt = 360
    new_rounds: PositiveInt = 120

    def fit_events(
        self, log: EventLog, training: EventQueries, validation: EventQueries, *, seed: int, done: Done = unreported
    ) -> "FittedEventForecaster":
        """Fit on the events of `training`, choose on those of `validation`: both as `Ranker` has them.

        `done` is called after each of `num_rounds` rounds; a head with too few rows has none.
        """
        need_openmp()  # which the heads need after minutes
        settings = StateSettings(
            two_sides=log.two_sides,
            seconds=log.seconds,
            directed=self.directed,
            half_lives=self.half_lives,
            rank=self.rank,
        )
        num_left_out = int(self.left_out * len(training))
        names = ("source_Q", "time_Q", "num_visible_Q")
        joined = {name: np.concatenate([getattr(training, name), getattr(validation, name)]) for name in names}
        queries = EventQueries(**{name: column[num_left_out:] for name, column in joined.items()})
        generator, num_training = np.random.default_rng(seed), len(training) - num_left_out
        tables = fit_tables(log, queries, settings, num_training, generator)
        return self._fitted(*tables, settings, {"seed": seed, "done": done})

    @property
    def num_rounds(self) -> int:
        """Number of rounds of all heads; that of past partners has two losses."""
        return self.gate_rounds + 2 * self.past_rounds + self.new_rounds

    def _fitted(
        self, training: FitTables, validation: FitTables, settings: StateSettings, shared: dict[str, Any]
    ) -> "FittedEventForecaster":
        past, new = (training.past, validation.past), (training.new, validation.new)
        return FittedEventForecaster(
            settings=settings,
            gate=fit_gate(training.gate, validation.gate, num_rounds=self.gate_rounds, **shared),
            past=fit_groups(*past, num_rounds=self.past_rounds, num_leaves=15, lambdarank=True, **shared),
            new=fit_groups(*new, num_rounds=self.new_rounds, num_leaves=31, lambdarank=False, **shared),
            retrieved=(validation if validation.num_new else training).retrieved,
        )


VALIDATION_FROM = 0.85  # quantile of the times at which the later part begins
FEWEST_EVENTS = 20


class TooFewPastEvents(InvalidInput):
    """A log whose events or times are too few to fit on."""


def fit_on_past(method: EventForecaster, log: EventLog, *, seed: int, done: Done = unreported) -> FittedEventForecaster:
    """Fit on the events up to a quantile of their times, choose on those after it; every event sees all before it.

    `done` is called after each of the rounds of the method.
    Raises TooFewPastEvents where one of the two parts would be empty, or the log is very short.
    """
    if len(log) < FEWEST_EVENTS:
        raise TooFewPastEvents(
            f"found {counted(len(log), 'event')}: expected at least {FEWEST_EVENTS} to fit a forecaster on"
        )
    border = int(np.searchsorted(log.time_E, np.quantile(log.time_E, VALIDATION_FROM), side="right"))
    if border == len(log):
        border = int(np.searchsorted(log.time_E, log.time_E[-1], side="left"))
    if border == 0:
        raise TooFewPastEvents("all events have one time: expected several, because a forecaster is fitted on a past")
    num_visible_E = np.searchsorted(log.time_E, log.time_E, side="left")
    training, validation = (
        EventQueries(source_Q=log.source_E[part], time_Q=log.time_E[part], num_visible_Q=num_visible_E[part])
        for part in (slice(0, border), slice(border, len(log)))
    )
    return method.fit_events(log, training, validation, seed=seed, done=done)
