"""The pairs of training batches, the links of the history, and the cache of what a step needs."""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from toy_graphs import random_graph, toy_graph

from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.sampling import link_batches
from dyformer.sampling.link_batches import (
    HistoryLinks,
    LinkTask,
    PairBatch,
    PairSizes,
    PairSource,
    cached,
    draw_positives,
    edges_inside,
    forecast_tasks,
    history_links,
    reconstruction_tasks,
)
from dyformer.sampling.subgraphs import AsOfGraph, as_of_graph

SIZES = PairSizes(num_positives=8, num_negatives=3, num_targets=14, num_context=10)
STEPS = ([(0, 1), (1, 2)], [(0, 1), (2, 3), (3, 4)], [(4, 5)])
NONE_HELD_OUT = [np.zeros(len(edges), dtype=np.bool_) for edges in STEPS]


NONE = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def example_graph() -> PreparedGraph:
    graph = random_graph(np.random.default_rng(3), num_nodes=30, num_steps=4, num_edges=60)
    return prepare_graph(graph, until=4, config=GraphConfig(history_window=3))


def pairs_of(batch: PairBatch) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    def node_pairs(first, second) -> set[tuple[int, int]]:
        ends = np.sort(batch.subgraph.target_G.numpy()[np.stack([first, second], axis=1)], axis=1)
        return {(int(a), int(b)) for a, b in ends}

    return (
        node_pairs(batch.pairs.positive_first_P, batch.pairs.positive_second_P),
        node_pairs(batch.pairs.negative_first_M, batch.pairs.negative_second_M),
    )


def drawn(graph: PreparedGraph, task: LinkTask, *, held_out: bool) -> list[tuple[set, set]]:
    source = PairSource(graph, SIZES, validation_fraction=0.3, seed=1)
    batches = source.batches([task] * 150, np.random.default_rng(0), held_out=held_out, two_views=False)
    return [pairs_of(batch) for batch in batches]


def test_forecasts_predict_the_next_step_and_end_with_the_history():
    assert forecast_tasks(4) == [LinkTask(until=step, step=step + 1, hidden=False) for step in (1, 2, 3)]


def test_reconstructions_have_every_lag_of_every_prefix():
    tasks = reconstruction_tasks(4, 3, hidden=True)
    assert [(task.until, task.step) for task in tasks] == [
        (2, 1),
        (2, 2),
        (3, 1),
        (3, 2),
        (3, 3),
        (4, 2),
        (4, 3),
        (4, 4),
    ]
    assert {task.lag for task in tasks} == {0, 1, 2}


@pytest.mark.parametrize("task", [LinkTask(until=2, step=3, hidden=False), LinkTask(until=4, step=3, hidden=True)])
def test_positive_pairs_are_edges_of_the_predicted_step_and_negative_pairs_are_not(task):
    graph = example_graph()
    snapshot = graph.history.snapshots[task.step - 1]
    edges = set(zip(snapshot.source_E.tolist(), snapshot.target_E.tolist(), strict=True))
    for positives, negatives in drawn(graph, task, held_out=False):
        assert positives
        assert positives <= edges
        assert negatives
        assert not negatives & edges
        assert all(a != b for a, b in negatives)


def test_held_out_edges_are_never_trained_on_and_both_parts_are_all_edges():
    graph = example_graph()
    task = LinkTask(until=4, step=3, hidden=True)
    trained = set().union(*(positives for positives, _ in drawn(graph, task, held_out=False)))
    held_out = set().union(*(positives for positives, _ in drawn(graph, task, held_out=True)))
    predicted, *others = [
        set(zip(snapshot.source_E.tolist(), snapshot.target_E.tolist(), strict=True))
        for snapshot in (graph.history.snapshots[step] for step in (2, 0, 1, 3))
    ]
    known = {node for edges in others for pair in edges for node in pair}
    assert not trained & held_out
    assert trained | held_out == {pair for pair in predicted if known.issuperset(pair)}


def test_a_node_that_starts_in_the_hidden_step_has_no_pair():
    steps = [[(0, 1), (2, 3), (0, 3), (1, 2)], [(0, 1), (4, 5), (0, 4), (2, 3)], [(0, 2), (1, 3)]]
    graph = prepare_graph(toy_graph(*steps), until=3, config=GraphConfig())
    source = PairSource(graph, SIZES, validation_fraction=0.0, seed=1)
    task = LinkTask(until=3, step=2, hidden=True)
    batches = list(source.batches([task] * 20, np.random.default_rng(0), held_out=False, two_views=False))
    positives = [pairs_of(batch)[0] for batch in batches]
    assert len(positives) == 20
    assert all(positives)
    assert set().union(*positives) == {(0, 1), (2, 3)}
    assert {node for batch in batches for node in batch.subgraph.target_G.tolist()} == {0, 1, 2, 3}


def test_a_node_that_starts_in_the_hidden_step_has_pairs_where_a_later_step_knows_it():
    graph = prepare_graph(toy_graph([(0, 1), (2, 3)], [(0, 4)], [(3, 4), (1, 2)]), until=3, config=GraphConfig())
    source = PairSource(graph, SIZES, validation_fraction=0.0, seed=1)
    assert source.has_links(LinkTask(until=3, step=2, hidden=True), False)
    assert not source.has_links(LinkTask(until=2, step=2, hidden=True), False)
    (batch,) = source.batches(
        [LinkTask(until=3, step=2, hidden=True)], np.random.default_rng(0), held_out=False, two_views=False
    )
    assert pairs_of(batch)[0] == {(0, 4)}


def test_a_node_that_starts_in_the_next_step_has_no_pair():
    graph = prepare_graph(toy_graph([(0, 1), (2, 3)], [(0, 2), (1, 9)]), until=2, config=GraphConfig())
    source = PairSource(graph, SIZES, validation_fraction=0.0, seed=1)
    batches = source.batches(forecast_tasks(2) * 5, np.random.default_rng(0), held_out=False, two_views=False)
    assert [pairs_of(batch)[0] for batch in batches] == [{(0, 2)}] * 5


def test_the_drawn_pairs_have_no_more_ends_than_allowed():
    positives = (np.array([0, 2, 4, 6, 0, 8]), np.array([1, 3, 5, 7, 3, 9]))
    for seed in range(20):
        source_P, target_P = draw_positives(positives, 4, SIZES, np.random.default_rng(seed))
        assert len(np.unique([source_P, target_P])) <= 4
        assert len(source_P) >= 2


@pytest.mark.parametrize("seed", range(20))
def test_edges_inside_a_pool_are_those_with_both_ends_in_it(seed: int):
    generator = np.random.default_rng(seed)
    snapshot = random_graph(generator, num_nodes=25, num_steps=1, num_edges=80).snapshots[0]
    pool_G = np.sort(generator.choice(25, size=generator.integers(1, 26), replace=False))
    source_A, target_A = edges_inside(pool_G, (snapshot.source_E, snapshot.target_E))
    found = list(zip(pool_G[source_A].tolist(), pool_G[target_A].tolist(), strict=True))
    edges = zip(snapshot.source_E.tolist(), snapshot.target_E.tolist(), strict=True)
    assert found == [pair for pair in edges if {*pair} <= {*pool_G.tolist()}]


def test_a_pool_without_edges_has_none_inside():
    nothing = np.empty(0, dtype=np.int64)
    for found in (
        *edges_inside(np.array([1, 4]), (nothing, nothing)),
        *edges_inside(np.array([2]), (nothing, nothing)),
    ):
        assert len(found) == 0


def test_every_pair_is_equally_likely():
    positives = (np.arange(0, 20, 2), np.arange(1, 20, 2))
    sizes = PairSizes(num_positives=3, num_negatives=1, num_targets=20, num_context=4)
    count_P = np.zeros(10)
    for seed in range(2000):
        source_P, _ = draw_positives(positives, 6, sizes, np.random.default_rng(seed))
        assert len(np.unique(source_P)) == 3
        count_P[source_P // 2] += 1
    assert np.abs(count_P / 2000 - 0.3).max() < 0.05


def test_graphs_are_made_once_and_large_ones_are_not_all_cached(monkeypatch: pytest.MonkeyPatch):
    graph, tasks = example_graph(), reconstruction_tasks(4, 3, hidden=True)
    made: list[tuple[int, int | None]] = []

    def counted(graph: PreparedGraph, *, until: int, hidden_step: int | None, is_brief: bool) -> AsOfGraph:
        made.append((until, hidden_step))
        return as_of_graph(graph, until=until, hidden_step=hidden_step, is_brief=is_brief)

    def num_made() -> int:
        made.clear()
        source = PairSource(graph, SIZES, validation_fraction=0.1, seed=1)
        list(source.batches(tasks * 2, np.random.default_rng(0), held_out=False, two_views=False))
        return len(made)

    monkeypatch.setattr(link_batches, "as_of_graph", counted)
    assert PairSource(graph, SIZES, validation_fraction=0.1, seed=1).graphs_fit_cache(tasks)
    assert num_made() == len(tasks)
    monkeypatch.setattr(link_batches, "MAX_CACHED_GRAPHS", 300)
    assert not PairSource(graph, SIZES, validation_fraction=0.1, seed=1).graphs_fit_cache(tasks)
    assert num_made() > len(tasks)


def test_a_batch_depends_on_its_own_generator_alone():
    graph, tasks = example_graph(), reconstruction_tasks(4, 3, hidden=True)
    source, fresh = (PairSource(graph, SIZES, validation_fraction=0.1, seed=1) for _ in range(2))
    first, second = (
        [one.batch(task, np.random.default_rng([5, n]), held_out=False, two_views=True) for n, task in order]
        for one, order in ((source, list(enumerate(tasks))), (fresh, list(enumerate(tasks))[::-1]))
    )
    for found, expected in zip(first, second[::-1], strict=True):
        assert pairs_of(found) == pairs_of(expected)
        assert found.second_view is not None
        assert expected.second_view is not None
        tensors = found.second_view.tensors(), expected.second_view.tensors()
        assert all(torch.equal(*pair) for pair in zip(*tensors, strict=True))


def test_a_batch_does_not_depend_on_the_tasks_before_it():
    source = PairSource(example_graph(), SIZES, validation_fraction=0.1, seed=1)
    first, *_, last = reconstruction_tasks(4, 3, hidden=True)
    found = [
        list(source.batches([before, last], np.random.default_rng(0), held_out=False, two_views=True))[1]
        for before in (first, last)
    ]
    assert torch.equal(found[0].subgraph.target_G, found[1].subgraph.target_G)
    assert pairs_of(found[0]) == pairs_of(found[1])


def test_targets_are_at_most_half_of_the_nodes():
    graph = example_graph()
    sizes = PairSizes(num_positives=50, num_negatives=3, num_targets=1000, num_context=10)
    source = PairSource(graph, sizes, validation_fraction=0.1, seed=1)
    for batch in source.batches(forecast_tasks(4), np.random.default_rng(0), held_out=False, two_views=True):
        assert len(batch.subgraph.target_G) <= 15
        assert batch.second_view is not None
        assert batch.second_view.target_G.tolist() == batch.subgraph.target_G.tolist()


def test_a_batch_moves_as_a_whole():
    source = PairSource(example_graph(), replace(SIZES, num_history_links=5), validation_fraction=0.1, seed=1)
    task = LinkTask(until=4, step=3, hidden=True)
    (batch,) = source.batches([task], np.random.default_rng(0), held_out=False, two_views=True)
    moved = batch.to(torch.device("meta"))
    assert moved.task == task
    for part in (moved.subgraph, moved.second_view, moved.pairs, moved.history):
        tensors = [value for value in vars(part).values() if isinstance(value, torch.Tensor)]
        assert len(tensors) >= 4
        assert {tensor.device.type for tensor in tensors} == {"meta"}


def side_graph() -> PreparedGraph:
    """A bipartite graph: nodes of even numbers on one side."""
    graph = random_graph(np.random.default_rng(3), num_nodes=30, num_steps=4, num_edges=120)
    snapshots = []
    for snapshot in graph.snapshots:
        crosses_E = (snapshot.source_E + snapshot.target_E) % 2 == 1
        edges = {name: getattr(snapshot, name)[crosses_E] for name in ("source_E", "target_E", "weight_E")}
        snapshots.append(replace(snapshot, **edges))
    sided = replace(graph, snapshots=tuple(snapshots), side_N=(np.arange(len(graph.node_N)) % 2).astype(np.int8))
    return prepare_graph(sided, until=4, config=GraphConfig())


@pytest.mark.parametrize("graph", [example_graph(), side_graph()], ids=["one side", "two sides"])
def test_hard_negatives_are_ends_of_positives_without_an_edge_in_the_step(graph: PreparedGraph):
    sizes = replace(SIZES, hard_negatives=1.0)
    source = PairSource(graph, sizes, validation_fraction=0.1, seed=1)
    task = LinkTask(until=3, step=4, hidden=False)
    snapshot = graph.history.snapshots[3]
    edges = set(zip(snapshot.source_E.tolist(), snapshot.target_E.tolist(), strict=True))
    for batch in source.batches([task] * 30, np.random.default_rng(0), held_out=False, two_views=False):
        positives, negatives = pairs_of(batch)
        ends = {node for pair in positives for node in pair}
        sides = graph.history.side_N
        possible = {(a, b) for a in ends for b in ends if a < b and (not sides.any() or sides[a] != sides[b])} - edges
        assert negatives
        assert negatives <= possible
    half = PairSource(graph, replace(SIZES, hard_negatives=0.5), validation_fraction=0.1, seed=1)
    (batch,) = half.batches([task], np.random.default_rng(0), held_out=False, two_views=False)
    positives, negatives = pairs_of(batch)
    hard = {pair for pair in negatives if {*pair} <= {node for each in positives for node in each}}
    assert 0 < len(hard) < len(negatives)


@pytest.mark.parametrize("graph", [example_graph(), side_graph()], ids=["one side", "two sides"])
def test_hard_negatives_of_the_history_are_ends_of_its_positives(graph: PreparedGraph):
    sizes = replace(SIZES, hard_negatives=1.0, num_history_links=12)
    source = PairSource(graph, sizes, validation_fraction=0.1, seed=1)
    task, side_N = LinkTask(until=3, step=4, hidden=False), graph.history.side_N
    for batch in source.batches([task] * 30, np.random.default_rng(0), held_out=False, two_views=False):
        assert batch.history is not None
        ends = {name: tensor.numpy() for name, tensor in vars(batch.history).items()}
        positive_ends = {*ends["positive_first_P"].tolist(), *ends["positive_second_P"].tolist()}
        first_M, second_M = ends["negative_first_M"], ends["negative_second_M"]
        assert len(first_M) > 0
        assert {*first_M.tolist(), *second_M.tolist()} <= positive_ends
        assert not side_N.any() or (side_N[first_M] != side_N[second_M]).all()


@pytest.mark.parametrize("graph", [example_graph(), side_graph()], ids=["one side", "two sides"])
def test_a_ranked_batch_marks_the_pairs_of_targets_without_an_edge(graph: PreparedGraph):
    source = PairSource(graph, replace(SIZES, ranked=True), validation_fraction=0.1, seed=1)
    task = LinkTask(until=3, step=4, hidden=False)
    snapshot, side_N = graph.history.snapshots[3], graph.history.side_N
    edges = set(zip(snapshot.source_E.tolist(), snapshot.target_E.tolist(), strict=True))
    (batch,) = source.batches([task], np.random.default_rng(0), held_out=False, two_views=False)
    assert batch.negative_GG is not None
    target_G = batch.subgraph.target_G.tolist()
    for row, i in enumerate(target_G):
        for column, j in enumerate(target_G):
            possible = side_N[i] != side_N[j] if side_N.any() else i != j
            expected = possible and (min(i, j), max(i, j)) not in edges
            assert bool(batch.negative_GG[row, column]) == expected
    plain = PairSource(graph, SIZES, validation_fraction=0.1, seed=1)
    (same,) = plain.batches([task], np.random.default_rng(0), held_out=False, two_views=False)
    assert same.negative_GG is None
    assert pairs_of(same) == pairs_of(batch)


def recorded(max_size: int) -> tuple[Callable[[int], str], list[int]]:
    """A cached text of `key` letters, and the keys in the order in which values were computed."""
    computed: list[int] = []

    def compute(key: int) -> str:
        computed.append(key)
        return "x" * key

    return cached(compute, size=len, max_size=max_size), computed


def test_a_cached_value_is_not_computed_again():
    function, computed = recorded(100)
    assert [function(3), function(5), function(3)] == ["xxx", "xxxxx", "xxx"]
    assert function(3) is function(3)
    assert computed == [3, 5]


def test_the_least_recently_used_value_is_evicted_first():
    function, computed = recorded(10)
    for key in (4, 5, 4, 3):  # 5 is evicted for 3
        function(key)
    assert computed == [4, 5, 3]
    function(4)
    function(3)
    assert computed == [4, 5, 3]
    function(5)
    assert computed == [4, 5, 3, 5]


def test_values_whose_sizes_sum_to_the_maximum_are_all_cached():
    function, computed = recorded(10)
    for key in (4, 6, 4, 6):
        function(key)
    assert computed == [4, 6]


def test_a_value_larger_than_the_maximum_is_cached_alone():
    function, computed = recorded(10)
    for key in (2, 50, 50, 2):
        function(key)
    assert computed == [2, 50, 2]


def test_many_threads_that_need_one_value_get_the_same_one():
    together, computed = threading.Barrier(8), []

    def compute(key: int) -> object:
        computed.append(key)
        threading.Event().wait(0.05)
        return object()

    function = cached(compute, size=lambda value: 1, max_size=10)

    def wait_and_call(_: int) -> object:
        together.wait(10)
        return function(1)

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(wait_and_call, range(8)))) == 1
    assert computed == [1]


def test_different_values_are_computed_concurrently():
    together = threading.Barrier(2)
    function = cached(lambda key: together.wait(10), size=lambda value: 1, max_size=10)
    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(function, range(2))) == [0, 1]


def test_a_value_in_computation_is_not_computed_again_after_a_large_one():
    begun, go_on, computed = threading.Event(), threading.Event(), []

    def compute(key: int) -> int:
        computed.append(key)
        if key == 1:
            begun.set()
            assert go_on.wait(10)
        return key

    function = cached(compute, size=lambda value: value, max_size=10)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(function, 1)
        assert begun.wait(10)
        assert function(50) == 50
        second = pool.submit(function, 1)
        go_on.set()
        assert first.result(10) is second.result(10)
    assert computed == [1, 50]


def test_many_threads_and_evictions_give_each_key_its_value():
    function, _ = recorded(20)
    with ThreadPoolExecutor(8) as pool:
        keys = [key % 13 for key in range(2_000)]
        assert list(pool.map(function, keys)) == ["x" * key for key in keys]


def test_a_failed_computation_is_tried_again():
    tries: list[int] = []

    def compute(key: int) -> int:
        tries.append(key)
        if len(tries) == 1:
            raise ZeroDivisionError
        return key

    function = cached(compute, size=lambda value: 1, max_size=10)
    with pytest.raises(ZeroDivisionError):
        function(7)
    assert function(7) == 7


def links(held_out: list[np.ndarray] = NONE_HELD_OUT, half_life: float = 2.0) -> HistoryLinks:
    graph = toy_graph(*STEPS)
    return history_links(graph.snapshots, held_out, graph.side_N, half_life=half_life)


def frequencies(drawn: tuple[np.ndarray, np.ndarray]) -> dict[tuple[int, int], float]:
    counts = Counter(zip(*(ends.tolist() for ends in drawn), strict=True))
    return {pair: count / counts.total() for pair, count in counts.items()}


def test_a_link_is_drawn_half_as_often_as_one_a_half_life_newer():
    found = frequencies(links().draw_positives(200_000, np.random.default_rng(0)))
    old, middle = 0.5, 0.5**0.5
    weight = {(0, 1): old + middle, (1, 2): old, (2, 3): middle, (3, 4): middle, (4, 5): 1.0}
    total = sum(weight.values())
    assert found == pytest.approx({pair: each / total for pair, each in weight.items()}, abs=0.01)


def test_held_out_links_are_neither_positives_nor_negatives():
    held_out = [np.array([False, True]), np.array([False, False, True]), np.array([False])]
    generator = np.random.default_rng(0)
    positives = frequencies(links(held_out).draw_positives(5_000, generator))
    assert set(positives) == {(0, 1), (2, 3), (4, 5)}
    negatives = links(held_out).draw_negatives(5_000, generator, positives=NONE, hard=0.0)
    found = {tuple(sorted(pair)) for pair in frequencies(negatives)}
    everyone = {(a, b) for a in range(6) for b in range(a + 1, 6)}
    assert found == everyone - {(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)}


def test_draws_have_64_bits_and_a_history_without_links_gives_none():
    source_P, target_P = links().draw_positives(3, np.random.default_rng(0))
    assert source_P.dtype == target_P.dtype == np.int64
    everything = [~held_out for held_out in NONE_HELD_OUT]
    assert_array_equal(links(everything).source_L, np.empty(0, dtype=np.int32))


def test_batches_have_history_links_of_the_window_alone_and_no_held_out_ones():
    graph = toy_graph([(0, 1), (1, 2), (2, 4)], [(0, 2), (1, 3), (3, 4)], [(0, 3), (2, 3), (1, 4)], [(0, 4), (1, 2)])
    prepared = prepare_graph(graph, until=4, config=GraphConfig(history_window=2))
    sizes = PairSizes(num_positives=2, num_negatives=1, num_targets=4, num_context=2, num_history_links=300)
    source = PairSource(prepared, sizes, validation_fraction=0.4, seed=2)
    task = LinkTask(until=4, step=3, hidden=True)
    (batch,) = source.batches([task], np.random.default_rng(0), held_out=False, two_views=False)
    assert batch.history is not None
    drawn = frequencies((batch.history.positive_first_P.numpy(), batch.history.positive_second_P.numpy()))
    trained = set()
    for step in (3, 4):
        snapshot = graph.snapshots[step - 1]
        is_trained_E = np.random.default_rng([2, step]).random(len(snapshot.source_E)) >= 0.4
        ends = snapshot.source_E[is_trained_E].tolist(), snapshot.target_E[is_trained_E].tolist()
        trained |= set(zip(*ends, strict=True))
    assert set(drawn) == trained
    assert len(trained) < 5
    (validation,) = source.batches([task], np.random.default_rng(0), held_out=True, two_views=False)
    assert validation.history is None


def test_hard_negatives_are_ends_of_the_positives_without_an_edge_in_any_step():
    positives = np.array([0, 2, 3]), np.array([1, 3, 4])
    negatives = links().draw_negatives(4_000, np.random.default_rng(0), positives=positives, hard=1.0)
    found = {tuple(sorted(pair)) for pair in frequencies(negatives)}
    assert found == {(0, 2), (0, 3), (0, 4), (1, 3), (1, 4), (2, 4)}
    mixed = links().draw_negatives(4_000, np.random.default_rng(0), positives=positives, hard=0.5)
    assert {tuple(sorted(pair)) for pair in frequencies(mixed)} == found | {(0, 5), (1, 5), (2, 5), (3, 5)}
