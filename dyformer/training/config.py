"""Settings of the two stages of training (paper, section 4), and of a retraining."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from dyformer import InvalidInput
from dyformer.graphs.config import STRICT

Epochs = Annotated[
    int,
    Field(ge=1, description="epochs of `batches_per_epoch` batches each; the weights of the best epoch are taken"),
]
IdLearningRate = Annotated[float, Field(ge=0, description="learning rate of the nodes' id embeddings")]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class StageConfig:
    """What both stages have; the numbers without a default are the stage's own."""

    epochs: Epochs
    patience: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="epochs without a better one after which a stage ends; none: it runs them all"
    )
    batches_per_epoch: int = Field(
        default=10, ge=1, description="batches of an epoch, which is not a pass over the history"
    )
    batches_per_step: int = Field(
        default=1,
        ge=1,
        description="batches of an optimizer step, whose gradients are averaged, and the most processes that train "
        "together; with more than one batch a process computes with one thread",
    )
    validation_batches: int = Field(
        default=16, ge=1, description="batches of held-out links that choose the best epoch"
    )
    optimizer: Literal["by-kind", "plain"] = Field(
        default="by-kind",
        description="Adam with a learning rate for each kind of weight, and decay of matrices alone (by-kind), or with "
        "`learning_rate` and decay of all weights, as in the paper (plain)",
    )
    learning_rate: float = Field(default=1e-3, ge=0, le=1, description="learning rate of Adam")
    id_learning_rate: IdLearningRate
    weight_decay: float = Field(default=5e-4, ge=0, le=1, description="weight decay of the weight matrices")
    clip_norm: float = Field(default=1.0, ge=1e-6, description="norm to which larger gradients are scaled down")
    step_half_life: Annotated[float, Field(ge=1e-3)] | None = Field(
        default=4.0,
        description="steps of age that halve the probability of drawing a step; none: all alike, as in the paper",
    )
    num_positives: int = Field(default=128, ge=1, description="positive pairs of a batch at most")
    num_negatives: int = Field(default=10, ge=1, description="negative pairs for each positive pair")
    num_targets: int = Field(default=256, ge=1, description="target nodes of a batch, at most half of all nodes")
    negative_weight: float = Field(
        default=1.0, ge=0, description="weight of the negative pairs in the loss (w, the negative sampling ratio)"
    )
    validation_fraction: float = Field(default=0.1, ge=0, le=0.9, description="fraction of the links that is held out")
    hard_negatives: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="fraction of the negative pairs whose two nodes are drawn from the ends of positive pairs, so "
        "that popularity cannot distinguish them; the others are pairs of any nodes, as in the paper",
    )

    @model_validator(mode="after")
    def check_steps(self) -> Self:
        """Raise ValueError for an epoch that ends within an optimizer step."""
        batches, step = self.batches_per_epoch, self.batches_per_step
        if batches % step:
            raise InvalidInput(f"batches_per_epoch must be a multiple of batches_per_step; got {batches} and {step}")
        return self


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PretrainConfig(StageConfig):
    """Reconstruction of hidden steps and agreement of two views (paper, section 4.1)."""

    epochs: Epochs = 20
    id_learning_rate: IdLearningRate = 0.02  # above `learning_rate`, because a given node is in few batches
    mask_lag: bool = Field(default=True, description="hide the step that is reconstructed from the encodings")
    view_weight: float = Field(
        default=0.1, ge=0, description="weight of the agreement of two views (gamma); 0: one view"
    )
    view: Literal["plain", "normalised"] = Field(
        default="plain", description="distance of two views: of the vectors, or of unit vectors with a linear predictor"
    )
    reconstructed_views: Literal["both", "first"] = Field(
        default="both", description="views of which the links are reconstructed: both, or the first as in the paper"
    )
    id_weight: float = Field(
        default=1.0, ge=0, description="weight of the reconstruction of history links from id embeddings alone"
    )
    id_penalty: float = Field(default=0.3, ge=0, description="penalty on the squared length of id embeddings")
    num_history_links: int = Field(
        default=2048, ge=1, description="history links of a batch that are reconstructed from id embeddings alone"
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FinetuneConfig(StageConfig):
    """Forecasts of each next step of the history (paper, section 4.2)."""

    epochs: Epochs = 12
    id_learning_rate: IdLearningRate = 1e-3
    ranking_weight: float = Field(
        default=0.8,
        ge=0,
        le=1,
        description="weight of a softmax loss that ranks both ends of a link among the targets of the batch; the link "
        "loss has the rest",
    )


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RetrainConfig:
    """Whether a retraining trains a challenger, and the weights from which it starts (not in the paper)."""

    scratch_every: int = Field(
        default=4,
        ge=1,
        le=1000,
        description="number of retrainings of which one starts from random weights, the others from those of the "
        "champion where it is a DyFormer of the same settings; 1: all from random weights",
    )
    warm_epochs: float = Field(
        default=0.3,
        ge=0.01,
        le=1,
        description="fraction of the epochs of a training that starts from the champion's weights",
    )
    pause_after: int | None = Field(
        default=5,
        ge=1,
        le=1000,
        description="number of successive trainings whose vectors added nothing clear, after which most retrainings "
        "train no model, as long as the champion reads no vectors and the drift raises no alarm; none: all train",
    )
    pause_every: int = Field(
        default=5,
        ge=2,
        le=1000,
        description="number of retrainings of which one trains, where the others train no model",
    )
