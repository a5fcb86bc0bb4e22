"""Losses -> steps of Adam, with a learning rate for each kind of weight and its state as tensors.

N nodes    D width
"""

import torch
from torch import Tensor, nn

from dyformer.training.config import StageConfig
from dyformer.training.ranks import Gradients

OFFSET_RATE = 10.0  # times the learning rate, for the offsets of scores, because these move far

State = dict[str, Tensor]


class Optimizer:
    """Steps of Adam for every weight; of the id embeddings `[N, D]` only the rows of the batch change (SparseAdam).

    The time of a step therefore does not grow with the number of nodes. Measured on one core, 10,000 rows a batch and
    a million nodes: a step takes 49 ms, and 235 ms by torch's Adam with `clip_grad_norm_` (10,000 nodes: 21 and 7 ms).
    Weight decay applies to matrices of linear layers only. With the setting `optimizer` "plain" it is torch's Adam
    with one learning rate and the decay of every weight, rows of other nodes included.
    """

    def __init__(self, model: nn.Module, config: StageConfig) -> None:
        self.weights, self.clip_norm = list(model.parameters()), config.clip_norm
        self.parts = _plain(self.weights, config) if config.optimizer == "plain" else self._by_kind(model, config)

    def _by_kind(self, model: nn.Module, config: StageConfig) -> dict[str, torch.optim.Optimizer]:
        groups: dict[str, list[nn.Parameter]] = {"decayed": [], "plain": [], "id": [], "offset": []}
        for name, weight in model.named_parameters():
            groups[_kind(name, weight)].append(weight)
        rate = config.learning_rate
        dense = [
            {"params": groups["decayed"], "weight_decay": config.weight_decay},
            {"params": groups["plain"]},
            {"params": groups["offset"], "lr": OFFSET_RATE * rate},
        ]
        parts: dict[str, torch.optim.Optimizer] = {"adam": torch.optim.Adam(dense, lr=rate, fused=True)}
        if groups["id"]:
            parts["rows"] = torch.optim.SparseAdam([{"params": groups["id"], "lr": config.id_learning_rate}])
        return parts

    def gradients(self, loss: Tensor) -> Gradients:
        """Give the gradient of a loss by each weight; those of id embeddings are sparse, with each row once."""
        for weight in self.weights:
            weight.grad = None
        loss.backward()
        return [self._of_rows(weight.grad) for weight in self.weights]

    def step(self, gradients: Gradients) -> None:
        """Step against gradients, scaled down to the norm `clip_norm` if theirs is larger."""
        values = [of.values() if of.is_sparse else of for of in gradients if of is not None]
        scale = (self.clip_norm / (nn.utils.get_total_norm(values) + 1e-6)).clamp(max=1.0)
        # One call for all, because starting work on a GPU takes longer here than the work.
        torch._foreach_mul_(values, scale)  # pyright: ignore[reportPrivateImportUsage]
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.grad = gradient
        for part in self.parts.values():
            part.step()

    def _of_rows(self, gradient: Tensor | None) -> Tensor | None:
        if gradient is None or not gradient.is_sparse:
            return gradient
        return gradient.coalesce() if "rows" in self.parts else gradient.to_dense()

    def state(self) -> State:
        """Copy the state."""
        return {
            f"{name}/{weight}/{key}": torch.as_tensor(value).cpu().clone()
            for name, part in self.parts.items()
            for weight, values in part.state_dict()["state"].items()
            for key, value in values.items()
        }

    def restore(self, state: State) -> None:
        """Load a state of the same weights."""
        for name, part in self.parts.items():
            loaded: dict[int, dict[str, Tensor | int]] = {}
            for address, value in state.items():
                owner, weight, key = address.split("/")
                if owner == name:
                    loaded.setdefault(int(weight), {})[key] = _restored(name, key, value)
            part.load_state_dict({**part.state_dict(), "state": loaded})


def _plain(weights: list[nn.Parameter], config: StageConfig) -> dict[str, torch.optim.Optimizer]:
    adam = torch.optim.Adam(weights, lr=config.learning_rate, weight_decay=config.weight_decay, fused=True)
    return {"adam": adam}


def _restored(part: str, key: str, value: Tensor) -> Tensor | int:
    # SparseAdam counts its steps in an int, because powers with a float32 exponent would be rounded.
    return int(value) if (part, key) == ("rows", "step") else value.clone()


def _kind(name: str, weight: nn.Parameter) -> str:
    if name.endswith("id_NO"):
        return "id"
    if "offset" in name:
        return "offset"
    return "decayed" if weight.ndim == 2 and name.endswith(".weight") else "plain"
