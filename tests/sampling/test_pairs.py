"""Pairs of the protocols; draws of negative pairs against their definition."""

import itertools
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from toy_graphs import random_graph, toy_graph

from dyformer.graphs.snapshots import DynamicGraph
from dyformer.sampling.losses import inner_products, negative_sampling_loss
from dyformer.sampling.negative_sampling import drawn, noise, uniform_negatives
from dyformer.sampling.pairs import (
    LinkExamples,
    LinkSplit,
    TooFewLinks,
    crossed,
    evaluated_steps,
    node_batches,
    pair_keys,
    paper_examples,
    past_pair_keys,
    sample_negatives,
)

NO_LINKS = (np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def graph_of(seed: int = 0) -> DynamicGraph:
    return random_graph(np.random.default_rng(seed), num_nodes=30, num_steps=4, num_edges=60)


def pairs_of(examples: LinkExamples, kind: bool) -> list[tuple[int, int]]:
    chosen = examples.positive_P == kind
    return list(zip(examples.source_P[chosen].tolist(), examples.target_P[chosen].tolist(), strict=True))


def parts(split: LinkSplit) -> tuple[LinkExamples, ...]:
    return split.train, split.validation, split.test


def all_pairs(split: LinkSplit, kind: bool) -> list[tuple[int, int]]:
    return [pair for part in parts(split) for pair in pairs_of(part, kind)]


def edges_at(graph: DynamicGraph, step: int) -> set[tuple[int, int]]:
    snapshot = graph.snapshots[step - 1]
    return set(zip(snapshot.source_E.tolist(), snapshot.target_E.tolist(), strict=True))


def test_positive_examples_are_the_edges_between_nodes_known_one_step_before():
    step_3 = [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4), (4, 6), (5, 7), (6, 7), (0, 2)]
    graph = toy_graph([(0, 1), (1, 2)], [(0, 3), (3, 4), (0, 5)], step_3)
    split = paper_examples(graph, 3, seed=0)
    assert sorted(all_pairs(split, True)) == [(0, 1), (0, 2), (0, 4), (1, 2), (2, 3), (3, 4)]


def test_negative_examples_are_as_many_distinct_known_pairs_without_an_edge_in_the_step():
    graph = graph_of()
    split = paper_examples(graph, 3, seed=1)
    negatives = all_pairs(split, False)
    assert len(negatives) == len(all_pairs(split, True)) == len(edges_at(graph, 3))
    assert len(set(negatives)) == len(negatives)
    assert not set(negatives) & edges_at(graph, 3)
    assert all(0 <= source < target < graph.snapshots[1].num_nodes for source, target in negatives)


def test_an_earlier_edge_may_be_a_negative_example():
    earlier = list(itertools.combinations(range(6), 2))
    later = earlier[:7]
    split = paper_examples(toy_graph(earlier, later), 2, seed=0)
    assert len(all_pairs(split, False)) == 7
    assert set(all_pairs(split, False)) <= set(earlier) - set(later)
    assert not any(part.new_P.any() for part in parts(split))


def test_each_kind_is_split_20_20_60():
    split = paper_examples(graph_of(), 4, seed=0)
    num = len(all_pairs(split, True))
    expected = [int(0.2 * num), int(0.2 * num), num - 2 * int(0.2 * num)]
    assert [len(pairs_of(part, True)) for part in parts(split)] == expected
    assert [len(pairs_of(part, False)) for part in parts(split)] == expected
    assert len(set(all_pairs(split, True))) == num


def test_new_means_in_no_earlier_snapshot_for_both_kinds():
    graph = graph_of(2)
    earlier = edges_at(graph, 1) | edges_at(graph, 2) | edges_at(graph, 3)
    for part in parts(paper_examples(graph, 4, seed=0)):
        pairs = zip(part.source_P.tolist(), part.target_P.tolist(), strict=True)
        np.testing.assert_array_equal(part.new_P, [pair not in earlier for pair in pairs])


def test_split_is_determined_by_seed_and_step():
    graph = graph_of()
    for first, second in zip(
        parts(paper_examples(graph, 3, seed=5)), parts(paper_examples(graph, 3, seed=5)), strict=True
    ):
        np.testing.assert_array_equal(first.source_P, second.source_P)
        np.testing.assert_array_equal(first.target_P, second.target_P)
    other = paper_examples(graph, 3, seed=6)
    assert pairs_of(other.test, True) != pairs_of(paper_examples(graph, 3, seed=5).test, True)
    assert sorted(all_pairs(other, False)) != sorted(all_pairs(paper_examples(graph, 3, seed=5), False))


def test_later_snapshots_do_not_change_the_examples():
    graph = graph_of()
    shorter = DynamicGraph(snapshots=graph.snapshots[:3], node_N=graph.node_N, side_N=graph.side_N)
    for full, short in zip(
        parts(paper_examples(graph, 3, seed=0)), parts(paper_examples(shorter, 3, seed=0)), strict=True
    ):
        np.testing.assert_array_equal(full.source_P, short.source_P)
        np.testing.assert_array_equal(full.target_P, short.target_P)
        np.testing.assert_array_equal(full.new_P, short.new_P)


@pytest.mark.parametrize("step", [0, 1, 5])
def test_a_step_without_a_past_or_beyond_the_graph_is_refused(step: int):
    with pytest.raises(ValueError, match=f"step {step} cannot be predicted: expected a step from 2 to 4"):
        paper_examples(graph_of(), step, seed=0)


def test_a_step_with_too_few_links_is_named_and_not_among_the_evaluated():
    many = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3)]
    graph = toy_graph([*many, (2, 4), (4, 5)], many, many[:4], [], many)
    with pytest.raises(TooFewLinks, match="step 3 has 4 positive"):
        paper_examples(graph, 3, seed=0)
    assert evaluated_steps(graph, first_step=2) == [2, 5]
    assert evaluated_steps(graph) == [5]


def test_negative_pairs_must_be_enough_too():
    full = list(itertools.combinations(range(5), 2))
    assert evaluated_steps(toy_graph(full, full[:5], full[:6]), first_step=2) == [2]


def test_batches_have_at_most_an_eighth_of_the_nodes():
    assert [batch.tolist() for batch in node_batches(17, 100)][:2] == [[0, 1, 2], [3, 4, 5]]
    for num_nodes, num_targets, sizes in (
        (0, 9, []),
        (3, 9, [1] * 3),
        (16, 9, [2] * 8),
        (17, 9, [3] * 5 + [2]),
        (17, 2, [2] * 8 + [1]),
        (5, 0, [1] * 5),
    ):
        batches = node_batches(num_nodes, num_targets)
        assert [len(batch) for batch in batches] == sizes
        assert [node for batch in batches for node in batch] == list(range(num_nodes))


def test_a_dense_graph_gives_all_its_negative_pairs():
    full = list(itertools.combinations(range(8), 2))
    split = paper_examples(toy_graph(full, full[:20]), 2, seed=0)
    assert sorted(all_pairs(split, False)) == full[20:]


@pytest.mark.parametrize(("num", "method"), [(2, "drawn and rejected"), (5, "chosen from the list of all")])
def test_negative_pairs_are_uniform(num: int, method: str):
    positives = (np.array([0, 4, 3, 3]), np.array([1, 3, 4, 2]))
    counts = {pair: 0 for pair in itertools.combinations(range(5), 2) if pair not in {(0, 1), (3, 4), (2, 3)}}
    generator = np.random.default_rng(0)
    for _ in range(3000):
        source_P, target_P = sample_negatives(5, positives, num, generator)
        drawn = list(zip(source_P.tolist(), target_P.tolist(), strict=True))
        assert len(set(drawn)) == num
        for pair in drawn:
            counts[pair] += 1
    assert chisquare(list(counts.values())).pvalue > 1e-3, method


def test_more_negative_pairs_than_exist_are_refused():
    with pytest.raises(ValueError, match="7 negative pairs wanted, but 4 nodes have only 6"):
        sample_negatives(4, NO_LINKS, 7, np.random.default_rng(0))


def test_all_negative_pairs_can_be_drawn():
    source_P, target_P = sample_negatives(4, NO_LINKS, 6, np.random.default_rng(0))
    assert sorted(zip(source_P.tolist(), target_P.tolist(), strict=True)) == list(itertools.combinations(range(4), 2))


def test_pairs_of_the_past_are_listed_once():
    graph = toy_graph([(0, 1), (1, 2)], [(1, 2), (0, 3)], [(0, 1)])
    assert past_pair_keys(graph.snapshots, 10).tolist() == [1, 3, 12]
    assert past_pair_keys((), 10).tolist() == []


@pytest.mark.parametrize("side", [[0] * 6, [0, 1, 0, 1, 1, 0]])
def test_crossed_pairs_have_the_ends_of_two_positive_pairs_each_as_often_as_these(side: list[int]):
    positives = [(0, 1), (0, 3), (4, 5), (2, 3)]
    expected: Counter[tuple[int, int]] = Counter()
    for one, other in itertools.product(positives, repeat=2):
        for first, second in itertools.product(one, other):
            if not any(side):
                expected[first, second] += 1
            elif (side[first], side[second]) == (0, 1):
                expected[first, second] += 4  # one of the four choices of ends
    drawn = crossed(
        (np.array([0, 0, 4, 2]), np.array([1, 3, 5, 3])), np.array(side, np.int8), 64_000, np.random.default_rng(0)
    )
    found = Counter(zip(*(end_M.tolist() for end_M in drawn), strict=True))
    assert {pair: count / 64_000 for pair, count in found.items()} == pytest.approx(
        {pair: count / 64 for pair, count in expected.items()}, abs=0.01
    )


def test_noise_is_drawn_in_proportion_to_the_degree_to_the_power_three_quarters():
    degree_N = np.array([1, 0, 16, 81])
    count_N = np.bincount(drawn(noise(degree_N), (300, 300), np.random.default_rng(0)).ravel(), minlength=4)
    np.testing.assert_allclose(count_N / count_N.sum(), np.array([1, 0, 8, 27]) / 36, atol=0.005)


def test_uniform_negatives_are_all_other_pairs_alike():
    positives = np.array([0, 0, 2]), np.array([1, 3, 3])
    keys = np.sort(pair_keys(5, *positives))
    source_M, target_M = uniform_negatives(5, keys, 50_000, np.random.default_rng(0))
    pairs, counts = np.unique(np.sort([source_M, target_M], axis=0), axis=1, return_counts=True)
    found = set(map(tuple, pairs.T.tolist()))
    assert found == {(a, b) for a in range(5) for b in range(a + 1, 5)} - {(0, 1), (0, 3), (2, 3)}
    np.testing.assert_allclose(counts / counts.sum(), 1 / 7, atol=0.01)


def test_loss_is_the_mean_log_likelihood_of_each_kind():
    positive, negative = np.array([0.5, -2.0]), np.array([[1.0, 0.0], [3.0, -1.0]])
    expected = -np.mean(np.log(1 / (1 + np.exp(-positive))))
    expected -= 0.1 * np.mean(np.log(1 - 1 / (1 + np.exp(-negative))))
    loss = negative_sampling_loss(torch.tensor(positive), torch.tensor(negative), 0.1)
    assert loss.item() == pytest.approx(expected)
    assert negative_sampling_loss(torch.empty(0), torch.empty(0)).item() == 0


def test_inner_products_are_those_of_the_ends():
    vector_ND = torch.arange(6.0).reshape(3, 2)
    found = inner_products(vector_ND, np.array([0, 2]), np.array([1, 2]))
    assert found.tolist() == [3.0, 41.0]
