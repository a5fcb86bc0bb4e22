"""Interaction logs -> snapshots, graphs, node vectors and evaluated link forecasts.

    log = dyformer.read_log("interactions.csv", source="user", target="item", time="created_at")
    graph = log.snapshots("7d")
    model = dyformer.fit(graph, seed=0)
    model.vectors(), model.top(10), model.scores([("anna", "bert")])
    dyformer.evaluate(graph, ["DyFormer", "L3"], steps=[graph.num_steps])
    now = dyformer.fit_events(log)
    now.observe(new_events)
    now.rank("anna", k=10)

A name is imported when it is first used: `import dyformer` itself loads nothing heavy. `__init__.pyi` has these names
for type checkers.
"""

# pyright: reportUnsupportedDunderAll=false
from typing import Any

__all__ = [
    "METHODS",
    "DyformerError",
    "Embedder",
    "EventModel",
    "Graph",
    "InvalidInput",
    "Log",
    "Model",
    "Scorer",
    "__version__",
    "evaluate",
    "fit",
    "fit_events",
    "load",
    "read_log",
]

_MODULES = {"METHODS": "experiments.methods", "Embedder": "scoring.interfaces", "Scorer": "scoring.interfaces"}
_MODULES |= dict.fromkeys(("EventModel", "fit_events"), "experiments.event_api")


class DyformerError(Exception):
    """Each error whose message is written for the user: it has what was expected, what was found and what to do.

    Some are also OSError, RuntimeError or ImportError. An error of another class is a fault of this program.
    """


class InvalidInput(DyformerError, ValueError):
    """Data, settings, names or a store with which this cannot be done."""


def __getattr__(name: str) -> Any:
    import importlib
    from importlib.metadata import version

    if name == "__version__":
        return version("dyformer")
    if name not in __all__:
        raise AttributeError(f"module 'dyformer' has no attribute {name!r}")
    return getattr(importlib.import_module(f"dyformer.{_MODULES.get(name, 'experiments.api')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
