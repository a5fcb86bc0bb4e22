"""Jobs, ours and a peer's -> their times, measured in turn in one process on one thread, and a line with a verdict.

Import this module before numpy, polars, torch or numba: it limits each of them to one thread.
"""

import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

for variable in (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "POLARS_MAX_THREADS",
    "RAYON_NUM_THREADS",
    "NUMBA_NUM_THREADS",
):
    os.environ[variable] = "1"


ROUNDS = 5  # or more, where a script sets them
SAMPLE_SECONDS = 0.05  # shorter jobs are repeated within a sample, because the product calls them repeatedly as well

Seconds = dict[str, list[float]]


def cpu_seconds(jobs: dict[str, Callable[[], Any]], *, rounds: int = ROUNDS) -> Seconds:
    """Run every job once to warm up and then `rounds` samples in turn; give the CPU seconds of each sample."""
    seconds: Seconds = {name: [] for name in jobs}
    calls = {name: _num_calls(job) for name, job in jobs.items()}
    for _ in range(rounds):
        for name, job in jobs.items():
            seconds[name].append(_cpu_seconds(job, calls[name]) / calls[name])
    return seconds


def _num_calls(job: Callable[[], Any]) -> int:
    if _cpu_seconds(job, 1) > 1:  # a job this long is measured in single calls
        return 1
    return max(1, int(SAMPLE_SECONDS / _cpu_seconds(job, 1)))


def _cpu_seconds(job: Callable[[], Any], num_calls: int) -> float:
    gc.collect()
    gc.disable()
    start = time.process_time()
    for _ in range(num_calls):
        job()
    spent = time.process_time() - start
    gc.enable()
    return spent


def medians(seconds: Seconds) -> dict[str, float]:
    """Give the median of each job's samples."""
    return {name: statistics.median(samples) for name, samples in seconds.items()}


def ratios(samples: list[float], others: list[float]) -> list[float]:
    """Divide the samples of one job by those of another, round by round."""
    return [one / other for one, other in zip(samples, others, strict=True)]


def verdict(
    name: str, values: float | list[float], target: float, *, at_most: bool = False, unit: str = "ratio"
) -> str:
    """Print median, range and verdict, and return that line.

    The median must reach the target or, with `at_most`, not exceed it. Values are those of all rounds, or a single one.
    A range that crosses the target is unsteady.
    """
    rounds = values if isinstance(values, list) else [values]
    is_met = [value <= target if at_most else value >= target for value in (statistics.median(rounds), *rounds)]
    spread = f" ({min(rounds):.4g} to {max(rounds):.4g}, {len(rounds)} rounds)" if len(rounds) > 1 else ""
    outcome = ("met" if is_met[0] else "missed") + ("" if len(set(is_met)) == 1 else ", unsteady")
    bound = f"at {'most' if at_most else 'least'} {target:g}"
    line = f"{name} {unit} {statistics.median(rounds):.4g}{spread} target {bound} {outcome}"
    print(line, flush=True)
    return line


def peak_mib(script: str, *arguments: str) -> float:
    """Run a script (a path) in a process of its own and give its largest resident memory, in MiB."""
    read = "import resource; print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    run = f"import subprocess, sys; subprocess.run([sys.executable, *{[script, *arguments]!r}], check=True, stdout=2)"
    measured = subprocess.run([sys.executable, "-c", f"{run}; {read}"], check=True, stdout=subprocess.PIPE, text=True)
    return int(measured.stdout) / 1024
