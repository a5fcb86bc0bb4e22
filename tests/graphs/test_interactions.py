"""Interactions and labels of nodes by step equal those of a loop over the rows, and never depend on later rows."""

from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from toy_graphs import random_graph

from dyformer.graphs.config import GraphConfig
from dyformer.graphs.interactions import Interactions, NodeLabels, first_positives, newest_labels, positive_coverage
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.graphs.snapshots import build_snapshots, from_tables, interactions_of, prefix, to_tables
from dyformer.logs.time_windows import LONGEST, Window

COLUMNS = ("source", "target", "time", "weight")
rows = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 30), st.integers(0, 3)), min_size=1, max_size=60
)


def log(rows) -> pl.DataFrame:
    schema = dict.fromkeys(COLUMNS[:3], pl.Int64) | {"weight": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def assert_same(one: Interactions, other: Interactions) -> None:
    for name, value_R in vars(one).items():
        assert_array_equal(value_R, vars(other)[name], err_msg=name)
        assert value_R.dtype == vars(other)[name].dtype


def test_rows_keep_direction_weight_and_order_of_the_log():
    events = log([(7, 1, 5, 1), (1, 2, 0, 2.5), (2, 1, 0, 1), (3, 3, 2, 1), (2, 9, 9, 4)])
    graph = build_snapshots(events, Window.parse("5"), "step")
    found = interactions_of(graph)
    assert graph.node_N.tolist() == [1, 2, 3, 7, 9]
    assert found.source_R.tolist() == [0, 1, 2, 3, 1]
    assert found.target_R.tolist() == [1, 0, 2, 0, 4]
    assert found.time_R.tolist() == [0, 0, 2, 5, 9]
    assert found.weight_R.tolist() == [2.5, 1, 1, 1, 4]
    assert found.position_R.tolist() == [0, 0, 0.4, 1, 1.8]


def test_rows_without_weights_weigh_one():
    graph = build_snapshots(log([(1, 2, 0, 3), (2, 1, 1, 0)]).drop("weight"), Window.parse("1"), "step")
    assert interactions_of(graph).weight_R.tolist() == [1, 1]


@settings(max_examples=200, deadline=None)
@given(rows, st.sampled_from(["3", "7", "2 equal", "5 trim 4 3", "2 equal trim 4 3"]), st.data())
def test_interactions_equal_the_ordered_rows_of_the_windows(rows, window, data):
    try:
        graph = build_snapshots(log(rows), Window.parse(window), "step")
    except ValueError:  # the window does not fit the log
        return
    until = data.draw(st.integers(1, graph.num_steps))
    snapshots = graph.snapshots[:until]
    found = interactions_of(prefix(graph, until))
    ordered = sorted(rows, key=lambda row: row[2])
    num_trimmed = sum(row[2] < snapshots[0].start_time for row in ordered)
    expected = ordered[num_trimmed : num_trimmed + sum(s.num_interactions for s in snapshots)]
    ends = (graph.node_N[found.source_R], graph.node_N[found.target_R])
    assert list(zip(*ends, found.time_R, found.weight_R, strict=True)) == expected
    steps = [s for s in snapshots for _ in range(s.num_interactions)]
    for row, snapshot, position in zip(expected, steps, found.position_R, strict=True):
        length = snapshot.end_time - snapshot.start_time
        exact = snapshot.step - 1 + Fraction(row[2] - snapshot.start_time, length)
        assert position == pytest.approx(float(exact), rel=1e-12)
        assert snapshot.step - 1 <= position < snapshot.step


def test_rows_of_one_moment_belong_to_the_windows_that_count_them():
    graph = build_snapshots(log([(1, 2, 4, 1), (3, 4, 4, 1), (5, 6, 4, 1)]), Window.parse("2 equal"), "step")
    assert interactions_of(prefix(graph, 1)).source_R.tolist() == [0, 2]
    assert interactions_of(graph).position_R.tolist() == [0, 0, 1]


def test_the_last_moment_of_a_window_stays_below_its_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(LONGEST, "", 10**17)
    times = [0, 10**16 - 1, 10**16]  # so long a window that its last fraction rounds to 1
    events = log([(1, 2, time, 1) for time in times])
    position_R = interactions_of(build_snapshots(events, Window.parse(str(10**16)), "step")).position_R
    assert position_R[1] < 1 == position_R[2]


def test_the_prepared_graph_carries_the_interactions_of_its_steps():
    graph = random_graph(np.random.default_rng(0), num_nodes=8, num_steps=4, num_edges=6)
    prepared = prepare_graph(graph, until=2, config=GraphConfig())
    assert_same(interactions_of(prepared.history), interactions_of(prefix(graph, 2)))
    assert len(interactions_of(prefix(graph, 3)).time_R) == sum(s.num_interactions for s in graph.snapshots[:3])


def test_a_graph_read_from_tables_alone_says_what_it_lacks():
    graph = from_tables(to_tables(build_snapshots(log([(1, 2, 0, 1)]), Window.parse("1"), "step")))
    assert graph.interactions is None
    assert prefix(graph, 1).interactions is None
    with pytest.raises(ValueError, match="read it from the store with interactions=True"):
        interactions_of(graph)


def labels_of(rows: list[tuple[int, int, int]]) -> NodeLabels:
    """Labels of rows (node, step, label) in order of time."""
    node_R, step_R, label_R = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return NodeLabels(node_R=node_R, step_R=step_R, label_R=label_R.astype(np.int8))


def random_rows(seed: int) -> list[tuple[int, int, int]]:
    generator = np.random.default_rng(seed)
    steps = np.sort(generator.integers(1, 6, 80))
    return [(int(generator.integers(12)), int(step), int(generator.random() < 0.2)) for step in steps]


@pytest.mark.parametrize("seed", range(3))
def test_labels_equal_those_of_a_plain_loop(seed: int):
    rows = random_rows(seed)
    labels = labels_of(rows)
    for step in range(1, 7):
        known: dict[int, list[int]] = {}
        now: dict[int, list[int]] = {}
        for node, row_step, label in rows:
            for found in [known] * (row_step < step) + [now] * (row_step == step):
                found.setdefault(node, []).append(label)
        expected = {node: 1 in now.get(node, []) for node in sorted(known) if 1 not in known[node]}
        node_P, positive_P = first_positives(labels, step)
        assert dict(zip(node_P.tolist(), positive_P.tolist(), strict=True)) == expected
        node_P, positive_P = newest_labels(labels, step - 1)
        newest = dict(zip(node_P.tolist(), positive_P.tolist(), strict=True))
        assert newest == {node: known[node][-1] == 1 for node in sorted(known)}
        first_now = [node for node in now if 1 in now[node] and 1 not in known.get(node, [])]
        assert positive_coverage(labels, step) == (len(first_now), sum(node in known for node in first_now))


def test_later_labels_change_nothing_before():
    rows = random_rows(0)
    changed = [(node, step, 1 - label if step > 3 else label) for node, step, label in rows]
    for step in (2, 3):
        for found, other in zip(
            first_positives(labels_of(rows), step), first_positives(labels_of(changed), step), strict=True
        ):
            assert_array_equal(found, other)
    assert not np.array_equal(first_positives(labels_of(rows), 4)[1], first_positives(labels_of(changed), 4)[1])


def test_a_negative_label_is_not_positive_and_no_labels_give_no_nodes():
    labels = labels_of([(3, 1, 0), (4, 1, 0), (3, 2, -1), (4, 2, 1)])
    assert newest_labels(labels, 2)[1].tolist() == first_positives(labels, 2)[1].tolist() == [False, True]
    assert len(first_positives(labels_of([]), 3)[0]) == 0
