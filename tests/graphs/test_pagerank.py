"""PageRank against exact solutions; the compiled push and its selection, on numbers that floats represent exactly."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import polars as pl
import pytest
from graph_cases import NAMED, dense_union, named_union, pushed_rows, random_graphs
from numpy.testing import assert_allclose, assert_array_equal
from polars.testing import assert_frame_equal
from published_logs import published_events
from scipy import sparse
from toy_graphs import toy_graph

from dyformer.graphs import pagerank
from dyformer.graphs.hub_first_graph import hub_first_graph
from dyformer.graphs.kernels import pagerank as kernels
from dyformer.graphs.kernels.pagerank import _take_best
from dyformer.graphs.pagerank import (
    Push,
    chebyshev,
    joint_context,
    joint_scores,
    pagerank_table,
    pushed_scores,
    two_joint_contexts,
)
from dyformer.graphs.snapshots import build_snapshots
from dyformer.graphs.union_graph import build_union_graph
from dyformer.logs.datasets import DATASETS

TIE = 2.0**-40


def exact_scores(union, targets, teleport: float) -> np.ndarray:
    """The defining equation, solved densely: pi = teleport s + (1 - teleport) A D^-1 pi."""
    adjacency_NN = dense_union(union)
    walk_NN = adjacency_NN / np.maximum(adjacency_NN.sum(axis=0), 1)
    seed_N = np.bincount(targets, minlength=union.num_nodes) / len(targets)
    return np.linalg.solve(np.eye(union.num_nodes) - (1 - teleport) * walk_NN, teleport * seed_N)


def exact_context(score_N: np.ndarray, targets, num_context: int) -> list[int]:
    rest = [node for node in range(len(score_N)) if node not in set(targets.tolist()) and score_N[node] > 1e-15]
    return sorted(rest, key=lambda node: (-round(score_N[node] / max(score_N[rest]), 12), node))[:num_context]


def test_scores_and_contexts_equal_a_dense_solve_on_a_thousand_random_graphs():
    for graph, generator in random_graphs(1_000, seed=5):
        union = build_union_graph(graph, until=graph.num_steps)
        targets = generator.permutation(union.num_nodes)[: generator.integers(1, union.num_nodes + 1)]
        teleport = float(generator.uniform(0.15, 0.5))
        expected = exact_scores(union, targets, teleport)
        assert_allclose(joint_scores(union, targets, teleport=teleport), expected, atol=1e-11)
        num_context = int(generator.integers(0, union.num_nodes + 3))
        found = joint_context(union, targets, num_context=num_context, teleport=teleport)
        assert found.dtype == np.int64
        assert found.tolist() == exact_context(expected, targets, num_context)


@pytest.mark.parametrize("name", NAMED)
def test_awkward_graphs_have_exact_contexts(name):
    union = named_union(name)
    for target in range(union.num_nodes):
        targets = np.array([target])
        expected = exact_context(exact_scores(union, targets, 0.15), targets, 4)
        assert joint_context(union, targets, num_context=4).tolist() == expected


def test_joint_score_is_the_mean_of_the_single_scores():
    for graph, _ in random_graphs(20, seed=6):
        union = build_union_graph(graph, until=graph.num_steps)
        single_GN = [joint_scores(union, np.array([node])) for node in range(union.num_nodes)]
        assert_allclose(joint_scores(union, np.arange(union.num_nodes)), np.mean(single_GN, axis=0), atol=1e-12)


def test_the_eighth_iteration_of_a_large_graph_is_within_the_chebyshev_bound(monkeypatch):
    monkeypatch.setattr(pagerank, "SMALL_GRAPH", 0)
    root = np.sqrt(0.15 / 1.85)
    rate = (1 - root) / (1 + root)  # 0.56
    bound = 2 * rate**8 / (1 + rate**16)
    for graph, generator in random_graphs(200, seed=7):
        union = build_union_graph(graph, until=graph.num_steps)
        targets = generator.permutation(union.num_nodes)[:3]
        expected = exact_scores(union, targets, 0.15)
        scale = np.sqrt(np.maximum(union.degree, 1))  # the bound holds for D^-1/2 pi
        start = 0.15 * np.bincount(targets, minlength=union.num_nodes) / len(targets)
        error = np.linalg.norm((joint_scores(union, targets) - expected) / scale)
        assert error <= 1.0001 * bound * np.linalg.norm((expected - start) / scale) + 1e-12


def test_equal_scores_are_ordered_by_node_number():
    star = build_union_graph(toy_graph([(5, node) for node in range(11) if node != 5]), until=1)
    assert joint_context(star, np.array([5]), num_context=4).tolist() == [0, 1, 2, 3]
    assert joint_context(star, np.array([0]), num_context=4).tolist() == [5, 1, 2, 3]


def test_isolated_targets_have_an_empty_context():
    union = build_union_graph(toy_graph([(0, 1), (0, 9)], [(2, 3)]), until=2, window=1)
    assert joint_context(union, np.array([7, 8]), num_context=5).tolist() == []
    assert joint_context(union, np.array([2, 7]), num_context=5).tolist() == [3]
    generator = np.random.default_rng(0)
    assert joint_context(union, np.array([7]), num_context=5, generator=generator).tolist() == []


def test_draws_follow_the_scores_without_replacement():
    union = build_union_graph(toy_graph([(0, 1), (1, 2), (2, 3), (0, 4), (6, 7)]), until=1)
    targets = np.array([0])
    generator = np.random.default_rng(1)
    score_N = exact_scores(union, targets, 0.15)
    score_N[0] = 0
    p_N = score_N / score_N.sum()
    draws = np.array([joint_context(union, targets, num_context=2, generator=generator) for _ in range(5_000)])
    assert (draws[:, 0] != draws[:, 1]).all()
    assert_allclose(np.bincount(draws[:, 0], minlength=8) / len(draws), p_N, atol=0.025)
    second_N = np.array([sum(p_N[a] * p_N[b] / (1 - p_N[a]) for a in range(8) if a != b) for b in range(8)])
    assert_allclose(np.bincount(draws[:, 1], minlength=8) / len(draws), second_N, atol=0.025)


def test_two_contexts_of_one_solve_are_those_of_two_solves():
    for graph, generator in random_graphs(20, seed=9):
        union = build_union_graph(graph, until=graph.num_steps)
        targets, seed = generator.permutation(union.num_nodes)[:2], int(generator.integers(1_000))
        best, drawn = two_joint_contexts(union, targets, num_context=4, generator=np.random.default_rng(seed))
        assert best.tolist() == joint_context(union, targets, num_context=4).tolist()
        alone = joint_context(union, targets, num_context=4, generator=np.random.default_rng(seed))
        assert drawn.tolist() == alone.tolist()


def test_pushing_and_pulling_are_the_same_step_to_the_last_bit():
    for graph, generator in random_graphs(50, seed=10):
        union = build_union_graph(graph, until=graph.num_steps)
        lists = hub_first_graph(union).lists[:2]
        before_N, now_N = generator.random((2, union.num_nodes))
        now_N[generator.random(union.num_nodes) < 0.7] = 0
        pulled_N = before_N.copy()
        kernels._pull_step(*lists, pulled_N, now_N, 1.2, 0.85)
        kernels._push_step(*lists, before_N, now_N, generator.random(union.num_nodes), 1.2, 0.85)
        assert_array_equal(before_N, pulled_N)


def test_a_draw_holds_each_reached_node_once_at_most():
    for graph, generator in random_graphs(100, seed=8):
        union = build_union_graph(graph, until=graph.num_steps)
        targets = generator.permutation(union.num_nodes)[:2]
        drawn = joint_context(union, targets, num_context=50, generator=generator)
        assert sorted(drawn.tolist()) == sorted(joint_context(union, targets, num_context=50).tolist())


def test_the_same_generator_state_draws_the_same():
    union = named_union("path")
    first, again, other = (
        joint_context(union, np.array([4]), num_context=5, generator=np.random.default_rng(seed)).tolist()
        for seed in (3, 3, 4)
    )
    assert first == again != other


def test_uci_contexts_recall_the_exact_ones(shared_log):
    events, _ = published_events("uci", shared_log("uci"))
    graph = build_snapshots(events, DATASETS["uci"].window, "s")
    generator = np.random.default_rng(9)
    for until in (3, 8, 13):
        union = build_union_graph(graph, until=until, window=5)
        exact = sparse.linalg.splu(
            sparse.csc_array(
                sparse.eye_array(union.num_nodes)
                - 0.85 * union.adjacency @ sparse.diags_array(1 / np.maximum(union.degree, 1))
            )
        )
        active = np.flatnonzero(union.degree)
        for num_targets in (64, 256):
            targets = generator.choice(active, num_targets, replace=False)
            score_N = exact.solve(0.15 * np.bincount(targets, minlength=union.num_nodes) / num_targets)
            best = exact_context(score_N, targets, 512)
            found = joint_context(union, targets, num_context=512)
            assert len(set(found.tolist()) & set(best)) >= 0.98 * len(best)


@pytest.mark.parametrize(("table_nodes", "tolerance"), [(20_000, 1e-4), (0, 1e-3)])
def test_table_rows_are_the_best_of_each_node(table_nodes, tolerance, monkeypatch):
    monkeypatch.setattr(pagerank, "TABLE_NODES", table_nodes)
    monkeypatch.setattr(pagerank, "PUSH_BLOCK", 7)
    monkeypatch.setattr(pagerank, "TABLE_NUMBERS", 100)
    for graph, _ in random_graphs(60, seed=10):
        union = build_union_graph(graph, until=graph.num_steps)
        table = pagerank_table(union, top_k=4)
        for node in range(union.num_nodes):
            targets = np.array([node])
            exact = exact_scores(union, targets, 0.15)
            rows = table.filter(pl.col("node") == node)
            expected = exact_context(exact, targets, 4)
            assert rows["rank"].to_list() == list(range(1, len(expected) + 1))
            assert node not in rows["neighbor"]
            assert_allclose(rows["score"].to_numpy(), exact[rows["neighbor"].to_numpy()], atol=tolerance * 24)
            assert_allclose(rows["score"].to_numpy(), exact[expected], atol=tolerance * 24)


def test_pushed_rows_stay_within_epsilon_times_the_degree():
    for graph, _ in random_graphs(60, seed=11):
        union = build_union_graph(graph, until=graph.num_steps)
        pushed_NN = pushed_rows(union.adjacency, np.arange(union.num_nodes), 0.15, pagerank.EPSILON)
        exact_NN = np.array([exact_scores(union, np.array([node]), 0.15) for node in range(union.num_nodes)])
        assert (np.abs(pushed_NN - exact_NN) <= pagerank.EPSILON * np.maximum(union.degree, 1)).all()


def test_a_remaining_residual_counts_with_the_teleport_probability(monkeypatch):
    union = named_union("path")
    everyone = np.arange(union.num_nodes)
    walk_NN = dense_union(union) / np.maximum(union.degree, 1)[:, None]
    expected_NN = 0.15 * (np.eye(union.num_nodes) + 0.85 * walk_NN)  # no residual reaches 2 times a degree
    assert_allclose(pushed_rows(union.adjacency, everyone, 0.15, 2), expected_NN)
    monkeypatch.setattr(pagerank, "TABLE_NODES", 0)
    monkeypatch.setattr(pagerank, "EPSILON", 0.45)  # an end of the path is pushed once, and its neighbour never
    table = pagerank_table(union, top_k=3, nodes=np.array([0]))
    assert table.rows() == [(0, 1, pytest.approx(0.15 * 0.85), 1)]


def test_a_node_with_more_neighbours_than_a_push_reaches_has_its_row(monkeypatch):
    monkeypatch.setattr(pagerank, "TABLE_NODES", 0)
    monkeypatch.setattr(pagerank, "EPSILON", 0.3)  # 4 x 0.3 is more than the hub has at first
    star = build_union_graph(toy_graph([(0, 1), (0, 2), (0, 3), (0, 4)]), until=1)
    table = pagerank_table(star, top_k=3, nodes=np.array([0]))
    score = pytest.approx(0.15 * 0.85 / 4)
    assert table.rows() == [(0, 1, score, 1), (0, 2, score, 2), (0, 3, score, 3)]


def table_graphs(num_graphs: int, *, seed: int):
    for graph, generator in random_graphs(num_graphs, seed=seed):
        yield build_union_graph(graph, until=graph.num_steps), generator


@pytest.mark.parametrize("table_nodes", [20_000, 0])
def test_the_parts_of_a_table_are_the_whole(table_nodes, monkeypatch):
    monkeypatch.setattr(pagerank, "TABLE_NODES", table_nodes)
    monkeypatch.setattr(pagerank, "PUSH_BLOCK", 7)
    monkeypatch.setattr(pagerank, "TABLE_NUMBERS", 100)
    for union, generator in table_graphs(40, seed=13):
        whole = pagerank_table(union, top_k=4)
        cut = generator.integers(0, union.num_nodes + 1)
        everyone = np.arange(union.num_nodes)
        parts = [pagerank_table(union, top_k=4, nodes=nodes) for nodes in (everyone[:cut], everyone[cut:])]
        assert_frame_equal(pl.concat(parts), whole, check_exact=True)


@pytest.mark.parametrize("epsilon", [1e-4, 1e-2, 0.1, 0.4])
def test_pushed_tables_hold_the_best_of_the_rows_of_a_dense_push(epsilon, monkeypatch):
    monkeypatch.setattr(pagerank, "TABLE_NODES", 0)
    monkeypatch.setattr(pagerank, "EPSILON", epsilon)
    for union, _ in table_graphs(100, seed=14):
        everyone = np.flatnonzero(union.degree)
        rows = sparse.csr_array(pushed_rows(union.adjacency, everyone, 0.15, epsilon))
        expected = pagerank._block_table(everyone, pagerank._best_of_rows(everyone, rows, 4))
        assert_frame_equal(pagerank_table(union, top_k=4), expected, abs_tol=1e-12)


def test_many_threads_on_one_new_graph_find_what_one_thread_finds():
    for union, generator in table_graphs(20, seed=15):
        targets = [generator.permutation(union.num_nodes)[:2] for _ in range(16)]
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(partial(joint_context, union, num_context=6), targets))
        for pair, found in zip(targets, together, strict=True):
            assert_array_equal(found, joint_context(union, pair, num_context=6))


def test_weighted_walks_follow_the_weights():
    for union, generator in table_graphs(100, seed=16):
        weight_NN = np.triu(generator.uniform(0.1, 5, size=(union.num_nodes, union.num_nodes)) * dense_union(union))
        weight_NN += weight_NN.T
        walk_NN = weight_NN / np.where(union.degree > 0, weight_NN.sum(axis=0), 1)
        seed_NB = np.eye(union.num_nodes)[:, :2]
        expected = np.linalg.solve(np.eye(union.num_nodes) - 0.85 * walk_NN, 0.15 * seed_NB)
        assert_allclose(chebyshev(sparse.csr_array(weight_NN), seed_NB, 0.15, 60), expected, atol=1e-12)


def test_the_best_of_many_are_sorted_and_equal_ones_ordered_by_number():
    generator = np.random.default_rng(18)
    for _ in range(200):
        score_N = np.array([-0.1, 0, 0.2, 0.3, 1])[generator.integers(5, size=30)]
        score_N *= 1 + 1e-15 * generator.integers(3, size=30)
        expected = sorted(np.flatnonzero(score_N > 0).tolist(), key=lambda node: (-round(score_N[node], 12), node))
        num_best = int(generator.integers(0, 32))
        assert pagerank._best(score_N, num_best, 1e-12).tolist() == expected[:num_best]


def test_the_table_of_a_graph_without_edges_is_empty():
    table = pagerank_table(named_union("no edge"), top_k=3)
    assert table.schema == {"node": pl.Int64, "neighbor": pl.Int64, "score": pl.Float64, "rank": pl.Int64}
    assert table.is_empty()


def test_wrong_settings_are_named():
    union = named_union("path")
    with pytest.raises(ValueError, match=r"teleport = 1\.5: expected a probability"):
        joint_scores(union, np.array([0]), teleport=1.5)
    with pytest.raises(ValueError, match="at least one target"):
        joint_context(union, np.empty(0, dtype=np.int64), num_context=3)
    with pytest.raises(ValueError, match="top_k = 0"):
        pagerank_table(union, top_k=0)


def test_scores_do_not_depend_on_node_numbers():
    for graph, generator in random_graphs(30, seed=12):
        union = build_union_graph(graph, until=graph.num_steps)
        number_N = generator.permutation(union.num_nodes)
        edges = [(int(number_N[a]), int(number_N[b])) for a, b in zip(union.source_E, union.target_E, strict=True)]
        relabelled = build_union_graph(toy_graph([(0, union.num_nodes - 1)], edges), until=2, window=1)
        found = joint_scores(relabelled, number_N[:2])
        assert_allclose(found[number_N], joint_scores(union, np.arange(2)), atol=1e-12)


def power_law_union(*, seed: int, number_N: np.ndarray | None = None, num_nodes: int = 3_000, num_edges: int = 20_000):
    """A power-law graph (Chung and Lu 2002, exponent 2.5) and two components beside it: a path and an isolated node."""
    generator = np.random.default_rng(seed)
    weight_N = np.arange(1, num_nodes + 1) ** (-1 / 1.5)
    source_A, target_A = generator.choice(num_nodes, size=(2, num_edges), p=weight_N / weight_N.sum())
    edges = [(a, b) for a, b in zip(source_A.tolist(), target_A.tolist(), strict=True) if a != b]
    edges += [(num_nodes, num_nodes + 1), (num_nodes + 1, num_nodes + 2)]
    number_N = np.arange(num_nodes + 4) if number_N is None else number_N
    edges = [(int(number_N[a]), int(number_N[b])) for a, b in edges]
    return build_union_graph(toy_graph([(0, num_nodes + 3)], edges), until=2, window=1)


def iterated_scores(union, targets, teleport: float = 0.15) -> np.ndarray:
    """The defining equation, iterated until it holds to rounding error."""
    degree_N = np.maximum(union.degree, 1)
    seed_N = teleport * np.bincount(targets, minlength=union.num_nodes) / len(targets)
    score_N = seed_N
    for _ in range(200):
        score_N = seed_N + (1 - teleport) * (union.adjacency @ (score_N / degree_N))
    return score_N


def dense_push(union, targets, rounds: int, threshold: float, teleport: float) -> np.ndarray:
    """Scores of all nodes [N] by the push's own rules, before the last pull, in dense arrays of one component."""
    adjacency_NN, degree_N = dense_union(union), np.maximum(union.degree, 1)
    mass_N = np.bincount(targets, minlength=union.num_nodes) / len(targets)
    score_N, has_pushed = np.zeros(union.num_nodes), threshold == 0
    for weight in Push(rounds=rounds, threshold=threshold).weights(teleport):
        pushed_N = np.where(np.abs(weight * mass_N) / degree_N >= threshold, weight * mass_N, 0)
        has_pushed |= bool(pushed_N.any())
        score_N += teleport * pushed_N
        mass_N += (1 - teleport) * adjacency_NN @ (pushed_N / degree_N) - pushed_N
    if not has_pushed:
        return dense_push(union, targets, rounds, 0, teleport)
    score_N += teleport * mass_N
    return score_N + (1 - teleport) * mass_N.sum() * union.degree / union.degree.sum()


def test_pushed_without_a_threshold_for_long_scores_equal_an_exact_solve():
    for seed, teleport in ((0, 0.15), (1, 0.4)):
        union = power_law_union(seed=seed)
        targets = np.append(np.random.default_rng(seed).choice(3_000, size=40, replace=False), 3_000)  # the path's end
        exact_N = iterated_scores(union, targets, teleport)
        for num_candidates in (0, 500, 5_000):
            found = pushed_scores(union, targets, num_candidates, teleport=teleport, push=Push(rounds=64, threshold=0))
            assert_allclose(found.score_A, exact_N[found.node_A], atol=1e-9, rtol=0)
            reached = np.flatnonzero(exact_N > 0)
            assert sorted(found.node_A.tolist()) == np.setdiff1d(reached, targets).tolist()


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 6, 9])
def test_pushed_scores_follow_their_rules(rounds):
    for graph, generator in random_graphs(60, seed=19):
        union = build_union_graph(graph, until=graph.num_steps)
        (_, component_N) = sparse.csgraph.connected_components(union.adjacency)
        if component_N.max() > 0:
            continue
        targets = generator.permutation(union.num_nodes)[: generator.integers(1, union.num_nodes)]
        threshold, teleport = 10 ** generator.uniform(-4, -1), generator.uniform(0.1, 0.5)
        expected_N = dense_push(union, targets, rounds, threshold, teleport)
        found = pushed_scores(union, targets, 0, teleport=teleport, push=Push(rounds=rounds, threshold=threshold))
        assert_allclose(found.score_A, expected_N[found.node_A], atol=1e-12)
        assert not set(found.node_A.tolist()) & set(targets.tolist())
        pulled = pushed_scores(union, targets, 99, teleport=teleport, push=Push(rounds=rounds, threshold=threshold))
        pulled_N = (1 - teleport) * dense_union(union) @ (expected_N / np.maximum(union.degree, 1))
        best = pulled.node_A[: pulled.num_best]
        assert_allclose(pulled.score_A[: pulled.num_best], pulled_N[best], atol=1e-12)
        assert (np.diff(best) > 0).all()


def test_the_defaults_recall_the_exact_context_of_a_power_law_graph(monkeypatch):
    monkeypatch.setattr(pagerank, "PUSHED_FROM", 0)
    union = power_law_union(seed=2, num_nodes=20_000, num_edges=150_000)
    for seed in range(3):
        targets = np.random.default_rng(seed).choice(20_000, size=64, replace=False)
        exact = exact_order(iterated_scores(union, targets), targets)[:128]
        found = joint_context(union, targets, num_context=128)
        assert len(set(found.tolist()) & set(exact)) >= 0.97 * 128
        assert len(set(found.tolist())) == 128


def exact_order(score_N: np.ndarray, targets) -> list[int]:
    score_N = score_N.copy()
    score_N[targets] = -1
    return np.argsort(-score_N, kind="stable").tolist()


def test_a_pushed_context_does_not_depend_on_node_numbers(monkeypatch):
    monkeypatch.setattr(pagerank, "PUSHED_FROM", 0)
    number_N = np.random.default_rng(4).permutation(3_004)
    union, relabelled = power_law_union(seed=3), power_law_union(seed=3, number_N=number_N)
    targets = np.arange(0, 3_000, 100)
    push = Push(rounds=4, threshold=1e-5)
    one, other = (
        pushed_scores(graph, nodes, 400, push=push)
        for graph, nodes in ((union, targets), (relabelled, number_N[targets]))
    )
    score_N, relabelled_N = np.zeros(3_004), np.zeros(3_004)
    score_N[one.node_A], relabelled_N[other.node_A] = one.score_A, other.score_A
    assert_allclose(relabelled_N[number_N], score_N, atol=1e-12)
    context = joint_context(union, targets, num_context=64, push=push)
    again = joint_context(relabelled, number_N[targets], num_context=64, push=push)
    assert sorted(number_N[context].tolist()) == sorted(again.tolist())


def test_a_push_stays_in_the_components_of_its_targets(monkeypatch):
    monkeypatch.setattr(pagerank, "PUSHED_FROM", 0)
    union = power_law_union(seed=5)
    assert joint_context(union, np.array([3_003]), num_context=5).tolist() == []  # isolated
    assert joint_context(union, np.array([3_000, 3_003]), num_context=5).tolist() == [3_001, 3_002]
    drawn = joint_context(union, np.array([3_000]), num_context=5, generator=np.random.default_rng(0))
    assert sorted(drawn.tolist()) == [3_001, 3_002]
    assert joint_context(union, np.array([0]), num_context=0).tolist() == []


@pytest.mark.parametrize(
    ("edges", "targets", "rounds", "context"),
    [
        ([(0, 1)], [0], 4, [1]),
        ([(0, 1), (1, 2)], [1], 4, [0, 2]),
        ([(2 * pair, 2 * pair + 1) for pair in range(64)], range(0, 128, 2), 4, range(1, 128, 2)),
        ([(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)], [0, 3], 6, [1, 2, 4, 5]),
    ],
)
def test_nodes_whose_masses_cancel_are_in_the_context(monkeypatch, edges, targets, rounds, context):
    monkeypatch.setattr(pagerank, "PUSHED_FROM", 0)
    union, targets, push = build_union_graph(toy_graph(edges), until=1), np.array(targets), Push(rounds=rounds)
    assert sorted(joint_context(union, targets, num_context=200, push=push).tolist()) == list(context)
    found = pushed_scores(union, targets, 200, push=push)
    assert_allclose(found.score_A, iterated_scores(union, targets)[found.node_A], rtol=0.25)


def test_targets_with_too_many_neighbours_for_their_mass_have_a_context(monkeypatch):
    monkeypatch.setattr(pagerank, "PUSHED_FROM", 0)
    edges = [(hub, 3 + hub * 40 + leaf) for hub in range(3) for leaf in range(40)] + [(0, 1), (1, 2)]
    union = build_union_graph(toy_graph(edges), until=1)
    targets, push = np.arange(3), Push(threshold=0.05)  # each has 1/3 of the mass, for some 40 neighbours
    context = joint_context(union, targets, num_context=200, push=push)
    assert sorted(context.tolist()) == list(range(3, 123))
    score_N = iterated_scores(union, targets)
    found = pushed_scores(union, targets, 200, push=push)
    assert_allclose(found.score_A, score_N[found.node_A], rtol=0.25)


def test_a_drawn_view_follows_the_pushed_scores(monkeypatch):
    monkeypatch.setattr(pagerank, "PUSHED_FROM", 0)
    union, targets = power_law_union(seed=6, num_nodes=40, num_edges=100), np.array([0, 7])
    scores = pushed_scores(union, targets, 40, push=Push())
    generator, count_N = np.random.default_rng(1), np.zeros(union.num_nodes)
    for _ in range(5_000):
        best, drawn = two_joint_contexts(union, targets, num_context=1, generator=generator)
        assert best.tolist() == joint_context(union, targets, num_context=1).tolist()
        count_N[drawn] += 1
    assert_allclose(count_N[scores.node_A] / 5_000, scores.score_A / scores.score_A.sum(), atol=0.025)


def test_below_the_limit_scores_are_solved_as_ever(monkeypatch):
    def refuse(*arguments, **settings):
        raise AssertionError("pushed")

    union = power_law_union(seed=7)
    monkeypatch.setattr(pagerank, "pushed_scores", refuse)
    targets = np.arange(0, 900, 30)
    score_N = joint_scores(union, targets)
    score_N[targets] = 0
    best, drawn = two_joint_contexts(union, targets, num_context=30, generator=np.random.default_rng(2))
    assert best.tolist() == pagerank._best(score_N, 30, pagerank.TIE * score_N.max()).tolist()
    candidate_A = np.flatnonzero(score_N > 0)
    key_A = score_N[candidate_A] / np.random.default_rng(2).standard_exponential(len(candidate_A))
    assert drawn.tolist() == candidate_A[np.argsort(-key_A, kind="stable")[:30]].tolist()
    monkeypatch.setattr(pagerank, "PUSHED_FROM", len(union.neighbor_M))
    with pytest.raises(AssertionError, match="pushed"):
        joint_context(union, targets, num_context=30)


def test_a_residual_that_just_reaches_its_threshold_is_pushed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pagerank, "EPSILON", 0.25)
    # Node 1 receives 0.5, which is 0.25 times its degree of 2; node 2 receives less than its threshold.
    path = build_union_graph(toy_graph([(0, 1), (1, 2)]), until=1)
    best, scores, num_best = pagerank._pushed(path, np.array([0]), 3, 0.5)
    assert num_best.tolist() == [2]
    assert best[0, :2].tolist() == [1, 2]
    assert scores[0, :2].tolist() == [0.25, 0.0625]
    assert pushed_rows(path.adjacency, np.array([0]), 0.5, 0.25).tolist() == [[0.5625, 0.25, 0.0625]]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0.5, 0.25, 0.25], [9, 3]),
        ([0.5, 0.25, 0.25 - TIE / 4], [9, 3]),  # equal to the last of the best, with a lower number
        ([0.5, 0.25, 0.25 - 1.5 * TIE], [9, 5]),
        ([0.5, 0.25, 0.25 - 4 * TIE], [9, 5]),
        ([0.25, 0.25 + TIE / 4, 0.25], [3, 5]),
        ([0.25, 0.5, 0.75], [3, 5]),
    ],
)
def test_of_scores_that_round_alike_the_lower_numbers_are_taken(scores: list[float], expected: list[int]):
    best_K, score_K = np.empty(2, dtype=np.int64), np.empty(2)
    node_N, entries = np.array([9, 5, 3]), (np.arange(3, dtype=np.uint32), np.array(scores))
    assert _take_best(node_N, entries, best_K, score_K, TIE) == 2
    assert best_K.tolist() == expected
    assert score_K.tolist() == [scores[[9, 5, 3].index(node)] for node in expected]
