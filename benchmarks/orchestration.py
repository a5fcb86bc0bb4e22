"""What Prefect and MLflow add to a retraining of the generated log, as a fraction of its time; a run without new rows.

Three ways to retrain take turns, each in a new process and a new store: the tasks as plain functions that track
nothing, the flow on running servers, and the flow without a server, which starts one of its own. The imports of a
process count for none of the three. `make bench-orchestration` writes RESULTS.md.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from results_page import surroundings, write_section

ROUNDS = 3
MOST, MOST_SECONDS = 0.15, 5.0
WAYS = ("plain", "servers", "alone")
COMMAND = [sys.executable, "-c", "from flows.cli import main; main()"]
SERVERS = ("PREFECT_API_URL", "MLFLOW_TRACKING_URI")


def retrained(way: str) -> dict[str, float]:
    """Retrain in this process, in the store of the environment; give the seconds in all and of each stage."""
    os.environ["PREFECT_LOGGING_LEVEL"] = "CRITICAL"
    from flows.service.environment import settle_environment

    settle_environment()
    import torch  # noqa: F401, imported late otherwise

    import flows.retrain as retraining
    from flows.commands.temporary_server import use_temporary_server
    from flows.tasks.report import read_report

    use_temporary_server()
    if way == "plain":
        plain(retraining)
    started = time.perf_counter()
    report = (retraining.retrain.fn if way == "plain" else retraining.retrain)("generated")
    seconds = time.perf_counter() - started
    return {"retraining": seconds, **read_report(str(report))[1]["seconds"]}


def plain(retraining: object) -> None:
    """Replace the tasks by their functions, and those that track by nothing."""
    for name, task in vars(retraining).copy().items():
        if name.endswith("_task") and hasattr(task, "fn"):
            setattr(retraining, name, task.fn)
    train = vars(retraining)["train_task"]
    setattr(retraining, "tracked_train_task", lambda *arguments: train(*arguments[:4], start=arguments[4]))  # noqa: B010
    untracked = {"tracker": "", "run": "", "model_version": None, "problem": None}
    setattr(retraining, "track_task", lambda *arguments: untracked)  # noqa: B010
    setattr(retraining, "ledger_task", lambda snapshots: None)  # noqa: B010


def sample(way: str, folder: Path, environment: dict[str, str]) -> dict[str, float]:
    """Retrain in a process of its own, in a new store."""
    command = [sys.executable, __file__, "--way", way]
    own = environment | {"DYFORMER_STORAGE": str(folder)}
    run = subprocess.run(command, env=own, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(run.stdout.splitlines()[-1])


def seconds_of_no_op(folder: Path, environment: dict[str, str]) -> float:
    """Run `dyformer retrain` on a log without new rows, as a command; give its seconds from start to end."""
    started = time.perf_counter()
    command = [*COMMAND, "--storage", str(folder), "retrain", "generated"]
    ended = subprocess.run(command, env=environment, check=False, stdout=subprocess.PIPE)
    assert ended.returncode == 3, ended.stdout
    return time.perf_counter() - started


@contextmanager
def running_servers(store: Path) -> Iterator[dict[str, str]]:
    """Start `dyformer up` and give the addresses of its servers and their login."""
    from flows.service.running import read_variables

    ports = ["--prefect-port", "4317", "--mlflow-port", "5317"]
    command = [*COMMAND, "--storage", str(store), "up", *ports]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            if not any(line.startswith("Ctrl-C") for line in process.stdout):
                raise RuntimeError("the servers did not start")
            yield read_variables(store / "service" / "up.env")
        finally:
            process.terminate()


def stages(samples: dict[str, list[dict[str, float]]]) -> str:
    """Give the median seconds of each stage for each way, as a table."""
    names = list(samples["servers"][0])
    rows = [f"| stage (seconds) | {' | '.join(WAYS)} |", "|---|---:|---:|---:|"]
    for name in names:
        middle = [sorted(each[name] for each in samples[way])[len(samples[way]) // 2] for way in WAYS]
        rows.append(f"| {name} | {' | '.join(f'{value:.2f}' for value in middle)} |")
    return "\n".join(rows)


def main() -> None:
    """Print the verdicts and write the section of RESULTS.md; with `--way` retrain once and print the seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=WAYS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    if given.way:
        print(json.dumps(retrained(given.way)))
        return
    environment = {name: value for name, value in os.environ.items() if name not in SERVERS}
    import measure  # only now, because it limits the threads of the processes that follow

    samples: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    no_op: list[float] = []
    with tempfile.TemporaryDirectory() as folder, running_servers(Path(folder) / "up") as servers:
        of_way = {"plain": environment, "servers": environment | servers, "alone": environment}
        sample("plain", Path(folder) / "first", environment)  # compiles what is compiled once on a machine
        for number in range(given.rounds):
            for way in WAYS:
                samples[way].append(sample(way, Path(folder) / f"{way}-{number}", of_way[way]))
                print(way, samples[way][-1], file=sys.stderr, flush=True)
            no_op.append(seconds_of_no_op(Path(folder) / f"servers-{number}", of_way["servers"]))
    lines = []
    for way in WAYS[1:]:
        added = [1 - a["retraining"] / b["retraining"] for a, b in zip(samples["plain"], samples[way], strict=True)]
        lines.append(measure.verdict(f"added-{way}", added, MOST, at_most=True, unit="fraction"))
    lines.append(measure.verdict("no-op", no_op, MOST_SECONDS, at_most=True, unit="s"))
    write_section("Orchestration", "\n\n".join([surroundings(), stages(samples), "\n".join(["```", *lines, "```"])]))


if __name__ == "__main__":
    main()
