from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits
from toy_graphs import random_graph, toy_graph

import dyformer.scoring.retrieval as module
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.scoring.decoder import LinkDecoder, fit_decoder, logit
from dyformer.scoring.pair_features import find_edges, path_scores, prepare_pair_features
from dyformer.scoring.retrieval import Retrieved, _Logits, retrieve

TWO_SIDES = toy_graph([(0, 1), (2, 3), (0, 3)], [(4, 1), (4, 5), (2, 7), (6, 7)], sides=[0, 1, 0, 1, 0, 1, 0, 1])


def random_history(seed: int = 3) -> DynamicGraph:
    return random_graph(np.random.default_rng(seed), num_nodes=12, num_steps=3, num_edges=8)


def decoder_of(history: DynamicGraph) -> LinkDecoder:
    generator = np.random.default_rng(1)
    source_P, target_P = np.triu_indices(len(history.side_N), k=1)
    return fit_decoder(prepare_pair_features(history).table(source_P, target_P), generator.random(len(source_P)) < 0.5)


def retrieved(history: DynamicGraph, k: int, *, candidates: Any = None, **options) -> Retrieved:
    own = None if candidates is None else lambda: candidates
    features = prepare_pair_features(history)
    return retrieve(features, decoder_of(history), history.side_N, k=k, candidates_of=own, **options)


def slow_retrieval(history: DynamicGraph, k: int, allowed=None) -> set[tuple[int, int, bool]]:
    """The best new and the best past partners by a double loop over all pairs."""
    linked = {pair for s in history.snapshots for pair in zip(s.source_E.tolist(), s.target_E.tolist(), strict=True)}
    two_sides, decoder, found = len(set(history.side_N.tolist())) > 1, decoder_of(history), set()
    for i in range(len(history.side_N)):
        scored: dict[bool, list[tuple[float, int]]] = {False: [], True: []}
        for j in range(len(history.side_N)):
            pair = (min(i, j), max(i, j))
            same_side = two_sides and history.side_N[i] == history.side_N[j]
            if i != j and not same_side and (allowed is None or (i, j) in allowed):
                value = logit(decoder, prepare_pair_features(history).table(np.array([i]), np.array([j])))[0]
                scored[pair in linked].append((-round(value, 9), j))
        found |= {(i, j, is_linked) for is_linked in scored for _, j in sorted(scored[is_linked])[:k]}
    return found


def test_log_odds_of_pairs_are_those_of_their_features_in_both_orders():
    history = random_graph(np.random.default_rng(0), num_nodes=30, num_steps=3, num_edges=60)
    features, decoder = prepare_pair_features(history), decoder_of(history)
    source_P, target_P = np.triu_indices(30, k=1)

    def logits(source_P: np.ndarray, target_P: np.ndarray) -> np.ndarray:
        edge_P, paths = find_edges(features.edges, source_P, target_P), path_scores(features, source_P, target_P)
        return _Logits(features, decoder).of_pairs(source_P, target_P, edge_P, paths)

    found = logits(source_P, target_P)
    np.testing.assert_allclose(found, logit(decoder, features.table(source_P, target_P)), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(logits(target_P, source_P), found)
    np.testing.assert_array_equal(logits(source_P[7:8], target_P[7:8]), found[7:8])


def as_set(found: Retrieved) -> set[tuple[int, int, bool]]:
    rows = list(zip(*(column_R.tolist() for column_R in found[:3]), strict=True))
    assert len(set(rows)) == len(rows)
    assert (np.diff(found.node_R) >= 0).all()
    return set(rows)


@pytest.mark.parametrize("block_pairs", [400_000, 30, 1])
@pytest.mark.parametrize("history", [random_history(), TWO_SIDES], ids=["one side", "two sides"])
def test_the_best_new_and_past_partners_equal_those_of_a_double_loop(
    history: DynamicGraph, block_pairs: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "BLOCK_PAIRS", block_pairs)
    for k in (1, 3):
        assert as_set(retrieved(history, k)) == slow_retrieval(history, k)


def test_named_candidates_are_compared_alone():
    history, ends = random_history(), np.random.default_rng(0).integers(12, size=(2, 60))
    allowed = set(map(tuple, ends.T.tolist()))
    for k in (2, 12):
        assert as_set(retrieved(history, k, candidates=(ends[0], ends[1]))) == slow_retrieval(history, k, allowed)


def test_named_candidates_of_one_side_are_dropped_where_a_log_has_two():
    candidates = (np.array([0, 2, 1]), np.array([2, 1, 3]))
    assert as_set(retrieved(TWO_SIDES, 3, candidates=candidates)) == {(2, 1, False)}


def test_query_nodes_get_the_partners_that_they_get_among_all():
    history, query_A = random_history(), np.array([7, 0, 3])
    for candidates in (None, np.nonzero(~np.eye(12, dtype=np.bool_))):
        whole = as_set(retrieved(history, 3, candidates=candidates))
        part = as_set(retrieved(history, 3, candidates=candidates, query_A=query_A))
        assert part == {row for row in whole if row[0] in query_A}
    assert not as_set(retrieved(history, 3, query_A=query_A[:0]))
    with pytest.raises(ValueError, match="expected nodes of the history, 0 to 11"):
        retrieved(history, 3, query_A=np.array([12]))


def test_retrieval_runs_on_one_blas_thread(monkeypatch: pytest.MonkeyPatch):
    during, real = [], module.slopes

    def watched(decoder: LinkDecoder) -> object:
        during.extend(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")
        return real(decoder)

    monkeypatch.setattr(module, "slopes", watched)
    with threadpool_limits(2, user_api="blas"):
        retrieved(random_history(), 2)
    assert set(during) == {1}


def test_no_candidate_gives_no_pair():
    none = np.empty(0, dtype=np.int64)
    assert not as_set(retrieved(random_history(), 3, candidates=(none, none)))


def test_a_node_linked_to_all_others_has_past_partners_alone():
    found = as_set(retrieved(toy_graph([(0, 1), (0, 2), (0, 3)]), 5))
    assert {row for row in found if row[0] == 0} == {(0, 1, True), (0, 2, True), (0, 3, True)}
    assert {row for row in found if row[0] == 1} == {(1, 0, True), (1, 2, False), (1, 3, False)}


def test_equal_scores_go_to_the_first_nodes():
    history = toy_graph([(0, 1)], [(2, 3), (4, 5)])
    found = as_set(retrieved(history, 1))
    assert (0, 2, False) in found  # 2, 3, 4 and 5 are alike for node 0
    assert found == slow_retrieval(history, 1)
    everyone = np.nonzero(~np.eye(6, dtype=np.bool_))
    assert as_set(retrieved(history, 1, candidates=everyone)) == found


def test_more_nodes_than_can_be_compared_need_candidates(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MAX_NODES", 3)
    history = toy_graph([(0, 1), (1, 2), (2, 3)])
    with pytest.raises(ValueError, match=r"4 nodes are too many to compare all pairs \(up to 3\): give candidates"):
        retrieved(history, 1)
    assert as_set(retrieved(history, 1, candidates=(np.array([0]), np.array([3])))) == {(0, 3, False)}
