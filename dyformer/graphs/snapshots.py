"""Events -> DynamicGraph of Snapshots (paper, section 2 and Table 1).

N nodes    E undirected edges of one snapshot    L nodes with a self-loop in one snapshot    T steps
R rows in order of time    S ends of rows: source before target    X edges of all snapshots
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer import InvalidInput
from dyformer.graphs.interactions import Interactions, positions
from dyformer.graphs.windows import Windows, split_windows, time_order
from dyformer.logs.time_windows import TimeUnit, Window

FIRST_EVALUATED_STEP = 3  # so that training has at least two steps


class StepOutOfRange(InvalidInput):
    """A step that the snapshots do not have, or that has too short a history."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The unique undirected edges of one window; its nodes are all nodes up to this step.

    `step` counts from 1. Edges have `source < target`, are sorted by (source, target) and carry the number of
    interactions as weight. Self-loops are not edges: they are counted, and their nodes listed.
    """

    step: int
    start_time: int  # first moment of the window, included (microseconds since the epoch, or the log's own step)
    end_time: int  # last moment of the window, excluded
    source_E: NDArray[np.int64]
    target_E: NDArray[np.int64]
    weight_E: NDArray[np.float64]
    num_interactions: int
    num_self_loops: int  # interactions of a node with itself
    num_nodes: int  # nodes up to and including this step: 0 .. num_nodes - 1
    self_loop_node_L: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # sorted, distinct


@dataclass(frozen=True, kw_only=True)
class DynamicGraph:
    """Snapshots of steps 1..T over nodes numbered by first appearance.

    Nodes are numbered in the order of their first events (time, then log order, source before target). The nodes known
    at a step are therefore exactly `range(snapshot.num_nodes)`, and a prefix of the log gives a prefix of the graph.
    """

    snapshots: tuple[Snapshot, ...]
    node_N: NDArray[np.int64]  # permanent number of each node in the storage's node dictionary
    side_N: NDArray[np.int8]  # 0 and 1 on a bipartite log, all 0 otherwise
    interactions: Interactions | None = None  # None where the graph was read from its tables alone
    directed: bool = True  # whether an interaction's source and target have different roles; snapshots drop it

    @property
    def num_steps(self) -> int:
        """T, the number of snapshots."""
        return len(self.snapshots)


def build_snapshots(events: pl.DataFrame, window: Window, time_unit: TimeUnit) -> DynamicGraph:
    """Split a log into snapshots.

    `events` is in log order. Its columns are source and target (permanent node numbers from 0) and time (microseconds
    since the epoch, or the log's own integer steps). A bipartite log also has source_side and target_side, and a log
    with weights has weight. The interactions of the graph keep the directions, which the snapshots drop. Empty windows
    become empty snapshots.

    New rows at the end of the log change no complete window, with two exceptions: a number of windows divides the whole
    log, and `trim_end` counts back from its end. The last window may still grow: events before its `end_time` may come.
    Raises WindowError (a ValueError) where the window does not fit the log.
    """
    time_R = events["time"].to_numpy()
    order_R = time_order(time_R)
    return snapshots_of(events, order_R, split_windows(time_R[order_R], window, time_unit))


def snapshots_of(events: pl.DataFrame, order_R: NDArray[np.int64], windows: Windows) -> DynamicGraph:
    """Build the snapshots of given windows; `order_R` has the positions of the events' rows in order of time."""
    row_R = order_R[windows.first_row_T[0] : windows.end_row_T[-1]]
    end_S, node_N, first_N = _numbered(_interleaved(events["source"], events["target"], row_R))
    source_R, target_R = end_S[0::2].copy(), end_S[1::2].copy()
    newest_R = np.maximum.accumulate(np.maximum(source_R, target_R))
    snapshots, num_nodes = [], 0
    rows = zip(windows.first_row_T - windows.first_row_T[0], windows.end_row_T - windows.first_row_T[0], strict=True)
    for index, (first, end) in enumerate(rows):
        num_nodes = int(newest_R[end - 1]) + 1 if end else 0
        snapshots.append(
            _snapshot(
                source_R[first:end],
                target_R[first:end],
                step=index + 1,
                times=(int(windows.start_time_T[index]), int(windows.end_time_T[index])),
                num_nodes=num_nodes,
            )
        )
    side_N = np.zeros(len(node_N), dtype=np.int8)
    if "source_side" in events.columns:
        side_N = _interleaved(events["source_side"], events["target_side"], row_R)[first_N].astype(np.int8)
    weight_R = events["weight"].to_numpy()[row_R] if "weight" in events.columns else np.ones(len(row_R))
    return DynamicGraph(
        snapshots=tuple(snapshots),
        node_N=node_N,
        side_N=side_N,
        interactions=interactions_in(snapshots, source_R, target_R, events["time"].to_numpy()[row_R], weight_R),
    )


def interactions_in(
    snapshots: Sequence[Snapshot],
    source_R: NDArray[np.int64],
    target_R: NDArray[np.int64],
    time_R: NDArray[np.int64],
    weight_R: NDArray[np.float64],
) -> Interactions:
    """Give the rows of these snapshots, in order of (time, log order), as interactions."""
    windows = [(snapshot.start_time, snapshot.end_time) for snapshot in snapshots]
    position_R = positions(time_R, windows, [snapshot.num_interactions for snapshot in snapshots])
    return Interactions(source_R=source_R, target_R=target_R, time_R=time_R, weight_R=weight_R, position_R=position_R)


def interactions_of(graph: DynamicGraph) -> Interactions:
    """Give the interactions of a graph. Raises ValueError where it was read without them."""
    if graph.interactions is None:
        raise InvalidInput(
            "the graph has snapshots alone, and features in continuous time need its interactions: make it with "
            "build_snapshots, or read it from the store with interactions=True; a history with `graph.noise` has none"
        )
    return graph.interactions


def _interleaved(source: pl.Series, target: pl.Series, row_R: NDArray[np.int64]) -> NDArray[np.int64]:
    value_S = np.empty(2 * len(row_R), dtype=np.int64)
    value_S[0::2] = source.to_numpy()[row_R]
    value_S[1::2] = target.to_numpy()[row_R]
    return value_S


def _numbered(
    permanent_S: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Number nodes by first appearance.

    Give the number of each end of a row [S], and for each number the permanent one and its first position [N].
    """
    if permanent_S.max(initial=0) < 4 * len(permanent_S) + 1_000_000 and permanent_S.min(initial=0) >= 0:
        dense_S, num_values = permanent_S, int(permanent_S.max(initial=-1)) + 1
    else:  # the numbers are too large for a table of them
        value_V, dense_S = np.unique(permanent_S, return_inverse=True)
        num_values = len(value_V)
    first_V = np.full(num_values, -1)
    first_V[dense_S[::-1]] = np.arange(len(dense_S))[
        ::-1
    ]  # of several assignments the last one stays, which is the earliest position
    first_N = np.sort(first_V[first_V >= 0])
    number_V = np.empty(num_values, dtype=np.int64)
    number_V[dense_S[first_N]] = np.arange(len(first_N))
    return number_V[dense_S], permanent_S[first_N], first_N


def _snapshot(
    source_R: NDArray[np.int64], target_R: NDArray[np.int64], *, step: int, times: tuple[int, int], num_nodes: int
) -> Snapshot:
    # Sorting and run-length encoding a 64-bit key per pair is several times as fast as grouping by two columns.
    num_values = max(num_nodes, 1)
    key_R = np.minimum(source_R, target_R) * num_values + np.maximum(source_R, target_R)
    key_E, count_E = np.unique(key_R[source_R != target_R], return_counts=True)
    self_R = source_R[source_R == target_R]
    return Snapshot(
        step=step,
        start_time=times[0],
        end_time=times[1],
        source_E=key_E // num_values,
        target_E=key_E % num_values,
        weight_E=count_E.astype(np.float64),
        num_interactions=len(source_R),
        num_self_loops=len(self_R),
        num_nodes=num_nodes,
        self_loop_node_L=np.unique(self_R),
    )


def prefix(graph: DynamicGraph, until: int) -> DynamicGraph:
    """Give the graph as of the step `until`: steps 1 .. until, the nodes and the interactions of these steps.

    Raises ValueError for a step that the graph does not have.
    """
    if not 1 <= until <= graph.num_steps:
        raise InvalidInput(f"step {until} is out of range: expected a step from 1 to {graph.num_steps}")
    snapshots, interactions = graph.snapshots[:until], graph.interactions
    num_nodes = snapshots[-1].num_nodes
    return DynamicGraph(
        snapshots=snapshots,
        node_N=graph.node_N[:num_nodes],
        side_N=graph.side_N[:num_nodes],
        interactions=interactions and interactions.head(sum(s.num_interactions for s in snapshots)),
        directed=graph.directed,
    )


def summary(graph: DynamicGraph) -> pl.DataFrame:
    """Count the contents of each step, one row a step.

    Columns: step, interactions, edges, active_nodes, nodes_seen, new_edges, self_loops, self_interactions, start, end.
    As in the published counts, `edges` and `new_edges` are distinct unordered pairs. They include the `self_loops`
    (pairs of a node with itself), which the graph's edges do not. `active_nodes` have an interaction of any kind. A
    pair is new in the first step that has it. `start` and `end` are times as in Snapshot.
    """
    seen_X = np.empty(0, dtype=np.int64)
    rows = []
    for snapshot in graph.snapshots:
        pair_X = _pairs_with_self(snapshot, max(len(graph.node_N), 1))
        new_X = np.setdiff1d(pair_X, seen_X, assume_unique=True)
        seen_X = np.concatenate([seen_X, new_X])
        ends = (snapshot.source_E, snapshot.target_E, snapshot.self_loop_node_L)
        rows.append(
            {
                "step": snapshot.step,
                "interactions": snapshot.num_interactions,
                "edges": len(pair_X),
                "active_nodes": len(np.unique(np.concatenate(ends))),
                "nodes_seen": snapshot.num_nodes,
                "new_edges": len(new_X),
                "self_loops": len(snapshot.self_loop_node_L),
                "self_interactions": snapshot.num_self_loops,
                "start": snapshot.start_time,
                "end": snapshot.end_time,
            }
        )
    return pl.DataFrame(rows)


def _pairs_with_self(snapshot: Snapshot, num_nodes: int) -> NDArray[np.int64]:
    self_L = snapshot.self_loop_node_L
    return np.concatenate([snapshot.source_E * num_nodes + snapshot.target_E, self_L * num_nodes + self_L])


def history_digests(graph: DynamicGraph) -> list[str]:
    """Give the digest of each step's history: of the snapshots and the nodes of all steps up to it."""
    digest, snapshots_read, num_nodes = hashlib.sha256(), [], 0
    for snapshot in graph.snapshots:
        new = slice(num_nodes, snapshot.num_nodes)
        counts = (snapshot.start_time, snapshot.end_time, snapshot.num_interactions, snapshot.num_self_loops)
        ends = (snapshot.source_E, snapshot.target_E, snapshot.weight_E, snapshot.self_loop_node_L)
        for values in (np.array(counts), *ends, graph.node_N[new], graph.side_N[new]):
            digest.update(len(values).to_bytes(8, "little"))
            digest.update(values.astype(np.float64 if values is snapshot.weight_E else np.int64).tobytes())
        snapshots_read.append(digest.hexdigest())
        num_nodes = snapshot.num_nodes
    return snapshots_read


def to_tables(graph: DynamicGraph) -> dict[str, pl.DataFrame]:
    """Give a graph as the tables edges, steps and nodes; `from_tables` reads them back, without the interactions."""
    snapshots = graph.snapshots
    counted = ("step", "start_time", "end_time", "num_interactions", "num_self_loops", "num_nodes")
    steps = pl.DataFrame(
        {name: [getattr(s, name) for s in snapshots] for name in counted}, dict.fromkeys(counted, pl.Int64)
    )
    loops = pl.Series("self_loop_nodes", [s.self_loop_node_L.tolist() for s in snapshots], pl.List(pl.Int64))
    edges = {
        "step": np.repeat([s.step for s in snapshots], [len(s.source_E) for s in snapshots]).astype(np.int64),
        "source": _joined([s.source_E for s in snapshots], np.int64),
        "target": _joined([s.target_E for s in snapshots], np.int64),
        "weight": _joined([s.weight_E for s in snapshots], np.float64),
    }
    nodes = {"node": np.arange(len(graph.node_N)), "permanent_node": graph.node_N, "side": graph.side_N}
    return {"edges": pl.DataFrame(edges), "steps": steps.with_columns(loops), "nodes": pl.DataFrame(nodes)}


def _joined(parts: list[NDArray], dtype: type) -> NDArray:
    return np.concatenate([np.empty(0, dtype=dtype), *parts])


def from_tables(tables: dict[str, pl.DataFrame]) -> DynamicGraph:
    """Read the tables of `to_tables`, in any order of rows. Raises ValueError where one is missing."""
    missing = {"edges", "steps", "nodes"} - tables.keys()
    if missing:
        raise InvalidInput(f"tables of a graph: expected edges, steps and nodes; missing {', '.join(sorted(missing))}")
    edges = tables["edges"].sort("step", "source", "target")
    steps, nodes = tables["steps"].sort("step"), tables["nodes"].sort("node")
    column = {name: edges[name].to_numpy() for name in ("step", "source", "target", "weight")}
    first_T = np.searchsorted(column["step"], steps["step"].to_numpy(), "left")
    end_T = np.searchsorted(column["step"], steps["step"].to_numpy(), "right")
    snapshots = []
    for row, first, end in zip(steps.to_dicts(), first_T, end_T, strict=True):
        self_loop_nodes = row.pop("self_loop_nodes")
        snapshots.append(
            Snapshot(
                **row,
                source_E=column["source"][first:end],
                target_E=column["target"][first:end],
                weight_E=column["weight"][first:end],
                self_loop_node_L=np.array(self_loop_nodes, dtype=np.int64),
            )
        )
    return DynamicGraph(
        snapshots=tuple(snapshots), node_N=nodes["permanent_node"].to_numpy(), side_N=nodes["side"].to_numpy()
    )
