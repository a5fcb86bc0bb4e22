"""Two machines with one S3 store that run different commands at once: nothing is lost, doubled, damaged or held.

`python tests/faults/mixed_machines.py --tries 20` runs the whole sweep (`make test-faults`); `--seed S --only N`
repeats one. Each machine has a home and a folder of state of its own, so that no lock of a file reaches the other. A
try starts three commands on each, one after the other. Each command ends well or in one line that names the error.
"""

import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # of the module with the server

import pipeline
from children import Ended, run, started
from contents import unknown_files
from ingests import DATASET, ingested, write_logs
from prefect import Flow, Task
from prepared import TWO_DAYS
from remote_store import RemoteStore, remote_store
from sweep import error_line, options_of, swept

import flows.benchmark
import flows.stages
import flows.trials
import storage.bytes.files
from flows.ending import exit_code
from flows.tasks.ingest import ingest_log
from flows.tasks.publishing.champions import rollback
from flows.tasks.retention import pruned
from flows.tasks.tracking.projection import project
from storage.bytes import files
from storage.champions import champion_problems, numbered_after, publications, read_champion, replace_champion
from storage.events.table import history, ingested_datasets, read_events, scan_events
from storage.layout import Layout
from storage.locks import FREE
from storage.queries import query, stop
from storage.removal import drop_dataset
from storage.tracking.marks import due
from storage.verification import faults

for module in (flows.benchmark, flows.stages, flows.trials):  # a flow calls its tasks and flows directly
    for name, part in vars(module).items():
        if isinstance(part, Flow | Task) and name != "benchmark":
            setattr(module, name, part.fn)

NAMES = ("one", "two")
OTHER = "other"
NUM_COMMANDS = 3
MOST_SECONDS = 240.0  # of one command


def ingest_other() -> None:
    """Commit rows to the dataset that a machine may drop meanwhile."""
    log = Path(Layout.from_environment().state).with_name("first.csv")
    ingest_log(OTHER, {"log": [str(log)], "max_bad": "50%", "window": "1d", "time_unit": "s"}, lambda text: None)


def retrain() -> None:
    """Retrain on the rows that are there."""
    pipeline.track()


def predict() -> None:
    """Forecast by the present champion, and publish."""
    pipeline.predict()


def benchmark() -> None:
    """Compare two methods by the paper's protocol."""
    flows.benchmark.benchmark.fn(DATASET, None, "4", methods=["L3", "EdgeBank (last)"], changes=pipeline.EXPERIMENT)


def verify() -> None:
    """Verify everything: the work of the other machine is no damage."""
    for fault in faults(Layout.from_environment()):
        raise ValueError(f"{fault.address} {fault.problem}: damaged")


def sql() -> None:
    """Count what two views have."""
    query(Layout.from_environment(), "select (select count(*) from events), (select count(*) from forecasts)", stop)


COMMANDS: dict[str, Callable[[], object]] = {
    "ingest": lambda: ingested("second"),
    "ingest of the other": ingest_other,
    "retrain": retrain,
    "predict": predict,
    "rollback": lambda: rollback(DATASET, 1),
    "benchmark": benchmark,
    "drop of the other": lambda: drop_dataset(Layout.from_environment(), OTHER),
    "verify": verify,
    "sql": sql,
    "prune": lambda: pruned(DATASET, 2),
    "track": lambda: project(Layout.from_environment(), whole=True),
}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The commands of each machine."""

    commands: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return " beside ".join(", ".join(each) for each in self.commands)


def trials(machines: "Machines", num_tries: int, seed: int) -> Iterator[Trial]:
    """Draw trials."""
    generator = random.Random(seed)
    for _ in range(num_tries):
        yield Trial(commands=tuple(tuple(generator.choices(list(COMMANDS), k=NUM_COMMANDS)) for _ in NAMES))


@dataclass(frozen=True, kw_only=True)
class Machines:
    """The store, and the folder of each machine."""

    folder: Path
    remote: RemoteStore

    def environment(self, name: str) -> dict[str, str]:
        """Variables of a machine's commands."""
        own = self.folder / name
        return self.remote.keys | {
            "DYFORMER_STORAGE": self.remote.root,
            "DYFORMER_STATE": str(own / "state"),
            "HOME": str(own),
        }

    def restore(self) -> None:
        """Make the store and the states as they were at first."""
        self.remote.restore("first")
        for name in NAMES:
            shutil.rmtree(self.folder / name, ignore_errors=True)
            shutil.copytree(self.folder / "first", self.folder / name)

    def do(self, function: Callable[[], Any], name: str = NAMES[0]) -> Ended:
        """Run a function on a machine."""
        return run(function, kill_after=None, **self.environment(name))


def prepared_machines(folder: Path, remote: RemoteStore) -> Machines:
    """Make a store with two datasets, one of which has published and has an earlier champion."""
    machines = Machines(folder=folder, remote=remote)
    (folder / NAMES[0] / "state").mkdir(parents=True)
    write_logs(folder / NAMES[0])
    for command in (lambda: ingested("first"), ingest_other, pipeline.connect, retrain, second_champion):
        end = machines.do(command)
        assert end.code == 0, end.output
    remote.save("first")
    shutil.copytree(folder / NAMES[0], folder / "first")
    return machines


def second_champion() -> None:
    """Let the champion be followed by the same method, which publishes the same, so that there is an earlier one."""
    layout = Layout.from_environment()
    record, stamp = read_champion(layout, DATASET)
    assert record is not None
    following = {name: value for name, value in record.items() if name != "published"}
    assert replace_champion(layout, DATASET, {**following, **numbered_after(record)}, stamp)
    predict()
    assert publications(layout, DATASET).height == 2


def failures(machines: Machines, trial: Trial) -> list[str]:
    """Run the commands of both machines; list the claims that do not hold."""
    machines.restore()
    children = [
        started(partial(_in_turn, names), **machines.environment(machine))
        for machine, names in zip(NAMES, trial.commands, strict=True)
    ]
    wrong, has_ingested = list[str](), False
    for machine, child in zip(NAMES, children, strict=True):
        end = child.ended(MOST_SECONDS * NUM_COMMANDS)
        wrong += [] if end.code == 0 else [f"machine {machine} ended with {end.code}: {end.output[-1500:]}"]
        for name, code, output in end.value or []:
            wrong += [f"{name} of machine {machine}: {line}" for line in error_line(code, output)[1]]
            has_ingested |= name == "ingest" and code == 0
    settled = machines.do(partial(_unsound, has_ingested=has_ingested), NAMES[1])
    if settled.code:
        return [*wrong, f"the commands after them ended with {settled.code}: {settled.output[-1500:]}"]
    return wrong + settled.value


def _in_turn(names: tuple[str, ...]) -> list[tuple[str, int, str]]:
    """Run commands one after the other, each in a process; give the code and the output of each."""
    ends = []
    for name in names:
        end = run(partial(_to_its_end, COMMANDS[name]), kill_after=MOST_SECONDS)
        ends.append((name, end.code, end.output))
    return ends


def _to_its_end(command: Callable[[], object]) -> None:
    def plain() -> None:
        command()

    sys.exit(exit_code(plain))


def _unsound(*, has_ingested: bool) -> list[str]:
    """List what no order of the commands explains, and what the next retraining does not do."""
    layout = Layout.from_environment()
    wrong = [f"damaged: {fault.address} {fault.problem}" for fault in faults(layout)]
    wrong += _wrong_rows(layout, ["first", "second"] if has_ingested else ["first"])
    wrong += [f"champion: {problem}" for problem in champion_problems(layout, DATASET) if problem is not None]
    rows = publications(layout, DATASET)
    if rows["number"].n_unique() != rows.height or not rows.sort("number")["published_at"].is_sorted():
        wrong.append(f"publications are not in order: {rows.select('number', 'published_at').rows()}")
    ingested("second")
    retrain()
    storage.bytes.files.LEFTOVER_SECONDS = -TWO_DAYS  # of objects, whose times the server sets
    for problem in project(layout, whole=True).problems:
        wrong.append(f"not sent: {problem}")
    wrong += _wrong_rows(layout, ["first", "second"])
    wrong += [f"not in MLflow: {layout.relative(address)}" for address in due(layout)]
    wrong += [f"damaged at the end: {fault.address} {fault.problem}" for fault in faults(layout)]
    wrong += [f"left over: {name}" for name in unknown_files(layout)]
    for name in files.children(f"{layout.root}/leases"):
        content = files.read_bytes(f"{layout.root}/leases/{name}")
        wrong += [] if content == FREE else [f"the lease {name} is held: {content.decode()}"]
    return wrong


def _wrong_rows(layout: Layout, names: list[str]) -> list[str]:
    """Compare the stored rows of the log with those of its files; each file has one ingest."""
    folder = Path(layout.state).parent
    lines = [line for name in names for line in (folder / f"{name}.csv").read_text().splitlines()[1:]]
    wanted = sorted(line for line in lines if not line.startswith(","))
    found = scan_events(layout, DATASET).select("source", "target", "time").collect()
    stored = sorted(f"{source},{target},{moment // 1_000_000}" for source, target, moment in found.rows())
    wrong = [] if stored == wanted else [f"{len(stored)} rows of {len(wanted)} of {' and '.join(names)} are stored"]
    batches = history(layout, DATASET)["batch"].to_list()
    wrong += [] if len(batches) == len(names) else [f"there are {len(batches)} ingests of {len(names)} files"]
    if OTHER in ingested_datasets(layout):
        rows = read_events(layout, OTHER).height
        expected = sum(not line.startswith(",") for line in (folder / "first.csv").read_text().splitlines()[1:])
        wrong += [] if rows == expected else [f"the other dataset has {rows} rows of {expected}"]
    return wrong


def main(num_tries: int = 20) -> None:
    """Run the sweep from the command line."""
    options = options_of(__doc__, num_tries)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        with remote_store(folder) as remote:
            machines = prepared_machines(folder, remote)
            num_failed = swept(machines, trials, failures, options, "mixed machines")
    sys.exit(num_failed > 0)


if __name__ == "__main__":
    main()
