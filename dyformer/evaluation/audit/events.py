"""Rankers and a log of events -> checks that no score as of an event depends on that event or on a later one.

E events    Q queries, S some of them    C candidates
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dyformer.evaluation.audit.case import Check, Results, described, differing
from dyformer.evaluation.event_splits import SPLITS, EventTrial, Split, sampled_negatives
from dyformer.logs.time_windows import fixed_duration
from dyformer.scoring.interfaces import Ranker, RankEvents
from dyformer.streams.event_log import EventLog, EventQueries

NUM_QUERIES = 200  # of a check, spread over validation and test
NUM_NEGATIVES = 50
BROKEN_WEIGHTS = (np.nan, np.inf, -np.inf, -1.0, 1e300)

VISIBILITY, CANDIDATES, FITTED, ALONE = "events: visibility", "events: candidates", "events: fit", "events: query alone"


@dataclass(frozen=True, kw_only=True)
class EventAuditCase:
    """What is audited: rankers by title, and the trial in which they are evaluated."""

    trial: EventTrial
    methods: Mapping[str, Ranker]
    seed: int = 0

    @property
    def generator(self) -> np.random.Generator:
        """A new generator of the case's seed."""
        return np.random.default_rng([self.seed, len(self.trial.log)])

    @property
    def evaluated(self) -> NDArray[np.int64]:
        """Numbers of the validation and test events."""
        return np.arange(self.trial.splits.first_validation, self.trial.splits.num_events)


def audit_events(case: EventAuditCase) -> Iterator[Check]:
    """Run all checks of events, the cheap ones first."""
    yield visibility_check(case)
    yield candidates_check(case)
    yield fit_check(case)
    fitted = {name: method.fit_events(*case.trial.fitting, seed=case.seed) for name, method in case.methods.items()}
    yield alone_check(case, fitted)
    for name, cut in zip(EVENT_POISONS, _cuts(case), strict=True):
        yield future_check(case, fitted, name, cut)


def visibility_check(case: EventAuditCase) -> Check:
    """Compare what is visible to each event with the definition."""
    trial, log = case.trial, case.trial.log
    wrong = set()
    for event in case.evaluated[_spread(len(case.evaluated))].tolist():
        num_visible, time = int(trial.num_visible_E[event]), int(log.time_E[event])
        expected = sum(1 for other in _allowed(trial, event).tolist() if log.time_E[other] < time)
        if num_visible > 0 and log.time_E[num_visible - 1] >= time:
            wrong.add("an event of the same time or a later one is visible")
        if num_visible != expected:
            wrong.add(f"event {event} has {num_visible} visible events, not {expected}")
    return Check(
        name=VISIBILITY,
        compared=f"events visible to some of {len(case.evaluated)} events ({trial.visibility}), and the definition",
        methods=(),
        passed=not wrong,
        detail="; ".join(sorted(wrong)[:3]) or "no event of the same time or a later one is visible",
    )


def _allowed(trial: EventTrial, event: int) -> NDArray[np.int64]:
    """List the events that the visibility's own rule allows, whatever their times."""
    kind, size = trial.visibility.kind, trial.visibility.size
    if kind == "window":
        steps = trial.log.seconds == 1
        width = fixed_duration(size, "step" if steps else "us") * (1 if steps else 1e-6 / trial.log.seconds)
        return np.flatnonzero(trial.log.time_E < trial.log.time_E[event] // round(width) * round(width))
    if kind == "batch":
        first = trial.splits.first_test if event >= trial.splits.first_test else trial.splits.first_validation
        return np.arange(event - (event - first) % int(size))
    return np.arange(event)


def candidates_check(case: EventAuditCase) -> Check:
    """Draw negatives again after the second half of the test was replaced, and compare them with their rule."""
    trial, log = case.trial, case.trial.log
    middle = (trial.splits.first_test + len(log)) // 2
    cut = int(np.searchsorted(log.time_E, log.time_E[middle], side="left"))
    garbage = _with_tail(log, cut, random_events(log, cut, case.generator))
    num_negatives = min(NUM_NEGATIVES, max(2, log.num_targets // 4))
    drawn, again = (
        sampled_negatives(one, trial.splits, num_negatives=num_negatives, seed=case.seed) for one in (log, garbage)
    )
    before: dict[Split, int] = {"validation": len(drawn["validation"]), "test": max(cut - trial.splits.first_test, 0)}
    is_same = all(drawn[split][:num].tobytes() == again[split][:num].tobytes() for split, num in before.items())
    wrong = set() if is_same else {f"negatives before event {cut} change with what comes later"}
    training = log.head(trial.splits.first_validation)
    partners = set(zip(training.source_E.tolist(), training.target_E.tolist(), strict=True))
    for split in SPLITS:
        first = trial.splits.events(split).start
        for row in _spread(len(drawn[split])).tolist():
            wrong |= _wrong_negatives(log, first + row, drawn[split][row], partners)
    return Check(
        name=CANDIDATES,
        compared="sampled negatives of validation and test events, and their rule",
        methods=(),
        passed=not wrong,
        detail="; ".join(sorted(wrong)) or f"{num_negatives} negatives of each event, none of them chosen at its time",
    )


def _wrong_negatives(
    log: EventLog, event: int, negative_N: NDArray[np.int32], partners: set[tuple[int, int]]
) -> set[str]:
    """Name what is wrong with the negatives of an event: past partners in training come first, half of them at most."""
    source, negatives = int(log.source_E[event]), negative_N[negative_N >= 0].tolist()
    is_past = [(source, target) in partners for target in negatives]
    half = len(negative_N) // 2
    same = (log.time_E == log.time_E[event]) & (log.source_E == source)
    num_free = len({target for node, target in partners if node == source} - set(log.target_E[same].tolist()))
    faults = {
        "a negative is the event's own target": int(log.target_E[event]) in negatives,
        "a negative is there twice": len(set(negatives)) < len(negatives),
        "past partners of training are not drawn first": is_past != sorted(is_past, reverse=True),
        "the number of past partners is another": sum(is_past) != min(half, num_free),
    }
    return {fault for fault, is_wrong in faults.items() if is_wrong}


def fit_check(case: EventAuditCase) -> Check:
    """Compare what methods are fitted on after all test events were replaced."""
    trial, first = case.trial, case.trial.splits.first_test
    garbage = replace(trial, log=_with_tail(trial.log, first, random_events(trial.log, first, case.generator)))
    changed = differing(_fitting(garbage), _fitting(trial))
    log, training, validation = trial.fitting
    if len(log) != first or len(training) + len(validation) != first:
        changed["number of events"] = f"{len(log)} events and {len(training) + len(validation)} queries, not {first}"
    return Check(
        name=FITTED,
        compared="what methods are fitted on, with the test and with random events in its place",
        methods=tuple(case.methods),
        passed=not changed,
        detail=f"changed: {described(changed)}"
        if changed
        else f"{first} events before the test, byte for byte the same",
    )


def _fitting(trial: EventTrial) -> Results:
    log, training, validation = trial.fitting
    events = {name: value for name, value in vars(log).items() if name.endswith("_E")}
    queries = {
        f"{part} {name}": value
        for part, part_events in (("training", training), ("validation", validation))
        for name, value in vars(part_events).items()
        if value is not None
    }
    return {name: [np.asarray(value)] for name, value in {**events, **queries}.items()}


def alone_check(case: EventAuditCase, fitted: Mapping[str, RankEvents]) -> Check:
    """Compare scores of the first half of some queries with those that they have among all."""
    queries = case.trial.queries(case.evaluated[_spread(len(case.evaluated))])
    half = max(1, len(queries) // 2)
    first = EventQueries(**{name: value[:half] for name, value in vars(queries).items() if value is not None})
    log = case.trial.log
    changed = differing(_scores(fitted, log, first), _scores(fitted, log, queries, half))
    return _check(case, ALONE, f"scores of {half} queries, alone and before {len(queries) - half} later ones", changed)


def future_check(case: EventAuditCase, fitted: Mapping[str, RankEvents], name: str, cut: int) -> Check:
    """Replace all events from one on, and compare the scores of the queries to which none of them is visible."""
    event_S = case.evaluated[case.trial.num_visible_E[case.evaluated] <= cut]
    near_S = event_S[max(0, len(event_S) - NUM_QUERIES // 2) :]  # a leak of a few events shows up at the last queries
    queries = case.trial.queries(np.union1d(event_S[_spread(len(event_S), NUM_QUERIES // 2)], near_S))
    log = case.trial.log
    garbage = _with_tail(log, cut, EVENT_POISONS[name](log, cut, case.generator))
    changed = differing(_scores(fitted, garbage, queries), _scores(fitted, log, queries))
    compared = f"scores of {len(queries)} queries, with {name} in place of event {cut} and all later ones"
    return _check(case, f"events: {name}", compared, changed)


def _check(case: EventAuditCase, name: str, compared: str, changed: Mapping[str, str]) -> Check:
    return Check(
        name=name,
        compared=compared,
        methods=tuple(case.methods),
        passed=not changed,
        detail=f"changed: {described(changed)}" if changed else "byte for byte the same",
    )


def _scores(fitted: Mapping[str, RankEvents], log: EventLog, queries: EventQueries, num: int | None = None) -> Results:
    """Give each method's scores of the queries, or of the first `num`, one row for each."""
    return {
        f"scores of {name}": [np.concatenate([np.asarray(block) for block in rank_events(log, queries)])[:num]]
        for name, rank_events in fitted.items()
    }


def _spread(length: int, most: int = NUM_QUERIES) -> NDArray[np.int64]:
    """Give at most `most` indices below `length`, evenly spread."""
    return (
        np.unique(np.linspace(0, length - 1, min(most, length)).astype(np.int64)) if length else np.empty(0, np.int64)
    )


def _cuts(case: EventAuditCase) -> list[int]:
    """Choose an event for each poison: the first one of those with equal times, where the log has such."""
    visible_E, time_E = case.trial.num_visible_E[case.evaluated], case.trial.log.time_E[case.evaluated]
    is_tied_E = np.diff(time_E, append=np.iinfo(np.int64).max) == 0
    options = np.unique(visible_E[is_tied_E] if is_tied_E.any() else visible_E)
    return options[np.linspace(0, len(options) - 1, len(EVENT_POISONS) + 2).astype(np.int64)[1:-1]].tolist()


Tail = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
"""Source, target, time and weight of events that replace a log's later ones."""


def _with_tail(log: EventLog, cut: int, tail: Tail) -> EventLog:
    names = ("source_E", "target_E", "time_E", "weight_E")
    columns = {name: np.concatenate([getattr(log, name)[:cut], part]) for name, part in zip(names, tail, strict=True)}
    return EventLog(**{**vars(log), **columns})


def no_events(log: EventLog, cut: int, generator: np.random.Generator) -> Tail:
    """Drop the events."""
    return log.source_E[:0], log.target_E[:0], log.time_E[:0], log.weight_E[:0]


def shuffled_events(log: EventLog, cut: int, generator: np.random.Generator) -> Tail:
    """Give the same sources, targets and weights at the same times, each in another order."""
    source_E, target_E = (part[cut:][generator.permutation(len(log) - cut)] for part in (log.source_E, log.target_E))
    return source_E, target_E, log.time_E[cut:], log.weight_E[cut:][generator.permutation(len(log) - cut)]


def random_events(log: EventLog, cut: int, generator: np.random.Generator, volume: int = 1) -> Tail:
    """Give uniform sources and targets at the same times, `volume` times as many."""
    time_E = np.repeat(log.time_E[cut:], volume)
    source_E = generator.integers(log.num_sources, size=len(time_E))
    target_E = generator.integers(log.num_targets, size=len(time_E))
    return source_E, target_E, time_E, np.ones(len(time_E))


def tenfold_events(log: EventLog, cut: int, generator: np.random.Generator) -> Tail:
    """Give ten times as many random events."""
    return random_events(log, cut, generator, volume=10)


def broken_weights(log: EventLog, cut: int, generator: np.random.Generator) -> Tail:
    """Give random events with weights that are no numbers, infinite, negative or huge, at one later time."""
    source_E, target_E, time_E, _ = random_events(log, cut, generator)
    weight_E = generator.choice(BROKEN_WEIGHTS, size=len(time_E))
    return source_E, target_E, np.full(len(time_E), log.time_E[-1]), weight_E


EVENT_POISONS: dict[str, Callable[[EventLog, int, np.random.Generator], Tail]] = {
    "no events": no_events,
    "shuffled events": shuffled_events,
    "random events": random_events,
    "ten times the events": tenfold_events,
    "broken weights and times": broken_weights,
}

NUM_EVENT_CHECKS = len(EVENT_POISONS) + 4
