"""Weights by the last step of their training -> a method that embeds with the newest that a graph may know."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dyformer.graphs.prepared_graph import PreparedGraph, with_window
from dyformer.model.config import ModelConfig
from dyformer.scoring.interfaces import Embed, NoVectors, rows_of
from dyformer.training.checkpoint import Weights
from dyformer.training.ranks import one_thread
from dyformer.training.stages import embed


@dataclass(frozen=True, kw_only=True)
class TrainedDyFormer:
    """DyFormer with stored weights: nothing is trained.

    A graph is embedded with the newest weights that were trained on no step after `graph.until`, and with the lags that
    these have.
    """

    weights: Mapping[int, Weights]  # by the last step of their training
    windows: Mapping[int, int] = field(default_factory=dict)  # lags of the weights where not those of the graph
    model: ModelConfig
    device: str = "cpu"

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        """Embed all nodes known at `graph.until`; the seed has no effect. Raises NoVectors."""
        until = max((until for until in self.weights if until <= graph.until), default=None)
        if until is None:
            raise NoVectors(f"weights trained until step {min(self.weights)}: expected some of step {graph.until}")
        graph = with_window(graph, self.windows[until]) if until in self.windows else graph
        with one_thread():  # as stored vectors are made
            vector_ND = embed(graph, self.weights[until], self.model, device=self.device)
        return rows_of(vector_ND)
