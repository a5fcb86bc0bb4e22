"""A machine -> what decides the last bits of what it computes: its kind of CPU, and the versions of libraries."""

import platform
from functools import cache
from importlib.metadata import version

LIBRARIES = ("numpy", "scipy", "numba", "torch", "polars", "scikit-learn", "lightgbm", "duckdb")


@cache
def machine_facts() -> dict[str, str]:
    """Give what must be equal on two machines whose parts are put together; GPUs are no part of it."""
    from llvmlite.binding import get_host_cpu_name  # by this name numba chooses the instructions

    return {
        "cpu": f"{platform.machine()} {get_host_cpu_name()}",
        "python": platform.python_version(),
        **{name: version(name) for name in LIBRARIES},
    }
