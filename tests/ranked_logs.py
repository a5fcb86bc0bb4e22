"""Logs to rank on: new nodes at every step, busy and quiet nodes, repeats and self-loops."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from dyformer.graphs.snapshots import DynamicGraph, build_snapshots
from dyformer.logs.time_windows import Window


def growing_log(
    *,
    bipartite: bool = False,
    directed: bool = True,
    seed: int = 0,
    num_nodes: int = 40,
    num_steps: int = 5,
    num_rows: int = 70,
) -> DynamicGraph:
    """Nodes with small numbers send and receive more, and `num_nodes` / (steps + 1) nodes are new at each step."""
    generator = np.random.default_rng(seed)
    source, target, times = [], [], []
    for step in range(num_steps):
        known = num_nodes * (step + 2) // (num_steps + 1)
        rows = (generator.random((2, num_rows)) ** [[1.0], [2.0]] * known).astype(int)
        source += rows[0].tolist()
        target += rows[1].tolist()
        times += [step] * num_rows
    events = {"source": np.array(source), "target": np.array(target), "time": np.array(times)}
    if bipartite:
        events["target"] += num_nodes
        events |= {"source_side": np.zeros(len(times), np.int8), "target_side": np.ones(len(times), np.int8)}
    graph = build_snapshots(pl.DataFrame(events), Window(rule="equal_time", length="1"), "step")
    return replace(graph, directed=directed)


DAY = 86_400_000_000  # microseconds
WEEK = (90, 110, 100, 100, 105, 30, 8)  # rows of the days


def weekly_log(*, num_weeks: int = 5, num_nodes: int = 60, without: Sequence[int] = ()) -> DynamicGraph:
    """Days of a week, of which the last two have few rows; nodes with small numbers send and receive more.

    The steps `without` have no rows.
    """
    generator = np.random.default_rng(0)
    time_R = np.repeat(np.arange(7 * num_weeks), WEEK * num_weeks)
    source_R, target_R = (generator.random((2, len(time_R))) ** 1.5 * num_nodes).astype(int)
    events = pl.DataFrame({"source": source_R, "target": target_R, "time": DAY * time_R})
    events = events.filter(~pl.col("time").is_in([DAY * (step - 1) for step in without]))
    return build_snapshots(events, Window(rule="equal_time", length="1d"), "us")
