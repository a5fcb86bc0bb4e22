"""Candidate pairs on a graph too large for all pairs."""

import duckdb
import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from scipy import sparse

from dyformer.graphs.prepared_graph import GraphConfig, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph, Snapshot
from dyformer.scoring.candidate_pairs import bridges_of, candidate_pairs
from dyformer.scoring.candidate_pairs import candidates as candidates_of

# The definition, as tables that are joined.
CANDIDATE_PARTS = """
create table neighbors as
select source as node, target as neighbor from edges union select target, source from edges;

create table popularity as select neighbor as node, count(*) as degree from neighbors group by 1;

create table bridges as
select n.node, n.neighbor from neighbors n join popularity p on p.node = n.neighbor
qualify row_number() over (partition by n.node order by p.degree, n.neighbor) <= {num_bridges};

create table popular as
select n.node, n.neighbor, p.degree from neighbors n join popularity p on p.node = n.neighbor
qualify row_number() over (partition by n.node order by p.degree desc, n.neighbor) <= {num_popular};
"""
LONGER_BRIDGES = """
create or replace table bridges as
with longer as (
    select a.node, b.neighbor, count(*) as num_ways from bridges a join bridges b on b.node = a.neighbor
    where a.node <> b.neighbor group by a.node, b.neighbor
)
select node, neighbor from longer
qualify row_number() over (partition by node order by num_ways desc, neighbor) <= {num_bridges};
"""
CANDIDATES = """
with pairs as (
    select node, neighbor as partner, score, 0 as degree from pagerank semi join queries using (node)
    union all
    select bridges.node, popular.neighbor, 0, popular.degree
    from bridges semi join queries using (node) join popular on popular.node = bridges.neighbor
),
fresh as (
    select node, partner, max(score) as score, max(degree) as degree
    from pairs anti join neighbors known on known.node = pairs.node and known.neighbor = pairs.partner
    where node <> partner
    group by all
)
select node, partner from fresh
qualify row_number() over (partition by node order by score desc, degree desc, partner) <= $num_candidates
order by node, partner
"""


def joined(
    edges: pl.DataFrame,
    pagerank: pl.DataFrame,
    num_candidates: int,
    num_bridges: int,
    num_popular: int,
    *,
    bipartite: bool,
) -> pl.DataFrame:
    """Find candidates as CANDIDATES defines them."""
    connection = duckdb.connect(config={"threads": 1})
    connection.register("edges", edges)
    connection.execute(CANDIDATE_PARTS.format(num_bridges=num_bridges, num_popular=num_popular))
    if bipartite:
        connection.execute(LONGER_BRIDGES.format(num_bridges=num_bridges))
    connection.execute("create table queries as select distinct node from neighbors")
    connection.register("pagerank", pagerank)
    return connection.sql(CANDIDATES, params={"num_candidates": num_candidates}).pl()


def candidates(
    edges: pl.DataFrame,
    scores: pl.DataFrame,
    *,
    num_candidates: int = 100,
    num_bridges: int = 10,
    num_popular: int = 20,
    bipartite: bool = False,
    nodes: pl.Series | None = None,
) -> pl.DataFrame:
    """Call the product's function with the edges and PageRank scores of tables."""
    num_nodes = 1 + max(int(frame.to_numpy().max(initial=0)) for frame in (edges, scores.select("node", "neighbor")))
    adjacency_NN = np.zeros((num_nodes, num_nodes))
    for source, target in edges.iter_rows():
        adjacency_NN[source, target] = adjacency_NN[target, source] = 1
    bridges = bridges_of(
        sparse.csr_array(adjacency_NN), bipartite=bipartite, num_bridges=num_bridges, num_popular=num_popular
    )
    query_A = np.arange(num_nodes) if nodes is None else nodes.filter(nodes < num_nodes).sort().to_numpy()
    node_P, partner_P = candidates_of(bridges, query_A, near(scores, query_A), num_candidates=num_candidates)
    return pl.DataFrame({"node": node_P, "partner": partner_P})


def near(scores: pl.DataFrame, query_A: NDArray[np.int64]) -> tuple[NDArray, NDArray, NDArray]:
    """Give the rows of a table of PageRank scores."""
    rows = [scores.filter(node=node).sort("score", "neighbor", descending=[True, False]) for node in query_A.tolist()]
    size_A = np.array([row.height for row in rows], dtype=np.int64)
    near_AK, score_AK = (
        np.zeros((len(rows), max(size_A, default=0)), np.int64),
        np.zeros((len(rows), max(size_A, default=0))),
    )
    for number, row in enumerate(rows):
        near_AK[number, : row.height], score_AK[number, : row.height] = row["neighbor"], row["score"]
    return near_AK, score_AK, size_A


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


@pytest.mark.parametrize("bipartite", [False, True])
def test_candidates_are_those_of_joined_tables(bipartite: bool):
    for seed in range(20):
        generator = np.random.default_rng(seed)
        num_nodes, num_edges = generator.integers(4, 40), generator.integers(1, 90)
        # Popular nodes, so that lists are cut, and scores with ties.
        end_2E = (num_nodes * generator.random((2, num_edges)) ** 2).astype(np.int64)
        if bipartite:
            end_2E[1] += num_nodes
        edges = pl.DataFrame({"source": end_2E[0], "target": end_2E[1]}).filter(pl.col("source") != pl.col("target"))
        ends = np.unique(edges.to_numpy())
        if not len(ends):
            continue
        pairs = generator.choice(ends, size=(2, 3 * num_nodes))
        scores = pl.DataFrame({"node": pairs[0], "neighbor": pairs[1]}).unique(maintain_order=True)
        scores = scores.with_columns(score=pl.Series(generator.integers(1, 4, size=scores.height) / 4))
        most = [int(number) for number in generator.integers(1, [12, 5, 6])]
        found = candidates(
            edges, scores, num_candidates=most[0], num_bridges=most[1], num_popular=most[2], bipartite=bipartite
        )
        expected = joined(edges, scores, *most, bipartite=bipartite)
        assert found.rows() == expected.rows()


def test_blocks_of_nodes_change_no_candidate(monkeypatch: pytest.MonkeyPatch):
    graph = prepare_graph(path_graph(9), until=1, config=GraphConfig())
    whole = candidate_pairs(graph)
    monkeypatch.setattr("dyformer.scoring.candidate_pairs.BLOCK_NODES", 2)
    np.testing.assert_array_equal(candidate_pairs(graph), whole)


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
    for query_A in (np.array([4]), np.array([8, 0, 3]), np.empty(0, dtype=np.int64)):
        own = sorted(zip(*(end_P.tolist() for end_P in candidate_pairs(graph, query_A)), strict=True))
        assert own == [pair for pair in whole if pair[0] in query_A]
