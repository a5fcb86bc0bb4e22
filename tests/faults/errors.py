"""A disk or memory that fails in every command: one named error, the store as before, afterwards all as undisturbed.

`python tests/faults/errors.py --tries 200` runs the whole sweep (`make test-faults`); `--seed S --only N` repeats one.
A try lets one change of a file fail (no space, a broken disk, no memory, half of the bytes written), or has a disk of
64 MiB with too little space left. Where no disk can be mounted, a limit of the files' size takes its place.
"""

import errno
import os
import random
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from contents import contents
from prepared import Prepared
from side_effects import Act, ShortWrite, fail_at
from sweep import error_line, main

from flows.ending import exit_code

FAULTS = ("ENOSPC", "EIO", "ENOMEM", "short write")
DISK_BYTES = 64 << 20
FULL = 0.25  # fraction of the trials with a full disk
LARGEST_LEFT = 600_000  # bytes


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One fault."""

    stage: str
    fault: str
    number: int  # of the effect; 0: the disk is full
    left: int  # bytes that the full disk takes

    def __str__(self) -> str:
        where = f"at effect {self.number}" if self.number else f"with {self.left} bytes left"
        return f"{self.stage}, {self.fault} {where}"

    def act(self) -> Act:
        """What happens at the effect."""
        if self.fault == "ENOMEM":
            return fail_at(self.number, MemoryError())
        if self.fault == "short write":
            return fail_at(self.number, ShortWrite())
        number = getattr(errno, self.fault)
        return fail_at(self.number, OSError(number, os.strerror(number)))


def trials(made: Prepared, num_tries: int, seed: int) -> Iterator[Trial]:
    """Draw trials: the commands in turn."""
    generator = random.Random(seed)
    stages = list(made.stages)
    for number in range(num_tries):
        stage = stages[number % len(stages)]
        effects = made.effects[stage]
        fault, at = generator.choice(FAULTS), generator.randrange(1, len(effects) + 2)
        left = generator.randrange(LARGEST_LEFT)
        if generator.random() < FULL or at > len(effects):
            fault, at = "a full disk", 0
        elif fault == "short write" and not effects[at - 1].startswith("write "):
            fault = "EIO"
        yield Trial(stage=stage, fault=fault, number=at, left=left)


def failures(made: Prepared, trial: Trial) -> list[str]:
    """Let the command fail; list the claims that do not hold."""
    made.restore(trial.stage)

    def plain() -> None:
        made.stages[trial.stage]()

    def command() -> None:
        if trial.number == 0 and not os.path.ismount(made.disk):
            resource.setrlimit(resource.RLIMIT_FSIZE, (trial.left, trial.left))
        sys.exit(exit_code(plain))

    if trial.number == 0 and os.path.ismount(made.disk):
        with _filled(made.disk, trial.left):
            end = made.run(command)
    else:
        end = made.run(command, trial.act() if trial.number else None)
    wrong = wrong_end(end.code, end.output, str(made.disk))
    read = made.read(contents)
    if read.code:
        return [*wrong, f"reading the store ended with {read.code}: {read.output[-1500:]}"]
    wrong += [f"damaged: {each}" for each in read.value["damage"]]
    earlier = list(made.stages)[: list(made.stages).index(trial.stage)]
    before = made.after[earlier[-1]] if earlier else {}
    wrong += [f"lost: {name}" for name in before if name not in read.value]
    return wrong + made.wrong_after(trial.stage)


def wrong_end(code: int, output: str, disk: str) -> list[str]:
    """Check that a command did its work, or failed with one line that names a file and has a remedy."""
    line, wrong = error_line(code, output)
    if line is None or wrong:
        return wrong
    if disk not in line and "memory" not in line:
        return [f"no file is named: {line}"]
    return []


class _filled:  # noqa: N801, it is used as a function
    """Fill a disk but for some bytes during a `with` block."""

    def __init__(self, disk: Path, left: int):
        self._filler, self._left = disk / "filler", left

    def __enter__(self) -> None:
        status = os.statvfs(self._filler.parent)
        self._filler.write_bytes(bytes(max(0, status.f_bavail * status.f_frsize - self._left)))

    def __exit__(self, *error: object) -> None:
        self._filler.unlink()


def mounted(disk: Path) -> bool:
    """Mount a small disk in memory, if this process may."""
    disk.mkdir(exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(disk)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    main(__doc__, trials, failures, 200, "errors", mount=mounted)
