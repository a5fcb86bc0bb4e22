"""Rows of a log in order of time -> an EventLog, and the queries that are ranked as of their own moments.

E events    Q queries    C candidates of a query
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


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
