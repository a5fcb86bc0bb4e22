"""Pre-training on uci, with batches made in background threads and without: equal losses, and the time of waiting.

Wall time on all cores, because threads beside the model are measured; settings are those of a real run.
"""

import os
import statistics
from functools import partial

import measure
from graphs import published_graph  # sets the environment of a training, before torch is imported

from dyformer.experiments.settings import Experiment
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.training import stages as training
from dyformer.training.checkpoint import Progress
from dyformer.training.loop import Stage

TARGET = 0.05
WITHOUT, DEFAULT = 0, Stage.num_threads
CHANGES = {"pretrain.epochs": 4, "pretrain.validation_batches": 4}


def epochs(graph: PreparedGraph, num_threads: int) -> list[Progress]:
    """Pre-train with the product's own function and a given number of threads that make batches."""
    experiment = Experiment().changed(CHANGES)
    assert experiment.pretrain is not None
    training.Stage = partial(Stage, num_threads=num_threads)
    return list(training.pretrain(graph, experiment.model, experiment.pretrain, seed=0))


def measure_loader(name: str, graph: PreparedGraph) -> list[float]:
    """Give the fraction of each round's time in which training waits for batches, with the default threads."""
    epochs(graph, DEFAULT)  # warm-up: imports modules and compiles kernels
    seconds: dict[int, list[float]] = {WITHOUT: [], DEFAULT: []}
    waiting: dict[int, list[float]] = {WITHOUT: [], DEFAULT: []}
    losses = set()
    for _ in range(measure.ROUNDS):
        for num_threads in (WITHOUT, DEFAULT):
            progresses = epochs(graph, num_threads)
            losses.add(str([progress.losses for progress in progresses]))
            seconds[num_threads].append(sum(progress.seconds for progress in progresses))
            waiting[num_threads].append(sum(progress.seconds_waiting for progress in progresses))
    if len(losses) != 1:
        raise ValueError(f"{name}: batches made in the background gave other losses than batches made in turn")
    fractions = {threads: measure.ratios(waiting[threads], seconds[threads]) for threads in seconds}
    for threads, values in seconds.items():
        fraction = statistics.median(fractions[threads])
        print(f"{name} threads {threads} run {statistics.median(values):.3f} s waiting {fraction:.2%}")
    ratio = statistics.median(measure.ratios(seconds[WITHOUT], seconds[DEFAULT]))
    print(f"{name} ratio {ratio:.2f} without / with threads", flush=True)
    return fractions[DEFAULT]


if __name__ == "__main__":
    import torch

    torch.set_num_threads(os.cpu_count() or 1)
    uci = published_graph("uci")
    until = uci.num_steps - 1
    fractions = measure_loader("uci", prepare_graph(uci, until=until, config=Experiment().graph))
    measure.verdict("loader_waiting_fraction", fractions, TARGET, at_most=True, unit="fraction")
