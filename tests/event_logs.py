"""Small logs of events for tests, and the log of the Temporal Graph Benchmark's tgbl-wiki."""

from functools import cache
from pathlib import Path

import numpy as np
from published_logs import published_events

from dyformer.streams.event_log import EventLog


def log_of(rows: list[tuple[int, int, int]], *, two_sides: bool = True, seconds: float = 1.0) -> EventLog:
    """Make a log of rows source, target, time, in order of time."""
    source_E, target_E, time_E = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    num_sources, num_targets = int(source_E.max()) + 1, int(target_E.max()) + 1
    if not two_sides:
        num_sources = num_targets = max(num_sources, num_targets)
    return EventLog(
        source_E=source_E,
        target_E=target_E,
        time_E=time_E,
        weight_E=np.ones(len(rows)),
        num_sources=num_sources,
        num_targets=num_targets,
        two_sides=two_sides,
        seconds=seconds,
    )


def random_log(
    *, num_events: int = 400, num_nodes: int = 12, num_times: int = 150, two_sides: bool = True, seed: int = 0
) -> EventLog:
    """Make a log whose sources return to a few targets, with many equal times."""
    generator = np.random.default_rng(seed)
    source_E = generator.integers(num_nodes, size=num_events)
    favourite_E = (source_E * 5 + generator.integers(3, size=num_events)) % num_nodes
    target_E = np.where(generator.random(num_events) < 0.6, favourite_E, generator.integers(num_nodes, size=num_events))
    if not two_sides:
        target_E = np.where(target_E == source_E, (target_E + 1) % num_nodes, target_E)
    return EventLog(
        source_E=source_E,
        target_E=target_E,
        time_E=np.sort(generator.integers(num_times, size=num_events)) * 700_000_000,
        weight_E=generator.random(num_events),
        num_sources=num_nodes,
        num_targets=num_nodes,
        two_sides=two_sides,
        seconds=1e-6,
    )


@cache
def wikipedia_log(path: Path) -> EventLog:
    """Read the published log of edits, whose events and order are those of tgbl-wiki."""
    events, ids = published_events("snap-wikipedia", path)
    is_target_N = np.array([node.startswith("1 ") for node in ids])
    number_N = np.where(is_target_N, np.cumsum(is_target_N), np.cumsum(~is_target_N)) - 1
    return EventLog(
        source_E=number_N[events["source"].to_numpy()],
        target_E=number_N[events["target"].to_numpy()],
        time_E=events["time"].to_numpy().astype(np.int64),
        weight_E=np.ones(len(events)),
        num_sources=int((~is_target_N).sum()),
        num_targets=int(is_target_N.sum()),
        two_sides=True,
        seconds=1e-6,
    )
