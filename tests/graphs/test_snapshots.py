"""Snapshots of a log, in memory and on disk; each fault of their tables is found and named."""

import hashlib
import json
from collections import Counter
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from published_logs import published_events

from dyformer.graphs.disk_snapshots import snapshot_faults
from dyformer.graphs.snapshots import DynamicGraph, Snapshot, build_snapshots, from_tables, prefix, summary, to_tables
from dyformer.logs.datasets import DATASETS
from dyformer.logs.time_windows import Window

WINDOWS = {name: DATASETS[name].window for name in ("uci", "yelp", "ml-10m", "snap-wikipedia")}
WINDOWS["rds"] = Window(rule="equal_time", count=100)


def edges_sha256(snapshot: Snapshot, name_N: list[int]) -> str:
    ends = [
        *zip(snapshot.source_E, snapshot.target_E, strict=True),
        *((node, node) for node in snapshot.self_loop_node_L),
    ]
    pairs = sorted(tuple(sorted((name_N[a], name_N[b]))) for a, b in ends)
    return hashlib.sha256("".join(f"{a} {b}\n" for a, b in pairs).encode()).hexdigest()


def reference_names(name: str, events: pl.DataFrame, ids: list[str], graph: DynamicGraph) -> list[int]:
    """The reference's name of each node of the graph (its `node_ids`)."""
    if name == "uci":
        return list(range(len(graph.node_N)))
    if name != "ml-10m":
        return [int(ids[node].split()[-1]) for node in graph.node_N]
    chicago = ZoneInfo("America/Chicago")
    wall = [datetime.fromtimestamp(t / 1e6, UTC).astimezone(chicago).replace(tzinfo=None) for t in events["time"]]
    order = sorted(range(len(wall)), key=wall.__getitem__)
    ends = [end for row in order for end in (events["source"][row], events["target"][row])]
    number = {node: index for index, node in enumerate(dict.fromkeys(ends))}
    return [number[node] for node in graph.node_N.tolist()]


@pytest.mark.parametrize("name", WINDOWS)
def test_published_counts_and_edges_are_met_exactly(name, shared_log):
    events, ids = published_events(name, shared_log(name))
    graph = build_snapshots(events, WINDOWS[name], DATASETS[name].time_unit)
    reference = json.loads(shared_log("reference").read_text())[name]["snapshots"]
    found = summary(graph).to_dicts()
    names = reference_names(name, events, ids, graph)
    assert [
        (
            row["step"] - 1,
            row["interactions"],
            row["edges"],
            row["self_loops"],
            row["active_nodes"],
            row["nodes_seen"],
            row["new_edges"],
            edges_sha256(snapshot, names),
        )
        for row, snapshot in zip(found, graph.snapshots, strict=True)
    ] == [
        (
            row["t"],
            row["interactions"],
            row["unique_undirected_edges"],
            row["self_loops"],
            row["active_nodes"],
            row["nodes_seen_so_far"],
            row["edges_never_seen_before"],
            row["edges_sha256"],
        )
        for row in reference
    ]


def log(*rows: tuple[int, int, int]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema={"source": pl.Int64, "target": pl.Int64, "time": pl.Int64}, orient="row")


def assert_same(one: DynamicGraph, other: DynamicGraph) -> None:
    assert_array_equal(one.node_N, other.node_N)
    assert_array_equal(one.side_N, other.side_N)
    assert one.side_N.dtype == other.side_N.dtype
    assert one.num_steps == other.num_steps
    for a, b in zip(one.snapshots, other.snapshots, strict=True):
        for name, value in vars(a).items():
            assert_array_equal(value, vars(b)[name], err_msg=name)


EACH_STEP = Window(rule="equal_time", length="1")


def test_a_small_log_has_the_snapshots_computed_by_hand():
    events = log((70, 10, 3), (10, 20, 0), (20, 10, 0), (30, 30, 1), (20, 40, 0), (10, 20, 3))
    graph = build_snapshots(events, EACH_STEP, "step")
    assert graph.node_N.tolist() == [10, 20, 40, 30, 70]
    assert [s.num_nodes for s in graph.snapshots] == [3, 4, 4, 5]
    first, second, third, fourth = graph.snapshots
    assert (first.source_E.tolist(), first.target_E.tolist(), first.weight_E.tolist()) == ([0, 1], [1, 2], [2.0, 1.0])
    assert (len(second.source_E), second.num_self_loops, second.self_loop_node_L.tolist()) == (0, 1, [3])
    assert (third.num_interactions, len(third.source_E), third.start_time, third.end_time) == (0, 0, 2, 3)
    assert (fourth.source_E.tolist(), fourth.target_E.tolist()) == ([0, 0], [1, 4])
    assert summary(graph).rows() == [
        (1, 3, 2, 3, 3, 2, 0, 0, 0, 1),
        (2, 1, 1, 1, 4, 1, 1, 1, 1, 2),
        (3, 0, 0, 0, 4, 0, 0, 0, 2, 3),
        (4, 2, 2, 3, 5, 1, 0, 0, 3, 4),
    ]


def test_rows_of_one_moment_keep_the_order_of_the_log():
    events = log((5, 6, 1), (3, 4, 0), (1, 2, 0))
    assert build_snapshots(events, EACH_STEP, "step").node_N.tolist() == [3, 4, 1, 2, 5, 6]
    halves = build_snapshots(log((9, 8, 0), (1, 2, 0), (3, 4, 0)), Window(rule="equal_count", count=2), "step")
    assert [s.num_interactions for s in halves.snapshots] == [2, 1]
    assert halves.node_N.tolist() == [9, 8, 1, 2, 3, 4]


def test_nodes_of_trimmed_rows_are_not_known():
    window = Window(rule="equal_time", length="10", trim_start="2", trim_end="1")
    graph = build_snapshots(log((1, 2, 0), (3, 4, 5), (5, 6, 9)), window, "step")
    assert graph.node_N.tolist() == [3, 4]


def test_sides_belong_to_the_nodes():
    sides = pl.DataFrame({"source_side": [0, 0], "target_side": [1, 1]}, schema_overrides={"source_side": pl.Int8})
    graph = build_snapshots(pl.concat([log((7, 9, 0), (7, 11, 1)), sides], how="horizontal"), EACH_STEP, "step")
    assert (graph.node_N.tolist(), graph.side_N.tolist()) == ([7, 9, 11], [0, 1, 1])
    assert graph.side_N.dtype == np.int8


def test_permanent_numbers_may_be_huge():
    small = log((1, 2, 0), (2, 3, 0), (1, 3, 1))
    huge = small.with_columns(pl.col("source") * 10**15, pl.col("target") * 10**15)
    one, other = build_snapshots(small, EACH_STEP, "step"), build_snapshots(huge, EACH_STEP, "step")
    assert other.node_N.tolist() == (one.node_N * 10**15).tolist()
    for a, b in zip(one.snapshots, other.snapshots, strict=True):
        assert_array_equal(a.source_E, b.source_E)
        assert_array_equal(a.target_E, b.target_E)


rows = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 30)), min_size=1, max_size=60)


@settings(max_examples=200, deadline=None)
@given(rows, st.integers(1, 9))
def test_snapshots_equal_sets_made_plainly(events, length):
    graph = build_snapshots(log(*events), Window(rule="equal_time", length=str(length)), "step")
    ordered = sorted(events, key=lambda row: row[2])
    names = list(dict.fromkeys(end for a, b, _ in ordered for end in (a, b)))
    assert graph.node_N.tolist() == names
    first = ordered[0][2]
    for snapshot in graph.snapshots:
        mine = [(names.index(a), names.index(b)) for a, b, t in ordered if (t - first) // length + 1 == snapshot.step]
        weight = Counter((min(pair), max(pair)) for pair in mine if pair[0] != pair[1])
        pairs = zip(snapshot.source_E.tolist(), snapshot.target_E.tolist(), strict=True)
        assert list(zip(pairs, snapshot.weight_E.tolist(), strict=True)) == sorted(weight.items())
        assert snapshot.num_interactions == len(mine)
        assert snapshot.self_loop_node_L.tolist() == sorted({a for a, b in mine if a == b})
        known = {end for a, b, t in ordered if (t - first) // length < snapshot.step for end in (a, b)}
        assert snapshot.num_nodes == len(known)


@settings(max_examples=200, deadline=None)
@given(rows, st.integers(1, 9), st.data())
def test_a_prefix_of_the_log_gives_a_prefix_of_the_graph(events, length, data):
    window = Window(rule="equal_time", length=str(length))
    graph = build_snapshots(log(*events), window, "step")
    until = data.draw(st.integers(1, graph.num_steps))
    end = graph.snapshots[until - 1].end_time
    known = prefix(graph, until)
    truncated = build_snapshots(log(*(row for row in events if row[2] < end)), window, "step")
    # Windows that end empty are not in the shorter log.
    assert_same(truncated, prefix(graph, truncated.num_steps))
    assert all(s.num_interactions == 0 for s in graph.snapshots[truncated.num_steps : until])
    assert_array_equal(truncated.node_N, known.node_N)


@settings(max_examples=200, deadline=None)
@given(rows, rows, st.integers(1, 9), st.data())
def test_the_future_leaves_no_trace_and_the_past_does(events, future, length, data):
    window = Window(rule="equal_time", length=str(length))
    graph = build_snapshots(log(*events, (0, 1, 40)), window, "step")
    until = data.draw(st.integers(1, graph.num_steps - 1))
    end = graph.snapshots[until - 1].end_time
    past = [row for row in events if row[2] < end]
    poisoned = [*past, *((a + 5, b + 7, end + t) for a, b, t in [*future, *future])]
    assert_same(prefix(build_snapshots(log(*poisoned), window, "step"), until), prefix(graph, until))
    changed = build_snapshots(log(*past, (98, 99, past[0][2]), (0, 1, 40)), window, "step")
    assert 99 in prefix(changed, until).node_N


@settings(max_examples=100, deadline=None)
@given(rows, st.integers(1, 9), st.randoms(use_true_random=False))
def test_tables_give_the_graph_back_in_any_order_of_rows(events, length, random):
    graph = build_snapshots(log(*events), Window(rule="equal_time", length=str(length)), "step")
    tables = to_tables(graph)
    assert_same(from_tables(tables), graph)
    shuffled = {name: table[random.sample(range(table.height), table.height)] for name, table in tables.items()}
    assert_same(from_tables(shuffled), graph)


def test_tables_of_an_edgeless_graph_keep_their_types():
    tables = to_tables(build_snapshots(log((1, 1, 0)), EACH_STEP, "step"))
    assert tables["edges"].schema == {"step": pl.Int64, "source": pl.Int64, "target": pl.Int64, "weight": pl.Float64}
    assert tables["nodes"].schema == {"node": pl.Int64, "permanent_node": pl.Int64, "side": pl.Int8}
    assert tables["steps"]["self_loop_nodes"].to_list() == [[0]]


def test_missing_tables_are_named():
    with pytest.raises(ValueError, match="missing edges, nodes"):
        from_tables({"steps": pl.DataFrame()})


@pytest.mark.parametrize("until", [0, 3, -1])
def test_a_step_out_of_range_is_named(until):
    graph = build_snapshots(log((1, 2, 0), (1, 2, 1)), EACH_STEP, "step")
    with pytest.raises(ValueError, match=f"step {until} is out of range: expected a step from 1 to 2"):
        prefix(graph, until)


def test_an_empty_log_is_refused():
    with pytest.raises(ValueError, match="the log is empty"):
        build_snapshots(log(), EACH_STEP, "step")


def graph_tables() -> dict[str, pl.DataFrame]:
    return {
        "edges": pl.DataFrame({"step": [1, 1, 3], "source": [0, 1, 0], "target": [1, 2, 3], "weight": [2.0, 1.0, 1.0]}),
        "steps": pl.DataFrame(
            {
                "step": [1, 2, 3],
                "start_time": [0, 10, 20],
                "end_time": [10, 20, 30],
                "num_interactions": [4, 0, 1],
                "num_self_loops": [1, 0, 0],
                "num_nodes": [3, 3, 4],
            }
        ),
        "nodes": pl.DataFrame({"node": [0, 1, 2, 3]}),
    }


def changed(name: str, row: int, **values: float) -> dict[str, pl.DataFrame]:
    tables = graph_tables()
    at = pl.int_range(pl.len()) == row
    tables[name] = tables[name].with_columns(
        pl.when(at).then(pl.lit(value)).otherwise(pl.col(column)).alias(column) for column, value in values.items()
    )
    return tables


def test_a_sound_snapshot_has_no_faults():
    assert snapshot_faults(graph_tables()) == []


FAULTS = [
    (changed("edges", 1, source=2, target=1), "source < target"),
    (changed("edges", 1, source=2), "source < target"),
    (changed("edges", 1, source=0, target=1), "listed once"),
    (changed("edges", 1, weight=0.5), "at least 1"),
    (changed("edges", 1, weight=float("nan")), "at least 1"),
    (changed("edges", 1, weight=float("inf")), "at least 1"),
    (changed("edges", 1, target=3), "known at its step"),
    (changed("edges", 0, source=-1), "known at its step"),
    (changed("edges", 2, step=4), "known at its step"),
    (changed("steps", 1, step=4), "without a gap"),
    (changed("steps", 0, step=0), "without a gap"),
    (changed("steps", 2, start_time=9), "follow each other"),
    (changed("steps", 1, end_time=31), "follow each other"),
    (changed("steps", 2, start_time=31), "follow each other"),
    (changed("steps", 1, num_nodes=2), "never become fewer"),
    (changed("steps", 1, num_interactions=1), "self-loops"),
    (changed("steps", 0, num_self_loops=0), "self-loops"),
    (changed("steps", 2, num_nodes=5), "known at the last step"),
]


@pytest.mark.parametrize(("tables", "claim"), FAULTS, ids=[f"{i}-{claim}" for i, (_, claim) in enumerate(FAULTS)])
def test_each_violated_check_is_named(tables: dict[str, pl.DataFrame], claim: str):
    assert any(claim in fault for fault in snapshot_faults(tables))


@pytest.mark.parametrize("window", ["3 equal", "6 equal", "4 equal time", "2s"])
def test_snapshots_of_a_log_have_no_faults(window: str):
    events = pl.DataFrame(
        {
            "source": [0, 1, 2, 0, 3, 4],
            "target": [1, 0, 2, 3, 1, 0],
            "time": [1, 2, 3, 3, 3, 9],
            "weight": [1.0, 2.5, 1.0, 1.0, 0.1, 1.0],
        }
    )
    graph = build_snapshots(events.with_columns(pl.col("time") * 1_000_000), Window.parse(window), "us")
    assert graph.num_steps > 1
    assert snapshot_faults(to_tables(graph)) == []
