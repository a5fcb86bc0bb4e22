"""DySAT: snapshots -> vectors by attention to the neighbours of a step, then to older steps (Sankar et al., 2020)."""

from pydantic.dataclasses import dataclass

from dyformer.baselines.dysat.settings import DySATSettings
from dyformer.embedder import Embed
from dyformer.graphs.config import STRICT
from dyformer.graphs.prepared_graph import PreparedGraph


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DySAT(DySATSettings):
    """Structural attention in each snapshot, with shared weights, and causal attention over the steps.

    At every step of the window, a node's vector forecasts the nodes near it on random walks of that snapshot. The
    vectors are those of the newest step.
    """

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        """Train on the window, and give the vectors as of its newest step."""
        from dyformer.baselines.dysat.network import node_vectors

        vector_ND = node_vectors(self, graph, seed=seed)
        return lambda node_B: vector_ND[node_B]
