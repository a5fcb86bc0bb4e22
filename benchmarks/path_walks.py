"""Paths between the pairs of a forecast of a large graph, against sparse products of scipy.

The pairs are the candidates of some nodes of s1m: many lead to hubs, each of which has few of them. The peer squares
the walk matrix, only the rows of the busier ends of pairs, and reads it at the neighbours of the other ends. Both give
the three-step walks (L3) of all pairs.

N nodes    P pairs    B pairs of a block    S slots of their other ends
"""

import measure
import numpy as np
from graphs import power_law_graph
from numpy.typing import NDArray

from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.scoring.candidate_pairs import candidate_pairs
from dyformer.scoring.labelled_tables import pair_features
from dyformer.scoring.pair_features import PairFeatures, busier_end_first, path_scores

NUM_NODES = 1_000
BLOCK_ENDS = 100  # squared rows of so many take 80 megabytes
TARGET = 3


def by_products(features: PairFeatures, source_P: NDArray[np.int64], target_P: NDArray[np.int64]) -> NDArray:
    """Give L3 of the pairs [P] by products of sparse matrices."""
    walk, l3_P = features.walk, np.empty(len(source_P))
    many_P, few_P = busier_end_first(features.degree_N, source_P, target_P)
    order_P = np.argsort(many_P, kind="stable")
    ends, first = np.unique(many_P[order_P], return_index=True)
    pairs_of = np.split(order_P, first[1:])
    for start in range(0, len(ends), BLOCK_ENDS):
        own_B = np.concatenate(pairs_of[start : start + BLOCK_ENDS])
        squared = (walk[ends[start : start + BLOCK_ENDS]] @ walk).toarray()
        others = walk[few_P[own_B]]
        pair_S = np.repeat(np.arange(len(own_B)), np.diff(others.indptr))
        row_B = np.searchsorted(ends, many_P[own_B]) - start
        l3_P[own_B] = np.bincount(pair_S, squared[row_B[pair_S], others.indices] * others.data, len(own_B))
    return l3_P


def main() -> None:
    """Check that both are equal, then time them in turn."""
    graph = power_law_graph("s1m")
    past = prepare_graph(graph, until=graph.num_steps, config=GraphConfig())
    nodes = np.sort(np.random.default_rng(0).permutation(len(graph.node_N))[:NUM_NODES])
    features, pairs = pair_features(past), candidate_pairs(past, nodes)
    np.testing.assert_allclose(path_scores(features, *pairs)[2], by_products(features, *pairs), atol=1e-12)
    print(f"{len(pairs[0]):,} pairs of {NUM_NODES:,} nodes", flush=True)
    seconds = measure.cpu_seconds(
        {"ours": lambda: path_scores(features, *pairs), "scipy": lambda: by_products(features, *pairs)}
    )
    measure.verdict("path-walks-s1m-vs-scipy", measure.ratios(seconds["scipy"], seconds["ours"]), TARGET)


if __name__ == "__main__":
    main()
