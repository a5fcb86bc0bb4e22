"""Settings of the model (paper, section 3)."""

from dataclasses import dataclass
from typing import Literal

Inputs = Literal["id+structure", "id", "structure"]
Precision = Literal["bfloat16", "float32"]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Shape of the model, and of the batches in which it gives vectors."""

    width: int = 128  # d
    num_layers: int = 2  # L
    num_heads: int = 8
    feed_forward_width: int = 128
    residual_dropout: float = 0.1  # with 0.5, held-out links of the history are told worse
    attention_dropout: float = 0.0  # with 0.1, drawing random numbers is half of a batch's time without a GPU
    id_dropout: float = (
        0.3  # share of nodes shown without their id in training, as a new node is; 0.5 hides communities
    )
    inputs: Inputs = "id+structure"
    num_targets: int = 1024  # of one batch of `embed`, which has to look at the whole graph, however many they are
    num_context: int = 256  # K
    gpu_precision: Precision = "bfloat16"  # of the layers' products on a GPU; without one they are of float32

    @property
    def id_width(self) -> int:
        """O, the part of the width that holds what a node is called."""
        return self.width // 4 if "id" in self.inputs else 0

    def __post_init__(self) -> None:
        """Raise ValueError for a shape that cannot be built."""
        if self.num_layers < 1:
            raise ValueError(f"model.num_layers must be at least 1; got {self.num_layers}")
        if self.width % self.num_heads:
            raise ValueError(
                f"model.width must be a multiple of model.num_heads; got {self.width} and {self.num_heads}"
            )
        if self.inputs not in ("id+structure", "id", "structure"):
            raise ValueError(f"model.inputs must be id+structure, id or structure; got {self.inputs!r}")
        if self.gpu_precision not in ("bfloat16", "float32"):
            raise ValueError(f"model.gpu_precision must be bfloat16 or float32; got {self.gpu_precision!r}")
