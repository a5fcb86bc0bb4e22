"""Pre-training epochs on uci with batches made in the background and without: the same losses, and the time waited.

Wall time on all cores, because threads beside the model are what is measured; settings are those of a real run.
"""

import os
import statistics
from functools import partial

import measure
from graphs import published_graph  # settles the environment of a training, before torch is imported

from dyformer.experiments.settings import Experiment
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.training.checkpoint import Progress
from dyformer.training.loop import Stage
from dyformer.training.stages import stages as training

TARGET = 0.05
ROUNDS = 2
WITHOUT, DEFAULT = 0, Stage.num_threads
CHANGES = {"pretrain.epochs": 8, "pretrain.validation_batches": 4}


def epochs(graph: PreparedGraph, num_threads: int) -> list[Progress]:
    """Pre-train with the product's own function, told how many threads make batches."""
    experiment = Experiment().changed(CHANGES)
    assert experiment.pretrain is not None
    training.Stage = partial(Stage, num_threads=num_threads)
    return list(training.pretrain(graph, experiment.model, experiment.pretrain, seed=0))


def measure_loader(name: str, graph: PreparedGraph) -> float:
    """Give the share of its epochs for which training waits, with the threads that it has by default."""
    epochs(graph, DEFAULT)  # imports and compiled kernels
    told: dict[int, list[Progress]] = {WITHOUT: [], DEFAULT: []}
    for _ in range(ROUNDS):
        for num_threads, progresses in told.items():
            progresses += epochs(graph, num_threads)
    losses = {str([progress.losses for progress in progresses]) for progresses in told.values()}
    if len(losses) != 1:
        raise ValueError(f"{name}: batches made in the background gave other losses than batches made in turn")
    seconds, share = {}, {}
    for num_threads, progresses in told.items():
        seconds[num_threads] = statistics.median(progress.seconds for progress in progresses)
        share[num_threads] = sum(p.seconds_waiting for p in progresses) / sum(p.seconds for p in progresses)
        print(f"{name} threads {num_threads} epoch {seconds[num_threads]:.3f} s waiting {share[num_threads]:.2%}")
    print(f"{name} epoch ratio {seconds[WITHOUT] / seconds[DEFAULT]:.2f} without / with threads", flush=True)
    return share[DEFAULT]


if __name__ == "__main__":
    import torch

    torch.set_num_threads(os.cpu_count() or 1)
    uci = published_graph("uci")
    until = uci.num_steps - 1
    share = measure_loader("uci", prepare_graph(uci, until=until, config=Experiment().graph))
    measure.verdict("loader_waiting_share", share, TARGET, at_most=True, unit="share")
