"""The content of batches, compared with their snapshots.

G targets    C context    E connected pairs    T lags
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from toy_graphs import random_graph, toy_graph

from dyformer.graphs import pagerank
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.distances import distance_block
from dyformer.graphs.hub_first_graph import hub_first_graph
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph, Snapshot
from dyformer.sampling import subgraphs
from dyformer.sampling.pairs import node_batches
from dyformer.sampling.subgraphs import (
    SubgraphBatch,
    as_of_graph,
    make_batch,
    make_two_views,
    node_features,
    num_features,
)

STEPS = [[(0, 1), (1, 2)], [(0, 1), (2, 3)], [(3, 4), (1, 4), (1, 2)], [(4, 5), (0, 1)]]


def prepared(graph: DynamicGraph, *, until: int | None = None, window: int | None = 3) -> PreparedGraph:
    return prepare_graph(graph, until=until or graph.num_steps, config=GraphConfig(history_window=window))


def batch_of(graph: PreparedGraph, targets: list[int], *, hidden_step: int | None = None) -> SubgraphBatch:
    view = as_of_graph(graph, until=graph.until, hidden_step=hidden_step)
    return make_batch(view, np.array(targets), num_context=10)


def same(one: SubgraphBatch, other: SubgraphBatch) -> bool:
    return all(torch.equal(*pair) for pair in zip(one.tensors(), other.tensors(), strict=True))


def test_context_is_as_large_as_the_targets_unless_its_size_is_given():
    graph = random_graph(np.random.default_rng(0), num_nodes=60, num_steps=3, num_edges=90)
    as_of = as_of_graph(prepared(graph), until=3)
    targets, generator = np.arange(7), np.random.default_rng(0)
    assert len(make_batch(as_of, targets, num_context=None).context_C) == 7
    assert len(make_batch(as_of, targets, num_context=11).context_C) == 11
    views = make_two_views(as_of, targets, num_context=None, generator=generator)
    assert [len(batch.context_C) for batch in views] == [7, 7]


def test_a_batch_lists_the_edges_of_each_pair_lag_by_lag():
    graph = toy_graph(*STEPS)
    batch = batch_of(prepared(graph), [1, 3])
    found = {
        (int(batch.target_G[row]), int(batch.context_C[column]), int(lag))
        for row, column, lag in zip(batch.edge_target_A, batch.edge_context_A, batch.edge_lag_A, strict=True)
    }
    expected = {
        (target, context, 4 - step)
        for step in (2, 3, 4)
        for pair in STEPS[step - 1]
        for target, context in (pair, pair[::-1])
        if target in (1, 3) and context not in (1, 3)
    }
    assert found == expected
    assert batch.visible_T.tolist() == [True, True, True]


def test_more_lags_than_one_word_holds_are_distinct():
    steps = [[(0, 1)] if step in (1, 7, 70) else [(2, 3)] for step in range(1, 71)]
    batch = batch_of(prepared(toy_graph(*steps), window=None), [0])
    assert batch.context_C.tolist() == [1]
    assert batch.edge_lag_A.tolist() == [0, 63, 69]


def test_no_target_is_a_context_and_distances_are_those_of_the_union():
    batch = batch_of(prepared(toy_graph(*STEPS)), [0, 3])
    assert sorted(batch.context_C.tolist()) == [1, 2, 4, 5]
    column = {int(node): index for index, node in enumerate(batch.context_C)}
    assert [int(batch.distance_GC[0, column[node]]) for node in (1, 2, 4, 5)] == [1, 2, 2, 3]
    assert [int(batch.distance_GC[1, column[node]]) for node in (1, 2, 4, 5)] == [2, 1, 1, 2]


def test_node_features_are_degrees_recency_and_age():
    view = as_of_graph(prepared(toy_graph(*STEPS, sides=[0, 1, 0, 1, 0, 1])), until=4)
    # Node 2: no edge at step 4, one at step 3, one at step 2; first active at step 1.
    expected = [0, np.log(2), np.log(2), np.log(3), np.log1p(0.75), np.exp(-1), np.log(5), 0]
    assert node_features(view, np.array([2]))[0] == pytest.approx(expected, rel=1e-6)
    # Node 5: first active at the last step.
    assert node_features(view, np.array([5]))[0] == pytest.approx(
        [np.log(2), 0, 0, np.log(2), np.log(2), 1, np.log(2), 1], rel=1e-6
    )
    assert node_features(view, np.array([0, 3])).shape[1] == num_features(prepared(toy_graph(*STEPS)))


def plain_features(graph: DynamicGraph, node: int, lags: list[int], until: int, num_lags: int) -> list[float]:
    """The features of one node, computed from one visible snapshot after another."""
    degrees = {
        snapshot.step: [*snapshot.source_E, *snapshot.target_E].count(node) for snapshot in graph.snapshots[:until]
    }
    seen = [degrees[until - lag] if lag in lags else 0 for lag in range(num_lags)]
    active = [lag for lag, degree in enumerate(seen) if degree]
    hidden = {until - lag for lag in range(min(num_lags, until)) if lag not in lags}
    first = min((step for step, degree in degrees.items() if degree and step not in hidden), default=until + 1)
    decayed = sum(0.5**lag * degree for lag, degree in enumerate(seen))
    recency = np.exp(-active[0]) if active else 0.0
    return [*np.log1p(seen), np.log1p(sum(seen)), np.log1p(decayed), recency, np.log1p(until + 1 - first), 0.0]


@pytest.mark.parametrize("window", [None, 3])
def test_features_as_of_any_step_are_those_of_its_visible_steps(window):
    graph = random_graph(np.random.default_rng(3), num_nodes=15, num_steps=6, num_edges=7)
    whole = prepared(graph, window=window)
    for until in range(2, 7):
        for hidden_step in (None, *range(max(1, until - 2), until + 1)):
            view = as_of_graph(whole, until=until, hidden_step=hidden_step)
            lags = [lag for lag in range(window or 6) if lag < until and until - lag != hidden_step]
            nodes = np.array([14, 0, 3, 8])
            expected = [plain_features(graph, node, lags, until, window or 6) for node in nodes]
            assert node_features(view, nodes) == pytest.approx(np.array(expected), rel=1e-6)
            seen = [s for s in graph.snapshots[:until] if s.step != hidden_step]
            ends = np.concatenate([[*s.source_E, *s.target_E] for s in seen])
            assert np.flatnonzero(view.known_N).tolist() == np.unique(ends).tolist()


def test_graphs_as_of_several_steps_reference_the_same_arrays():
    graph = prepared(toy_graph(*STEPS))
    assert as_of_graph(graph, until=4).union is graph.union
    assert as_of_graph(graph, until=3, hidden_step=2).activity is as_of_graph(graph, until=4).activity


def test_a_node_without_activity_in_the_window_has_no_recency():
    graph = prepared(toy_graph([(0, 1)], [(2, 3)], [(2, 3)]), window=2)
    assert node_features(as_of_graph(graph, until=3), np.array([0]))[0] == pytest.approx(
        [0, 0, 0, 0, 0, np.log(4), 0], rel=1e-6
    )


@pytest.mark.parametrize("hidden_step", [2, 3, 4])
def test_a_hidden_step_leaves_no_trace_in_a_batch(hidden_step):
    other_steps = [list(edges) for edges in STEPS]
    other_steps[hidden_step - 1] = [(0, 5), (2, 4), (3, 5)]
    steps = [list(edges) for edges in STEPS]
    for edges in (steps, other_steps):
        edges[0].append((2, 5))  # so that all nodes are known from the first step on
    one, other = prepared(toy_graph(*steps)), prepared(toy_graph(*other_steps))
    assert same(batch_of(one, [1, 3], hidden_step=hidden_step), batch_of(other, [1, 3], hidden_step=hidden_step))
    assert not same(batch_of(one, [1, 3]), batch_of(other, [1, 3]))
    visible_T = batch_of(one, [1, 3], hidden_step=hidden_step).visible_T
    assert not visible_T[4 - hidden_step]


def test_an_earlier_step_gives_the_batch_of_the_graph_prepared_then():
    graph = random_graph(np.random.default_rng(0), num_nodes=12, num_steps=6, num_edges=14)
    late, early = prepared(graph), prepared(graph, until=3)
    targets = np.array([0, 4, 7])
    assert same(
        make_batch(as_of_graph(late, until=3), targets, num_context=6),
        make_batch(as_of_graph(early, until=3), targets, num_context=6),
    )


def test_second_view_is_another_sample_of_the_same_candidates():
    graph = random_graph(np.random.default_rng(0), num_nodes=40, num_steps=3, num_edges=60)
    view = as_of_graph(prepared(graph), until=3)
    first = make_batch(view, np.arange(4), num_context=6)
    drawn = [make_two_views(view, np.arange(4), num_context=6, generator=np.random.default_rng(k))[1] for k in range(5)]
    assert len({tuple(sorted(batch.context_C.tolist())) for batch in [first, *drawn]}) > 3
    assert all(len(set(batch.context_C.tolist())) == 6 for batch in drawn)


def test_the_first_of_two_views_is_the_batch_of_one():
    graph = random_graph(np.random.default_rng(0), num_nodes=40, num_steps=3, num_edges=60)
    view = as_of_graph(prepared(graph), until=3)
    first, _ = make_two_views(view, np.arange(4), num_context=6, generator=np.random.default_rng(0))
    assert same(first, make_batch(view, np.arange(4), num_context=6))


def test_distances_of_either_view_are_those_of_its_context():
    graph = random_graph(np.random.default_rng(0), num_nodes=40, num_steps=3, num_edges=60)
    view = as_of_graph(prepared(graph), until=3)
    for batch in make_two_views(view, np.arange(4), num_context=6, generator=np.random.default_rng(1)):
        expected = distance_block(view.union, np.arange(4), batch.context_C.numpy(), max_distance=view.max_distance)
        assert batch.distance_GC.tolist() == expected.tolist()


def treat_as_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pagerank, "PUSHED_FROM", 0)
    monkeypatch.setattr(subgraphs, "PUSHED_FROM", 0)


def test_the_cap_of_distances_of_a_large_graph_is_its_own(monkeypatch):
    graph = prepared(toy_graph([(node, node + 1) for node in range(9)]))
    assert batch_of(graph, [0]).distance_GC.max() == 5
    treat_as_large(monkeypatch)
    assert batch_of(graph, [0]).distance_GC.max() == 3
    for cap, expected in ((2, 2), (9, 5)):
        config = replace(graph.config, large_max_distance=cap, push_rounds=8)
        assert batch_of(replace(graph, config=config), [0]).distance_GC.max() == expected


@pytest.mark.parametrize("is_brief", [False, True])
def test_a_pushed_batch_reads_neither_later_steps_nor_the_hidden_one(is_brief, monkeypatch):
    treat_as_large(monkeypatch)
    graph = random_graph(np.random.default_rng(3), num_nodes=60, num_steps=5, num_edges=90)
    past, whole = prepared(graph, until=3), prepared(graph)
    other = replace(whole, history=without_edges(whole.history, steps=(2, 4, 5)))
    pairs = [(past, whole, None), (whole, other, 2)]
    for one, another, hidden_step in pairs:
        views = [
            make_two_views(
                replace(as_of_graph(each, until=3, hidden_step=hidden_step, is_brief=is_brief), activity=past.activity),
                np.arange(5),
                num_context=9,
                generator=np.random.default_rng(1),
            )
            for each in (one, another)
        ]
        assert all(same(batch, again) for batch, again in zip(*views, strict=True))


def test_a_brief_graph_has_the_batches_of_the_renumbered_one(monkeypatch):
    treat_as_large(monkeypatch)
    graph = prepared(random_graph(np.random.default_rng(3), num_nodes=60, num_steps=5, num_edges=90))
    for until, hidden_step in ((graph.until, None), (graph.until, 2), (3, None)):
        usual, brief = (
            as_of_graph(graph, until=until, hidden_step=hidden_step, is_brief=is_brief) for is_brief in (False, True)
        )
        numbers = [hub_first_graph(view.union).number_N.tolist() for view in (usual, brief)]
        assert numbers[0] != numbers[1] == sorted(numbers[0])
        for first in range(0, 40, 5):
            target_G = np.arange(first, first + 5)
            assert same(*(make_batch(view, target_G, num_context=9) for view in (usual, brief)))


def without_edges(history: DynamicGraph, *, steps: tuple[int, ...]) -> DynamicGraph:
    def shortened(snapshot: Snapshot) -> Snapshot:
        names = ("source_E", "target_E", "weight_E") if snapshot.step in steps else ()
        return replace(snapshot, **{name: getattr(snapshot, name)[:1] for name in names})

    return replace(history, snapshots=tuple(map(shortened, history.snapshots)))


def test_the_settings_of_the_push_are_those_of_the_graph():
    config = GraphConfig(push_rounds=2, push_threshold=1e-3)
    graph = prepare_graph(toy_graph(*STEPS), until=2, config=config)
    assert as_of_graph(graph, until=2).push == pagerank.Push(rounds=2, threshold=1e-3)
    default = GraphConfig()
    assert pagerank.Push() == pagerank.Push(rounds=default.push_rounds, threshold=default.push_threshold)


def test_target_without_neighbours_has_no_context():
    batch = batch_of(prepared(toy_graph([(0, 1), (2, 3)], [(2, 3)], [(2, 3)], [(2, 3)])), [0])
    assert batch.context_C.shape == (0,)
    assert batch.distance_GC.shape == (1, 0)


def test_node_batches_hold_every_node_once_and_never_more_than_an_eighth():
    for num_nodes in (1, 7, 8, 9, 100):
        batches = node_batches(num_nodes, 5)
        assert np.concatenate(batches).tolist() == list(range(num_nodes))
        assert max(len(batch) for batch in batches) <= max(1, min(5, -(-num_nodes // 8)))


def test_step_out_of_the_prepared_graph_is_refused():
    graph = prepared(toy_graph(*STEPS), until=3)
    with pytest.raises(ValueError, match="steps 1 to 3; it cannot be given as of step 4"):
        as_of_graph(graph, until=4)
    with pytest.raises(ValueError, match="no step is visible beside the hidden step 1"):
        as_of_graph(graph, until=1, hidden_step=1)


def test_batch_moves_to_a_device_whole():
    batch = batch_of(prepared(toy_graph(*STEPS)), [1, 3])
    moved = batch.to(torch.device("cpu"))
    assert same(batch, moved)
    assert same(batch, replace(moved))
