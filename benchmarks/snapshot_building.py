"""9.8M events -> 16 snapshots and their union graph, against duckdb and against grouping by three columns.

Every side reads the same table in memory: node numbers and times, in the order of the log. It gives the weighted
undirected edges of each step and, for the union, each edge once with the first step that has it.
"""

from functools import partial

import measure
import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.graphs.snapshots import DynamicGraph, build_snapshots
from dyformer.graphs.union_graph import TemporalUnionGraph, build_union_graph
from dyformer.logs.time_windows import Window

NUM_ROWS = 9_800_000
NUM_NODES = 1_000_000
NUM_STEPS = 16
LENGTH = 1_000_000
Output = tuple[NDArray[np.int64], ...]
"""Step, source, target and weight of all snapshots' edges; source, target and first step of the union's."""


def events_table(*, seed: int = 0) -> pl.DataFrame:
    """Draw power-law ends and ascending times; nodes are numbered by first appearance, as after an ingest."""
    generator = np.random.default_rng(seed)
    cumulative_N = np.cumsum(np.arange(1, NUM_NODES + 1) ** (-2 / 3))
    end_S = np.searchsorted(cumulative_N / cumulative_N[-1], generator.random(2 * NUM_ROWS))
    id_N, first_N, number_S = np.unique(end_S, return_index=True, return_inverse=True)
    rank_N = np.empty(len(id_N), dtype=np.int64)
    rank_N[np.argsort(first_N)] = np.arange(len(id_N))
    number_S = rank_N[number_S]
    time_R = np.sort(generator.integers(0, NUM_STEPS * LENGTH, NUM_ROWS))
    time_R[[0, -1]] = 0, NUM_STEPS * LENGTH - 1
    return pl.DataFrame({"source": number_S[0::2], "target": number_S[1::2], "time": time_R})


def ours(events: pl.DataFrame) -> tuple[DynamicGraph, TemporalUnionGraph]:
    """Split the table into snapshots and unite them, as `dyformer prepare` does."""
    graph = build_snapshots(events, Window.parse(str(LENGTH)), "step")
    return graph, build_union_graph(graph, until=NUM_STEPS)


def columns_of(graph: DynamicGraph, union: TemporalUnionGraph) -> Output:
    """Give our result in the columns of the peers."""
    steps = [np.full(len(snapshot.source_E), snapshot.step) for snapshot in graph.snapshots]
    parts = [[getattr(s, name) for s in graph.snapshots] for name in ("source_E", "target_E", "weight_E")]
    edges = [np.concatenate(part) for part in (steps, *parts)]
    first_step_E = union.until - np.log2(union.presence_EW[:, 0]).astype(np.int64)  # the oldest lag is the highest bit
    return *edges, union.source_E, union.target_E, first_step_E


def with_duckdb(events: pl.DataFrame) -> Output:
    """Do the same in SQL: two groupings and two sorts."""
    import duckdb

    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        connection.register("events", events.to_arrow())
        connection.execute(
            f"""
            CREATE TABLE edges AS
                SELECT time // {LENGTH} + 1 AS step, least(source, target) AS u, greatest(source, target) AS v,
                    count(*)::DOUBLE AS weight
                FROM events WHERE source <> target GROUP BY ALL ORDER BY ALL
            """
        )
        edges = connection.execute("FROM edges").fetchnumpy()
        union = connection.execute(
            "SELECT u, v, min(step) AS first_step FROM edges GROUP BY u, v ORDER BY u, v"
        ).fetchnumpy()
    return *(edges[name] for name in ("step", "u", "v", "weight")), *(union[name] for name in ("u", "v", "first_step"))


def with_group_by(events: pl.DataFrame) -> Output:
    """Do the same by grouping a data frame by three columns."""
    import pandas as pd

    log = events.to_pandas()
    log = log[log["source"] != log["target"]]
    pairs = pd.DataFrame(
        {
            "step": log["time"] // LENGTH + 1,
            "u": np.minimum(log["source"], log["target"]),
            "v": np.maximum(log["source"], log["target"]),
        }
    )
    edges = pairs.groupby(["step", "u", "v"]).size().astype(float).reset_index(name="weight")
    union = edges.groupby(["u", "v"])["step"].min().reset_index()
    return *(edges[name].to_numpy() for name in edges.columns), *(union[name].to_numpy() for name in union.columns)


def check_equal(expected: Output, others: dict[str, Output]) -> None:
    """Raise where a side differs from ours."""
    for name, output in others.items():
        for one, other in zip(expected, output, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=f"{name} differs from ours")


def main() -> None:
    """Check, time and evaluate all sides on one table."""
    events = events_table()
    graph, union = ours(events)
    check_equal(columns_of(graph, union), {"duckdb": with_duckdb(events), "group-by": with_group_by(events)})
    print(f"identical output: {sum(len(s.source_E) for s in graph.snapshots):,} edges, {len(union.source_E):,} united")
    del graph, union
    jobs = {
        "snapshots alone": partial(build_snapshots, events, Window.parse(str(LENGTH)), "step"),
        "dyformer": lambda: columns_of(*ours(events)),
        "duckdb": partial(with_duckdb, events),
        "three-column group-by": partial(with_group_by, events),
    }
    seconds = measure.cpu_seconds(jobs)
    for name, value in measure.medians(seconds).items():
        print(f"{name}: {value:.2f} s, {NUM_ROWS / value / 1e6:.2f} M rows/s")
    for name, target in {"duckdb": 1.4, "three-column group-by": 3.5}.items():
        values = measure.ratios(seconds[name], seconds["dyformer"])
        measure.verdict(f"snapshots-union-vs-{name.removeprefix('three-column ')}", values, target)


if __name__ == "__main__":
    main()
