"""Rows of the PageRank top-64 table of s1m by forward push against networkit's, both at epsilon 1e-4.

N nodes    R sampled nodes    K best nodes
"""

from collections.abc import Callable
from operator import itemgetter

import measure
import networkit
import numpy as np
import polars as pl
from graphs import power_law_graph
from numpy.typing import NDArray

from dyformer.graphs.hub_first_graph import hub_first_graph
from dyformer.graphs.pagerank import EPSILON, pagerank_table
from dyformer.graphs.union_graph import TemporalUnionGraph, build_union_graph

TELEPORT = 0.15
TOP_K = 64
NUM_ROWS = 1_000
NUM_EXACT_ROWS = 200
ROUNDS = 7
SPEED_TARGET = 8
RECALL_TARGET = 0.70

Row = list[tuple[int, float]]


def networkit_graph(union: TemporalUnionGraph) -> networkit.Graph:
    """Give networkit its own graph of the union's edges."""
    ends = union.source_E.astype(np.uint64), union.target_E.astype(np.uint64)
    return networkit.GraphFromCoo(ends, n=union.num_nodes)


def networkit_scores(graph: networkit.Graph, node: int) -> Row:
    """Push from one node; networkit's walk is lazy, so it needs another teleport.

    Each run has an object of its own, because a second run would add its scores to those of the first.
    """
    return networkit.scd.ApproximatePageRank(graph, TELEPORT / (2 - TELEPORT), EPSILON).run(node)


def networkit_rows(graph: networkit.Graph, nodes: list[int]) -> list[Row]:
    """Give the best of each node's scores without the node itself."""
    rows = []
    for node in nodes:
        row = sorted(networkit_scores(graph, node), key=itemgetter(1), reverse=True)[: TOP_K + 1]
        rows.append([entry for entry in row if entry[0] != node][:TOP_K])
    return rows


def exact_scores(union: TemporalUnionGraph, node_R: NDArray[np.int64]) -> NDArray[np.float64]:
    """Iterate the defining equation of every row [N, R] until it holds to 1e-9."""
    degree_N = np.maximum(union.degree, 1)[:, None]
    seed_NR = np.zeros((union.num_nodes, len(node_R)))
    seed_NR[node_R, np.arange(len(node_R))] = TELEPORT
    score_NR, left = seed_NR, 1.0
    while left > 1e-9:
        score_NR = seed_NR + (1 - TELEPORT) * (union.adjacency @ (score_NR / degree_N))
        left *= 1 - TELEPORT
    return score_NR


def recalls(union: TemporalUnionGraph, node_R: NDArray[np.int64], found: list[dict[int, list[int]]]) -> list[float]:
    """Give the fraction of the exact best nodes that each table has, over the rows of some nodes."""
    fractions: list[list[float]] = [[] for _ in found]
    for start in range(0, len(node_R), 20):
        part_R = node_R[start : start + 20]
        for node, score_N in zip(part_R.tolist(), exact_scores(union, part_R).T, strict=True):
            score_N[node] = 0
            best = set(np.argpartition(score_N, -TOP_K)[-TOP_K:].tolist())
            for fraction, table in zip(fractions, found, strict=True):
                fraction.append(len(best.intersection(table[node])) / TOP_K)
    return [float(np.mean(fraction)) for fraction in fractions]


def check(table: pl.DataFrame, graph: networkit.Graph, union: TemporalUnionGraph) -> None:
    """Raise where our scores and networkit's differ by more than both bounds: epsilon times the degree, each."""
    for (node,), row in table.group_by("node"):
        theirs = dict(networkit_scores(graph, int(node)))
        for neighbor, score in zip(row["neighbor"].to_list(), row["score"].to_list(), strict=True):
            if abs(score - theirs.get(neighbor, 0.0)) > 2 * EPSILON * union.degree[neighbor]:
                raise RuntimeError(f"the scores of {neighbor} from {node} differ: {score}, {theirs.get(neighbor)}")


def main() -> None:
    """Check our rows, time both sides and print the verdicts."""
    networkit.setNumberOfThreads(1)
    graph = power_law_graph("s1m")
    union = build_union_graph(graph, until=graph.num_steps)
    peer = networkit_graph(union)
    hub_first_graph(union)
    node_R = np.random.default_rng(0).choice(np.flatnonzero(union.degree), NUM_ROWS, replace=False)
    table = pagerank_table(union, top_k=TOP_K, teleport=TELEPORT, nodes=node_R)
    check(table, peer, union)
    jobs: dict[str, Callable[[], object]] = {
        "dyformer": lambda: pagerank_table(union, top_k=TOP_K, teleport=TELEPORT, nodes=node_R),
        "networkit": lambda: networkit_rows(peer, node_R.tolist()),
        "networkit, scores alone": lambda: [networkit_scores(peer, node) for node in node_R.tolist()],
    }
    samples = measure.cpu_seconds(jobs, rounds=ROUNDS)
    seconds = measure.medians(samples)
    ours = dict(table.group_by("node").agg("neighbor").iter_rows())
    theirs = {
        node: [neighbor for neighbor, _ in row]
        for node, row in zip(node_R.tolist(), networkit_rows(peer, node_R.tolist()), strict=True)
    }
    found, peer_found = recalls(union, node_R[:NUM_EXACT_ROWS], [ours, theirs])
    print(", ".join(f"{job} {1e6 * each / NUM_ROWS:.0f} us a row" for job, each in seconds.items()))
    print(f"recall of the exact best {TOP_K}: dyformer {found:.3f}, networkit {peer_found:.3f}")
    print(f"networkit's scores alone: ratio {seconds['networkit, scores alone'] / seconds['dyformer']:.2f}")
    values = measure.ratios(samples["networkit"], samples["dyformer"])
    measure.verdict("pagerank-table-s1m-vs-networkit", values, SPEED_TARGET)
    measure.verdict("pagerank-table-s1m-recall", found, RECALL_TARGET, unit="fraction")


if __name__ == "__main__":
    main()
