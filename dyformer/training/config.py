"""Settings of the two stages of training (paper, section 4), and of a retraining."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from dyformer import InvalidInput
from dyformer.graphs.config import STRICT

# The meanings and limits that both stages share.
Epochs = Annotated[
    int,
    Field(ge=1, description="epochs of `batches_per_epoch` batches each; the weights of the best epoch are taken"),
]
BatchesPerEpoch = Annotated[int, Field(ge=1, description="batches of an epoch, which is not a pass over the history")]
BatchesPerStep = Annotated[
    int,
    Field(
        ge=1,
        description="batches of an optimizer step, whose gradients are averaged, and the most processes that train "
        "together; with more than one batch a process computes with one thread",
    ),
]
ValidationBatches = Annotated[int, Field(ge=1, description="batches of held-out links that choose the best epoch")]
LearningRate = Annotated[float, Field(ge=0, le=1, description="learning rate of Adam")]
IdLearningRate = Annotated[float, Field(ge=0, description="learning rate of the nodes' id embeddings")]
WeightDecay = Annotated[float, Field(ge=0, le=1, description="weight decay of the weight matrices")]
ClipNorm = Annotated[float, Field(ge=1e-6, description="norm to which larger gradients are scaled down")]
StepHalfLife = Annotated[float, Field(ge=1e-3)] | None
STEP_HALF_LIFE = Field(
    default=4.0,
    description="steps of age that halve the probability of drawing a step; none: all alike, as in the paper",
)
Patience = Annotated[int, Field(ge=1)] | None
PATIENCE = Field(
    default=None, description="epochs without a better one after which a stage ends; none: it runs them all"
)
OptimizerKind = Annotated[
    Literal["by-kind", "plain"],
    Field(
        description="Adam with a learning rate for each kind of weight, and decay of matrices alone (by-kind), or with "
        "`learning_rate` and decay of all weights, as in the paper (plain)"
    ),
]
NumPositives = Annotated[int, Field(ge=1, description="positive pairs of a batch at most")]
NumNegatives = Annotated[int, Field(ge=1, description="negative pairs for each positive pair")]
NumTargets = Annotated[int, Field(ge=1, description="target nodes of a batch, at most half of all nodes")]
NegativeWeight = Annotated[
    float, Field(ge=0, description="weight of the negative pairs in the loss (w, the negative sampling ratio)")
]
HardNegatives = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="fraction of the negative pairs whose two nodes are drawn from the ends of positive pairs, so "
        "that popularity cannot distinguish them; the others are pairs of any nodes, as in the paper",
    ),
]
ValidationFraction = Annotated[float, Field(ge=0, le=0.9, description="fraction of the links that is held out")]


def check_whole_steps(config: Any) -> Any:
    """Raise ValueError for an epoch that ends within an optimizer step."""
    batches, step = config.batches_per_epoch, config.batches_per_step
    if batches % step:
        raise InvalidInput(f"batches_per_epoch must be a multiple of batches_per_step; got {batches} and {step}")
    return config


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PretrainConfig:
    """Reconstruction of hidden steps and agreement of two views (paper, section 4.1)."""

    epochs: Epochs = 20
    patience: Patience = PATIENCE
    batches_per_epoch: BatchesPerEpoch = 10
    batches_per_step: BatchesPerStep = 1
    validation_batches: ValidationBatches = 16
    optimizer: OptimizerKind = "by-kind"
    learning_rate: LearningRate = 1e-3
    id_learning_rate: IdLearningRate = 0.02  # above `learning_rate`, because a given node is in few batches
    weight_decay: WeightDecay = 5e-4
    clip_norm: ClipNorm = 1.0
    step_half_life: StepHalfLife = STEP_HALF_LIFE
    num_positives: NumPositives = 128
    num_negatives: NumNegatives = 10
    num_targets: NumTargets = 256
    negative_weight: NegativeWeight = 1.0
    validation_fraction: ValidationFraction = 0.1
    hard_negatives: HardNegatives = 0.5
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

    check_steps = model_validator(mode="after")(check_whole_steps)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class FinetuneConfig:
    """Forecasts of each next step of the history (paper, section 4.2)."""

    epochs: Epochs = 12
    patience: Patience = PATIENCE
    batches_per_epoch: BatchesPerEpoch = 10
    batches_per_step: BatchesPerStep = 1
    validation_batches: ValidationBatches = 16
    optimizer: OptimizerKind = "by-kind"
    learning_rate: LearningRate = 1e-3
    id_learning_rate: IdLearningRate = 1e-3
    weight_decay: WeightDecay = 5e-4
    clip_norm: ClipNorm = 1.0
    step_half_life: StepHalfLife = STEP_HALF_LIFE
    num_positives: NumPositives = 128
    num_negatives: NumNegatives = 10
    num_targets: NumTargets = 256
    negative_weight: NegativeWeight = 1.0
    validation_fraction: ValidationFraction = 0.1
    hard_negatives: HardNegatives = 0.5
    ranking_weight: float = Field(
        default=0.8,
        ge=0,
        le=1,
        description="weight of a softmax loss that ranks both ends of a link among the targets of the batch; the link "
        "loss has the rest",
    )

    check_steps = model_validator(mode="after")(check_whole_steps)


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


StageConfig = PretrainConfig | FinetuneConfig
