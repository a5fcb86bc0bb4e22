"""Settings of DynGEM."""

from typing import Annotated

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from dyformer.graphs.config import OR_LIST, STRICT


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DynGEMSettings:
    """What a training of DynGEM depends on beside the graph and the seed."""

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
