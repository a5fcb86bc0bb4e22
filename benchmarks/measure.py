"""Times of our work and of a peer's, taken in turn in one process on one thread, and the line that evaluates them.

Import this module before numpy, polars, torch or numba: it keeps each of them to one thread.
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


SAMPLE_SECONDS = 0.05  # shorter works are repeated within a sample, as the product calls them one after the other


def median_cpu_seconds(works: dict[str, Callable[[], Any]], *, rounds: int) -> dict[str, float]:
    """Run every work once to warm up and then `rounds` samples in turn; give the median CPU seconds of each."""
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    calls = {name: max(1, int(SAMPLE_SECONDS / _cpu_seconds(work, 1))) for name, work in works.items()}
    for _ in range(rounds):
        for name, work in works.items():
            seconds[name].append(_cpu_seconds(work, calls[name]) / calls[name])
    return {name: statistics.median(each) for name, each in seconds.items()}


def _cpu_seconds(work: Callable[[], Any], num_calls: int) -> float:
    gc.collect()
    gc.disable()
    start = time.process_time()
    for _ in range(num_calls):
        work()
    spent = time.process_time() - start
    gc.enable()
    return spent


def verdict(name: str, value: float, target: float, *, at_most: bool = False, unit: str = "ratio") -> None:
    """Print `NAME ratio R target T met` (or `missed`): R must reach T, or with `at_most` stay within it."""
    met = value <= target if at_most else value >= target
    print(f"{name} {unit} {value:.4g} target {target:g} {'met' if met else 'missed'}", flush=True)


def peak_mib(script: str, *arguments: str) -> float:
    """Run a script (a path) in a process of its own and give the largest resident memory it reached, in MiB."""
    read = "import resource; print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    run = f"import subprocess, sys; subprocess.run([sys.executable, *{[script, *arguments]!r}], check=True, stdout=2)"
    answer = subprocess.run([sys.executable, "-c", f"{run}; {read}"], check=True, stdout=subprocess.PIPE, text=True)
    return int(answer.stdout) / 1024
