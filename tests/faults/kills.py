"""SIGKILL in every command: the same command again ends like an undisturbed one, and nothing is lost or doubled.

`python tests/faults/kills.py --tries 500` runs the whole sweep (`make test-faults`); `--seed S --only N` repeats one.
A try kills the command before, inside or after one of its changes of a file, or at a random time.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from prepared import Prepared
from side_effects import When, kill_at
from sweep import main

KILLED = -9
BY_TIME = 0.2  # fraction of the trials


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One kill."""

    stage: str
    number: int  # of the effect; 0: at a time
    when: When
    fraction: float  # of the undisturbed seconds

    def __str__(self) -> str:
        at = f"{self.when} effect {self.number}" if self.number else f"at {self.fraction:.3f} of its time"
        return f"{self.stage}, killed {at}"


def trials(made: Prepared, num_tries: int, seed: int) -> Iterator[Trial]:
    """Draw trials: the commands in turn; one of five at a random time, because native code writes, too."""
    generator = random.Random(seed)
    stages = list(made.stages)
    for number in range(num_tries):
        stage = stages[number % len(stages)]
        effects = made.effects[stage]
        when: When = generator.choice(("before", "inside", "after"))
        at = generator.randrange(len(effects) + 1)
        if when == "inside" and at and not effects[at - 1].startswith("write "):
            when = "after"  # other effects have no inside
        at = 0 if generator.random() < BY_TIME else at
        yield Trial(stage=stage, number=at, when=when, fraction=generator.random())


def failures(made: Prepared, trial: Trial) -> list[str]:
    """Kill the command; list the claims that do not hold after it is done again."""
    command, fraction = made.stages[trial.stage], trial.fraction
    made.restore(trial.stage)
    if trial.number:
        end = made.run(command, kill_at(trial.number, trial.when))
    else:
        while (end := made.run(command, kill_after=fraction * made.seconds[trial.stage])).code == 0:
            made.restore(trial.stage)  # it was quicker than the undisturbed one
            fraction *= 0.8
    if end.code != KILLED:
        return [f"it was not killed, but ended with {end.code}: {end.output[-1500:]}"]
    return made.wrong_after(trial.stage)


if __name__ == "__main__":
    main(__doc__, trials, failures, 500, "kills")
