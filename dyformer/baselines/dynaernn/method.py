"""DynAERNN: snapshots -> vectors that forecast a node's adjacency row (dyngraph2vec; Goyal et al., 2020)."""

from typing import Annotated

from pydantic import PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from dyformer.graphs.config import OR_LIST, STRICT
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.scoring.interfaces import Embed, rows_of


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DynAERNN:
    """A dense encoder of each of a node's last rows, an LSTM over them, and a decoder of its next row.

    A vector is the last state of the LSTM over the newest rows. Nodes without an edge in these have the same one.
    """

    hidden: Annotated[tuple[PositiveInt, PositiveInt], OR_LIST] = (500, 300)
    width: PositiveInt = 128
    look_back: PositiveInt = 2
    edge_factor: PositiveFloat = 5.0  # beta, of {0.1, 1, 2, 5}
    epochs: PositiveInt = 20
    batch_rows: PositiveInt = 200
    num_empty: PositiveInt = 2048  # sampled columns without an edge in a batch
    learning_rate: PositiveFloat = 1e-3

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        """Train on the window, and give the vectors as of its newest step. Raises ValueError for a window of one."""
        from dyformer.baselines.dynaernn.network import node_vectors

        return rows_of(node_vectors(self, graph, seed=seed))
