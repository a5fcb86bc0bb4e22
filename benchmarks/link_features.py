"""Features of one million links, the preparation of the history included: seconds of one core, and memory.

P pairs    N nodes
"""

import time
import tracemalloc

import measure
import numpy as np
from graphs import power_law_graph, published_graph

from dyformer.graphs.snapshots import DynamicGraph
from dyformer.scoring.link_features import prepare_link_features

NUM_PAIRS = 1_000_000
ROUNDS = 5
GRAPHS = ("snap-wikipedia", "s1m")
SECONDS = 20
MIB = 1024


def graph_of(name: str) -> DynamicGraph:
    """Draw or read a graph with all its steps."""
    return power_law_graph(name) if name.startswith("s1") else published_graph(name)


def features(graph: DynamicGraph) -> None:
    """Summarise a history and compute the directed features of uniform random pairs."""
    pairs = np.random.default_rng(0).integers(graph.snapshots[-1].num_nodes, size=(2, NUM_PAIRS))
    prepare_link_features(graph).directed(*pairs)


def main() -> None:
    """Measure each graph: CPU seconds, and the largest memory of numpy's arrays beside those of the history."""
    for name in GRAPHS:
        graph = graph_of(name)
        features(graph)  # compiles
        seconds = []
        for _ in range(ROUNDS):
            started = time.process_time()
            features(graph)
            seconds.append(time.process_time() - started)
        measure.verdict(f"link-features-{name}", seconds, SECONDS, at_most=True, unit="s")
        tracemalloc.start()
        features(graph)
        peak = tracemalloc.get_traced_memory()[1] / 2**20
        tracemalloc.stop()
        measure.verdict(f"link-features-{name}-memory", peak, MIB, at_most=True, unit="MiB")


if __name__ == "__main__":
    main()
