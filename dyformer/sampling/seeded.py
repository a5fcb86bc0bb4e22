"""Torch's global generator, seeded for one section of the code, in one thread at a time."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

_ONE_THREAD = threading.RLock()


@contextmanager
def seeded(seed: int, devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Seed the global generator within the section, and restore its state after it.

    Dropout and the first weights of torch's layers are drawn from that generator alone, which all threads share.
    Another thread waits, so that its numbers are those that it would draw alone.

    Args:
        seed: seed of the section.
        devices: GPUs whose generators are restored too.
    """
    with _ONE_THREAD, torch.random.fork_rng(devices=list(devices)):
        if devices:
            torch.manual_seed(seed)
        else:  # the CPU's alone: `manual_seed` writes down its stack for each GPU library that is not there
            torch.default_generator.manual_seed(seed)
        yield
