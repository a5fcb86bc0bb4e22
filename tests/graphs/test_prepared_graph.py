import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_array_equal
from published_logs import published_events
from scipy.stats import chisquare
from toy_graphs import random_graph, toy_graph

from dyformer.graphs.config import GraphConfig
from dyformer.graphs.distances import distance_table
from dyformer.graphs.pagerank import joint_context, pagerank_table
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph, with_noise
from dyformer.graphs.snapshots import Snapshot, build_snapshots, prefix, to_tables
from dyformer.graphs.union_graph import build_union_graph
from dyformer.logs.datasets import DATASETS

STEPS = [[(0, 1), (1, 2)], [(0, 2)], [(2, 3), (0, 1)], [(4, 5)]]
GRAPH = random_graph(np.random.default_rng(2), num_nodes=40, num_steps=5, num_edges=30)


def assert_same(one: PreparedGraph, other: PreparedGraph) -> None:
    assert (one.config, one.until) == (other.config, other.until)
    for name, table in to_tables(one.history).items():
        assert table.equals(to_tables(other.history)[name]), name
    for name in ("source_E", "target_E", "presence_EW", "neighbor_M"):
        assert_array_equal(getattr(one.union, name), getattr(other.union, name), err_msg=name)
    assert one.union.num_nodes == other.union.num_nodes


def test_no_later_step_and_no_later_node_is_in_it():
    prepared = prepare_graph(toy_graph(*STEPS), until=2, config=GraphConfig())
    assert [snapshot.step for snapshot in prepared.history.snapshots] == [1, 2]
    assert prepared.history.node_N.tolist() == [0, 1, 2]
    assert (prepared.union.num_nodes, prepared.union.until, prepared.until) == (3, 2, 2)


def test_the_window_bounds_the_union_and_not_the_history():
    prepared = prepare_graph(toy_graph(*STEPS), until=3, config=GraphConfig(history_window=2))
    assert prepared.history.num_steps == 3
    assert (prepared.union.first_step, prepared.union.until) == (2, 3)
    assert list(zip(prepared.union.source_E.tolist(), prepared.union.target_E.tolist(), strict=True)) == [
        (0, 1),
        (0, 2),
        (2, 3),
    ]
    whole = prepare_graph(toy_graph(*STEPS), until=4, config=GraphConfig(history_window=None))
    assert (whole.union.first_step, len(whole.union.source_E)) == (1, 5)


def test_activity_counts_the_edges_of_each_node_at_each_step():
    activity = prepare_graph(toy_graph(*STEPS), until=4, config=GraphConfig()).activity
    assert activity.degree_TN.tolist() == [
        [1, 2, 1, 0, 0, 0],
        [1, 0, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [0, 0, 0, 0, 1, 1],
    ]
    assert activity.first_step_N.tolist() == [1, 1, 1, 3, 4, 4]
    assert activity.second_step_N.tolist() == [2, 3, 2, 5, 5, 5]


@pytest.mark.parametrize(
    ("setting", "value"),
    [("history_window", 0), ("max_distance", 0), ("max_distance", 256), ("teleport", 0.0), ("teleport", 1.0)],
)
def test_settings_out_of_range_are_named(setting, value):
    with pytest.raises(ValueError, match=rf"GraphConfig\n{setting}\n"):
        GraphConfig(**{setting: value})


def test_later_events_change_nothing_on_uci(shared_log):
    # Equal length from the first row on: the published trims read the last row of the log, which is the future.
    events, _ = published_events("uci", shared_log("uci"))
    window = DATASETS["generated"].window
    graph = build_snapshots(events, window, "us")
    until = 6
    end = graph.snapshots[until - 1].end_time
    prepared = prepare_graph(graph, until=until, config=GraphConfig())
    tables = made_of(prepared)
    past, future = events.filter(pl.col("time") < end), events.filter(pl.col("time") >= end)
    generator = np.random.default_rng(0)
    shuffled = future.with_columns(pl.col("time").shuffle(seed=1), pl.col("source").shuffle(seed=2))
    random = future.with_columns(pl.Series("target", generator.integers(0, 9_000, future.height)))
    poisons = {
        "one step of other rows": random.head(1),
        "shuffled": shuffled,
        "random pairs and new nodes": random,
        "ten times": pl.concat([future, *[random] * 9]),
        "later rows first in the log": None,
    }
    for name, poison in poisons.items():
        log = pl.concat([future, past]) if poison is None else pl.concat([past, poison])
        poisoned = prepare_graph(build_snapshots(log, window, "us"), until=until, config=GraphConfig())
        assert_same(poisoned, prepared)
        for table, found in zip(tables, made_of(poisoned), strict=True):
            assert found.equals(table), name
    changed = past.with_columns(pl.Series("target", [99_999, *past["target"].to_list()[1:]]))
    dual = prepare_graph(build_snapshots(pl.concat([changed, future]), window, "us"), until=until, config=GraphConfig())
    assert not all(found.equals(table) for table, found in zip(tables, made_of(dual), strict=True))


def made_of(prepared: PreparedGraph) -> list[pl.DataFrame]:
    context = joint_context(prepared.union, np.arange(0, prepared.union.num_nodes, 7), num_context=256)
    return [
        pl.DataFrame({"context": context}),
        pagerank_table(prepared.union, top_k=16),
        distance_table(prepared.union, max_distance=3),
    ]


def edges(snapshot: Snapshot) -> dict[tuple[int, int], float]:
    pairs = zip(snapshot.source_E.tolist(), snapshot.target_E.tolist(), strict=True)
    return dict(zip(pairs, snapshot.weight_E.tolist(), strict=True))


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.5, 1.0])
def test_half_of_the_changes_leave_edges_out_and_half_add_pairs(fraction: float):
    noisy = with_noise(GRAPH, fraction, seed=0)
    for before, after in zip(GRAPH.snapshots, noisy.snapshots, strict=True):
        old, new = edges(before), edges(after)
        num_changes = round(fraction * len(old))
        assert len(old.keys() - new.keys()) == num_changes // 2
        assert len(new.keys() - old.keys()) == num_changes - num_changes // 2
        assert all(weight == old.get(pair, 1) for pair, weight in new.items())
        assert all(source < target < before.num_nodes for source, target in new)
        assert list(new) == sorted(new)
        assert (after.step, after.num_nodes, after.start_time) == (before.step, before.num_nodes, before.start_time)
    assert noisy.interactions is None
    assert with_noise(GRAPH, 0.0, seed=0) is GRAPH


def test_noise_of_a_step_depends_on_that_step_alone():
    noisy = with_noise(GRAPH, 0.5, seed=0)
    early = with_noise(prefix(GRAPH, 3), 0.5, seed=0)
    assert list(map(edges, early.snapshots)) == list(map(edges, noisy.snapshots[:3]))
    assert list(map(edges, with_noise(GRAPH, 0.5, seed=1).snapshots)) != list(map(edges, noisy.snapshots))


def test_added_pairs_are_uniform_among_those_without_an_edge_and_of_opposite_sides():
    graph = toy_graph([(0, 3), (1, 3), (2, 4)], sides=[0, 0, 0, 1, 1])
    counts: dict[tuple[int, int], int] = {}
    for seed in range(900):
        (snapshot,) = with_noise(graph, 1 / 3, seed=seed).snapshots  # one change, which adds a pair
        (added,) = edges(snapshot).keys() - edges(graph.snapshots[0]).keys()
        counts[added] = counts.get(added, 0) + 1
    assert set(counts) == {(0, 4), (1, 4), (2, 3)}
    assert chisquare(list(counts.values())).pvalue > 1e-3


def test_a_complete_snapshot_gets_no_pair():
    graph = toy_graph([(0, 1), (0, 2), (1, 2)])
    (snapshot,) = with_noise(graph, 1.0, seed=0).snapshots
    assert len(edges(snapshot)) == 2


def test_methods_read_the_noisy_history_and_the_evaluated_step_stays():
    config = GraphConfig(noise=0.5, noise_seed=3, history_window=None)
    prepared, noisy = prepare_graph(GRAPH, until=4, config=config), with_noise(prefix(GRAPH, 4), 0.5, seed=3)
    assert list(map(edges, prepared.history.snapshots)) == list(map(edges, noisy.snapshots))
    union = build_union_graph(noisy, until=4, window=None)
    np.testing.assert_array_equal(prepared.union.neighbor_M, union.neighbor_M)
