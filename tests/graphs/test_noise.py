import numpy as np
import pytest
from scipy.stats import chisquare
from toy_graphs import random_graph, toy_graph

from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import one_step_on, prepare_graph, with_noise
from dyformer.graphs.snapshots import Snapshot, prefix
from dyformer.graphs.union_graph import build_union_graph

GRAPH = random_graph(np.random.default_rng(2), num_nodes=40, num_steps=5, num_edges=30)


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
    moved = one_step_on(prepare_graph(GRAPH, until=3, config=config), GRAPH)
    assert list(map(edges, moved.history.snapshots)) == list(map(edges, noisy.snapshots))
    np.testing.assert_array_equal(moved.union.neighbor_M, prepared.union.neighbor_M)
    np.testing.assert_array_equal(moved.union.presence_EW, prepared.union.presence_EW)
