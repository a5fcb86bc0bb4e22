"""The process -> the CPUs and the memory that it may use, which in a container are not those of the machine."""

import math
import os
from pathlib import Path

LIMITS = Path("/sys/fs/cgroup")  # of the container in which this process runs


def visible_cpus() -> int:
    """Give the number of CPUs on which this process may run, all of which libraries such as torch use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_cpus() -> int:
    """Give the number of CPUs whose time this process may use, in a container at most those of its limit."""
    first_version = [*_limits("cpu/cpu.cfs_quota_us"), *_limits("cpu/cpu.cfs_period_us")]
    quota, period = _limits("cpu.max") or first_version or (math.inf, 1)  # of all CPUs, in microseconds
    return math.ceil(min(visible_cpus(), quota / period))


def usable_memory() -> int:
    """Give the bytes of memory that this process may use, in a container at most those of its limit."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(min([memory, *(_limits("memory.max") or _limits("memory/memory.limit_in_bytes"))]))


def _limits(name: str) -> list[float]:
    """Read the numbers of a file of Linux's control groups; nothing where there is none."""
    try:
        words = (LIMITS / name).read_text().split()
    except OSError:
        return []
    return [math.inf if word in {"max", "-1"} else int(word) for word in words]
