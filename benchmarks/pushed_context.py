"""The context of a large graph by pushed mass, and the batch that it is part of, in turn with the exact solve.

    python benchmarks/pushed_context.py [s1m|s10m]

Recall is that of the exact top 256 for 256 targets drawn as in a batch: half by degree, half uniformly. Two graphs of
equal size: a power law, and 500 nodes a community with nine of ten edges inside.

N nodes    E edges    G targets    X drawn ends
"""

import measure  # isort: skip

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from graphs import EXPONENT, SIZES, power_law_graph
from numpy.typing import NDArray
from results_page import surroundings, write_section

from dyformer.graphs import pagerank
from dyformer.graphs.config import GraphConfig
from dyformer.graphs.hub_first_graph import hub_first_graph
from dyformer.graphs.kernels.pagerank import chebyshev
from dyformer.graphs.kernels.union import rows_of
from dyformer.graphs.pagerank import joint_context
from dyformer.graphs.prepared_graph import prepare_graph
from dyformer.graphs.union_graph import TemporalUnionGraph
from dyformer.model.config import ModelConfig
from dyformer.sampling import subgraphs
from dyformer.sampling.link_batches import PairBatch, reconstruction_tasks
from dyformer.sampling.subgraphs import num_lags
from dyformer.training.config import PretrainConfig
from dyformer.training.stages import pair_source

NUM_TARGETS = NUM_CONTEXT = 256
COMMUNITY_NODES, INSIDE = 500, 0.9
NUM_DRAWS = 3  # sets of targets
EXACT_ITERATIONS = 80
ROUNDS = 5
AT_ONCE = 2_000_000
NEVER = 2**62
TARGETS = {"power-law": (0.97, 15), "communities": (0.94, 7)}  # recall, times as fast
BATCH_TARGET = 6


@contextmanager
def solved_exactly() -> Iterator[None]:
    """Solve for all nodes and search distances up to D_max, as below the limit."""
    limit = pagerank.PUSHED_FROM
    pagerank.PUSHED_FROM = subgraphs.PUSHED_FROM = NEVER
    yield
    pagerank.PUSHED_FROM = subgraphs.PUSHED_FROM = limit


def exactly(job: Callable[[], object]) -> Callable[[], object]:
    """Run a job with the exact solve."""

    def run() -> object:
        with solved_exactly():
            return job()

    return run


def communities_union(num_nodes: int, num_edges: int) -> TemporalUnionGraph:
    """Draw unique edges with power-law degrees, a fraction INSIDE of them within a community."""
    generator = np.random.default_rng(0)
    num_communities = num_nodes // COMMUNITY_NODES
    weight_N = np.arange(1, num_nodes + 1) ** (-1 / (EXPONENT - 1))
    cumulative_N = np.cumsum(weight_N) / weight_N.sum()
    within = np.cumsum(weight_N.reshape(COMMUNITY_NODES, num_communities).mean(axis=1))
    number_N, key_E = generator.permutation(num_nodes), np.empty(0, dtype=np.int64)
    while len(key_E) < num_edges:
        one_X, far_X = np.searchsorted(cumulative_N, generator.random((2, AT_ONCE)))
        near_X = np.searchsorted(within / within[-1], generator.random(AT_ONCE)) * num_communities
        near_X += one_X % num_communities
        end_2X = number_N[np.stack([one_X, np.where(generator.random(AT_ONCE) < INSIDE, near_X, far_X)])]
        low_X, high_X = end_2X.min(axis=0), end_2X.max(axis=0)
        key_E = np.unique(np.concatenate([key_E, (low_X * num_nodes + high_X)[low_X != high_X]]))
    key_E = np.sort(generator.choice(key_E, size=num_edges, replace=False))
    source_E, target_E = (key_E // num_nodes).astype(np.int32), (key_E % num_nodes).astype(np.int32)
    indptr_N1, edge_indptr_N1, neighbor_M = rows_of(source_E, target_E, num_nodes)
    return TemporalUnionGraph(
        num_nodes=num_nodes,
        first_step=1,
        until=1,
        indptr_N1=indptr_N1,
        edge_indptr_N1=edge_indptr_N1,
        neighbor_M=neighbor_M,
        presence_EW=np.ones((num_edges, 1), dtype=np.uint64),
    )


def drawn_targets(union: TemporalUnionGraph, seed: int) -> NDArray[np.int64]:
    """Draw targets: both ends of edges, and nodes with an edge."""
    generator = np.random.default_rng(seed)
    slot_X = generator.choice(len(union.neighbor_M), NUM_TARGETS // 4, replace=False)
    source_X = np.searchsorted(union.indptr_N1, slot_X, side="right") - 1
    uniform_X = generator.choice(np.flatnonzero(union.degree), NUM_TARGETS // 2, replace=False)
    return np.unique(np.concatenate([source_X, union.neighbor_M[slot_X], uniform_X])).astype(np.int64)


def exact_context(union: TemporalUnionGraph, target_G: NDArray[np.int64]) -> set[int]:
    """Give the best nodes of a solve to rounding error."""
    graph = hub_first_graph(union)
    number_G = graph.number_N[target_G]
    score_N = chebyshev(*graph.lists[:2], graph.number_N, number_G, 0.15, EXACT_ITERATIONS)
    score_N[target_G] = 0
    return set(np.argpartition(score_N, -NUM_CONTEXT)[-NUM_CONTEXT:].tolist())


def measured(name: str, union: TemporalUnionGraph) -> list[str]:
    """Measure recall and times on one graph; give the lines to print in RESULTS.md."""
    draws = [drawn_targets(union, seed) for seed in range(NUM_DRAWS)]

    def context(target_G: NDArray[np.int64]) -> NDArray[np.int64]:
        return joint_context(union, target_G, num_context=NUM_CONTEXT)

    recalls: dict[str, list[float]] = {"pushed": [], "solved": []}
    for target_G in draws:
        exact = exact_context(union, target_G)
        recalls["pushed"].append(len(exact & set(context(target_G).tolist())) / NUM_CONTEXT)
        with solved_exactly():
            recalls["solved"].append(len(exact & set(context(target_G).tolist())) / NUM_CONTEXT)
    jobs = {"pushed": lambda: [*map(context, draws)], "solved": exactly(lambda: [*map(context, draws)])}
    seconds = measure.cpu_seconds(jobs, rounds=ROUNDS)
    median = measure.medians(seconds)
    lines = [
        f"{name}: {union.num_nodes:,} nodes, {union.num_edges:,} edges; "
        + ", ".join(
            f"{job} {1e3 * median[job] / NUM_DRAWS:.1f} ms, recall {np.mean(recalls[job]):.4f}"
            for job in ("solved", "pushed")
        )
    ]
    print(lines[0], flush=True)
    recall, times = TARGETS[name]
    found = float(np.mean(recalls["pushed"]))
    lines.append(measure.verdict(f"pushed-context-{name}-recall", found, recall, unit="fraction"))
    ratios = measure.ratios(seconds["solved"], seconds["pushed"])
    lines.append(measure.verdict(f"pushed-context-{name}-vs-solve", ratios, times))
    return lines


def main(size: str) -> None:
    """Measure contexts on both graphs and the whole batch of pre-training on the power law; write the section."""
    lines = measured("communities", communities_union(*SIZES[size]))
    history = power_law_graph(size, num_steps=16)
    graph = prepare_graph(history, until=16, config=GraphConfig(history_window=None))
    lines += measured("power-law", graph.union)
    source = pair_source(graph, ModelConfig(), PretrainConfig(), seed=0)
    tasks = [task for task in reconstruction_tasks(graph.until, num_lags(graph), hidden=True) if task.lag == 0][-1:]

    def batch() -> PairBatch:
        return next(iter(source.batches(tasks, np.random.default_rng(0), held_out=False, two_views=True)))

    before = pair_source(graph, ModelConfig(), PretrainConfig(), seed=0)  # it stores graphs with their own D_max

    def batch_before() -> PairBatch:
        return next(iter(before.batches(tasks, np.random.default_rng(0), held_out=False, two_views=True)))

    seconds = measure.cpu_seconds({"now": batch, "before": exactly(batch_before)}, rounds=ROUNDS)
    median = measure.medians(seconds)
    lines.append(f"batch of pre-training: before {1e3 * median['before']:.0f} ms, now {1e3 * median['now']:.0f} ms")
    print(lines[-1], flush=True)
    ratios = measure.ratios(seconds["before"], seconds["now"])
    lines.append(measure.verdict("pushed-context-batch", ratios, BATCH_TARGET))
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    text = f"`python benchmarks/pushed_context.py {size}`, load of the machine {load} (1, 5 and 15 minutes)."
    write_section(f"Pushed context: {size}", "\n\n".join([text, surroundings(), "```\n" + "\n".join(lines) + "\n```"]))


if __name__ == "__main__":
    main([*sys.argv[1:], "s10m"][0])
