"""PUBLISHED: the settings of the paper's own model (Cong et al., SDM 2023), every one but the length of its training.

Of the paper's ranges these are the values taken: 8 heads, 2 layers, width 128, negatives weighted like positives.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

# Adam of PyTorch 1.4, with which the paper was computed. Both losses are sums in which every step counts alike.
_TRAINING: Mapping[str, Any] = {
    "optimizer": "plain",
    "learning_rate": 1e-3,
    "id_learning_rate": 1e-3,
    "weight_decay": 5e-4,
    "clip_norm": 1.0,
    "batches_per_step": 1,
    "step_half_life": None,
    "num_negatives": 10,
    "negative_weight": 1.0,
    "hard_negatives": 0.0,
    "validation_fraction": 0.1,
}

PUBLISHED: Mapping[str, Any] = MappingProxyType(
    {
        # Section 3.4: H^(0) is a linear map of one-hot vectors, and a vector is the output of the last layer.
        "model.inputs": "id",
        "model.id_fraction": 1.0,
        "model.id_dropout": 0.0,
        "model.output": "plain",
        "model.initial_weights": "plain",
        "model.width": 128,
        "model.num_layers": 2,
        "model.num_heads": 8,
        "model.feed_forward_width": 128,
        "model.residual_dropout": 0.5,
        "model.attention_dropout": 0.1,
        "model.gpu_precision": "float32",
        "model.encodings": "both",
        "model.towers": "two",
        "model.max_hops": None,
        # Section 3.2: as many context nodes as targets.
        "model.num_context": None,
        "model.num_targets": 1024,
        # Section 4.1: scores are inner products; L_recon of the first view + 1 x L_view, and no other loss.
        "model.pair_score": "plain",
        "pretrain.mask_lag": True,
        "pretrain.reconstructed_views": "first",
        "pretrain.view": "plain",
        "pretrain.view_weight": 1.0,
        "pretrain.id_weight": 0.0,
        "pretrain.id_penalty": 0.0,
        "pretrain.num_history_links": 1,
        "pretrain.num_positives": 128,
        "pretrain.num_targets": 256,
        # Section 4.2: 256 positive pairs, whose ends are up to 512 targets, and 2,560 negative pairs among 512 others.
        "finetune.num_positives": 256,
        "finetune.num_targets": 1024,
        "finetune.ranking_weight": 0.0,
        **{f"{stage}.{name}": value for stage in ("pretrain", "finetune") for name, value in _TRAINING.items()},
        # Section 5.1: every step's model is trained from scratch.
        "warm_start": None,
        # Section 5.1: a logistic regression on the products of two vectors.
    }
)
