"""GraphSAGE: union graph of the window -> vectors made of sampled neighbours' inputs (Hamilton et al., 2017)."""

from pydantic.dataclasses import dataclass

from dyformer.baselines.graphsage.settings import GraphSAGESettings
from dyformer.embedder import Embed
from dyformer.graphs.config import STRICT
from dyformer.graphs.prepared_graph import PreparedGraph


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GraphSAGE(GraphSAGESettings):
    """Two layers that aggregate sampled neighbours, trained without labels so that nodes of one walk are near.

    Inputs are id embeddings, because the logs have no features. Vectors have length 1.
    """

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        """Train on the union graph, and give the vectors of all nodes."""
        from dyformer.baselines.graphsage.network import node_vectors

        vector_ND = node_vectors(self, graph, seed=seed)
        return lambda node_B: vector_ND[node_B]
