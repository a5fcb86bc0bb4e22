"""Rows of a log, as the store gives them -> an EventLog, whose nodes are numbered by side.

R rows
"""

from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.streams.event_log import EventLog

MICROSECOND = 1e-6


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
