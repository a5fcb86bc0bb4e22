"""Settings of the two stages of training (paper, section 4)."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """Reconstruction of hidden steps and agreement of two views (paper, section 4.1)."""

    epochs: int = 20
    patience: int = 20
    batches_per_epoch: int = 10
    validation_batches: int = 16
    learning_rate: float = 1e-3
    id_learning_rate: float = 0.02  # of the nodes' id embeddings, each of which few batches hold
    weight_decay: float = 5e-4
    clip_norm: float = 1.0
    step_half_life: float = 4.0
    num_positives: int = 128
    num_negatives: int = 10
    num_targets: int = 256
    negative_weight: float = 1.0
    validation_fraction: float = 0.1
    mask_lag: bool = True  # hide the step that is reconstructed
    view_weight: float = 0.1  # gamma
    view: Literal["plain", "normalised"] = "plain"
    id_weight: float = 1.0  # of the reconstruction from the nodes' id embeddings alone
    id_penalty: float = 0.1  # of their squared length
    num_history_links: int = 512  # links that one batch reconstructs from them


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """Forecasts of each next step of the history (paper, section 4.2)."""

    epochs: int = 12
    patience: int = 20
    batches_per_epoch: int = 10
    validation_batches: int = 16
    learning_rate: float = 1e-3
    id_learning_rate: float = 1e-3
    weight_decay: float = 5e-4
    clip_norm: float = 1.0
    step_half_life: float = 4.0
    num_positives: int = 128
    num_negatives: int = 10
    num_targets: int = 256
    negative_weight: float = 1.0
    validation_fraction: float = 0.1


StageConfig = PretrainConfig | FinetuneConfig
