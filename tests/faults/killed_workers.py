"""A real service whose processes are killed: it comes back, and what is published is as without the kill.

`python tests/faults/killed_workers.py --tries 50` runs the whole sweep (`make test-faults`); `--seed S --only N`
repeats one. `dyformer up` runs with its servers and its worker. A try starts `run`, `retrain`, `schedule` or
`rollback`, as a command or on the worker, and kills a process of it at a random time: the command, the run, the worker,
a server, or `up`, which is then started again. The same command again must then leave the rows, the champion, the
forecasts and the vectors of an undisturbed one. At the end nothing is damaged, left over, doubled in MLflow, in use or
running.
"""

import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # of the module with free ports
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stack"))  # of the modules with the service

import polars as pl
from concurrency import unsound
from contents import age, contents, differences
from free_ports import free_port
from prepared import TWO_DAYS
from retrainings import published  # pyright: ignore[reportMissingImports]
from stack_processes import (  # pyright: ignore[reportMissingImports]
    COMMAND,
    Up,
    command,
    environment,
    running,
    wait_until,
)
from sweep import error_line, options_of, swept

from flows.ending import NOTHING_TO_DO
from flows.service.processes import marked
from storage.artifacts.artifact import read_table
from storage.champions import latest_tables
from storage.events.table import ingested_datasets, read_events
from storage.layout import Layout
from storage.locks import DatasetInUse, not_in_use
from storage.verification import faults

COMMANDS = ("run", "retrain", "schedule", "rollback")  # of one dataset, in this order
SERVERS = ("prefect-server", "mlflow-server")
VICTIMS = {
    "run": ("command", *SERVERS, "up"),
    "retrain": ("command", "run", "worker", *SERVERS, "up"),
    "schedule": ("command", "run", "worker", *SERVERS, "up"),
    "rollback": ("command", *SERVERS, "up"),
}
SETTINGS = {
    "pretrain": "none",
    "finetune.epochs": "3",
    "finetune.batches_per_epoch": "2",
    "model.width": "16",
    "model.num_heads": "2",
    "model.num_layers": "1",
}
CHANGES = [text for name, value in SETTINGS.items() for text in ("--set", f"{name}={value}")]
UNDISTURBED = "undisturbed"
SECONDS_TO_END = 400.0
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
FILES = {"run": "first", "retrain": "second", "schedule": "third"}


def write_logs(folder: Path) -> None:
    """Write links of five days, two days of new ones, in which a method that expects repeats loses, and two of old."""
    generator = random.Random(7)
    pairs = [(source, target) for source in range(40) for target in range(30) if source % 3 == target % 3]
    generator.shuffle(pairs)
    rows: dict[str, list[str]] = {name: [] for name in FILES.values()}
    for day in range(9):
        name = "first" if day < 5 else "second" if day < 7 else "third"
        links = pairs[70 + 90 * (day - 5) : 160 + 90 * (day - 5)] if name == "second" else pairs[:70]
        rows[name] += [
            f"u{source},v{target},{86_400 * day + 900 * number}" for number, (source, target) in enumerate(links)
        ]
    for name, lines in rows.items():
        (folder / f"{name}.csv").write_text("\n".join(["source,target,time", *lines]) + "\n")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One kill."""

    stage: str
    victim: str
    fraction: float  # of the seconds of an undisturbed one

    def __str__(self) -> str:
        return f"{self.stage}, {self.victim} killed at {self.fraction:.2f}"


def trials(service: "Service", num_tries: int, seed: int) -> Iterator[Trial]:
    """Draw trials: the commands in turn."""
    generator = random.Random(seed)
    for number in range(num_tries):
        stage = COMMANDS[number % len(COMMANDS)]
        yield Trial(stage=stage, victim=generator.choice(VICTIMS[stage]), fraction=generator.random())


@dataclass(kw_only=True)
class Service:
    """`dyformer up` on a store with datasets of the same log, each with as many of the commands done."""

    folder: Path
    ports: tuple[int, int] = field(default_factory=lambda: (free_port(), free_port()))
    ending: ExitStack = field(default_factory=ExitStack)
    num_done: dict[str, int] = field(default_factory=dict)
    spoiled: set[str] = field(default_factory=set)
    seconds: dict[str, float] = field(default_factory=dict)
    expected: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def store(self) -> Path:
        """Folder of the store."""
        return self.folder / "store"

    @property
    def layout(self) -> Layout:
        """The store, as this process reads it."""
        return Layout(str(self.store))

    def start(self) -> None:
        """Start the service, or start it again after its end."""
        self.ending.close()
        self.up: Up = self.ending.enter_context(running(self.store, self.ports))

    def arguments(self, stage: str, dataset: str) -> list[str]:
        """Arguments of a command of a dataset."""
        if stage == "rollback":
            return ["rollback", dataset, "--to", "1"]
        reading = ["--log", str(self.folder / f"{FILES[stage]}.csv"), "--window", "1d", "--time-unit", "s"]
        when = ["--cron", "0 0 1 1 *"] if stage == "schedule" else []
        return [stage, dataset, *when, *reading, *CHANGES]

    def dataset_for(self, stage: str) -> str:
        """Give a dataset on which a command is the next one."""
        wanted = COMMANDS.index(stage)
        ready = [name for name, num in self.num_done.items() if num == wanted and name not in self.spoiled]
        name = ready[0] if ready and wanted else f"try-{len(self.num_done)}"
        for earlier in COMMANDS[self.num_done.setdefault(name, 0) : wanted]:
            self.do(earlier, name)
        return name

    def do(self, stage: str, dataset: str) -> list[str]:
        """Do a command as a user does, and list what is wrong with its end."""
        done = command(self.store, *self.arguments(stage, dataset))
        codes = (0, NOTHING_TO_DO) if stage == "retrain" else (0,)
        self.num_done[dataset] = COMMANDS.index(stage) + 1
        if done.returncode in codes:
            return self.completed(self.run_of(f"retrain/{dataset}-schedule")) if stage == "schedule" else []
        return [f"the same command again ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}"]

    def run_of(self, name: str, **parameters: Any) -> str:
        """Start a run of a deployment; returns its id."""
        deployment = self.up.request(f"/deployments/name/{name}")["id"]
        return self.up.request(f"/deployments/{deployment}/create_flow_run", {"parameters": parameters})["id"]

    def state(self, run: str) -> dict[str, Any]:
        """State of a run."""
        return self.up.request(f"/flow_runs/{run}")["state"]

    def completed(self, run: str) -> list[str]:
        """Wait until a run has ended, and list what is wrong with its end."""
        state = self.ended(run)
        return [] if state["type"] == "COMPLETED" else [f"the run again ended as {state['name']}: {state['message']}"]

    def ended(self, run: str) -> dict[str, Any]:
        """Wait until a run has ended; returns its state."""
        wait_until(lambda: self.state(run)["type"] in FINAL, SECONDS_TO_END, f"run {run} does not end")
        return self.state(run)

    def kill(self, victim: str, processes: list[int]) -> None:
        """Kill one victim, and wait until the service is there again."""
        if victim in ("command", "run"):
            _kill(processes)
            return
        if victim == "up":
            self.up.process.kill()
            self.up.process.wait()
            self.start()
            return
        part = f"server-{victim.removesuffix('-server')}" if victim in SERVERS else victim
        first = min(self.parts(part))  # of a worker: the process that stops its runs
        _kill([first])
        wait_until(lambda: first not in self.parts(part) and self.is_whole(), 120, f"{victim} is not back")

    def parts(self, part: str) -> list[int]:
        """Processes of a part of the service."""
        return marked(f"{self.up.record['mark']}-{part}")

    def is_whole(self) -> bool:
        """Whether each part has a process, and the servers respond."""
        has_all = all(self.parts(part) for part in ("server-prefect", "server-mlflow", "worker"))
        return has_all and bool(self.up.request("/health") and self.up.tracked("experiments/search?max_results=1"))


def _kill(processes: list[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def holds(layout: Layout, dataset: str) -> dict[str, Any]:
    """Read the rows and all that is published of a dataset, without what a repeated rollback counts."""
    made = {name: address for name, (address, _) in latest_tables(layout, dataset).items()}
    events = read_events(layout, dataset).select("source", "target", "time").sort(pl.all())
    vectors = read_table(made["vectors"], "vectors").drop("space_id")
    return {
        "rows": digests(events),
        "champion": published(layout, dataset)["champion"],
        "forecasts": digests(read_table(made["forecasts"], "forecasts").drop("space_id", strict=False)),
        "vectors": digests(vectors),
    }


def digests(table: pl.DataFrame) -> dict[str, str]:
    """Give the digest of each column of a table."""
    texts = {name: table[name].to_frame().write_ndjson() for name in table.columns}
    return {name: hashlib.sha256(text.encode()).hexdigest()[:12] for name, text in texts.items()}


def attempt(service: Service, trial: Trial, dataset: str) -> list[str]:
    """Start a command and kill the victim; list what is wrong with the end of what was not killed."""
    on_worker = trial.victim != "command" and trial.stage in ("retrain", "schedule")
    if not on_worker:
        return _attempt_command(service, trial, dataset)
    if trial.stage == "schedule":
        run = _by_schedule(service, dataset)
    else:
        reading = {"log": [str(service.folder / "second.csv")], "window": "1d", "time_unit": "s"}
        run = service.run_of("retrain/any", dataset=dataset, reading=reading, changes=SETTINGS)
    wait_until(lambda: marked(run, "PREFECT__FLOW_RUN_ID"), 120, "no worker takes the run")
    time.sleep(trial.fraction * service.seconds[trial.stage])
    service.kill(trial.victim, marked(run, "PREFECT__FLOW_RUN_ID"))
    state = service.ended(run)
    allowed = ("COMPLETED", "CRASHED") if trial.victim in ("run", "worker", "up") else ("COMPLETED",)
    return [] if state["type"] in allowed else [f"the run ended as {state['name']}: {state['message']}"]


def _by_schedule(service: Service, dataset: str) -> str:
    """Make a schedule that is due in a year, and commit rows; returns the run that a look starts."""
    arguments = service.arguments("schedule", dataset)
    assert command(service.store, *arguments).returncode == 0
    done = command(service.store, "ingest", dataset, *arguments[4:10])
    assert done.returncode == 0, done.stderr
    deployment = service.up.request(f"/deployments/name/retrain/{dataset}-schedule")["id"]
    service.run_of("reconcile/any")
    begun = {"deployments": {"id": {"any_": [deployment]}}, "flow_runs": {"start_time": {"is_null_": False}}}
    return wait_until(lambda: service.up.request("/flow_runs/filter", begun), 150, "no retraining was started")[0]["id"]


def _attempt_command(service: Service, trial: Trial, dataset: str) -> list[str]:
    output = service.folder / "output"
    with output.open("wb") as stream:
        arguments = [*COMMAND, *service.arguments(trial.stage, dataset)]
        process = subprocess.Popen(arguments, env=environment(service.store), stdout=stream, stderr=stream)
    time.sleep(trial.fraction * service.seconds[f"{trial.stage} as a command"])
    service.kill(trial.victim, [process.pid])
    try:
        code = process.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return [f"the command did not end in {SECONDS_TO_END:.0f} s: {output.read_text()[-1500:]}"]
    if trial.victim == "command":
        return []
    return error_line(code, output.read_text())[1]


def failures(service: Service, trial: Trial) -> list[str]:
    """Kill a part of a command or of the service, and do the command again; list the claims that do not hold."""
    begun, dataset = time.monotonic(), service.dataset_for(trial.stage)
    try:
        wrong = attempt(service, trial, dataset)
        wrong += service.do(trial.stage, dataset)
    except AssertionError as error:
        wrong = [f"{dataset}: {error}"]
    service.num_done[dataset] = COMMANDS.index(trial.stage) + 1
    wrong += [f"damaged: {fault.address} {fault.problem}" for fault in faults(service.layout, dataset)]
    wrong += differences(holds(service.layout, dataset), service.expected[trial.stage])
    service.spoiled |= {dataset} if wrong else set()
    print(f"{dataset}: {trial}: {time.monotonic() - begun:.0f} s", flush=True)
    return wrong


def undisturbed(service: Service) -> None:
    """Do all commands on one dataset, measure them, and read what is published after each."""
    for stage in COMMANDS:
        begun = time.monotonic()
        wrong = service.do(stage, UNDISTURBED)
        assert not wrong, wrong
        service.seconds[stage] = service.seconds[f"{stage} as a command"] = time.monotonic() - begun
        service.expected[stage] = holds(service.layout, UNDISTURBED)
    quick = service.seconds["rollback"]
    service.seconds["schedule as a command"] = quick
    service.seconds["retrain"] = service.seconds["schedule"] = service.seconds["schedule"] - 2 * quick
    titles = [service.expected[stage]["champion"] for stage in COMMANDS]
    assert titles[0] != titles[2], f"there is no champion to roll back to: {titles}"


def unsettled(service: Service) -> list[str]:
    """List what is damaged, left over, doubled, in use or running when all tries have ended."""
    wrong = service.completed(service.run_of("reconcile/any"))
    active = {"flow_runs": {"state": {"type": {"any_": ["RUNNING", "PENDING", "CANCELLING"]}}}}

    def going() -> list[str]:
        return [run["name"] for run in service.up.request("/flow_runs/filter", active)]

    try:
        wait_until(lambda: not going(), SECONDS_TO_END, "runs go on")
    except AssertionError as error:
        wrong.append(f"{error}: {going()}")
    slots = service.up.request("/deployments/name/retrain/any")["global_concurrency_limit"]
    wrong += [] if slots["active_slots"] == 0 else [f"the slot of retrain/any is taken: {slots}"]
    sent = command(service.store, "track")
    wrong += [] if sent.returncode == 0 else [f"`track` ended with {sent.returncode}: {sent.stdout + sent.stderr}"]
    layout = service.layout
    for dataset in ingested_datasets(layout):
        wrong += _in_use(layout, dataset)
        for folder in service.store.glob("[0-9]_*"):  # of the data
            age(folder, TWO_DAYS)
        again = command(service.store, "ingest", *service.arguments("run", dataset)[1:8])  # it removes what was left
        wrong += [] if again.returncode == 0 else [f"`ingest` ended with {again.returncode}: {again.stderr}"]
    found = contents()
    left = found["files of no command"]
    found["files of no command"] = [path for path in left if not path.startswith("service/")]
    return wrong + unsound({**found, "numbers": True})


def _in_use(layout: Layout, dataset: str) -> list[str]:
    try:
        with not_in_use(layout, dataset, "drop"):
            return []
    except DatasetInUse as error:
        return [str(error)]


def main(num_tries: int = 50) -> None:
    """Run the sweep from the command line."""
    options = options_of(__doc__, num_tries)
    with tempfile.TemporaryDirectory() as name:
        service = Service(folder=Path(name).resolve())
        os.environ["DYFORMER_STORAGE"] = str(service.store)
        write_logs(service.folder)
        with service.ending:
            service.start()
            undisturbed(service)
            num_failed = swept(service, trials, failures, options, "killed workers")
            left = unsettled(service)
            for line in left:
                print(f"at the end: {line}")
    sys.exit(num_failed + len(left) > 0)


if __name__ == "__main__":
    main()
