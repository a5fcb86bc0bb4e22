"""Commands at once on one store: each ends well or with one named error, and nothing is lost or doubled.

`python tests/faults/concurrency.py --tries 14` runs every round (`make test-faults`); `--seed S --only N` repeats one.
"""

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from children import Ended, started
from errors import wrong_end
from ingests import DATASET, ingested, parts_of_log
from prepared import Prepared
from sweep import main

from flows.ending import exit_code
from storage.events.table import history, node_dictionary, scan_events
from storage.layout import Layout

ROUNDS = (
    "2 ingests of one file",
    "2 ingests of two files",
    "8 ingests of one file",
    "8 ingests of eight files",
    "an ingest during a retraining",
    "2 retrainings",
    "a retraining and a forecast",
)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One round: how many seconds after the first command each of the others starts."""

    kind: str
    delays: tuple[float, ...]

    def __str__(self) -> str:
        return f"{self.kind}, started after {', '.join(f'{delay:.2f}' for delay in self.delays)} s"


def trials(made: Prepared, num_tries: int, seed: int) -> Iterator[Trial]:
    """Give the rounds in turn; in every second series the commands start together."""
    generator = random.Random(seed)
    rounds = [kind for kind in ROUNDS if "retraining" not in kind or "track" in made.stages]
    for number in range(num_tries):
        kind, series = rounds[number % len(rounds)], number // len(rounds)
        longest = made.seconds.get("track", 0.0) if "retraining" in kind else made.seconds["ingest"]
        delays = tuple(sorted(generator.random() * longest * (series % 2) for _ in range(7)))
        yield Trial(kind=kind, delays=delays)


def failures(made: Prepared, trial: Trial) -> list[str]:
    """Run the commands of a round at once; list the claims that do not hold."""
    stage, commands, expected = _round(made, trial.kind)
    made.restore(stage)
    begun, children = time.monotonic(), []
    for command, delay in zip(commands, (0.0, *trial.delays), strict=False):
        time.sleep(max(0.0, begun + delay - time.monotonic()))
        children.append(started(partial(_to_its_end, command), **made.environment))
    ends = [child.ended() for child in children]
    wrong = [line for end in ends for line in wrong_end(end.code, end.output, str(made.disk))]
    failed = [command for command, end in zip(commands, ends, strict=True) if end.code]
    again: list[Ended] = [made.run(command) for command in failed]
    wrong += [f"the same command again ended with {end.code}: {end.output[-1500:]}" for end in again if end.code]
    read = made.read(lambda: made.sent_and_cleaned() | _rows())
    if read.code:
        return [*wrong, f"reading the store ended with {read.code}: {read.output[-1500:]}"]
    return wrong + unsound(read.value) + expected(read.value)


def _to_its_end(command: Callable[[], object]) -> None:
    def plain() -> None:
        command()

    sys.exit(exit_code(plain))


def _round(made: Prepared, kind: str) -> tuple[str, list[Callable[[], object]], Callable[[dict[str, Any]], list[str]]]:
    """Give the store of a round, its commands, and the check of what only this round promises."""
    if "ingests" in kind:
        num = int(kind[0])
        names = parts_of_log(num) if "one file" not in kind else ["first"] * num
        files = sorted(set(names))
        return "ingest", [partial(ingested, name) for name in names], partial(_missing_rows, made, files)
    if kind == "2 retrainings":
        return "train", [made.stages["track"]] * 2, partial(_missing, made.after.get("track", {}))
    other = made.stages["second ingest"] if "ingest" in kind else made.stages["predict"]
    stage = "second ingest" if "ingest" in kind else "train"
    return stage, [made.stages["track"], other], lambda found: []


def _rows() -> dict[str, Any]:
    """Read the rows by the user's ids, because the permanent numbers depend on which commit was first."""
    layout = Layout.from_environment()
    events = scan_events(layout, DATASET).select("source", "target", "time").collect()
    nodes = node_dictionary(layout, DATASET)
    return {
        "rows": sorted(f"{source},{target},{moment // 1_000_000}" for source, target, moment in events.rows()),
        "batches": history(layout, DATASET)["batch"].to_list(),
        "numbers": sorted(nodes["node"].to_list()) == list(range(nodes.height))
        and nodes["id"].n_unique() == nodes.height,
    }


def _missing_rows(made: Prepared, files: list[str], found: dict[str, Any]) -> list[str]:
    lines = [line for name in files for line in (made.disk / f"{name}.csv").read_text().splitlines()[1:]]
    wrong = [] if found["rows"] == sorted(line for line in lines if not line.startswith(",")) else ["rows differ"]
    return wrong + ["a file has several ingests, or none"] * (len(found["batches"]) != len(files))


def _missing(expected: dict[str, Any], found: dict[str, Any]) -> list[str]:
    names = [name for name in expected if found.get(name) != expected[name]]
    return [
        f"{name}: {json.dumps(found.get(name))[:200]} instead of {json.dumps(expected[name])[:200]}" for name in names
    ]


def unsound(found: dict[str, Any]) -> list[str]:
    """List what no order of commands explains: damage, leftovers, doubled runs, points, models and nodes."""
    wrong = [f"{name}: {found[name]}" for name in ("damage", "files of no command", "not in MLflow") if found[name]]
    runs = {name: value for name, value in found.items() if name.startswith("run ")}
    wrong += [f"doubled: {name}" for name in runs if " again " in name]
    wrong += [f"{name} is {run['status']}" for name, run in runs.items() if run["status"] != "FINISHED"]
    wrong += [
        f"{name} has a point twice: {point}" for name, run in runs.items() for point in run["metrics"] if point[-1] > 1
    ]
    versions = [run for _, _, run in found.get("model versions", [])]
    wrong += ["a run has two model versions"] * (len(versions) != len(set(versions)))
    return wrong + ["node numbers or ids are doubled"] * (not found["numbers"])


if __name__ == "__main__":
    main(__doc__, trials, failures, 14, "at once")
