"""The process -> the CPUs and the memory that it may use, which in a container are not those of the machine."""

import math
import os
from pathlib import Path

LIMITS = Path("/sys/fs/cgroup")  # of control groups; in a container its own group stands there
GROUPS = Path("/proc/self/cgroup")  # which name the groups of this process


def visible_cpus() -> int:
    """Give the number of CPUs on which this process may run, all of which libraries such as torch use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_cpus() -> int:
    """Give the number of CPUs whose time this process may use, at most those of its control groups' limits."""
    # Microseconds of all CPUs together, and of a period.
    pairs = [_numbers(folder / "cpu.max") for folder in _folders("")]
    pairs += [_numbers(each / "cpu.cfs_quota_us") + _numbers(each / "cpu.cfs_period_us") for each in _folders("cpu")]
    return math.ceil(min([visible_cpus(), *(pair[0] / pair[1] for pair in pairs if len(pair) > 1)]))


def usable_memory() -> int:
    """Give the bytes of memory that this process may use, at most those of its control groups' limits."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    files = [folder / name for folder in _folders("") for name in ("memory.max", "memory.high")]
    files += [folder / "memory.limit_in_bytes" for folder in _folders("memory")]
    return int(min([memory, *(number for file in files for number in _numbers(file))]))


def _folders(controller: str) -> list[Path]:
    """Give the folders of the groups that limit this process: its own, and those around it.

    Version 1 of control groups has one tree for each `controller`, version 2 (an empty one) a single tree.
    """
    root = LIMITS / controller
    try:
        lines = [line.split(":", 2) for line in GROUPS.read_text().splitlines()]
    except OSError:  # another system than Linux
        lines = []
    path = next((Path(group) for _, controllers, group in lines if controller in controllers.split(",")), Path("/"))
    return [root.joinpath(*path.parts[1:depth]) for depth in range(1, len(path.parts) + 1)]


def _numbers(file: Path) -> list[float]:
    """Read the numbers of a file of Linux's control groups; nothing where there is none."""
    try:
        words = file.read_text().split()
    except OSError:
        return []
    return [math.inf if word in {"max", "-1"} else int(word) for word in words]
