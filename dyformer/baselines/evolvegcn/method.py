"""EvolveGCN: snapshots -> vectors of a graph convolution with weights that a GRU evolves (Pareja et al., 2020)."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from dyformer.graphs.config import STRICT
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.scoring.interfaces import Embed, rows_of

Evolution = Literal["O", "H"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EvolveGCN:
    """Graph convolutions with weights of their own for each step, made from those of the step before by a GRU.

    "O": the weights alone are input and state of the GRU. "H": its input is a summary of the nodes' vectors. Training
    forecasts each step of the history from the window before it, as DyFormer's fine-tuning does. Some links are
    held out and choose the epoch.
    """

    evolution: Evolution = "O"
    width: PositiveInt = 128
    num_layers: PositiveInt = 2
    epochs: PositiveInt = 200
    patience: PositiveInt = 20
    learning_rate: PositiveFloat = 1e-3
    num_negatives: PositiveInt = 10  # for each positive pair
    negative_weight: NonNegativeFloat = 1.0
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.1

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        """Train, and give the vectors as of `graph.until`. Raises ValueError for a history of one step."""
        from dyformer.baselines.evolvegcn.network import node_vectors

        return rows_of(node_vectors(self, graph, seed=seed))
