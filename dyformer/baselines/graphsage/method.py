"""GraphSAGE: union graph of the window -> vectors made of sampled neighbours' inputs (Hamilton et al., 2017)."""

from typing import Annotated, Literal

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from dyformer.graphs.config import OR_LIST, STRICT
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.scoring.interfaces import Embed, rows_of

Aggregator = Literal["gcn", "mean", "max-pool", "lstm"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GraphSAGE:
    """Two layers that aggregate sampled neighbours, trained without labels so that nodes of one walk are near.

    Inputs are id embeddings, because the logs have no features. Vectors have length 1.
    """

    aggregator: Aggregator = "gcn"
    width: PositiveInt = 128
    # Sampled neighbours in layer 1 and in layer 2, the one that gives the vectors.
    fan_out: Annotated[tuple[PositiveInt, PositiveInt], OR_LIST] = (25, 10)
    num_walks: PositiveInt = 50  # from each node
    walk_length: PositiveInt = 5
    batches: NonNegativeInt = 1000  # at most
    epochs: PositiveInt = 1  # passes over the pairs of all walks
    batch_pairs: PositiveInt = 512
    num_negatives: PositiveInt = 20  # that all pairs of a batch share, as in the authors' code
    learning_rate: PositiveFloat = 1e-5  # as in the authors' code: many steps let vectors forget a node's popularity

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        """Train on the union graph, and give the vectors of all nodes."""
        from dyformer.baselines.graphsage.network import node_vectors

        return rows_of(node_vectors(self, graph, seed=seed))
