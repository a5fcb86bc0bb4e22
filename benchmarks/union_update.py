"""A step with 5 % new edges on a million: merged into the union graph, against uniting all steps again.

Uniting is measured twice: by `np.unique`, as is usual, and by our own build, which sorts packed keys.

E edges of a snapshot or of the union    A edges of all steps    G targets    C context    P connected pairs
"""

from dataclasses import replace
from functools import partial

import measure  # first: it keeps numerical libraries to one thread
import numpy as np
from graphs import power_law_graph, published_graph
from numpy.typing import NDArray

from dyformer.graphs.pagerank import joint_context
from dyformer.graphs.snapshots import DynamicGraph, Snapshot
from dyformer.graphs.union_graph import (
    TemporalUnionGraph,
    build_union_graph,
    connections,
    extend_union_graph,
)

SIZE = "s1m"
NEW_FRACTION = 0.05  # fraction of the edges whose first step is the last one
NUM_STEPS = 16
ROUNDS = 15
BLOCK = 512


def growing_graph() -> DynamicGraph:
    """Move NEW_FRACTION of the edges to one more step, which has no other edges."""
    graph = power_law_graph(SIZE, num_steps=NUM_STEPS - 1)
    whole = build_union_graph(graph, until=graph.num_steps)
    is_new_E = np.random.default_rng(1).random(whole.num_edges) < NEW_FRACTION
    new_E = _pairs(whole, graph)[is_new_E]
    earlier = [_chosen(snapshot, ~np.isin(_pairs(snapshot, graph), new_E)) for snapshot in graph.snapshots]
    ends = {"source_E": whole.source_E.astype(np.int64), "target_E": whole.target_E.astype(np.int64)}
    last = _chosen(replace(graph.snapshots[-1], step=NUM_STEPS, weight_E=np.ones(whole.num_edges), **ends), is_new_E)
    return replace(graph, snapshots=(*earlier, last))


def _pairs(edges: Snapshot | TemporalUnionGraph, graph: DynamicGraph) -> NDArray[np.int64]:
    return edges.source_E.astype(np.int64) * len(graph.node_N) + edges.target_E


def _chosen(snapshot: Snapshot, is_chosen_E: NDArray[np.bool_]) -> Snapshot:
    names = ("source_E", "target_E", "weight_E")
    return replace(snapshot, **{name: getattr(snapshot, name)[is_chosen_E] for name in names})


def plain_union(graph: DynamicGraph) -> tuple[NDArray, ...]:
    """Unite all steps in the usual way, by grouping equal pairs: pairs, presence bits, both directions by row."""
    key_A = np.concatenate([_pairs(snapshot, graph) for snapshot in graph.snapshots])
    lag_A = np.repeat(np.arange(graph.num_steps)[::-1], [len(snapshot.source_E) for snapshot in graph.snapshots])
    key_E, edge_A = np.unique(key_A, return_inverse=True)
    presence_E = np.zeros(len(key_E), dtype=np.uint64)
    np.add.at(presence_E, edge_A, np.left_shift(np.uint64(1), lag_A.astype(np.uint64)))
    source_E, target_E = np.divmod(key_E, len(graph.node_N))
    row_M = np.concatenate([target_E, source_E])
    neighbor_M = np.concatenate([source_E, target_E])[np.argsort(row_M, kind="stable")]
    return np.cumsum(np.bincount(row_M, minlength=len(graph.node_N))), neighbor_M, presence_E


def check_equal(one: TemporalUnionGraph, other: TemporalUnionGraph) -> None:
    """Raise where two union graphs differ in anything."""
    for name, value in vars(other).items():
        if not np.array_equal(vars(one)[name], value):
            raise AssertionError(f"{name} of the merged union differs from that of all steps united")


def measure_update() -> None:
    """Time the merge and both ways to unite all steps."""
    graph = growing_graph()
    before, union = (build_union_graph(graph, until=until) for until in (NUM_STEPS - 1, NUM_STEPS))
    jobs = {
        "merge": lambda: extend_union_graph(before, graph.snapshots[-1]),
        "rebuild": lambda: build_union_graph(graph, until=NUM_STEPS),
        "rebuild by np.unique": lambda: plain_union(graph),
        "union of 5 steps, one hidden": lambda: build_union_graph(graph, until=12, window=5, hidden_step=10),
    }
    plain = plain_union(graph)
    check_equal(jobs["merge"](), union)
    for ours, peer in zip((union.indptr_N1[1:], union.neighbor_M, union.presence_EW[:, 0]), plain, strict=True):
        if not np.array_equal(ours, peer):
            raise AssertionError("the union of all steps differs from the one by np.unique")
    samples = measure.cpu_seconds(jobs, rounds=ROUNDS)
    seconds = measure.medians(samples)
    num_rows = sum(len(snapshot.source_E) for snapshot in graph.snapshots)
    print(f"{SIZE}: {before.num_edges:,} edges of {NUM_STEPS - 1} steps, {len(graph.snapshots[-1].source_E):,} more")
    for name, value in seconds.items():
        print(f"  {name}: {1e3 * value:.2f} ms")
    print(f"  rebuild: {num_rows / seconds['rebuild'] / 1e6:.1f} M rows/s")
    for name, rebuild in {"np_unique": "rebuild by np.unique", "own_rebuild": "rebuild"}.items():
        values = measure.ratios(samples[rebuild], samples["merge"])
        measure.verdict(f"union_update_vs_{name}_s1m", values, 10)


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
    measure_update()


if __name__ == "__main__":
    main()
