"""A training -> the process group of all that share it: this process and others on this machine, one on each GPU.

The others compute and store nothing. They end when this process does, however it ends, because their standard input
does, and they remove the folder in which all met.
"""

import json
import os
import re
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import IO, Any

import torch
from torch import distributed
from torch.distributed.distributed_c10d import _set_pg_timeout, _world  # private, as torch documents no other way

from dyformer import InvalidInput
from dyformer.logs.counts import counted
from dyformer.training.ranks import Rank
from flows.console import QUIET
from flows.tasks.models import device

RANKS = "DYFORMER_RANKS"  # number of processes that share a training
FOLLOWER = "flows.tasks.follow"  # module that the others run
GLOO_INTERFACE, NCCL_INTERFACE = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"  # of the network, through which they send
READY = "ready\n"
SECONDS_TO_START = 900.0  # until each is ready; on a busy machine torch alone takes minutes to be imported
SECONDS_TO_MEET = 120.0  # after each is ready; a process that ends before has no connection yet whose end is noticed
SECONDS_TO_WAIT = 1800.0  # for a message of another process, such as during the saving of a large checkpoint
SECONDS_TO_END = 10.0
TIMED_OUT = re.compile("timed? ?out", re.IGNORECASE)  # in the errors of torch, which have no class of their own
SECONDS_TO_FOLLOW = 1.0


class RankLost(InvalidInput):
    """One of the processes that share a training has ended."""


class RankLate(InvalidInput):
    """One of the processes that share a training runs, and the first has waited for it for too long."""


def num_ranks() -> int:
    """Give the number of processes that share a training: DYFORMER_RANKS, or 1. Raises ValueError."""
    text = os.environ.get(RANKS) or "1"
    if not text.isdecimal() or int(text) < 1:
        raise InvalidInput(f"{RANKS}={text}: expected a number of processes, 1 or more")
    num, num_gpus = int(text), torch.cuda.device_count()
    if num > 1 and num_gpus and num > num_gpus:
        raise InvalidInput(
            f"{num} processes cannot train on {counted(num_gpus, 'GPU')}: set --ranks to {num_gpus} at most"
        )
    return num


@contextmanager
def shared_training(order: Mapping[str, Any], num: int) -> Iterator[Rank]:
    """Start the other processes of a training, and give the rank of this one.

    Args:
        order: plain values for the function `follow`.
        num: processes, with this one.

    Raises:
        RankLost: another process has ended, before its work was done.
        RankLate: another process runs, and neither starts, nor comes to the meeting, nor sends a message in time.
    """
    if num == 1:
        yield Rank(device=device())
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dyformer-ranks-")))
        others = [stack.enter_context(_follower(order, index, num, folder)) for index in range(1, num)]
        _await_ready(others, folder, num)
        has_met = False
        try:
            with joined(0, num, folder) as rank:
                has_met = True
                yield replace(rank, has_ended=lambda: bool(_codes(others)))
        except RuntimeError as error:  # of gloo or NCCL, where another process did not come or has ended
            if (problem := _missed(error, others, folder, num, has_met=has_met)) is None:
                raise
            raise problem from error


def _await_ready(others: "Sequence[subprocess.Popen[str]]", folder: Path, num: int) -> None:
    """Wait until the others have imported what they need; raises RankLost and RankLate."""
    until = time.monotonic() + SECONDS_TO_START
    for index, other in enumerate(others, start=1):
        assert other.stdout is not None
        if not select.select([other.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
            raise _too_late(num, SECONDS_TO_START, f"process {index + 1}, which runs and has not started its work")
        if other.stdout.readline() != READY:
            raise _lost(others, folder, num) or RankLost(f"process {index + 1} of a training did not start")


def _missed(
    error: RuntimeError, others: "Sequence[subprocess.Popen[str]]", folder: Path, num: int, *, has_met: bool
) -> RankLost | RankLate | None:
    """Name the processes that did not come, have ended or sent nothing; None where the error is another one."""
    is_late = TIMED_OUT.search(str(error)) is not None
    running = [index for index, other in enumerate(others, start=1) if other.poll() is None]
    absent = [index + 1 for index in running if not _mark(folder, index).exists()]
    if is_late and absent:  # before those that have ended because they waited for these, too
        return _too_late(num, SECONDS_TO_MEET, f"{_named(absent)} to come to their meeting")
    if (lost := _lost(others, folder, num)) is not None or not is_late:
        return lost
    awaited = _named([index + 1 for index in running])
    return _too_late(num, SECONDS_TO_WAIT if has_met else SECONDS_TO_MEET, f"a message of {awaited}")


def _named(numbers: Sequence[int]) -> str:
    *before, last = map(str, numbers)
    return f"processes {', '.join(before)} and {last}" if before else f"process {last}"


def _too_late(num: int, seconds: float, awaited: str) -> RankLate:
    return RankLate(
        f"process 1 of the {num} that share a training has waited {seconds:,.0f} s for {awaited}: see whether this"
        f" machine is busy or a process is stopped; then give the same command again, with fewer processes ({RANKS}) on"
        " a machine that stays busy: it goes on from the last checkpoint"
    )


@contextmanager
def joined(index: int, num: int, folder: Path) -> Iterator[Rank]:
    """Be one process of the group that meets in a folder."""
    has_gpus = torch.cuda.is_available()
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    os.environ.update({GLOO_INTERFACE: loopback, NCCL_INTERFACE: f"={loopback}"})  # neither has a password
    if has_gpus:
        torch.cuda.set_device(index)
    _mark(folder, index).touch()
    _world.group_count = 0  # a part of the group's name: after a meeting that failed, it would be another one here
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if has_gpus else "gloo",
        store=distributed.FileStore(str(folder / "meeting"), num),  # pyright: ignore[reportPrivateImportUsage]
        rank=index,
        world_size=num,
        timeout=timedelta(seconds=SECONDS_TO_MEET),
    )
    _set_pg_timeout(timedelta(seconds=SECONDS_TO_WAIT))
    try:
        yield Rank(index=index, num_ranks=num, device=f"cuda:{index}" if has_gpus else "cpu")
    except RuntimeError:  # a message may be awaited still, for which the end of the group would wait
        Thread(target=_hold, args=(distributed.group.WORLD,), daemon=True).start()
        raise
    finally:
        distributed.destroy_process_group()


def _hold(group: object) -> None:
    """Hold the group until no message is awaited any more."""
    time.sleep(2 * SECONDS_TO_WAIT)
    del group


@contextmanager
def _follower(order: Mapping[str, Any], index: int, num: int, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """Start another process, in a session of its own, so that Ctrl-C and SIGTERM come to this one alone."""
    with _log(folder, index).open("w") as log:
        process = subprocess.Popen(  # noqa: S603, made here
            [sys.executable, "-P", "-m", FOLLOWER],
            env={**os.environ, QUIET: "1", "TMPDIR": str(folder)},  # it is killed, and removes no files of its own
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    try:
        _write(process.stdin, {**order, "index": index, "num": num, "folder": str(folder)})
        yield process
    finally:
        process.kill()
        process.communicate()


def _write(pipe: IO[str] | None, order: Mapping[str, Any]) -> None:
    assert pipe is not None
    try:
        pipe.write(json.dumps(order) + "\n")
        pipe.flush()
    except BrokenPipeError:  # it has ended: its line `ready` does not come either
        pass


def _log(folder: Path, index: int) -> Path:
    return folder / f"{index}.log"


def _mark(folder: Path, index: int) -> Path:
    """File that is there once a process has come to the meeting."""
    return folder / f"{index}.here"


def _lost(others: "Sequence[subprocess.Popen[str]]", folder: Path, num: int) -> RankLost | None:
    """Say which other process has ended, and why; None if all run."""
    until = time.monotonic() + SECONDS_TO_END
    while not _codes(others):
        if time.monotonic() > until:
            return None
        time.sleep(0.1)
    time.sleep(SECONDS_TO_FOLLOW)  # of one that was killed, the connections of the others end, too
    code, index = min((code, index) for index, code in _codes(others).items())  # a signal is negative
    lines = _log(folder, index).read_text().strip().splitlines()
    why = f"killed by signal {-code}" if code < 0 else lines[-1] if lines else f"exit code {code}"
    return RankLost(
        f"process {index + 1} of the {num} that share a training has ended ({why}): give the same command again, "
        "which goes on from the last checkpoint, with any number of processes"
    )


def _codes(others: "Sequence[subprocess.Popen[str]]") -> dict[int, int]:
    """Give the exit codes of the processes that have ended, by their index."""
    codes = {index: other.poll() for index, other in enumerate(others, start=1)}
    return {index: code for index, code in codes.items() if code is not None}
