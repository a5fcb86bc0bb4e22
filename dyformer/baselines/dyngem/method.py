"""DynGEM: snapshots -> vectors of an auto-encoder of adjacency rows, warm-started each step (Goyal et al., 2018)."""

from typing import Annotated

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from dyformer.graphs.config import OR_LIST, STRICT
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.scoring.interfaces import Embed, rows_of


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DynGEM:
    """The auto-encoder of SDNE, trained on each snapshot of the window from the weights of the one before.

    All snapshots have the nodes known at the newest one, so the network need not grow. A vector is the code of a
    node's newest row; nodes without an edge there have the same one.
    """

    hidden: Annotated[tuple[PositiveInt, PositiveInt], OR_LIST] = (500, 300)
    width: PositiveInt = 128
    first_order: NonNegativeFloat = 1e-5  # alpha, of {1e-6, 1e-5}
    edge_factor: PositiveFloat = 5.0  # beta, of {0.1, 1, 2, 5}
    l1: NonNegativeFloat = 1e-6  # nu_1, of {1e-6, 1e-4}
    l2: NonNegativeFloat = 1e-6  # nu_2, of {1e-6, 1e-4}
    first_epochs: PositiveInt = 20  # on the window's first snapshot
    epochs: PositiveInt = 10  # on each other one
    batch_edges: PositiveInt = 500
    num_empty: PositiveInt = 2048  # sampled columns without an edge in a batch
    learning_rate: PositiveFloat = 1e-3

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        """Train on the snapshots of the window in turn, and encode the rows of the newest one."""
        from dyformer.baselines.dyngem.network import node_vectors

        return rows_of(node_vectors(self, graph, seed=seed))
