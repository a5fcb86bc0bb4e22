"""A process in a container takes the CPUs and the memory of the container, not those of the machine."""

import os
from pathlib import Path

import pytest

from dyformer.sampling import limits

pytestmark = pytest.mark.quick
SERVICE, CPU = "a.slice/b.service", "1:cpu,cpuacct:/job\n"


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
        ({"cpu/cpu.cfs_quota_us": "50000\n"}, 8, 64),  # without its period
        ({"memory.max": "9000000000\n", "memory.high": "8000000000\n"}, 8, 8),
        ({"groups": "0::/\n", "cpu.max": "150000 100000\n", "memory.max": "8000000000\n"}, 2, 8),
        ({"groups": f"0::/{SERVICE}\n", f"{SERVICE}/cpu.max": "150000 100000\n"}, 2, 64),
        ({"groups": f"0::/{SERVICE}\n", f"{SERVICE}/memory.max": "8000000000\n"}, 8, 8),
        ({"groups": f"0::/{SERVICE}/inner\n", "a.slice/memory.max": "8000000000\n"}, 8, 8),  # of a group around it
        ({"groups": f"0::/{SERVICE}\n", "other.slice/memory.max": "8000000000\n"}, 8, 64),
        ({"groups": "0::/../other\n", "memory.max": "8000000000\n"}, 8, 8),  # a group outside of the container
        ({"groups": f"4:memory:/job/step\n{CPU}", "memory/job/memory.limit_in_bytes": "4000000000\n"}, 8, 4),
        ({"groups": CPU, "cpu/job/cpu.cfs_quota_us": "50000\n", "cpu/job/cpu.cfs_period_us": "100000\n"}, 1, 64),
        ({"groups": "4:memory:/docker/1f\n", "memory/memory.limit_in_bytes": "4000000000\n"}, 8, 4),
    ],
)
def test_a_container_uses_the_cpus_and_the_memory_of_its_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cpus: int, gigabytes: int
):
    groups = tmp_path / "groups"  # in which the process is
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(limits, "LIMITS", tmp_path)
    monkeypatch.setattr(limits, "GROUPS", groups)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 64 * 10**9, "SC_PAGE_SIZE": 1}.get)
    assert (limits.usable_cpus(), limits.usable_memory()) == (cpus, gigabytes * 10**9)
