"""Candidate pairs on a graph too large for all pairs."""

import numpy as np
import polars as pl
import pytest

from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph, Snapshot
from dyformer.scoring.candidate_pairs import candidate_pairs, candidates


def frame(*pairs: tuple[int, int]) -> pl.DataFrame:
    return pl.DataFrame(pairs, schema={"source": pl.Int64, "target": pl.Int64}, orient="row")


NO_SCORES = pl.DataFrame(schema={"node": pl.Int64, "neighbor": pl.Int64, "score": pl.Float64})
PATH = frame((0, 1), (2, 1), (2, 3), (3, 4))


def by_node(pairs: pl.DataFrame) -> dict[int, list[int]]:
    return {node: sorted(group["partner"]) for (node,), group in pairs.group_by("node", maintain_order=True)}


def test_candidates_are_two_steps_away_and_never_linked():
    assert by_node(candidates(PATH, NO_SCORES)) == {0: [2], 1: [3], 2: [0, 4], 3: [1], 4: [2]}


def test_candidates_of_the_pagerank_table_come_first():
    scores = pl.DataFrame({"node": [0, 0, 0, 0], "neighbor": [4, 1, 0, 3], "score": [0.2, 0.9, 0.9, 0.1]})
    assert by_node(candidates(PATH, scores))[0] == [2, 3, 4]
    assert by_node(candidates(PATH, scores, num_candidates=2))[0] == [3, 4]
    assert by_node(candidates(PATH, scores, num_candidates=1))[0] == [4]


def test_the_more_popular_partner_comes_first():
    star = frame((0, 1), (1, 2), (1, 3), (3, 4), (3, 5))
    assert by_node(candidates(star, NO_SCORES, num_candidates=1))[0] == [3]
    assert by_node(candidates(star, NO_SCORES, num_popular=1)).get(0) == [3]


def test_candidates_come_through_the_least_popular_bridge():
    edges = frame((0, 1), (0, 2), (1, 3), (2, 4), (2, 5))
    assert by_node(candidates(edges, NO_SCORES, num_bridges=1))[0] == [3]


def test_on_a_bipartite_log_candidates_are_on_the_other_side():
    shop = frame((0, 10), (1, 10), (1, 11), (2, 11))
    assert by_node(candidates(shop, NO_SCORES, bipartite=True)) == {0: [11], 2: [10], 10: [2], 11: [0]}


def test_repeated_and_reversed_edges_change_no_candidate():
    again = pl.concat([PATH, PATH.select(source="target", target="source"), PATH])
    assert candidates(again, NO_SCORES).equals(candidates(PATH, NO_SCORES))


def test_blocks_of_nodes_change_no_candidate(monkeypatch: pytest.MonkeyPatch):
    whole = candidates(PATH, NO_SCORES)
    monkeypatch.setattr("dyformer.scoring.candidate_pairs.BLOCK_NODES", 2)
    assert candidates(PATH, NO_SCORES).equals(whole)


def test_candidates_of_chosen_nodes_are_the_same_as_among_all():
    nodes = pl.Series("node", [4, 0, 77])
    whole = by_node(candidates(PATH, NO_SCORES))
    assert by_node(candidates(PATH, NO_SCORES, nodes=nodes)) == {node: whole[node] for node in (0, 4)}
    shop = frame((0, 10), (1, 10), (1, 11), (2, 11))
    assert by_node(candidates(shop, NO_SCORES, bipartite=True, nodes=pl.Series([2]))) == {2: [10]}


def test_no_edge_gives_no_candidate():
    assert candidates(frame(), NO_SCORES).is_empty()


def path_graph(num_nodes: int) -> DynamicGraph:
    """0 - 1 - 2 - ... in one step."""
    source_E = np.arange(num_nodes - 1)
    snapshot = Snapshot(
        step=1,
        start_time=0,
        end_time=1,
        source_E=source_E,
        target_E=source_E + 1,
        weight_E=np.ones(num_nodes - 1),
        num_interactions=num_nodes - 1,
        num_self_loops=0,
        num_nodes=num_nodes,
    )
    return DynamicGraph(snapshots=(snapshot,), node_N=np.arange(num_nodes), side_N=np.zeros(num_nodes, dtype=np.int8))


def test_candidates_are_near_or_were_linked() -> None:
    graph = prepare_graph(path_graph(9), until=1, config=GraphConfig())
    pairs = set(zip(*(end_P.tolist() for end_P in candidate_pairs(graph)), strict=True))
    assert {(0, 2), (2, 0), (4, 6), (6, 4)} <= pairs
    assert {(node, node + 1) for node in range(8)} | {(node + 1, node) for node in range(8)} <= pairs


def test_the_candidates_of_a_node_depend_on_no_other_query() -> None:
    graph = prepare_graph(path_graph(9), until=1, config=GraphConfig())
    whole = sorted(zip(*(end_P.tolist() for end_P in candidate_pairs(graph)), strict=True))
    for query_A in (np.array([4]), np.array([8, 0, 3])):
        own = sorted(zip(*(end_P.tolist() for end_P in candidate_pairs(graph, query_A)), strict=True))
        assert own == [pair for pair in whole if pair[0] in query_A]
