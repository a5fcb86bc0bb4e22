"""A graph and a step -> the same log with other rows after that step, as a graph again.

R rows of the log, in log order    N nodes    T steps
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.graphs.snapshots import DynamicGraph, interactions_of, snapshots_of
from dyformer.graphs.windows import Windows

RANDOM = "random edges"
BROKEN_WEIGHTS = (np.nan, np.inf, -np.inf, -1.0, 0.0, 1e308)


@dataclass(frozen=True, kw_only=True)
class SplitRows:
    """The rows of a log up to a step and after it, and the nodes that may be a source or a target of a row."""

    past: pl.DataFrame
    future: pl.DataFrame
    sources: NDArray[np.int64]  # permanent numbers of the nodes known at the step; on a bipartite log those of one side
    targets: NDArray[np.int64]


def rows_of(graph: DynamicGraph) -> pl.DataFrame:
    """Give the rows of a graph: step, source and target (permanent numbers), time, weight, and sides if it has two."""
    rows = interactions_of(graph)
    step_R = np.repeat([s.step for s in graph.snapshots], [s.num_interactions for s in graph.snapshots])
    columns = {
        "step": step_R.astype(np.int64),
        "source": graph.node_N[rows.source_R],
        "target": graph.node_N[rows.target_R],
        "time": rows.time_R,
        "weight": rows.weight_R,
    }
    if graph.side_N.any():
        sides = {"source_side": graph.side_N[rows.source_R], "target_side": graph.side_N[rows.target_R]}
        columns |= sides
    return pl.DataFrame(columns)


def graph_of(rows: pl.DataFrame, like: DynamicGraph, num_steps: int | None = None) -> DynamicGraph:
    """Build the snapshots of rows, in log order, anew; the windows are the first `num_steps` (or all) of `like`."""
    snapshots = like.snapshots[:num_steps]
    step_R, time_R = rows["step"].to_numpy(), rows["time"].to_numpy()
    order_R = np.lexsort((time_R, step_R))  # the step first, because windows of equal count may share a moment
    steps = np.arange(1, len(snapshots) + 1)
    windows = Windows(
        start_time_T=np.array([s.start_time for s in snapshots]),
        end_time_T=np.array([s.end_time for s in snapshots]),
        first_row_T=np.searchsorted(step_R[order_R], steps, "left"),
        end_row_T=np.searchsorted(step_R[order_R], steps, "right"),
    )
    graph = snapshots_of(rows, order_R, windows)
    return DynamicGraph(**{**vars(graph), "directed": like.directed})


def split_rows(graph: DynamicGraph, until: int) -> SplitRows:
    """Divide the rows of a graph after the step `until`."""
    rows, num_nodes = rows_of(graph), graph.snapshots[until - 1].num_nodes
    node_N, side_N = graph.node_N[:num_nodes], graph.side_N[:num_nodes]
    return SplitRows(
        past=rows.filter(pl.col("step") <= until),
        future=rows.filter(pl.col("step") > until),
        sources=node_N[side_N == 0] if graph.side_N.any() else node_N,
        targets=node_N[side_N == 1] if graph.side_N.any() else node_N,
    )


def poisoned(graph: DynamicGraph, until: int, name: str, *, seed: int) -> DynamicGraph:
    """Replace all rows after the step `until` by those of a poison of POISONS."""
    split = split_rows(graph, until)
    later = POISONS[name](split, np.random.default_rng([seed, until]))
    return graph_of(pl.concat([split.past, later.select(split.past.columns)]), graph)


def nothing(split: SplitRows, generator: np.random.Generator) -> pl.DataFrame:
    """Drop all rows; the windows stay, and are empty."""
    return split.future.head(0)


def shuffled(split: SplitRows, generator: np.random.Generator) -> pl.DataFrame:
    """Give the same sources, targets and times, each in another order."""
    rows = split.future
    columns = ("source", "target", "weight")
    parts = [rows.select(name)[generator.permutation(len(rows))] for name in columns]
    return pl.concat([rows.drop(columns), *parts], how="horizontal")


def random_edges(split: SplitRows, generator: np.random.Generator, volume: int = 1) -> pl.DataFrame:
    """Link uniform pairs of different known nodes at the same times, `volume` times as often."""
    rows = pl.concat([split.future] * volume)
    source_R, target_R = (generator.choice(pool, size=len(rows)) for pool in (split.sources, split.targets))
    return rows.with_columns(source=source_R, target=target_R).filter(pl.col("source") != pl.col("target"))


def tenfold(split: SplitRows, generator: np.random.Generator) -> pl.DataFrame:
    """Give ten times as many random edges."""
    return random_edges(split, generator, volume=10)


def new_nodes(split: SplitRows, generator: np.random.Generator) -> pl.DataFrame:
    """Link nodes that were never there with known ones and with each other."""
    rows = split.future
    ends = [part[name].to_numpy() for part in (split.past, split.future) for name in ("source", "target")]
    first = 1 + int(np.concatenate(ends).max())
    strangers = np.arange(first, first + max(2, len(rows) // 3))
    # On a bipartite log a new node has one side, like every other.
    new_sources, new_targets = (strangers[::2], strangers[1::2]) if "source_side" in rows.columns else (strangers,) * 2
    source_R = generator.choice(np.concatenate([new_sources, split.sources]), size=len(rows))
    target_R = generator.choice(np.concatenate([new_targets, split.targets]), size=len(rows))
    target_R[: len(rows) // 3] = generator.choice(new_targets, size=len(rows) // 3)
    return rows.with_columns(source=source_R, target=target_R)


def broken_weights(split: SplitRows, generator: np.random.Generator) -> pl.DataFrame:
    """Give the same rows with weights that are no numbers, infinite, negative, or huge."""
    return split.future.with_columns(weight=generator.choice(BROKEN_WEIGHTS, size=len(split.future)))


POISONS: dict[str, Callable[[SplitRows, np.random.Generator], pl.DataFrame]] = {
    "nothing": nothing,
    "shuffled": shuffled,
    RANDOM: random_edges,
    "ten times the volume": tenfold,
    "new nodes": new_nodes,
    "broken weights": broken_weights,
}


def malformed(rows: list[bytes], generator: np.random.Generator) -> list[bytes]:
    """Mix lines of a log with bytes that are no rows of it."""
    good = rows[0]
    junk = [
        b"",
        b'"',
        b'"unclosed ' + good,
        good + b'"',
        good[: len(good) // 2],
        b"\xff\xfe\x00\x01",
        b"\x00" * 40,
        b"caf\xe9 " + good,
        good + b" " + good,
        b"% a comment",
        b"# a comment",
        b"source,target,time",
        good.replace(b"0", b"O"),
        b"1 2 1 -99999999999999999999",
        b"u1,u2,0000-00-00T00:00:00Z",
        b"\xef\xbb\xbf" + good,
        b"x" * 200_000,
        b'{"source": 1, "target": 2}',
    ]
    noise = [generator.bytes(int(size)).replace(b"\n", b"") for size in generator.integers(1, 300, size=300)]
    lines = [*rows, *junk, *noise]
    return [lines[index] for index in generator.permutation(len(lines))]
