"""DynAERNN: snapshots -> vectors that forecast a node's adjacency row (dyngraph2vec; Goyal et al., 2020)."""

from pydantic.dataclasses import dataclass

from dyformer.baselines.dynaernn.settings import DynAERNNSettings
from dyformer.embedder import Embed
from dyformer.graphs.config import STRICT
from dyformer.graphs.prepared_graph import PreparedGraph


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DynAERNN(DynAERNNSettings):
    """A dense encoder of each of a node's last rows, an LSTM over them, and a decoder of its next row.

    A vector is the last state of the LSTM over the newest rows. Nodes without an edge in these have the same one.
    """

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        """Train on the window, and give the vectors as of its newest step. Raises ValueError for a window of one."""
        from dyformer.baselines.dynaernn.network import node_vectors

        vector_ND = node_vectors(self, graph, seed=seed)
        return lambda node_B: vector_ND[node_B]
