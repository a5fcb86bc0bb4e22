import math

import numpy as np
import polars as pl
import pytest
from threadpoolctl import threadpool_info, threadpool_limits
from toy_graphs import random_graph, toy_graph

import dyformer.scoring.top_links as module
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.scoring.decoder import LinkDecoder, decoder_inputs, fit_decoder, hadamard
from dyformer.scoring.pair_features import pair_feature_table
from dyformer.scoring.top_links import LINKS_SCHEMA, decoder_nodes, last_active, top_links

WIDTH = 5


def vectors_of(history: DynamicGraph, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(len(history.side_N), WIDTH)).astype(np.float32)


def decoder_of(history: DynamicGraph, kind) -> LinkDecoder:
    generator = np.random.default_rng(1)
    source_P, target_P = np.triu_indices(len(history.side_N), k=1)
    table_PF = pair_feature_table(history, source_P, target_P) if kind == "features" else None
    inputs_PF = decoder_inputs(hadamard(vectors_of(history), source_P, target_P), table_PF)
    return fit_decoder(inputs_PF, generator.random(len(source_P)) < 0.5, kind=kind)


def slow_links(vectors_ND, decoder: LinkDecoder, history: DynamicGraph, k: int, allowed=None) -> list[tuple]:
    """The top links by a double loop over all pairs."""
    linked = {pair for s in history.snapshots for pair in zip(s.source_E.tolist(), s.target_E.tolist(), strict=True)}
    two_sides = len(set(history.side_N.tolist())) > 1
    rows = []
    for i in range(len(vectors_ND)):
        scored = []
        for j in range(len(vectors_ND)):
            pair = (min(i, j), max(i, j))
            same_side = two_sides and history.side_N[i] == history.side_N[j]
            if i == j or pair in linked or same_side or (allowed is not None and pair not in allowed):
                continue
            inputs = [float(a) * float(b) for a, b in zip(vectors_ND[i], vectors_ND[j], strict=True)]
            if decoder.kind == "features":
                inputs += pair_feature_table(history, np.array([i]), np.array([j]))[0].tolist()
            standard = [(x - m) / s for x, m, s in zip(inputs, decoder.mean_F, decoder.scale_F, strict=True)]
            value = sum(w * x for w, x in zip(decoder.coefficient_F, standard, strict=True)) + decoder.intercept
            scored.append((-1 / (1 + math.exp(-value)), j))
        rows += [(i, rank, j, -score) for rank, (score, j) in enumerate(sorted(scored)[:k], start=1)]
    return rows


def assert_same(links: pl.DataFrame, expected: list[tuple]) -> None:
    assert links.schema == LINKS_SCHEMA
    assert [row[:3] for row in links.rows()] == [row[:3] for row in expected]
    np.testing.assert_allclose(links["score"], [row[3] for row in expected], rtol=1e-6)


@pytest.mark.parametrize("kind", ["paper", "features"])
@pytest.mark.parametrize("block_pairs", [400_000, 30, 1])
def test_links_equal_a_double_loop(kind, block_pairs: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "BLOCK_PAIRS", block_pairs)
    history = random_graph(np.random.default_rng(3), num_nodes=12, num_steps=3, num_edges=8)
    decoder = decoder_of(history, kind)
    links = top_links(vectors_of(history), decoder, history, k=3)
    assert_same(links, slow_links(vectors_of(history), decoder, history, 3))


@pytest.mark.parametrize("kind", ["paper", "features"])
def test_links_of_a_log_with_two_sides_cross_them(kind):
    history = toy_graph([(0, 1), (2, 3), (0, 3)], [(4, 1), (4, 5), (2, 7), (6, 7)], sides=[0, 1, 0, 1, 0, 1, 0, 1])
    decoder = decoder_of(history, kind)
    links = top_links(vectors_of(history), decoder, history, k=2)
    assert_same(links, slow_links(vectors_of(history), decoder, history, 2))
    assert (history.side_N[links["node"]] != history.side_N[links["partner"]]).all()


@pytest.mark.parametrize("kind", ["paper", "features"])
def test_named_candidates_are_ranked_alone(kind):
    history = random_graph(np.random.default_rng(3), num_nodes=12, num_steps=3, num_edges=8)
    ends = np.random.default_rng(0).integers(12, size=(2, 60))
    allowed = {(min(pair), max(pair)) for pair in ends.T.tolist()}
    decoder = decoder_of(history, kind)
    for k in (3, 12):
        links = top_links(vectors_of(history), decoder, history, k=k, candidates=(ends[0], ends[1]))
        assert_same(links, slow_links(vectors_of(history), decoder, history, k, allowed))


@pytest.mark.parametrize("kind", ["paper", "features"])
@pytest.mark.parametrize("block_pairs", [400_000, 30])
def test_query_nodes_get_the_links_that_they_get_among_all(kind, block_pairs: int, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_PAIRS", block_pairs)
    history = random_graph(np.random.default_rng(3), num_nodes=12, num_steps=3, num_edges=8)
    decoder, query_A = decoder_of(history, kind), np.array([7, 0, 3])
    everyone = np.triu_indices(12, k=1)
    for candidates in (None, everyone):
        whole = top_links(vectors_of(history), decoder, history, k=3, candidates=candidates)
        part = top_links(vectors_of(history), decoder, history, k=3, candidates=candidates, query_A=query_A)
        assert_same(part, whole.filter(pl.col("node").is_in(query_A.tolist())).rows())
    none = top_links(vectors_of(history), decoder, history, k=3, query_A=query_A[:0])
    assert none.is_empty()
    with pytest.raises(ValueError, match="expected nodes of the history, 0 to 11"):
        top_links(vectors_of(history), decoder, history, k=3, query_A=np.array([12]))


def test_named_candidates_of_one_side_are_dropped_where_a_log_has_two():
    history = toy_graph([(0, 1), (2, 3), (0, 3)], sides=[0, 1, 0, 1])
    candidates = (np.array([0, 2, 1]), np.array([2, 1, 3]))
    links = top_links(vectors_of(history), decoder_of(history, "paper"), history, k=3, candidates=candidates)
    assert links.select("node", "partner").rows() == [(1, 2), (2, 1)]


def test_forecasts_are_made_on_one_blas_thread(monkeypatch: pytest.MonkeyPatch):
    history = random_graph(np.random.default_rng(3), num_nodes=12, num_steps=3, num_edges=8)
    during, real = [], module.union_edges

    def watched(graph: DynamicGraph) -> object:
        during.extend(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")
        return real(graph)

    monkeypatch.setattr(module, "union_edges", watched)
    with threadpool_limits(2, user_api="blas"):
        top_links(vectors_of(history), decoder_of(history, "paper"), history, k=2)
    assert set(during) == {1}


def test_no_candidate_gives_an_empty_table():
    history = toy_graph([(0, 1), (1, 2), (2, 3)])
    none = np.empty(0, dtype=np.int64)
    links = top_links(vectors_of(history), decoder_of(history, "paper"), history, k=3, candidates=(none, none))
    assert links.schema == LINKS_SCHEMA
    assert links.is_empty()


def test_a_node_linked_to_all_others_has_no_row():
    history = toy_graph([(0, 1), (0, 2), (0, 3)])
    links = top_links(vectors_of(history), decoder_of(history, "paper"), history, k=5)
    assert set(links["node"]) == {1, 2, 3}
    assert (links["partner"] != 0).all()


def test_equal_scores_are_ranked_by_node_number():
    history = toy_graph([(0, 1)], [(2, 3), (4, 5)])
    links = top_links(np.ones((6, WIDTH)), decoder_of(history, "paper"), history, k=2)
    assert links.filter(pl.col("node") == 3).rows() == [(3, 1, 0, links["score"][0]), (3, 2, 1, links["score"][0])]
    named = top_links(np.ones((6, WIDTH)), decoder_of(history, "paper"), history, k=2, candidates=np.triu_indices(6, 1))
    assert named.equals(links)


def test_more_nodes_than_can_be_scored_need_candidates(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_NODES", 3)
    history = toy_graph([(0, 1), (1, 2), (2, 3)])
    with pytest.raises(ValueError, match=r"4 nodes are too many to score all pairs \(up to 3\): give candidates"):
        top_links(vectors_of(history), decoder_of(history, "paper"), history, k=1)
    candidates = (np.array([0]), np.array([3]))
    links = top_links(vectors_of(history), decoder_of(history, "paper"), history, k=1, candidates=candidates)
    assert links.select("node", "partner").rows() == [(0, 3), (3, 0)]


def test_arguments_that_do_not_fit_are_refused():
    history = toy_graph([(0, 1), (1, 2), (2, 3)])
    decoder = decoder_of(history, "paper")
    with pytest.raises(ValueError, match=r"shape \(3, 5\): expected a row for each of 4 nodes"):
        top_links(vectors_of(history)[:3], decoder, history, k=1)
    with pytest.raises(ValueError, match="reads 5 inputs, vectors of width 4 give 4"):
        top_links(vectors_of(history)[:, :4], decoder, history, k=1)
    with pytest.raises(ValueError, match="expected finite vectors"):
        top_links(np.full((4, WIDTH), np.nan), decoder, history, k=1)
    with pytest.raises(ValueError, match="k = 0"):
        top_links(vectors_of(history), decoder, history, k=0)


def test_the_nodes_linked_last_come_from_the_newest_steps():
    history = toy_graph([(0, 1), (2, 3), (4, 9)], [(4, 5), (6, 1)], [(2, 6)])
    assert last_active(history, 2).tolist() == [2, 6]
    assert last_active(history, 4).tolist() == [1, 2, 4, 6]
    assert last_active(history, 99).tolist() == [0, 1, 2, 3, 4, 5, 6, 9]
    with pytest.raises(ValueError, match="forecasts for 0 nodes"):
        last_active(history, 0)


def test_a_decoder_is_fitted_on_all_nodes_of_a_small_step_and_on_whole_batches_of_a_large_one(monkeypatch):
    graph = random_graph(np.random.default_rng(0), num_nodes=200, num_steps=2, num_edges=400)
    assert decoder_nodes(graph, 2, num_targets=5, seed=0).tolist() == list(range(200))
    monkeypatch.setattr(module, "DECODER_LINKS", 100)
    nodes = decoder_nodes(graph, 2, num_targets=5, seed=0)
    batches = nodes.reshape(-1, 5)
    assert (batches == batches[:, :1] // 5 * 5 + np.arange(5)).all()
    assert len(np.unique(nodes)) == len(nodes) == 100  # half of the nodes hold a quarter of 400 links
    snapshot = graph.snapshots[1]
    inside = np.isin(snapshot.source_E, nodes) & np.isin(snapshot.target_E, nodes)
    assert 60 < inside.sum() < 140
