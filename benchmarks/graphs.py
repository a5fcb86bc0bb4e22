"""Graphs to measure on: the published logs, and power-law graphs of any size (Chung and Lu 2002, exponent 2.5).

E unique edges (of a step)    N nodes    X drawn ends
"""

import os
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dyformer.graphs.snapshots import DynamicGraph, Snapshot, interactions_in
from flows.tasks.ingest import ingest_log
from flows.tasks.snapshots import make_snapshots, open_snapshots

EXPONENT = 2.5
PUBLISHED = {
    "uci": "uci/out.opsahl-ucsocial.gz",
    "ml-10m": "ml-10m/ia-movielens-user2tags-10m.edges.gz",
    "snap-wikipedia": "snap-wikipedia/wikipedia.csv.gz",
}
MOMENTS = 1_000_000  # moments in the window of a step
SIZES = {  # nodes, unique edges
    "s10k": (1_000, 10_000),
    "s100k": (10_000, 100_000),
    "s1m": (100_000, 1_000_000),
    "s10m": (1_000_000, 10_000_000),
}


def published_log(name: str) -> Path:
    """Find a published log in DYFORMER_SHARED_DATA, or in ../shared/data beside the repository."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("DYFORMER_SHARED_DATA", beside)) / PUBLISHED[name]


def published_graph(name: str) -> DynamicGraph:
    """Read a published log as the product does, into its snapshots, in a temporary store."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["DYFORMER_STORAGE"] = folder
        ingest_log(name, {"log": str(published_log(name))}, show=lambda text: None)
        snapshots = open_snapshots(make_snapshots(name))
        return snapshots.graph(snapshots.num_steps, interactions=True)


def power_law_edges(num_nodes: int, num_edges: int, *, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw exactly `num_edges` unique undirected edges (source < target, sorted) with power-law expected degrees."""
    generator = np.random.default_rng(seed)
    cumulative_N = np.cumsum(np.arange(1, num_nodes + 1) ** (-1 / (EXPONENT - 1)))
    cumulative_N /= cumulative_N[-1]
    number_N = generator.permutation(num_nodes)
    key_E = np.empty(0, dtype=np.int64)
    while len(key_E) < num_edges:
        end_2X = number_N[np.searchsorted(cumulative_N, generator.random((2, 2 * num_edges - len(key_E))))]
        low_X, high_X = end_2X.min(axis=0), end_2X.max(axis=0)
        key_E = np.unique(np.concatenate([key_E, (low_X * num_nodes + high_X)[low_X != high_X]]))
    key_E = np.sort(generator.choice(key_E, size=num_edges, replace=False))
    return key_E // num_nodes, key_E % num_nodes


def power_law_graph(name: str, *, num_steps: int = 16, seed: int = 0) -> DynamicGraph:
    """Spread the edges of a size in SIZES over steps: each has a first step, and a fifth recur in later steps.

    An edge of a step is one interaction, with a drawn direction and moment.
    """
    num_nodes, num_edges = SIZES[name]
    source_E, target_E = power_law_edges(num_nodes, num_edges, seed=seed)
    generator = np.random.default_rng([seed, 1])
    first_E = generator.integers(1, num_steps + 1, size=num_edges)
    again_E = np.where(generator.random(num_edges) < 0.2, generator.integers(1, num_steps + 1, size=num_edges), 0)
    snapshots, rows = [], []
    for step in range(1, num_steps + 1):
        here_E = np.flatnonzero((first_E == step) | ((again_E == step) & (first_E < step)))
        snapshots.append(
            Snapshot(
                step=step,
                start_time=step * MOMENTS,
                end_time=(step + 1) * MOMENTS,
                source_E=source_E[here_E],
                target_E=target_E[here_E],
                weight_E=np.ones(len(here_E)),
                num_interactions=len(here_E),
                num_self_loops=0,
                num_nodes=num_nodes,
            )
        )
        swapped_E = generator.random(len(here_E)) < 0.5
        time_E = np.sort(generator.integers(step * MOMENTS, (step + 1) * MOMENTS, size=len(here_E)))
        here_E = generator.permutation(here_E)
        one_E, other_E = source_E[here_E], target_E[here_E]
        ends = np.where(swapped_E, other_E, one_E), np.where(swapped_E, one_E, other_E)
        rows.append((*ends, time_E, np.ones(len(here_E))))
    return DynamicGraph(
        snapshots=tuple(snapshots),
        node_N=np.arange(num_nodes),
        side_N=np.zeros(num_nodes, dtype=np.int8),
        interactions=interactions_in(snapshots, *map(np.concatenate, zip(*rows, strict=True))),
    )
