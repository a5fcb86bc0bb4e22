"""A process in a container takes the CPUs and the memory of the container, not those of the machine."""

import os
from pathlib import Path

import pytest

from dyformer.sampling import limits

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("files", "cpus", "gigabytes"),
    [
        ({}, 8, 64),
        ({"cpu.max": "max 100000\n", "memory.max": "max\n"}, 8, 64),
        ({"cpu.max": "150000 100000\n", "memory.max": "8000000000\n"}, 2, 8),
        ({"cpu.max": "1600000 100000\n", "memory.max": "128000000000\n"}, 8, 64),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8, 64),
        ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1, 64),
        ({"memory/memory.limit_in_bytes": "4000000000\n"}, 8, 4),
        ({"memory/memory.limit_in_bytes": "9223372036854771712\n"}, 8, 64),  # as version 1 writes that there is none
    ],
)
def test_a_container_uses_the_cpus_and_the_memory_of_its_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cpus: int, gigabytes: int
):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(limits, "LIMITS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 64 * 10**9, "SC_PAGE_SIZE": 1}.get)
    assert (limits.usable_cpus(), limits.usable_memory()) == (cpus, gigabytes * 10**9)
