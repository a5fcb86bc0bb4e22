"""A store that is moved or copied between two commands: the next ones work there, and write nothing at the old place.

`python tests/faults/moved_stores.py --tries 10` runs the whole sweep (`make test-faults`); `--seed S --only N` repeats
one. After a move the old place does not exist. After a copy it is another store, of garbage, which stays as it is.
"""

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contents import differences
from prepared import Prepared
from sweep import main

LAST = "track"
GARBAGE = b"not a store"


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The command before which the store gets another place."""

    stage: str
    is_copy: bool

    def __str__(self) -> str:
        return f"{'copied' if self.is_copy else 'moved'} before {self.stage}"


def trials(made: Prepared, num_tries: int, seed: int) -> Iterator[Trial]:
    """Draw trials: each command but the first in turn, moves and copies."""
    generator = random.Random(seed)
    stages = list(made.stages)[1:]
    for number in range(num_tries):
        yield Trial(stage=stages[number % len(stages)], is_copy=generator.random() < 0.5)


class Elsewhere(Prepared):
    """The same commands on a store beside the usual one."""

    @property
    def store(self) -> Path:
        """Folder of the store."""
        return self.disk / "elsewhere"


def failures(made: Prepared, trial: Trial) -> list[str]:
    """Give the store another place, and do the commands that are left; list the claims that do not hold."""
    made.restore(trial.stage)
    elsewhere = Elsewhere(**vars(made))
    shutil.rmtree(elsewhere.store, ignore_errors=True)
    shutil.move(made.store, elsewhere.store)
    if trial.is_copy:
        for path in (path for path in elsewhere.store.rglob("*") if path.is_file()):
            left = made.store / path.relative_to(elsewhere.store)
            left.parent.mkdir(parents=True, exist_ok=True)
            left.write_bytes(GARBAGE)
    names = list(made.stages)

    def left_commands() -> dict[str, Any]:
        for name in names[names.index(trial.stage) :]:
            made.stages[name]()
        return elsewhere.sent_and_cleaned()

    end = elsewhere.read(left_commands)
    if end.code:
        return [f"it ended with {end.code}: {end.output[-1500:]}"]
    wrong = differences(_plain(end.value), _plain(made.after[LAST]))
    left = [path for path in made.store.rglob("*") if path.is_file()] if made.store.exists() else []
    wrong += [f"written at the old place: {path}" for path in left if path.read_bytes() != GARBAGE or not trial.is_copy]
    return wrong


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    """Leave out the files of MLflow's runs, which it looks for at the place where it made the run."""
    return {
        name: {key: own for key, own in value.items() if key != "files"} if name.startswith("run ") else value
        for name, value in found.items()
    }


if __name__ == "__main__":
    main(__doc__, trials, failures, 10, "stores at another place")
