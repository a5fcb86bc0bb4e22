from collections import Counter

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from toy_graphs import toy_graph

from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.sampling.link_batches import HistoryLinks, LinkTask, PairSizes, PairSource, history_links

STEPS = ([(0, 1), (1, 2)], [(0, 1), (2, 3), (3, 4)], [(4, 5)])
NONE_HELD_OUT = [np.zeros(len(edges), dtype=np.bool_) for edges in STEPS]


NONE = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


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
