"""How the time of a pre-training batch grows with the number of lags, and with the graph.

A batch is the product's: 256 targets at most, 256 context nodes, two views. Making it (context, distances,
connections) and the training step on it (loss, gradients, update) are timed separately.
"""

import measure  # isort: skip

import tracemalloc
from collections.abc import Callable

import numpy as np
import torch
from graphs import power_law_graph

from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.model.config import ModelConfig
from dyformer.sampling.link_batches import PairBatch, reconstruction_tasks
from dyformer.sampling.subgraphs import num_lags
from dyformer.training.config import PretrainConfig
from dyformer.training.optimizer import Optimizer
from dyformer.training.stages import embed, pair_source, pretraining_loss, started_model

LAGS, LAGS_GRAPH = (10, 100, 1_000), "s100k"
GRAPHS, GRAPHS_LAGS = ("s10k", "s100k", "s1m", "s10m"), 16
ROUNDS = 7
NUM_WANTED = 1_024  # nodes to embed when memory is measured
Jobs = dict[str, Callable[[], object]]


def prepared(name: str, num_steps: int) -> PreparedGraph:
    """Prepare a power-law graph with its whole history."""
    graph = power_law_graph(name, num_steps=num_steps)
    return prepare_graph(graph, until=num_steps, config=GraphConfig(history_window=None))


def jobs(graph: PreparedGraph) -> Jobs:
    """Give two jobs: make a batch that reconstructs the hidden newest step, and take a training step on it."""
    config, model_config = PretrainConfig(), ModelConfig()
    source = pair_source(graph, model_config, config, seed=0)
    tasks = [task for task in reconstruction_tasks(graph.until, num_lags(graph), hidden=True) if task.lag == 0][-1:]

    def make() -> PairBatch:
        return next(iter(source.batches(tasks, np.random.default_rng(0), held_out=False, two_views=True)))

    batch = make()
    subgraph = batch.subgraph
    print(
        f"{len(graph.history.node_N)} nodes, {graph.until} lags: {tuple(subgraph.distance_GC.shape)} pairs, "
        f"{len(subgraph.edge_lag_A)} connections, {subgraph.target_feature_GF.shape[1]} features",
        flush=True,
    )
    model = started_model(graph, model_config, None, seed=0).train()
    optimizer = Optimizer(model, config)
    return {
        "make": make,
        "step": lambda: optimizer.step(optimizer.gradients(pretraining_loss(model, batch, config)["loss"])),
    }


def table(cases: dict[str, PreparedGraph]) -> measure.Seconds:
    """Print the milliseconds of each case, measured in turn; give the seconds of every round."""
    each = {f"{name} {part}": job for name, graph in cases.items() for part, job in jobs(graph).items()}
    seconds = measure.cpu_seconds(each, rounds=ROUNDS)
    median = measure.medians(seconds)
    print(f"{'':>12s} {'make, ms':>10s} {'step, ms':>10s}")
    for name in cases:
        print(f"{name:>12s} {median[f'{name} make'] * 1e3:10.2f} {median[f'{name} step'] * 1e3:10.2f}")
    return seconds


def print_memory(graph: PreparedGraph) -> None:
    """Print the peak memory of arrays in `embed`, and the part of the vectors.

    The rest belongs to a few batches: numbers for each node, which find a context, and for each pair of a batch.
    """
    model_config, num_nodes = ModelConfig(), len(graph.history.node_N)
    weights = started_model(graph, model_config, None, seed=0).state_dict()
    node_B = np.arange(min(NUM_WANTED, num_nodes))
    embed(graph, weights, model_config, node_B=node_B)  # once before, so that cached values exist
    tracemalloc.start()
    vector_ND = embed(graph, weights, model_config, node_B=node_B)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    rest = peak - vector_ND.nbytes
    print(
        f"embed, {num_nodes} nodes: {peak / 2**20:.1f} MiB of arrays at most, {vector_ND.nbytes / 2**20:.1f} of them "
        f"vectors; the rest is {rest / num_nodes:.0f} bytes a node"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    by_lags = table({f"T = {num_lags}": prepared(LAGS_GRAPH, num_lags) for num_lags in LAGS})
    graphs_by_name = {name: prepared(name, GRAPHS_LAGS) for name in GRAPHS}
    by_graph = table(graphs_by_name)
    for graph in graphs_by_name.values():
        print_memory(graph)
    few, many, most = (by_lags[f"T = {num_lags} step"] for num_lags in LAGS)
    measured = measure.medians({"ratio": measure.ratios(most, few)})["ratio"]
    print(f"a step at T = {LAGS[2]} takes {measured:.2f} times as long as at T = {LAGS[0]}")
    measure.verdict("step_T100_over_T10", measure.ratios(many, few), 1.2, at_most=True)
    for name in ("s1m", "s10m"):
        values = measure.ratios(by_graph[f"{name} step"], by_graph["s10k step"])
        measure.verdict(f"step_{name}_over_s10k", values, 1.2, at_most=True)
    values = measure.ratios(by_graph["s10m make"], by_graph["s1m make"])
    measure.verdict("batch_s10m_over_s1m", values, 12, at_most=True)
