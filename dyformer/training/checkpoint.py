"""Epochs -> reports of progress, and checkpoints from which training resumes."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dyformer import InvalidInput

if TYPE_CHECKING:
    from torch import Tensor

Weights = dict[str, "Tensor"]


def named(tensors: Weights, prefix: str) -> Weights:
    """Pick the tensors whose names begin with `prefix`, and drop the prefix."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


class WeightsDoNotFit(InvalidInput):
    """Weights of other names, shapes or types than those of the model that is to load them."""


def check_fit(weights: Weights, expected: Weights, *, of_any_length: Collection[str] = ()) -> None:
    """Raise WeightsDoNotFit for other names, shapes or types than expected, such as those of another version.

    Tensors named in `of_any_length` may have another number of rows.
    """
    shapes, stored_shapes = (
        {name: (tuple(tensor.shape)[name in of_any_length :], str(tensor.dtype)) for name, tensor in one.items()}
        for one in (expected, weights)
    )
    wrong = [
        f"{name}: expected {shapes.get(name)}, found {stored_shapes.get(name)}"
        for name in sorted(shapes.keys() | stored_shapes.keys())
        if shapes.get(name) != stored_shapes.get(name)
    ]
    if wrong:
        raise WeightsDoNotFit(f"the weights do not fit the model ({'; '.join(wrong)}): train again")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """State of a stage after an epoch; a run resumed from it is bit-identical to an uninterrupted one.

    Random numbers are drawn from (seed, stage, epoch, batch), so that the epoch in `record` restores them all.
    """

    tensors: Weights  # model/*, best/*, optimizer/*
    record: dict[str, Any]  # JSON values

    def weights(self) -> Weights:
        """Give the weights of the best epoch so far."""
        return named(self.tensors, "best/")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The report of one epoch."""

    stage: str
    epoch: int  # from 1
    losses: dict[str, float]
    seconds: float
    seconds_waiting: float  # the part of `seconds` in which no batch was ready
    is_last: bool
    checkpoint: Callable[[], Checkpoint]  # copies the state: call it before the next epoch starts
