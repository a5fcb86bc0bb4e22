"""GraphConfig: how the history of a graph is prepared."""

from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
"""What all settings have in common: no unknown name, no value of another type, no infinity."""

OR_LIST = Field(strict=False)
"""Of a tuple, which a JSON record has as a list."""


@dataclass(frozen=True, kw_only=True, config=STRICT)
class GraphConfig:
    """How the history of a graph is prepared."""

    history_window: Annotated[int, Field(ge=1)] | None = Field(
        default=5, description="newest steps that methods read; none: the whole history"
    )
    max_distance: int = Field(
        default=5, ge=1, le=254, description="distance from which on nodes count as equally far (D_max)"
    )
    large_max_distance: int = Field(
        default=3,
        ge=1,
        le=254,
        description="the same where a graph has at least half a million edges, if that is less, because longer "
        "distances take most of the time there",
    )
    teleport: float = Field(
        default=0.15, ge=1e-6, le=1 - 1e-6, description="restart probability of Personalized PageRank"
    )
    push_rounds: int = Field(
        default=4,
        ge=1,
        le=64,
        description="rounds in which PageRank's mass is pushed from the targets of a batch, where a graph has at least "
        "half a million edges",
    )
    push_threshold: float = Field(
        default=2e-6, ge=0, le=1, description="least mass for each neighbour that a node pushes in such a round"
    )
    noise: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="fraction of the edges of each step that methods read changed: half of the changes leave out an "
        "edge, the others add a pair; steps that are evaluated stay as they are",
    )
    noise_seed: int = Field(default=0, ge=0, description="seed of the edges that `noise` changes")
