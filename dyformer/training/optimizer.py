"""Adam with a rate for each kind of weight, and its state as tensors.

N nodes    D width
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from dyformer.training.config import StageConfig

OFFSET_RATE = 10.0  # of the offsets of scores, which have far to go

State = dict[str, Tensor]


class Optimizer:
    """Takes a step for each loss: every weight by Adam, of the id embeddings `[N, D]` only the rows in the batch.

    The rest of that table has no gradient; its momentum waits until its turn comes (torch's SparseAdam), so that a step
    takes the same time whatever the number of nodes. Weight decay leaves alone what it would only shrink: biases,
    norms, tables.
    """

    def __init__(self, model: nn.Module, config: StageConfig) -> None:
        self.weights, self.clip_norm = list(model.parameters()), config.clip_norm
        groups: dict[str, list[nn.Parameter]] = {"decayed": [], "plain": [], "own": [], "offset": []}
        for name, weight in model.named_parameters():
            groups[_kind(name, weight)].append(weight)
        rate = config.learning_rate
        dense = [
            {"params": groups["decayed"], "weight_decay": config.weight_decay},
            {"params": groups["plain"]},
            {"params": groups["offset"], "lr": OFFSET_RATE * rate},
        ]
        self.parts: dict[str, torch.optim.Optimizer] = {"adam": torch.optim.Adam(dense, lr=rate, fused=True)}
        if groups["own"]:
            self.parts["rows"] = torch.optim.SparseAdam([{"params": groups["own"], "lr": config.id_learning_rate}])

    def step(self, loss: Tensor) -> None:
        """Step against the gradient of a loss, which is cut to the norm `clip_norm`."""
        for part in self.parts.values():
            part.zero_grad()
        loss.backward()
        gradients = list(self._gradients())
        scale = (self.clip_norm / (nn.utils.get_total_norm(gradients) + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(scale)
        for part in self.parts.values():
            part.step()

    def _gradients(self) -> Iterator[Tensor]:
        """Gradients of all weights, of tables those of the rows that have one."""
        for weight in self.weights:
            if weight.grad is not None and weight.grad.is_sparse:
                weight.grad = weight.grad.coalesce()
                yield weight.grad.values()
            elif weight.grad is not None:
                yield weight.grad

    def state(self) -> State:
        """Copy the state."""
        return {
            f"{name}/{weight}/{key}": torch.as_tensor(value).cpu().clone()
            for name, part in self.parts.items()
            for weight, kept in part.state_dict()["state"].items()
            for key, value in kept.items()
        }

    def restore(self, state: State) -> None:
        """Take up a state of the same weights."""
        for name, part in self.parts.items():
            kept: dict[int, dict[str, Tensor | int]] = {}
            for address, value in state.items():
                owner, weight, key = address.split("/")
                if owner == name:
                    kept.setdefault(int(weight), {})[key] = _restored(name, key, value)
            part.load_state_dict({**part.state_dict(), "state": kept})


def _restored(part: str, key: str, value: Tensor) -> Tensor | int:
    # SparseAdam counts its steps in an int: powers of a tensor would be rounded otherwise.
    return int(value) if (part, key) == ("rows", "step") else value.clone()


def _kind(name: str, weight: nn.Parameter) -> str:
    if name.endswith("id_NO"):
        return "own"
    if "offset" in name:
        return "offset"
    return "decayed" if weight.ndim == 2 and name.endswith(".weight") else "plain"
