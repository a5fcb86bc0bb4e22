from dyformer.experiments.api import Graph, Log, Model, evaluate, fit, load, read_log
from dyformer.experiments.event_api import EventModel, fit_events
from dyformer.experiments.methods import METHODS
from dyformer.scoring.interfaces import Embedder, Scorer

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

__version__: str

class DyformerError(Exception): ...
class InvalidInput(DyformerError, ValueError): ...
