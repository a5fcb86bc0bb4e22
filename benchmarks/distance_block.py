"""Distance blocks of 512 x 512 nodes, against igraph.

Two kinds of blocks: random nodes, and random targets with their joint context, as in training.

G rows    C columns    X nodes of either
"""

from collections.abc import Callable

import measure
import numpy as np
from graphs import power_law_graph, published_graph
from igraph import Graph
from numpy.typing import NDArray

from dyformer.graphs.distances import distance_block
from dyformer.graphs.hub_first_graph import hub_first_graph
from dyformer.graphs.pagerank import joint_context
from dyformer.graphs.union_graph import TemporalUnionGraph, build_union_graph

NUM_NODES = 512
MAX_DISTANCES = (2, 3, 5)
TARGETS = {"uci": 40, "ml-10m": 80, "s1m": 250}
ROUNDS = {"uci": 25, "ml-10m": 15, "s1m": 5}

Block = tuple[NDArray[np.int64], NDArray[np.int64]]
Job = Callable[[], object]


def union_of(name: str) -> TemporalUnionGraph:
    """Unite all steps, and number the nodes for the search: once for all blocks of a graph."""
    graph = power_law_graph(name) if name.startswith("s1") else published_graph(name)
    union = build_union_graph(graph, until=graph.num_steps)
    hub_first_graph(union)
    return union


def blocks_of(union: TemporalUnionGraph) -> dict[str, Block]:
    """Draw the rows and columns of both kinds of blocks."""
    generator = np.random.default_rng([1, union.num_nodes])
    rows_G, columns_C = generator.permutation(union.num_nodes)[: 2 * NUM_NODES].reshape(2, NUM_NODES)
    return {"random": (rows_G, columns_C), "context": (rows_G, joint_context(union, rows_G, num_context=NUM_NODES))}


def our_jobs(union: TemporalUnionGraph, block: Block) -> dict[str, Job]:
    """Give the calls to be timed, one for each D_max."""
    return {
        f"D_max {max_distance}": lambda max_distance=max_distance: distance_block(
            union, *block, max_distance=max_distance
        )
        for max_distance in MAX_DISTANCES
    }


def igraph_job(union: TemporalUnionGraph, block: Block, found: list[NDArray]) -> Job:
    """Give igraph's search from all rows as a job; it stores its first result in `found`."""
    graph = Graph(n=union.num_nodes, edges=np.stack([union.source_E, union.target_E], axis=1))
    source, target = (node_X.tolist() for node_X in block)

    def search() -> None:
        distances = graph.distances(source, target)
        if not found:
            found.append(np.array(distances))

    return search


def check(name: str, union: TemporalUnionGraph, block: Block, distance_GC: NDArray) -> None:
    """Raise where a code differs from igraph's capped distance."""
    for max_distance in MAX_DISTANCES:
        code_GC = distance_block(union, *block, max_distance=max_distance)
        if not np.array_equal(code_GC, np.minimum(distance_GC, max_distance)):
            raise RuntimeError(f"{name}: a block of D_max {max_distance} differs from igraph's")


def compare(name: str, kind: str, union: TemporalUnionGraph, block: Block) -> measure.Seconds:
    """Time our search and igraph's on one block, and check that they agree."""
    found: list[NDArray] = []
    jobs = {
        **our_jobs(union, block),
        "igraph": igraph_job(union, block, found),
    }
    seconds = measure.cpu_seconds(jobs, rounds=ROUNDS[name])
    check(name, union, block, found[0])
    print_times(name, kind, union, measure.medians(seconds))
    return seconds


def print_times(name: str, kind: str, union: TemporalUnionGraph, seconds: dict[str, float]) -> None:
    """Print the times of one block."""
    times = ", ".join(f"{job} {1e3 * value:.2f} ms" for job, value in seconds.items())
    print(f"{name} ({union.num_nodes:,} nodes, {union.num_edges:,} edges) {kind}: {times}", flush=True)


def main() -> None:
    """Measure all graphs, and print the verdicts on the blocks of the largest D_max."""
    evaluated = []
    for name, target in TARGETS.items():
        union = union_of(name)
        for kind, block in blocks_of(union).items():
            seconds = compare(name, kind, union, block)
            ours = seconds[f"D_max {MAX_DISTANCES[-1]}"]
            evaluated.append((f"distances-{name}-{kind}", measure.ratios(seconds["igraph"], ours), target))
    for verdict in evaluated:
        measure.verdict(*verdict)


if __name__ == "__main__":
    main()
