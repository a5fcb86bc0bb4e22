"""Settings of DynAERNN."""

from typing import Annotated

from pydantic import PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from dyformer.graphs.config import OR_LIST, STRICT


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DynAERNNSettings:
    """What a training of DynAERNN depends on beside the graph and the seed."""

    hidden: Annotated[tuple[PositiveInt, PositiveInt], OR_LIST] = (500, 300)
    width: PositiveInt = 128
    look_back: PositiveInt = 2
    edge_factor: PositiveFloat = 5.0  # beta, of {0.1, 1, 2, 5}
    epochs: PositiveInt = 20
    batch_rows: PositiveInt = 200
    num_empty: PositiveInt = 2048  # sampled columns without an edge in a batch
    learning_rate: PositiveFloat = 1e-3
