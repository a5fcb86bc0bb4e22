"""The joint top-512 context of 512 targets, timed against igraph; for the largest graph, its recall alone.

N nodes    G targets    K context nodes
"""

import time
from collections.abc import Callable

import measure  # before igraph, because its PageRank would otherwise run several threads, whose CPU times add up

# isort: split
import igraph
import numpy as np
from graphs import power_law_graph, published_graph
from numpy.typing import NDArray

from dyformer.graphs.hub_first_graph import hub_first_graph
from dyformer.graphs.pagerank import joint_context
from dyformer.graphs.union_graph import TemporalUnionGraph, build_union_graph

NUM_NODES = 512
TELEPORT = 0.15
TARGETS = {"uci": 5, "ml-10m": 7, "s1m": 12}
ROUNDS = {"uci": 51, "ml-10m": 31, "s1m": 15, "s10m": 7}
RECALL_TARGETS = {"uci": 0.98, "ml-10m": 0.98, "s1m": 0.98, "s10m": 0.96}
NUM_DRAWS = 3  # sets of targets, for the recall
PEER_RECALL = 0.97  # below 1, because igraph stops before its scores are exact to rounding error

Nodes = NDArray[np.int64]


def union_of(name: str) -> TemporalUnionGraph:
    """Unite all steps of a graph."""
    graph = power_law_graph(name) if name.startswith("s1") else published_graph(name)
    return build_union_graph(graph, until=graph.num_steps)


def draws(union: TemporalUnionGraph) -> list[Nodes]:
    """Draw sets of targets."""
    generator = np.random.default_rng(0)
    return [generator.choice(np.flatnonzero(union.degree), NUM_NODES, replace=False) for _ in range(NUM_DRAWS)]


def igraph_context(graph: igraph.Graph, targets_G: Nodes) -> Nodes:
    """Give igraph's best nodes."""
    score_N = np.array(
        graph.personalized_pagerank(
            directed=False, damping=1 - TELEPORT, reset_vertices=targets_G.tolist(), implementation="prpack"
        )
    )
    return best(score_N, targets_G)


def best(score_N: NDArray[np.float64], targets_G: Nodes) -> Nodes:
    """Give the best nodes without the targets, best first."""
    score_N[targets_G] = 0
    best_K = np.argpartition(score_N, -NUM_NODES)[-NUM_NODES:]
    return best_K[np.argsort(-score_N[best_K])]


def exact_context(union: TemporalUnionGraph, targets_G: Nodes) -> Nodes:
    """Give the best nodes after iterating the defining equation until it holds to rounding error."""
    degree_N = np.maximum(union.degree, 1)
    seed_N = TELEPORT * np.bincount(targets_G, minlength=union.num_nodes) / len(targets_G)
    score_N, change = seed_N, 1.0
    while change > 1e-13:
        next_N = seed_N + (1 - TELEPORT) * (union.adjacency @ (score_N / degree_N))
        change = np.abs(next_N - score_N).sum()
        score_N = next_N
    return best(score_N, targets_G)


def recall(found_K: Nodes, exact_K: Nodes) -> float:
    """Give the fraction of the exact nodes that were found."""
    return len(np.intersect1d(found_K, exact_K)) / len(exact_K)


def seconds_of(name: str, union: TemporalUnionGraph, targets_G: Nodes) -> measure.Seconds:
    """Time our chosen and drawn contexts and, where the graph has a target of speed, igraph's in turn with them."""
    generator = np.random.default_rng(1)
    jobs: dict[str, Callable[[], object]] = {
        "dyformer": lambda: joint_context(union, targets_G, num_context=NUM_NODES),
        "drawn": lambda: joint_context(union, targets_G, num_context=NUM_NODES, generator=generator),
    }
    if name in TARGETS:
        graph = igraph.Graph(n=union.num_nodes, edges=np.stack([union.source_E, union.target_E], axis=1))
        agreed = recall(joint_context(union, targets_G, num_context=NUM_NODES), igraph_context(graph, targets_G))
        if agreed < PEER_RECALL:
            raise RuntimeError(f"{name}: only {agreed:.3f} of igraph's context is ours")
        jobs["igraph"] = lambda: igraph_context(graph, targets_G)
    return measure.cpu_seconds(jobs, rounds=ROUNDS[name])


def measured(name: str) -> tuple[float, list[float]]:
    """Give our recall of the exact context, and igraph's seconds divided by ours in each round."""
    union = union_of(name)
    start = time.process_time()
    hub_first_graph(union)
    prepared = time.process_time() - start
    targets = draws(union)
    found = [
        recall(joint_context(union, each_G, num_context=NUM_NODES), exact_context(union, each_G)) for each_G in targets
    ]
    seconds = seconds_of(name, union, targets[0])
    times = {"once a graph": prepared, **measure.medians(seconds)}
    text = ", ".join(f"{job} {1_000 * value:.3g} ms" for job, value in times.items())
    print(f"{name}: {union.num_nodes} nodes, {union.num_edges} edges, recall {np.mean(found):.4f}; {text}", flush=True)
    ratios = measure.ratios(seconds["igraph"], seconds["dyformer"]) if "igraph" in seconds else []
    return float(np.mean(found)), ratios


def main() -> None:
    """Measure every graph, then print the verdicts."""
    results = {name: measured(name) for name in RECALL_TARGETS}
    for name, (found, ratios) in results.items():
        if ratios:
            measure.verdict(f"context-{name}-vs-igraph", ratios, TARGETS[name])
        measure.verdict(f"context-{name}-recall", found, RECALL_TARGETS[name], unit="fraction")


if __name__ == "__main__":
    main()
