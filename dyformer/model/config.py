"""Settings of the model (paper, section 3)."""

import dataclasses
from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from dyformer import InvalidInput
from dyformer.graphs.config import STRICT

Inputs = Literal["id+structure", "id", "structure"]
Output = Literal["norm+id", "plain"]
PairScore = Literal["weighted", "plain"]
InitialWeights = Literal["scaled", "plain"]
Precision = Literal["bfloat16", "float32"]
Encodings = Literal["both", "connections", "distances", "neither"]
Towers = Literal["two", "one"]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ModelConfig:
    """Shape of the model, and of the batches in which it computes vectors."""

    width: int = Field(default=128, ge=1, description="length of a node's vector (d)")
    num_layers: int = Field(default=2, ge=1, description="layers of the transformer (L)")
    num_heads: int = Field(default=8, ge=1, description="attention heads of a layer; `width` is a multiple of it")
    feed_forward_width: int = Field(default=128, ge=1, description="hidden width of a layer's feed-forward network")
    # With 0.5, the paper's value, held-out links of the history are predicted worse.
    residual_dropout: float = Field(
        default=0.1, ge=0, le=0.99, description="fraction of each update of a layer that training drops"
    )
    # With 0.1, the paper's value, drawing random numbers takes half of a batch's time without a GPU.
    attention_dropout: float = Field(
        default=0.0, ge=0, le=0.99, description="fraction of the attention weights that training drops"
    )
    # With 0.5 the id embeddings no longer learn communities.
    id_dropout: float = Field(
        default=0.3,
        ge=0,
        le=1,
        description="fraction of nodes whose id embedding training sets to zero, as for a new node",
    )
    inputs: Inputs = Field(
        default="id+structure", description="inputs of a node: id embedding, structural features, or both"
    )
    id_fraction: float = Field(
        default=0.25,
        ge=0,
        le=1,
        description="fraction of the width that holds a node's id embedding, if `inputs` has it",
    )
    output: Output = Field(
        default="norm+id",
        description="a node's vector: the last layer's output normalised, with the id embedding instead of its last "
        "columns (norm+id), or that output as it is, as in the paper (plain)",
    )
    pair_score: PairScore = Field(
        default="weighted",
        description="score of a pair in training: inner product with weights or signs and an offset (weighted), or "
        "the inner product alone, as in the paper (plain)",
    )
    # The paper names no initial weights.
    initial_weights: InitialWeights = Field(
        default="scaled",
        description="weights before training: with larger messages and a preference for near nodes (scaled), or "
        "torch's defaults (plain)",
    )
    num_targets: int = Field(default=1024, ge=1, description="target nodes of a batch, where vectors are computed")
    num_context: Annotated[int, Field(ge=1)] | None = Field(
        default=256,
        description="context nodes of a batch at most (K); none: as many as it has targets, as in the paper",
    )
    encodings: Encodings = Field(
        default="both",
        description="what the attention bias knows of two nodes: the steps that connect them (connections), their "
        "distance (distances), both or neither",
    )
    towers: Towers = Field(
        default="two",
        description="attention between targets and context (two), or among all of both (one: the paper's appendix)",
    )
    max_hops: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="distance beyond which nodes do not attend to each other, less than graph.max_distance and only "
        "with towers=one; none: full attention",
    )
    gpu_precision: Precision = Field(
        default="bfloat16", description="precision of a layer's products on a GPU; without a GPU it is float32"
    )

    @property
    def id_width(self) -> int:
        """O, the part of the width that holds a node's id embedding."""
        return int(self.width * self.id_fraction) if "id" in self.inputs else 0

    @model_validator(mode="after")
    def check_id_width(self) -> "ModelConfig":
        """Raise ValueError for id embeddings of the whole width that leave none to other parts of a vector."""
        if self.id_width == self.width and (self.inputs, self.output) != ("id", "plain"):
            raise InvalidInput(
                f"model.id_fraction={self.id_fraction} leaves no width for structural features or the layers' output: "
                f"set model.inputs=id and model.output=plain, or a smaller fraction"
            )
        return self

    @model_validator(mode="after")
    def check_hops(self) -> "ModelConfig":
        """Raise ValueError for a limited distance where targets and context are two towers."""
        # A node always attends to itself, which a target cannot do where it attends to its context alone.
        if self.max_hops is not None and self.towers != "one":
            raise InvalidInput(f"model.max_hops={self.max_hops} needs one tower: set model.towers=one")
        return self

    @model_validator(mode="after")
    def check_heads(self) -> "ModelConfig":
        """Raise ValueError for a width that the heads cannot divide."""
        if self.width % self.num_heads:
            raise InvalidInput(
                f"model.width must be a multiple of model.num_heads; got {self.width} and {self.num_heads}"
            )
        return self


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """The sizes of the model that follow from the graph."""

    num_nodes: int
    num_features: int
    num_lags: int
    max_distance: int  # D_max
