"""A union graph of a million edges: our build, which sorts packed keys, against `np.unique`; and its connections.

E edges of a snapshot or of the union    A edges of all steps    G targets    C context    P connected pairs
"""

from functools import partial

import measure  # first: it keeps numerical libraries to one thread
import numpy as np
from graphs import power_law_graph, published_graph
from numpy.typing import NDArray

from dyformer.graphs.pagerank import joint_context
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.graphs.union_graph import TemporalUnionGraph, build_union_graph, connections

SIZE = "s1m"
NUM_STEPS = 16
ROUNDS = 15
BLOCK = 512


def plain_union(graph: DynamicGraph) -> tuple[NDArray, ...]:
    """Unite all steps in the usual way, by grouping equal pairs: pairs, presence bits, both directions by row."""
    num_nodes = len(graph.node_N)
    key_A = np.concatenate([each.source_E.astype(np.int64) * num_nodes + each.target_E for each in graph.snapshots])
    lag_A = np.repeat(np.arange(graph.num_steps)[::-1], [len(snapshot.source_E) for snapshot in graph.snapshots])
    key_E, edge_A = np.unique(key_A, return_inverse=True)
    presence_E = np.zeros(len(key_E), dtype=np.uint64)
    np.add.at(presence_E, edge_A, np.left_shift(np.uint64(1), lag_A.astype(np.uint64)))
    source_E, target_E = np.divmod(key_E, num_nodes)
    row_M = np.concatenate([target_E, source_E])
    neighbor_M = np.concatenate([source_E, target_E])[np.argsort(row_M, kind="stable")]
    return np.cumsum(np.bincount(row_M, minlength=num_nodes)), neighbor_M, presence_E


def measure_union() -> None:
    """Time both ways to unite all steps, and a window of some."""
    graph = power_law_graph(SIZE, num_steps=NUM_STEPS)
    union = build_union_graph(graph, until=NUM_STEPS)
    jobs = {
        "own": partial(build_union_graph, graph, until=NUM_STEPS),
        "by np.unique": partial(plain_union, graph),
        "union of 5 steps, one hidden": partial(build_union_graph, graph, until=12, window=5, hidden_step=10),
    }
    plain = plain_union(graph)
    for ours, peer in zip((union.indptr_N1[1:], union.neighbor_M, union.presence_EW[:, 0]), plain, strict=True):
        if not np.array_equal(ours, peer):
            raise AssertionError("the union of all steps differs from the one by np.unique")
    samples = measure.cpu_seconds(jobs, rounds=ROUNDS)
    seconds = measure.medians(samples)
    num_rows = sum(len(snapshot.source_E) for snapshot in graph.snapshots)
    print(f"{SIZE}: {union.num_edges:,} edges, {num_rows:,} of {NUM_STEPS} steps")
    for name, value in seconds.items():
        print(f"  {name}: {1e3 * value:.2f} ms")
    print(f"  own: {num_rows / seconds['own'] / 1e6:.1f} M rows/s")
    measure.verdict("union_vs_np_unique_s1m", measure.ratios(samples["by np.unique"], samples["own"]), 2)


def measure_connections(name: str, union: TemporalUnionGraph) -> None:
    """Time the search for edges between targets and their context."""
    target_G = np.random.default_rng(2).permutation(union.num_nodes)[: min(BLOCK, union.num_nodes // 2)]
    context_C = joint_context(union, target_G, num_context=BLOCK)
    job = partial(connections, union, target_G, context_C)
    seconds = measure.medians(measure.cpu_seconds({"connections": job}, rounds=ROUNDS))["connections"]
    size = f"{len(target_G)} x {len(context_C)}"
    print(f"connections of {size} nodes, {name}: {len(job()[0]):,} pairs, {1e3 * seconds:.3f} ms")


def main() -> None:
    """Print the times, and the verdict last."""
    uci = published_graph("uci")
    measure_connections("uci", build_union_graph(uci, until=uci.num_steps))
    measure_connections(SIZE, build_union_graph(power_law_graph(SIZE), until=NUM_STEPS))
    measure_union()


if __name__ == "__main__":
    main()
