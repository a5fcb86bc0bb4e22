"""Rows of a log in order of time -> an EventLog, and the queries that are ranked as of their own moments.

The nodes of an EventLog are numbered by side.

E events    Q queries    C candidates of a query    R rows of the store    S sources    T targets
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

MICROSECOND = 1e-6


@dataclass(frozen=True, kw_only=True, eq=False)
class EventLog:
    """Events in order of (time, log order); sources and targets are numbered from 0.

    With two sides, as users and pages, source 3 and target 3 are different nodes. With one side they are the same
    node, and a source never ranks itself.
    """

    source_E: NDArray[np.int64]
    target_E: NDArray[np.int64]
    time_E: NDArray[np.int64]  # ascending, in units of the log
    weight_E: NDArray[np.float64]  # the log's weights; 1 where it has none
    num_sources: int
    num_targets: int  # with one side equal to num_sources
    two_sides: bool
    seconds: float  # length of one unit of time in seconds: 1e-6 for microseconds, 1 for a log's own steps

    def __len__(self) -> int:
        """Return the number of events."""
        return len(self.source_E)

    def head(self, num_events: int) -> "EventLog":
        """Give the earliest events; the numbers of nodes stay."""
        columns = ("source_E", "target_E", "time_E", "weight_E")
        return EventLog(**{**vars(self), **{name: getattr(self, name)[:num_events] for name in columns}})


@dataclass(frozen=True, kw_only=True, eq=False)
class EventQueries:
    """Q queries in order of time: each ranks the targets that a source may choose next, as of a moment.

    Of the log only the first `num_visible_Q` events may be read for a query. They never include an event at or after
    the query's time. A query does not hold the target that was chosen.
    """

    source_Q: NDArray[np.int64]
    time_Q: NDArray[np.int64]  # ascending, in the log's units
    num_visible_Q: NDArray[np.int64]  # ascending: number of the log's earliest events that are known
    candidate_QC: NDArray[np.int64] | None = None  # None: every target is a candidate, and C is num_targets

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.source_Q)


class NumberedEvents(NamedTuple):
    """A log of events, and the permanent number of the node behind each of its numbers."""

    log: EventLog
    source_node_S: NDArray[np.int64]  # of source 0, 1, ...
    target_node_T: NDArray[np.int64]  # of target 0, 1, ...; with one side the same as source_node_S


def event_log_of(events: pl.DataFrame, *, has_steps: bool) -> NumberedEvents:
    """Put events in order of (time, log order) and number their nodes in the order of their permanent numbers.

    A log that grows keeps its numbers, because permanent numbers are given by first appearance. A log has two sides if
    a target is on another side than the sources.

    Args:
        events: columns source and target (permanent numbers), target_side (0 or 1), time and weight, in log order.
        has_steps: whether times are the log's own steps, else they are microseconds.
    """
    events = events.sort("time", maintain_order=True)
    source_R, target_R = events["source"].to_numpy(), events["target"].to_numpy()
    two_sides = bool("target_side" in events.columns and (events["target_side"] > 0).any())
    sources, targets = (source_R, target_R) if two_sides else (np.concatenate([source_R, target_R]),) * 2
    source_node_S, target_node_T = np.unique(sources), np.unique(targets)
    log = EventLog(
        source_E=np.searchsorted(source_node_S, source_R),
        target_E=np.searchsorted(target_node_T, target_R),
        time_E=events["time"].to_numpy().astype(np.int64),
        weight_E=events["weight"].fill_null(1.0).to_numpy().astype(np.float64),
        num_sources=len(source_node_S),
        num_targets=len(target_node_T),
        two_sides=two_sides,
        seconds=1.0 if has_steps else MICROSECOND,
    )
    return NumberedEvents(log, source_node_S, target_node_T)
