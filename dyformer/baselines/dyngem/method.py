"""DynGEM: snapshots -> vectors of an auto-encoder of adjacency rows, warm-started each step (Goyal et al., 2018)."""

from pydantic.dataclasses import dataclass

from dyformer.baselines.dyngem.settings import DynGEMSettings
from dyformer.embedder import Embed
from dyformer.graphs.config import STRICT
from dyformer.graphs.prepared_graph import PreparedGraph


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DynGEM(DynGEMSettings):
    """The auto-encoder of SDNE, trained on each snapshot of the window from the weights of the one before.

    All snapshots have the nodes known at the newest one, so the network need not grow. A vector is the code of a
    node's newest row; nodes without an edge there have the same one.
    """

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        """Train on the snapshots of the window in turn, and encode the rows of the newest one."""
        from dyformer.baselines.dyngem.network import node_vectors

        vector_ND = node_vectors(self, graph, seed=seed)
        return lambda node_B: vector_ND[node_B]
