"""EvolveGCN: snapshots -> vectors of a graph convolution with weights that a GRU evolves (Pareja et al., 2020)."""

from pydantic.dataclasses import dataclass

from dyformer.baselines.evolvegcn.settings import EvolveGCNSettings
from dyformer.embedder import Embed
from dyformer.graphs.config import STRICT
from dyformer.graphs.prepared_graph import PreparedGraph


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EvolveGCN(EvolveGCNSettings):
    """Graph convolutions with weights of their own for each step, made from those of the step before by a GRU.

    "O": the weights alone are input and state of the GRU. "H": its input is a summary of the nodes' vectors. Training
    forecasts each step of the history from the window before it, as DyFormer's fine-tuning does. Some links are
    held out and choose the epoch.
    """

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        """Train, and give the vectors as of `graph.until`. Raises ValueError for a history of one step."""
        from dyformer.baselines.evolvegcn.network import node_vectors

        vector_ND = node_vectors(self, graph, seed=seed)
        return lambda node_B: vector_ND[node_B]
