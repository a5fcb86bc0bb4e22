"""Events on disk -> the snapshots that `build_snapshots` makes, the rows behind them, and what is wrong with them.

The check is SQL that shares nothing with the code that makes the tables.

V permanent node numbers    N nodes of the graph    E edges of one snapshot    R rows in order of time
"""

from collections.abc import Mapping

import duckdb
import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.graphs.interactions import Interactions, NodeLabels
from dyformer.graphs.snapshots import DynamicGraph, Snapshot, interactions_in
from dyformer.graphs.windows import Windows, split_windows
from dyformer.logs.time_windows import TimeUnit, Window

NODES = """
SELECT node, side, min(position) // 2 AS first_row FROM (
    SELECT source AS node, 0::TINYINT AS side, 2 * rowid AS position FROM in_time WHERE rowid >= $first AND rowid < $end
    UNION ALL
    SELECT target, side, 2 * rowid + 1 FROM in_time WHERE rowid >= $first AND rowid < $end
) GROUP BY node, side ORDER BY min(position)
"""
PAIRS = """
SELECT least(source, target) AS source, greatest(source, target) AS target, count(*)::DOUBLE AS weight
FROM in_time WHERE rowid >= $first AND rowid < $end GROUP BY 1, 2
"""
SNAPSHOT_CHECKS = {
    "an edge has source < target": "select count(*) from edges where source >= target",
    "an edge is listed once in a step": (
        "select count(*) from (select 1 from edges group by step, source, target having count(*) > 1)"
    ),
    "a weight is at least 1 and finite": "select count(*) from edges where not (weight >= 1 and isfinite(weight))",
    "an edge's nodes are known at its step": (
        "select count(*) from edges left join steps using (step) "
        "where steps.step is null or source < 0 or target >= num_nodes"
    ),
    "steps count from 1 without a gap": (
        "select count(*) from (select step, row_number() over (order by step) as n from steps) where step <> n"
    ),
    # Neighbouring windows of equal count may share a time, so only their order is checked.
    "windows follow each other": (
        "select count(*) from steps a left join steps b on b.step = a.step + 1 "
        "where b.start_time < a.start_time or b.end_time < a.end_time or a.start_time > a.end_time"
    ),
    "nodes never become fewer": (
        "select count(*) from steps a join steps b on b.step = a.step + 1 where b.num_nodes < a.num_nodes"
    ),
    "interactions are the edges' weights and the self-loops": (
        "select count(*) from steps "
        "left join (select step, sum(weight) as weight from edges group by step) using (step) "
        "where num_interactions <> coalesce(weight, 0) + num_self_loops"
    ),
    "the nodes are those known at the last step": (
        "select abs(count(*) - (select max(num_nodes) from steps)) from nodes"
    ),
}


def cut_rows(
    connection: duckdb.DuckDBPyConnection, time_R: NDArray[np.int64], window: Window, time_unit: TimeUnit
) -> DynamicGraph:
    """Cut the table `in_time` (source, target, side, time), which is in order of time, into snapshots.

    `time_R` is its column of times. Raises WindowError.
    """
    windows = split_windows(time_R, window, time_unit)
    rows = {"first": int(windows.first_row_T[0]), "end": int(windows.end_row_T[-1])}
    nodes = connection.sql(NODES, params=rows).pl()
    node_N, first_N = nodes["node"].to_numpy(), nodes["first_row"].to_numpy()
    number_V = np.zeros(int(node_N.max()) + 1, dtype=np.int64)
    number_V[node_N] = np.arange(len(node_N))
    snapshots = [
        _snapshot(connection, windows, index, number_V, int(np.searchsorted(first_N, windows.end_row_T[index])))
        for index in range(len(windows.first_row_T))
    ]
    return DynamicGraph(snapshots=tuple(snapshots), node_N=node_N, side_N=nodes["side"].to_numpy())


def _snapshot(
    connection: duckdb.DuckDBPyConnection, windows: Windows, index: int, number_V: NDArray[np.int64], num_nodes: int
) -> Snapshot:
    rows = {"first": int(windows.first_row_T[index]), "end": int(windows.end_row_T[index])}
    pairs = connection.sql(PAIRS, params=rows).pl()
    one_E, other_E = number_V[pairs["source"].to_numpy()], number_V[pairs["target"].to_numpy()]
    key_E = np.minimum(one_E, other_E) * max(num_nodes, 1) + np.maximum(one_E, other_E)
    order_E = np.argsort(key_E)
    order_E, loop_L = order_E[(one_E != other_E)[order_E]], order_E[(one_E == other_E)[order_E]]
    weight_E = pairs["weight"].to_numpy()
    return Snapshot(
        step=index + 1,
        start_time=int(windows.start_time_T[index]),
        end_time=int(windows.end_time_T[index]),
        source_E=np.minimum(one_E, other_E)[order_E],
        target_E=np.maximum(one_E, other_E)[order_E],
        weight_E=weight_E[order_E],
        num_interactions=rows["end"] - rows["first"],
        num_self_loops=int(weight_E[loop_L].sum()),
        num_nodes=num_nodes,
        self_loop_node_L=one_E[loop_L],
    )


def interactions_behind(events: pl.LazyFrame, graph: DynamicGraph) -> Interactions:
    """Read the rows behind the snapshots of a graph from its log's events, in the order of `build_snapshots`."""
    rows = _rows_behind(events, graph, ("source_node", "target_node", "time", "weight"))
    source, target, time, weight = (rows[name].to_numpy() for name in rows.columns)
    number_V = _numbers(graph)
    return interactions_in(graph.snapshots, number_V[source], number_V[target], time, weight)


def labels_behind(events: pl.LazyFrame, graph: DynamicGraph) -> NodeLabels:
    """Read the labels of the rows behind the snapshots of a graph; none where the log has no labels."""
    rows = _rows_behind(events, graph, ("source_node", "label"))
    step_R = np.repeat([s.step for s in graph.snapshots], [s.num_interactions for s in graph.snapshots])
    is_labelled_R = rows["label"].is_not_null().to_numpy()
    rows = rows.filter(is_labelled_R)
    return NodeLabels(
        node_R=_numbers(graph)[rows["source_node"].to_numpy()],
        step_R=step_R[is_labelled_R],
        label_R=rows["label"].to_numpy(),
    )


def _rows_behind(events: pl.LazyFrame, graph: DynamicGraph, columns: tuple[str, ...]) -> pl.DataFrame:
    num_rows = sum(snapshot.num_interactions for snapshot in graph.snapshots)
    inside = pl.col("time").is_between(
        graph.snapshots[0].start_time, graph.snapshots[-1].end_time, closed="left"
    )  # rows before the first window are trimmed
    # Rows of the last moment may belong to the next step, so the number of rows decides.
    rows = events.filter(inside).sort("time", "ingest", "row").select(columns).collect().head(num_rows)
    assert rows.height == num_rows, f"{rows.height} rows for {num_rows} interactions"
    return rows


def _numbers(graph: DynamicGraph) -> NDArray[np.int64]:
    """Give the node of the graph for each permanent node number [V]."""
    number_V = np.zeros(int(graph.node_N.max(initial=-1)) + 1, dtype=np.int64)
    number_V[graph.node_N] = np.arange(len(graph.node_N))
    return number_V


def snapshot_faults(snapshot_tables: Mapping[str, pl.DataFrame]) -> list[str]:
    """Violated checks of the tables `edges`, `steps` and `nodes`, with the number of rows; empty for sound tables."""
    with duckdb.connect() as connection:
        for name in ("edges", "steps", "nodes"):
            connection.register(name, snapshot_tables[name])
        return faults_in(connection)


def faults_in(connection: duckdb.DuckDBPyConnection) -> list[str]:
    """Check the tables of a connection as `snapshot_faults` does."""
    counts = {claim: _number(connection, query) for claim, query in SNAPSHOT_CHECKS.items()}
    return [f"violated: {claim} ({num_rows} rows)" for claim, num_rows in counts.items() if num_rows]


def _number(connection: duckdb.DuckDBPyConnection, query: str) -> int:
    (row,) = connection.execute(query).fetchall()
    return int(row[0] or 0)
