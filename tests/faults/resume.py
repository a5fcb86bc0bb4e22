"""Trainings that are stopped five times in a row: the weights are those of an undisturbed one, byte for byte.

`python tests/faults/resume.py --tries 40` runs the whole sweep (`make test-faults`); `--seed S --only N` repeats one.
A stop is SIGKILL or Ctrl-C at a change of a file; there is a checkpoint after every epoch.
"""

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from prepared import Prepared
from side_effects import Act, fail_at, kill_at
from sweep import main

from flows.ending import STOPPED, exit_code

STAGE, STOPS, KILLED = "train", 5, -9


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A chain of stops: at which change of a file each process is stopped, and whether by SIGKILL."""

    numbers: tuple[int, ...]
    kills: tuple[bool, ...]

    def __str__(self) -> str:
        stops = zip(self.numbers, self.kills, strict=True)
        return ", ".join(f"{'killed' if kill else 'Ctrl-C'} at effect {number}" for number, kill in stops)


def trials(made: Prepared, num_tries: int, seed: int) -> Iterator[Trial]:
    """Draw chains; the first stop lies anywhere, the later ones in what is then left on average."""
    generator, most = random.Random(seed), len(made.effects[STAGE])
    for _ in range(num_tries):
        numbers = tuple(generator.randrange(1, 1 + most // (1 + stop)) for stop in range(STOPS))
        yield Trial(numbers=numbers, kills=tuple(generator.random() < 0.5 for _ in numbers))


def failures(made: Prepared, trial: Trial) -> list[str]:
    """Stop the training again and again, then let it end; list the claims that do not hold."""

    def train() -> None:
        def plain() -> None:
            made.stages[STAGE]()

        sys.exit(exit_code(plain))

    made.restore(STAGE)
    for number, kill in zip(trial.numbers, trial.kills, strict=True):
        act: Act = kill_at(number, "before") if kill else fail_at(number, KeyboardInterrupt())
        end = made.run(train, act)
        if end.code == 0:  # it was finished before
            break
        if end.code != (KILLED if kill else STOPPED):
            return [f"it was not stopped, but ended with {end.code}: {end.output[-1500:]}"]
    return made.wrong_after(STAGE)


if __name__ == "__main__":
    main(__doc__, trials, failures, 40, "chains of stops")
