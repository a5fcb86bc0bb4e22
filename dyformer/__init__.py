"""dyformer computes: interaction logs to snapshots, graphs, node vectors and evaluated link forecasts."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("dyformer")
    raise AttributeError(f"module 'dyformer' has no attribute {name!r}")
