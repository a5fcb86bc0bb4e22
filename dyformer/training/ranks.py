"""One of several processes that train one model together -> the gradients and losses of all of them.

Each process has the whole model and computes some of the batches. All receive the gradients of every batch, add them
in the order of the batches and take the same step, so that their weights stay equal to the last bit.

W weights    N batches    K batches of this process    L losses of a batch
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import ReduceOp
from torch.utils import deterministic

from dyformer import InvalidInput

Gradients = list[Tensor | None]
"""The gradient of each weight by one batch; of id embeddings it is sparse. None for weights that it does not use."""

MEMORY: Any = deterministic  # the type of this module lacks its attribute
NONE, DENSE = -2, -1  # kinds of a gradient beside the number of its rows
LOOK = timedelta(seconds=1)  # how long a message is awaited before a look whether another process has ended
MOST_LOOKS = 10  # that may find one, because its last message may be on its way


class RanksDiffer(InvalidInput):
    """Processes that are to train one model begin with other weights or epochs."""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One of the processes that train a model, and its device; by default there is no other.

    With others, the process group of torch.distributed has been started. Item `i`, such as a batch, is that of the
    process `i % num_ranks`. `has_ended` gives whether another process has ended.
    """

    index: int = 0
    num_ranks: int = 1
    device: str | torch.device = "cpu"
    has_ended: Callable[[], bool] = lambda: False

    def has(self, item: int) -> bool:
        """Whether an item is that of this process."""
        return item % self.num_ranks == self.index

    def gathered(self, own_KL: Tensor, num_items: int) -> Tensor:
        """Give the rows of all items `[N, ...]` in their order, from those of each process."""
        row_NL = own_KL.new_empty(num_items, *own_KL.shape[1:])
        for source in range(self.num_ranks):
            rows = slice(source, None, self.num_ranks)
            row_NL[rows] = self._sent(own_KL if source == self.index else row_NL[rows].clone(), source)
        return row_NL

    def gradients(self, own: Gradients | None, weights: Sequence[Tensor], item: int) -> Gradients:
        """Give the gradients of a batch; `own` are those of this process, None where another has computed them."""
        if self.num_ranks == 1:
            assert own is not None
            return own
        source = item % self.num_ranks
        kind_W = torch.tensor([NONE] * len(weights) if own is None else list(map(_kind, own)))
        kinds = self._sent(kind_W, source).tolist()
        dense = [weight for weight, kind in zip(weights, kinds, strict=True) if kind == DENSE]
        values = torch.cat([torch.empty_like(weight).flatten() for weight in dense]) if own is None else _flat(own)
        parts = iter(self._sent(values, source).split([weight.numel() for weight in dense]))
        received: Gradients = []
        for index, (weight, kind) in enumerate(zip(weights, kinds, strict=True)):
            if kind == NONE:
                received.append(None)
            elif kind == DENSE:
                received.append(next(parts).view_as(weight))
            else:
                received.append(self._rows(None if own is None else own[index], weight, kind, source))
        return received

    def marked_by_any(self, flags: Tensor) -> None:
        """Set each flag in place that is set in any process."""
        if self.num_ranks > 1:
            self._wait(distributed.all_reduce(flags.view(torch.uint8), ReduceOp.MAX, async_op=True), flags)

    def check_equal(self, state: Sequence[Tensor]) -> None:
        """Raise RanksDiffer where a state is not that of the first process."""
        with one_thread():  # because the order of a sum depends on their number
            sums = torch.stack([tensor.detach().double().sum().nan_to_num() for tensor in state])
        if not torch.equal(sums, self._sent(sums.clone(), 0)):
            raise RanksDiffer(
                f"process {self.index} of {self.num_ranks} does not begin with the weights of the first: expected one "
                "checkpoint for all; end other trainings of this model and give the command again"
            )

    def _rows(self, own: Tensor | None, weight: Tensor, num_rows: int, source: int) -> Tensor:
        if own is None:
            node_U = torch.empty(num_rows, dtype=torch.int64, device=weight.device)
            row_UO = weight.new_empty(num_rows, weight.shape[1])
        else:
            node_U, row_UO = own.indices()[0].contiguous(), own.values().contiguous()
        node_U, row_UO = self._sent(node_U, source), self._sent(row_UO, source)
        return torch.sparse_coo_tensor(node_U[None], row_UO, weight.shape, is_coalesced=True, check_invariants=False)

    def _sent(self, tensor: Tensor, source: int) -> Tensor:
        """Replace a tensor by that of the process `source`, where it has the same shape."""
        if self.num_ranks > 1:
            self._wait(distributed.broadcast(tensor, source, async_op=True), tensor)
        return tensor

    def _wait(self, message: Any, tensor: Tensor) -> None:
        """Wait for a message; raises RuntimeError where it does not come because another process has ended.

        Gloo does not notice before its timeout that a process was killed in the middle of a message, by it or to it.
        """
        if tensor.is_cuda:  # then the device waits, and not this process
            message.wait()
            return
        num_looks = 0
        while not _is_done(message):
            num_looks += self.has_ended()
            if num_looks > MOST_LOOKS:
                raise RuntimeError("another process has ended, and its message does not come")


def _is_done(message: Any) -> bool:
    """Give whether a message has come, at the latest after a while; raises RuntimeError where it cannot come."""
    try:
        return message.wait(LOOK)
    except RuntimeError:  # of the message, or of a wait that was too short
        return message.is_completed() and message.wait()


def mean_gradients(gradients: Sequence[Gradients]) -> Gradients:
    """Give the mean of the gradients of some batches, which are added in their order."""
    return [_mean(of_weight) for of_weight in zip(*gradients, strict=True)]


def _mean(gradients: Sequence[Tensor | None]) -> Tensor | None:
    """Give the mean; a batch that does not use the weight has a gradient of 0."""
    used = [gradient for gradient in gradients if gradient is not None]
    if len(gradients) == 1 or not used:
        return used[0] if used else None
    if used[0].is_sparse:
        node_A, row_AO = torch.cat([one.indices()[0] for one in used]), torch.cat([one.values() for one in used])
        parts = torch.sparse_coo_tensor(node_A[None], row_AO, used[0].shape, check_invariants=False)
        total = parts.coalesce()  # a GPU is waited for here, once a step: how many rows there are follows from values
        total.values().div_(len(gradients))
        return total
    total = used[0].clone()
    for gradient in used[1:]:
        total.add_(gradient)
    return total.div_(len(gradients))


def _kind(gradient: Tensor | None) -> int:
    if gradient is None:
        return NONE
    return len(gradient.values()) if gradient.is_sparse else DENSE


def _flat(own: Gradients) -> Tensor:
    return torch.cat([gradient.flatten() for gradient in own if gradient is not None and not gradient.is_sparse])


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread of torch: sums of matrices differ in their last bit with the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _FixedOrder:
    """The setting of the process while sections need it; the last one to end puts back what the first one found."""

    def __init__(self) -> None:
        self.lock, self.num_sections = threading.Lock(), 0
        self.before = self.warned_before = self.filled_before = False

    def begin(self) -> None:
        """Fix the order of sums."""
        with self.lock:
            if not self.num_sections:
                os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch refuses matrix products without it
                self.before = torch.are_deterministic_algorithms_enabled()
                self.warned_before = torch.is_deterministic_algorithms_warn_only_enabled()
                self.filled_before = MEMORY.fill_uninitialized_memory
                torch.use_deterministic_algorithms(mode=True)
                MEMORY.fill_uninitialized_memory = False  # filling takes time, and all of it is written
            self.num_sections += 1

    def end(self) -> None:
        """Put back what was set before, after the last section."""
        with self.lock:
            self.num_sections -= 1
            if not self.num_sections:
                torch.use_deterministic_algorithms(mode=self.before, warn_only=self.warned_before)
                MEMORY.fill_uninitialized_memory = self.filled_before


_FIXED_ORDER = _FixedOrder()


@contextmanager
def fixed_order(device: torch.device) -> Iterator[None]:
    """Let a GPU add in the same order each time, so that results are equal to the last bit; a CPU does so anyway.

    Otherwise the GPU's threads add in the order in which they come. The setting is that of the whole process, so that
    sections of several threads may overlap.
    """
    if device.type != "cuda":
        yield
        return
    _FIXED_ORDER.begin()
    try:
        yield
    finally:
        _FIXED_ORDER.end()
