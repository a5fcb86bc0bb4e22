"""A training and the vectors of all nodes on a GPU, beside the CPU of the same machine.

    python benchmarks/gpu.py [s100k|s1m|s10m]

Each device trains by pre-training on a power-law graph, with the batches of the default model and with ones of 16 times
as many targets and pairs; the first epoch is a warm-up. Seconds are wall time. "Waiting" is the fraction of the time in
which no batch was ready. "Busy" is the fraction of a training in which kernels ran on the GPU, from torch's profiler,
measured in one more epoch, because the profiler costs time. Without a GPU the rows of the CPU stand alone.
"""

import resource
import sys
import time
from collections.abc import Iterable
from itertools import islice

import numpy as np
import torch
from graphs import power_law_graph
from results_page import surroundings, write_section

from dyformer.graphs.config import GraphConfig
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.model.config import ModelConfig
from dyformer.training.checkpoint import Progress
from dyformer.training.config import PretrainConfig
from dyformer.training.ranks import Rank
from dyformer.training.stages import embed, pretrain

EPOCHS = 5
MODEL = ModelConfig()
TRAINING = PretrainConfig(epochs=EPOCHS, patience=None)
LARGE_BATCHES = PretrainConfig(
    epochs=EPOCHS, patience=None, num_targets=16 * TRAINING.num_targets, num_positives=16 * TRAINING.num_positives
)
TITLES = (
    "device",
    "targets a batch",
    "step, ms",
    "waiting",
    "busy",
    "memory, GB",
    "vectors of 1,000 nodes, ms",
)


def epochs(graph: PreparedGraph, config: PretrainConfig, device: str) -> tuple[list[Progress], float]:
    """Train; give the reports of the epochs after the first, and the GPU's busy fraction in the last, NaN on a CPU."""
    busy = float("nan")
    training = pretrain(graph, MODEL, config, seed=0, rank=Rank(device=device))
    reports = list(islice(training, EPOCHS - 1))
    if device != "cpu":
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            last = next(training)
        kernels = [event for event in profile.key_averages() if not event.is_user_annotation]  # these cover kernels
        busy = sum(event.self_device_time_total for event in kernels) / 1e6 / last.seconds
    return reports[1:], busy


def row_of(graph: PreparedGraph, config: PretrainConfig, device: str) -> tuple[str, ...]:
    """Measure one device with batches of one size."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    reports, busy = epochs(graph, config, device)
    seconds = float(np.median([report.seconds for report in reports])) / config.batches_per_epoch
    waiting = sum(report.seconds_waiting for report in reports) / sum(report.seconds for report in reports)
    weights = reports[-1].checkpoint().weights()
    started = time.perf_counter()
    embed(graph, weights, MODEL, device=device)
    vectors = (time.perf_counter() - started) / len(graph.history.node_N) * 1e6
    if device == "cpu":
        name, memory = "CPU", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    else:
        name, memory = torch.cuda.get_device_name(), torch.cuda.max_memory_allocated() / 2**30
    texts = f"{seconds * 1e3:.1f}", f"{waiting:.0%}", "-" if np.isnan(busy) else f"{busy:.0%}", f"{memory:.2f}"
    return name, f"{config.num_targets:,}", *texts, f"{vectors:.0f}"


def table(rows: Iterable[tuple[str, ...]]) -> str:
    """Write rows as Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (TITLES, ("---",) * len(TITLES), *rows))


if __name__ == "__main__":
    size = sys.argv[1] if len(sys.argv) > 1 else "s1m"
    power_law = power_law_graph(size)
    prepared = prepare_graph(power_law, until=power_law.num_steps, config=GraphConfig())
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    written = table(row_of(prepared, config, device) for config in (TRAINING, LARGE_BATCHES) for device in devices)
    missing = "" if len(devices) > 1 else "\n\nNo GPU was at hand, so none was measured."
    print(written + missing)
    write_section(f"GPU, {size}", f"{surroundings()}\n\n`make bench-gpu`\n\n{written}{missing}")
