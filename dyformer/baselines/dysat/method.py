"""DySAT: snapshots -> vectors by attention to the neighbours of a step, then to older steps (Sankar et al., 2020)."""

from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from dyformer.graphs.config import STRICT
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.scoring.interfaces import Embed, rows_of


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DySAT:
    """Structural attention in each snapshot, with shared weights, and causal attention over the steps.

    At every step of the window, a node's vector forecasts the nodes near it on random walks of that snapshot. The
    vectors are those of the newest step.
    """

    width: PositiveInt = 128
    structural_heads: PositiveInt = 16
    temporal_heads: PositiveInt = 16
    num_walks: PositiveInt = 10  # from each node of a snapshot
    walk_length: PositiveInt = 40
    walk_window: PositiveInt = 10
    batches: PositiveInt = 400
    epochs: PositiveInt | None = None  # passes over the nodes; none: as many as the batches give
    batch_nodes: PositiveInt = 512
    num_positives: PositiveInt = 10  # for each node of a batch and each step
    num_negatives: PositiveInt = 10  # for each step of a batch, whose pairs share them as in the authors' code
    negative_weight: NonNegativeFloat = 0.1  # w, of {0.01, 0.1, 1}: the best on step 2 of uci, which no table has
    learning_rate: PositiveFloat = 1e-3
    weight_decay: NonNegativeFloat = 5e-4
    structural_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    temporal_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5

    def fit(self, graph: PreparedGraph, *, seed: int) -> Embed:
        """Train on the window, and give the vectors as of its newest step."""
        from dyformer.baselines.dysat.network import node_vectors

        return rows_of(node_vectors(self, graph, seed=seed))
