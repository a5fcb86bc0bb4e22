"""Union graph and history -> the pairs that a forecast compares on a graph too large to compare all pairs."""

from weakref import WeakKeyDictionary

import duckdb
import numpy as np
import polars as pl
from numpy.typing import NDArray

from dyformer.graphs.pagerank import TABLE_TOP_K, pagerank_table
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.graphs.snapshots import to_tables
from dyformer.sampling.pairs import Pairs
from dyformer.scoring.labelled_tables import pair_features

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
BLOCK_NODES = 20_000  # the joined pairs of this many nodes take some hundred megabytes


def candidates(
    edges: pl.DataFrame,
    pagerank: pl.DataFrame,
    *,
    num_candidates: int = 100,
    num_bridges: int = 10,
    num_popular: int = 20,
    bipartite: bool = False,
    nodes: pl.Series | None = None,
) -> pl.DataFrame:
    """Pairs to score on a graph too large to score all pairs: rows node, partner, sorted.

    A partner comes from the node's PageRank table, or is one of the `num_popular` most popular neighbours of one of
    its `num_bridges` least popular neighbours (the Adamic-Adar index weighs these most). Pairs with an
    edge are left out. A node has at most `num_candidates` partners, the best by score, then by popularity.

    Args:
        edges: all edges as of a step: source, target (either order; repeats allowed).
        pagerank: rows node, neighbor, score.
        num_candidates: partners for each node.
        num_bridges: neighbours of each node through which partners two edges away are found.
        num_popular: partners for each bridge.
        bipartite: find partners three edges away, which are on the other side.
        nodes: nodes whose partners are wanted; all by default.
    """
    with _parts(edges, num_bridges, num_popular, bipartite=bipartite) as parts:
        return _candidates(parts, pagerank, num_candidates, nodes)


def _parts(
    edges: pl.DataFrame, num_bridges: int = 10, num_popular: int = 20, *, bipartite: bool
) -> duckdb.DuckDBPyConnection:
    """Make the tables that the candidates of all nodes are found in."""
    connection = duckdb.connect()
    connection.register("edges", edges)
    connection.execute(CANDIDATE_PARTS.format(num_bridges=int(num_bridges), num_popular=int(num_popular)))
    if bipartite:
        connection.execute(LONGER_BRIDGES.format(num_bridges=int(num_bridges)))
    connection.unregister("edges")
    return connection


def _candidates(
    parts: duckdb.DuckDBPyConnection, pagerank: pl.DataFrame, num_candidates: int = 100, nodes: pl.Series | None = None
) -> pl.DataFrame:
    parts.register("pagerank", pagerank)
    everyone = "select node from bridges union select node from pagerank"
    wanted = (parts.sql(everyone).pl()["node"] if nodes is None else nodes.unique()).sort().to_frame("node")
    blocks = []
    for first in range(0, max(wanted.height, 1), BLOCK_NODES):
        parts.register("queries", wanted.slice(first, BLOCK_NODES))
        blocks.append(parts.sql(CANDIDATES, params={"num_candidates": num_candidates}).pl())
    return pl.concat(blocks)


# The tables of a graph, for all of its queries; an entry goes when its graph goes.
_PARTS: WeakKeyDictionary[PreparedGraph, duckdb.DuckDBPyConnection] = WeakKeyDictionary()


def candidate_pairs(prepared: PreparedGraph, query_A: NDArray[np.int64] | None = None) -> Pairs:
    """Return nodes and their possible partners, for a graph too large to compare all pairs.

    The partners of a node are near by PageRank, popular two hops away, or were linked with it before. They depend on
    no other query node.
    """
    graph, union = prepared.history, prepared.union
    if prepared not in _PARTS:
        _PARTS[prepared] = _parts(to_tables(graph)["edges"], bipartite=len(np.unique(graph.side_N)) > 1)
    table = pagerank_table(union, top_k=TABLE_TOP_K, teleport=prepared.config.teleport, nodes=query_A)
    found = _candidates(_PARTS[prepared], table, nodes=None if query_A is None else pl.Series(query_A))
    linked = pair_features(prepared)
    node_A = np.arange(len(linked.degree_N)) if query_A is None else query_A
    rows = linked.union[node_A]
    node_P, partner_P = found["node"].to_numpy(), found["partner"].to_numpy()
    return (
        np.concatenate([node_P, np.repeat(node_A, np.diff(rows.indptr))]),
        np.concatenate([partner_P, rows.indices.astype(np.int64)]),
    )
