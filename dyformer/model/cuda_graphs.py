"""A function of tensors -> the same function, replayed by a GPU from a recording.

In a small model a CPU takes some 30 microseconds to start a kernel, and the GPU 3 to run it. A CUDA graph holds all
kernels of a function and starts them at once. It reads and writes the same memory each time, so that there is one for
each shape of the inputs.
"""

import os
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dyformer import DyformerError

WARM_UP = 3  # calls before a recording, in which libraries choose their kernels and take their memory
CUDA_GRAPHS = "DYFORMER_CUDA_GRAPHS"
_ONE_AT_A_TIME = threading.Lock()
Function = Callable[..., tuple[Tensor, ...]]


class RecordingFailed(DyformerError, RuntimeError):
    """A GPU's kernels could not be recorded."""


@dataclass(kw_only=True)
class Recordings:
    """The recordings of one function on one GPU, and the stream in which they were made."""

    by_shapes: "dict[Hashable, Recording]" = field(default_factory=dict)
    stream: torch.cuda.Stream | None = None


def are_recorded() -> bool:
    """Whether kernels are recorded: unless DYFORMER_CUDA_GRAPHS is off."""
    return os.environ.get(CUDA_GRAPHS) != "off"


def replayed(
    recordings: Recordings, function: Function, weights: Iterable[Tensor], inputs: Sequence[Tensor], mode: Hashable
) -> tuple[Tensor, ...]:
    """Call a function whose kernels are recorded at the first call with inputs of some shapes, and replayed afterwards.

    It must start the same kernels for all inputs of the same shapes and `mode`, wait for nothing, and read its weights
    where they are: optimizers must change them in place. Random numbers are those of the GPU's generator as it is at
    each call. Results and gradients stand in memory that the next call with inputs of the same shapes overwrites. At a
    first call no result of an earlier one may be alive, nor anything computed from it.

    With DYFORMER_CUDA_GRAPHS=off the function is called, with the same result. Raises RecordingFailed.
    """
    if not are_recorded():
        return function(*inputs)
    with_gradients = torch.is_grad_enabled()
    key = with_gradients, mode, *((tensor.shape, tensor.dtype, tensor.requires_grad) for tensor in inputs)
    with torch.cuda.device(inputs[0].device):
        if key not in recordings.by_shapes:
            recordings.stream = recordings.stream or torch.cuda.Stream()
            learnt = list(weights) if with_gradients else []
            with _ONE_AT_A_TIME:
                recordings.by_shapes[key] = Recording(function, inputs, learnt, recordings.stream)
        recording = recordings.by_shapes[key]
        if not with_gradients:
            return recording.forward(inputs)
        outputs = _Replay.apply(recording, *inputs, *recording.weights)
    assert isinstance(outputs, tuple)
    return outputs


class Recording:
    """CUDA graphs of a function's forward pass and, where weights are given, of its backward pass."""

    def __init__(
        self, function: Function, inputs: Sequence[Tensor], weights: Sequence[Tensor], stream: torch.cuda.Stream
    ) -> None:
        self.weights = [weight for weight in weights if weight.requires_grad]
        self.inputs = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in inputs]
        self.learnt = [*(tensor for tensor in self.inputs if tensor.requires_grad), *self.weights]
        self.gradients: list[Tensor | None] = []
        self.output_gradients: list[Tensor] = []
        self.graph, self.backward_graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with torch.autograd.set_multithreading_enabled(mode=False):
            with _aside(stream):
                for _ in range(WARM_UP):
                    self._warm_up(function)
            with _recorded(self.graph, stream):
                outputs = function(*self.inputs)
            if self.weights:
                self.output_gradients = [torch.zeros_like(output) for output in outputs]
                with _recorded(self.backward_graph, stream, pool=self.graph.pool()):
                    self.gradients = self._gradients(outputs, self.output_gradients)
        self.outputs = tuple(output.detach() for output in outputs)

    def _warm_up(self, function: Function) -> None:
        """Compute once; nothing of it may live in the recording, which would then wait for its stream."""
        outputs = function(*self.inputs)
        if self.weights:
            self._gradients(outputs, [torch.zeros_like(output) for output in outputs])

    def _gradients(self, outputs: Sequence[Tensor], output_gradients: Sequence[Tensor]) -> list[Tensor | None]:
        return list(torch.autograd.grad(outputs, self.learnt, output_gradients, allow_unused=True))

    def forward(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Replay the forward pass; its results are those of the recording."""
        for buffer, tensor in zip(self.inputs, inputs, strict=True):
            buffer.detach().copy_(tensor)
        self.graph.replay()
        return self.outputs

    def backward(self, gradients: Sequence[Tensor]) -> list[Tensor | None]:
        """Replay the backward pass of the last forward pass; give the gradient of each input and weight."""
        for buffer, gradient in zip(self.output_gradients, gradients, strict=True):
            buffer.copy_(gradient)
        self.backward_graph.replay()
        learnt = iter(self.gradients)
        of_inputs = [next(learnt) if tensor.requires_grad else None for tensor in self.inputs]
        return [*of_inputs, *learnt]


class _Replay(torch.autograd.Function):
    """A recording as one operation of autograd."""

    @staticmethod
    def forward(ctx: Any, recording: Recording, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.recording = recording
        return tuple(output.detach() for output in recording.forward(inputs[: len(recording.inputs)]))

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.recording.backward(grad_outputs)
        return None, *(None if gradient is None else gradient.detach() for gradient in gradients)


@contextmanager
def _aside(stream: torch.cuda.Stream) -> Iterator[None]:
    """Compute in the stream of recordings; leave the random numbers as they were."""
    state = torch.cuda.get_rng_state()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.set_rng_state(state)


@contextmanager
def _recorded(graph: torch.cuda.CUDAGraph, stream: torch.cuda.Stream, pool: Any = None) -> Iterator[None]:
    """Record what is called; other threads may copy to pinned memory meanwhile."""
    before = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
            yield
    except RuntimeError as error:
        torch.cuda.set_stream(before)  # which a recording that fails does not do
        raise RecordingFailed(
            f"the kernels of the GPU could not be recorded ({str(error).partition(chr(10))[0]}): set {CUDA_GRAPHS}=off "
            "and start again; the result is the same and takes two or three times as long"
        ) from error
