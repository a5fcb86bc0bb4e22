"""A training and the vectors of all nodes on a GPU, beside the CPU of the same machine.

    python benchmarks/gpu.py [s100k|s1m|s10m]

Each device trains the default model on a power-law graph by pre-training; the first epoch is a warm-up. Seconds are
wall time. "Waiting" is the fraction of the time in which no batch was ready. "Busy" is the fraction of a training in
which kernels ran on the GPU, from torch's profiler, measured in one more epoch, because the profiler costs time.
Without a GPU the row of the CPU stands alone.
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
MODEL, CONFIG = ModelConfig(), PretrainConfig(epochs=EPOCHS, patience=None)
TITLES = ("device", "step, ms", "waiting", "busy", "memory, GB", "vectors of 1,000 nodes, ms")


def epochs(graph: PreparedGraph, device: str) -> tuple[list[Progress], float]:
    """Train; give the reports of the epochs after the first, and the GPU's busy fraction in the last, NaN on a CPU."""
    busy = float("nan")
    training = pretrain(graph, MODEL, CONFIG, seed=0, rank=Rank(device=device))
    reports = list(islice(training, EPOCHS - 1))
    if device != "cpu":
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            last = next(training)
        busy = sum(event.self_device_time_total for event in profile.key_averages()) / 1e6 / last.seconds
    return reports[1:], busy


def row_of(graph: PreparedGraph, device: str) -> tuple[str, ...]:
    """Measure one device."""
    reports, busy = epochs(graph, device)
    seconds = float(np.median([report.seconds for report in reports])) / CONFIG.batches_per_epoch
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
    return name, *texts, f"{vectors:.0f}"


def table(rows: Iterable[tuple[str, ...]]) -> str:
    """Write rows as Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (TITLES, ("---",) * len(TITLES), *rows))


if __name__ == "__main__":
    size = sys.argv[1] if len(sys.argv) > 1 else "s1m"
    power_law = power_law_graph(size)
    prepared = prepare_graph(power_law, until=power_law.num_steps, config=GraphConfig())
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    written = table(row_of(prepared, device) for device in devices)
    missing = "" if len(devices) > 1 else "\n\nNo GPU was at hand, so none was measured."
    print(written + missing)
    write_section(f"GPU, {size}", f"{surroundings()}\n\n`make bench-gpu`\n\n{written}{missing}")
