"""An S3 server that fails in every command: it succeeds or ends in one line, and afterwards all is as undisturbed.

`python tests/faults/s3.py --tries 150` runs the whole sweep (`make test-faults`); `--seed S --only N` repeats one. From
a numbered request on, a proxy in front of a local S3 server fails for one request, a few, or some seconds. The limits
of `storage.bytes.objects` are smaller here.
"""

import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # of the module with the server

from contents import contents
from flaky_store import KINDS, Fault
from prepared import Prepared, prepared
from remote_store import remote_store
from sweep import error_line, options_of, swept

from flows.ending import exit_code
from storage.bytes import objects
from storage.layout import Layout
from storage.queries import query
from storage.verification import dataset_of, faults, repaired

REQUEST_SECONDS, RETRY_SECONDS = 2.0, 4.0
LONGEST_SECONDS = 8.0  # of a fault: twice as long as requests are repeated
MOST_SECONDS = 60.0  # more than the undisturbed command
REMEDIES = ("check AWS_ENDPOINT_URL", "run the same command again")
SQL = "select (select sum(hash(events)::hugeint) from events), (select sum(hash(vectors)::hugeint) from vectors)"
COMMANDS = ("ingest", "second ingest", "prepare", "train", "promote", "predict", "track", "sql", "verify")


def sql() -> list[str]:
    """Query the rows of events and vectors."""
    return [str(value) for value in query(Layout.from_environment(), SQL).row(0)]


def verify() -> None:
    """Verify and repair; a fault that is left is an error, as it is in the command."""
    layout = Layout.from_environment()
    for fault in list(faults(layout)):
        if repaired(layout, dataset_of(fault), fault) is None:
            raise ValueError(f"{fault.address} {fault.problem}: {fault.remedy}")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One fault of the server."""

    stage: str
    fault: Fault

    def __str__(self) -> str:
        fault = self.fault
        length = f"{fault.seconds:.2f} s" if fault.seconds else f"{fault.num_requests} requests"
        done = "done, then " if fault.is_after else ""
        return f"{self.stage}, {done}{fault.kind} at request {fault.number} for {length}"


def trials(made: Prepared, num_tries: int, seed: int) -> Iterator[Trial]:
    """Draw trials: the commands in turn."""
    generator = random.Random(seed)
    stages = [stage for stage in made.stages if stage in COMMANDS]
    for number in range(num_tries):
        stage = stages[number % len(stages)]
        at = generator.randrange(len(made.effects[stage])) + 1
        length = generator.choice(({"num_requests": 1}, {"num_requests": 3}, {}))
        seconds = 0.0 if length else LONGEST_SECONDS * generator.random()
        is_after, kind = generator.random() < 0.5, generator.choice(KINDS)
        yield Trial(stage=stage, fault=Fault(kind=kind, number=at, seconds=seconds, is_after=is_after, **length))


def failures(made: Prepared, trial: Trial) -> list[str]:
    """Let requests of a command fail; list the claims that do not hold."""
    assert made.remote is not None
    made.restore(trial.stage)
    result: list[Any] = []

    def plain() -> None:
        result.append(made.stages[trial.stage]())

    def command() -> Any:
        _shrink()
        return result[0] if (code := exit_code(plain)) == 0 and trial.stage == "sql" else sys.exit(code)

    made.remote.proxy.set(trial.fault)
    end = made.read(command)
    made.remote.proxy.set(Fault())
    wrong = _wrong_end(trial.fault, end.code, end.output)
    if end.seconds > made.seconds[trial.stage] * 2 + MOST_SECONDS:
        wrong.append(f"it took {end.seconds:.0f} s, and undisturbed {made.seconds[trial.stage]:.0f} s")
    if trial.stage == "sql" and end.code == 0 and end.value != made.results.setdefault("sql", _undisturbed(made)):
        wrong.append(f"another result without a word: {end.value}")
    read = made.read(contents)
    if read.code:
        return [*wrong, f"reading the store ended with {read.code}: {read.output[-1500:]}"]
    wrong += [f"damaged: {each}" for each in read.value["damage"]]
    earlier = list(made.stages)[: list(made.stages).index(trial.stage)]
    wrong += [f"lost: {name}" for name in (made.after[earlier[-1]] if earlier else {}) if name not in read.value]
    return wrong + made.wrong_after(trial.stage)


def _undisturbed(made: Prepared) -> Any:
    return made.read(sql).value


def _shrink() -> None:
    """Wait for seconds where a user's command waits for half a minute."""
    objects.REQUEST_SECONDS, objects.RETRY_SECONDS = REQUEST_SECONDS, RETRY_SECONDS
    objects.MOST_PAUSE_SECONDS = 1.0


def _wrong_end(fault: Fault, code: int, output: str) -> list[str]:
    """Check that a command did its work, or failed with one line that names an object and has a remedy."""
    line, wrong = error_line(code, output)
    if line is None:
        return wrong
    if "s3://" not in line or not any(remedy in line for remedy in REMEDIES):
        wrong.append(f"no object is named, or no remedy: {line}")
    if not fault.seconds and fault.num_requests == 1:
        wrong.append(f"one request that failed ended the command: {line}")
    return wrong


def main(num_tries: int, stages: dict[str, Callable[[], object]]) -> None:
    """Run the sweep from the command line."""
    options = options_of(__doc__, num_tries)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        with remote_store(folder) as remote:
            num_failed = swept(prepared(folder, stages, remote), trials, failures, options, "S3")
    sys.exit(num_failed > 0)


if __name__ == "__main__":
    from pipeline import STAGES  # late, because it imports all that a training needs

    main(150, {**STAGES, "sql": sql, "verify": verify})
