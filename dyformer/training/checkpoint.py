"""What a stage of training tells its caller after each epoch, and what it needs to go on from there."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Weights = dict[str, Tensor]


def named(tensors: Weights, prefix: str) -> Weights:
    """Pick the tensors whose names begin with `prefix`, and drop it."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A stage after some epoch: all that a resumed run needs to be bit-identical to an uninterrupted one.

    Random numbers are drawn from (seed, stage, epoch, batch), so that the position in `record` restores them all.
    """

    tensors: dict[str, Tensor]  # model/*, best/*, optimizer/*
    record: dict[str, Any]  # JSON values

    def weights(self) -> Weights:
        """Give the weights of the best epoch so far."""
        return named(self.tensors, "best/")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """One epoch done."""

    stage: str
    epoch: int  # from 1
    num_epochs: int  # at most
    losses: dict[str, float]
    seconds: float
    seconds_waiting: float  # of these, for batches
    is_last: bool
    checkpoint: Callable[[], Checkpoint]  # copies the state: call it before the next epoch is asked for
