"""A log of events -> a forecaster fitted on its earlier part and chosen on its later one."""

import numpy as np

from dyformer.scoring.event_forecaster import EventForecaster, FittedEventForecaster
from dyformer.scoring.event_heads import Done, unreported
from dyformer.streams.event_log import EventLog, EventQueries

VALIDATION_FROM = 0.85  # quantile of the times at which the later part begins
FEWEST_EVENTS = 20


class TooFewPastEvents(ValueError):
    """A log whose events or times are too few to fit on."""


def fit_on_past(method: EventForecaster, log: EventLog, *, seed: int, done: Done = unreported) -> FittedEventForecaster:
    """Fit on the events up to a quantile of their times, choose on those after it; every event sees all before it.

    `done` is called after each of the rounds of the method.
    Raises TooFewPastEvents where one of the two parts would be empty, or the log is very short.
    """
    if len(log) < FEWEST_EVENTS:
        raise TooFewPastEvents(f"found {len(log)} events: expected at least {FEWEST_EVENTS} to fit a forecaster on")
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
