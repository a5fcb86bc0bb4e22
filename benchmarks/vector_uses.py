"""Vectors of the planted logs -> recall of nearest neighbours that become partners, and clusters beside the groups.

Each method is fitted on all weeks but the last four. Recall@50: of the partners that a node has in the last four weeks,
the fraction among its 50 nearest neighbours by cosine, as a mean over nodes with a partner; for new partners, past ones
are no neighbours. The interval resamples nodes. Clusters: k-means on vectors of length 1, as many as there are groups;
the adjusted Rand index with the groups of the last week that was read is 0 by chance and 1 for equal ones.

    python benchmarks/vector_uses.py --seeds 3 generated-communities generated-roles generated-season

N nodes    K width
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import svds
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

import dyformer
from dyformer.evaluation.bootstrap import interval, node_resamples
from dyformer.evaluation.rows import means
from dyformer.experiments.methods import METHODS
from dyformer.experiments.printed import markdown_rows
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.graphs.snapshots import DynamicGraph
from dyformer.logs.planted import PLANTED, PlantedLog, planted_groups, planted_log
from dyformer.scoring.interfaces import Embedder

NUM_NEIGHBOURS = 50
NUM_STEPS = 4  # weeks in which neighbours may become partners
RANK = 32  # of the decomposition

Vectors = Callable[[PreparedGraph, int], NDArray[np.floating]]
"""A history and a seed -> the vectors [N, K] of its nodes."""


def decomposition(graph: PreparedGraph, seed: int) -> NDArray[np.floating]:
    """Give the truncated singular value decomposition of the contacts of all steps, [N, RANK]."""
    start_N = np.random.default_rng(seed).normal(size=len(graph.history.node_N))
    left_NK, value_K, _ = svds(contacts(graph.history, 1, graph.until), k=RANK, v0=start_N)
    return left_NK * np.sqrt(value_K)


def trained(title: str, graph: PreparedGraph, seed: int) -> NDArray[np.floating]:
    """Give the vectors of a method of METHODS."""
    method = METHODS[title]
    assert isinstance(method, Embedder), f"{title} has no vectors"
    return method.fit(graph, seed=seed)(np.arange(len(graph.history.node_N)))


def contacts(graph: DynamicGraph, first: int, last: int) -> sparse.csr_array:
    """Count the rows of each pair of nodes in the steps `first` to `last`, in both directions together."""
    snapshots = graph.snapshots[first - 1 : last]
    source, target, weight = (
        np.concatenate([getattr(snapshot, name) for snapshot in snapshots])
        for name in ("source_E", "target_E", "weight_E")
    )
    half_NN = sparse.coo_array((weight, (source, target)), shape=(len(graph.node_N),) * 2).tocsr()
    return (half_NN + half_NN.T).tocsr()


def recall(score_NN: NDArray[np.floating], partner_NN: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Give the fraction of each node's partners among its nearest neighbours, NaN for a node without a partner.

    A pair with the score -inf is none of neighbours.
    """
    best_NX = np.argsort(-score_NN, axis=1, kind="stable")[:, :NUM_NEIGHBOURS]
    near_NN = np.zeros_like(partner_NN)
    np.put_along_axis(near_NN, best_NX, values=True, axis=1)
    near_NN &= np.isfinite(score_NN)
    with np.errstate(invalid="ignore"):
        return (near_NN & partner_NN).sum(axis=1) / partner_NN.sum(axis=1)


def graph_of(planted: PlantedLog) -> tuple[DynamicGraph, NDArray[np.int64]]:
    """Give the graph of a log, a step a week, and the log's number of each node [N]."""
    graph = dyformer.read_log(pl.read_csv(planted_log(planted), try_parse_dates=True)).snapshots("7d")
    return graph.dynamic, graph.nodes["id"].str.slice(1).cast(pl.Int64).to_numpy()


def measured(planted: PlantedLog, vectors: Vectors, seed: int) -> Iterator[tuple[str, float, float, float]]:
    """Yield the name of each measure, its value, and the ends of its interval, which an index of clusters has not."""
    graph, log_node_N = graph_of(planted)
    until = graph.num_steps - NUM_STEPS
    past = prepare_graph(graph, until=until, config=GraphConfig())
    num_nodes = len(past.history.node_N)
    vector_NK = np.asarray(vectors(past, seed), dtype=np.float64)
    unit_NK = vector_NK / np.maximum(np.linalg.norm(vector_NK, axis=1, keepdims=True), 1e-12)
    score_NN = unit_NK @ unit_NK.T
    np.fill_diagonal(score_NN, -np.inf)
    before_NN = contacts(past.history, 1, until).toarray() > 0
    after_NN = contacts(graph, until + 1, graph.num_steps).toarray()[:num_nodes, :num_nodes] > 0
    for name, own_NN, partner_NN in (
        ("recall@50", score_NN, after_NN),
        ("recall@50, new partners", np.where(before_NN, -np.inf, score_NN), after_NN & ~before_NN),
    ):
        recall_N = recall(own_NN, partner_NN)
        node_A = np.flatnonzero(np.isfinite(recall_N))
        resamples = node_resamples([node_A], generator=np.random.default_rng(seed))
        (mean,) = means(recall_N[node_A][:, None], resamples.weight_BS)
        yield name, mean.value, *interval(mean.value_B)
    group_N = planted_groups(planted)[until - 1][log_node_N[:num_nodes]]
    if planted.num_groups > 1:
        k_means = KMeans(planted.num_groups, n_init=10, random_state=seed)  # pyright: ignore[reportArgumentType]
        cluster_N = k_means.fit_predict(unit_NK)
        yield "adjusted Rand index", float(adjusted_rand_score(group_N, cluster_N)), np.nan, np.nan


def main() -> None:
    """Print the table of all logs and methods, means over seeds, and the CPU seconds of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("logs", nargs="*", choices=list(PLANTED), metavar="log", help=", ".join(PLANTED))
    parser.add_argument("--seeds", type=int, default=1, help="number of seeds, from 0")
    parser.add_argument("--methods", default="DyFormer,node2vec", help="titles with vectors, with commas")
    given = parser.parse_args()
    titles = given.methods.split(",")
    methods: dict[str, Vectors] = {"singular vectors": decomposition}
    methods |= {title: partial(trained, title) for title in titles}
    rows = []
    for log in given.logs or PLANTED:
        for title, vectors in methods.items():
            started, values = time.process_time(), list[tuple[str, float, float, float]]()
            for seed in range(given.seeds):
                values.extend(measured(PLANTED[log], vectors, seed))
            row = {"log": log, "vectors": title}
            for name in dict.fromkeys(own[0] for own in values):
                value, low, high = np.mean([own[1:] for own in values if own[0] == name], axis=0)
                row[name] = f"{value:.3f}" + ("" if np.isnan(low) else f" [{low:.3f}, {high:.3f}]")
            rows.append(row | {"CPU s a seed": f"{(time.process_time() - started) / given.seeds:.0f}"})
            print(rows[-1], flush=True)
    print("\n".join(markdown_rows(pl.DataFrame(rows))))


if __name__ == "__main__":
    main()
