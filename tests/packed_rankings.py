"""A small log of edits as a packed ranking of its first events, and the ranking of all events by another way."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from live_logs import rows_of

from dyformer.logs.time_windows import TimeUnit
from dyformer.scoring.event_forecaster import EventForecaster, FittedEventForecaster, fit_on_past
from dyformer.scoring.live_ranking import LiveRanking, NamedEvents, NodeIds
from dyformer.scoring.packed_ranking import PackedRanking
from dyformer.streams.event_log import EventLog
from dyformer.streams.event_state import EventState

SECOND = 1_000_000
Row = tuple[Any, Any, int]


def log_rows(*, bipartite: bool = True, integers: bool = False) -> list[Row]:
    """Make rows source, target, time in seconds, as texts or as integers."""
    rows = [(source, target if bipartite else target.replace("p", "u"), time) for source, target, time in rows_of(700)]
    rows = [row for row in rows if row[0] != row[1]]
    return [(int(source[1:]), int(target[1:]), time) for source, target, time in rows] if integers else rows


def named(rows: Sequence[Row]) -> NamedEvents:
    """Name the events of rows in order of time."""
    times = [time * SECOND for _, _, time in rows]
    names = [[str(row[end]) for row in rows] for end in (0, 1)]
    return NamedEvents(sources=names[0], targets=names[1], times=times, weights=[1.0] * len(rows))


def no_ids(*, bipartite: bool) -> NodeIds:
    """Give the ids before the first event."""
    sources: list[str] = []
    return NodeIds(sources=sources, targets=[] if bipartite else sources)


def numbered(rows: Sequence[Row], ids: NodeIds) -> EventLog:
    """Number the events of rows, and give numbers to new nodes."""
    events = named(rows)
    source_E, target_E = ids.numbered(events)
    return EventLog(
        source_E=source_E,
        target_E=target_E,
        time_E=np.array(events.times),
        weight_E=np.array(events.weights),
        num_sources=len(ids.sources),
        num_targets=len(ids.targets),
        two_sides=ids.two_sides,
        seconds=1 / SECOND,
    )


def packed(rows: Sequence[Row], *, bipartite: bool = True, integers: bool = False) -> PackedRanking:
    """Fit a few trees on rows, and pack them with the state after these."""
    ids = no_ids(bipartite=bipartite)
    log = numbered(rows, ids)
    method = EventForecaster(gate_rounds=6, past_rounds=6, new_rounds=6)
    fitted = fit_on_past(method, log, seed=0)
    state = EventState(0, 0, fitted.settings)
    state.observe(log)
    unit = cast(TimeUnit, "s")
    return PackedRanking(
        fitted=fitted,
        state=state,
        ids=ids,
        time_unit=unit,
        first_time=rows[0][2] * SECOND,
        has_integer_ids=integers,
    )


def ranking_of(fitted: FittedEventForecaster, rows: Sequence[Row]) -> LiveRanking:
    """Give the ranking that observed all rows from the beginning."""
    settings = fitted.settings
    ranking = LiveRanking(fitted, EventState(0, 0, settings), no_ids(bipartite=settings.two_sides))
    ranking.observe(named(rows))
    return ranking
