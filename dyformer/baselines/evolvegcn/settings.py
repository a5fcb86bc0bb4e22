"""Settings of EvolveGCN."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from dyformer.graphs.config import STRICT

Evolution = Literal["O", "H"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EvolveGCNSettings:
    """What a training of EvolveGCN depends on beside the graph and the seed."""

    evolution: Evolution = "O"
    width: PositiveInt = 128
    num_layers: PositiveInt = 2
    epochs: PositiveInt = 200
    patience: PositiveInt = 20
    learning_rate: PositiveFloat = 1e-3
    num_negatives: PositiveInt = 10  # for each positive pair
    negative_weight: NonNegativeFloat = 1.0
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.1
