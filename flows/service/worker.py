"""A process worker of Prefect, whose runs are stopped before it, and beside it the process that looks each minute.

Prefect's own worker ends at SIGTERM without a word to its runs, which then stand as running until they are found dead.
Here each run saves what it has and is due again.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from flows.service.deployments import GPU_POOL, POOL
from flows.service.processes import SECONDS_BETWEEN_LOOKS, Stopping, end_all, end_with, marked

RUNS = "DYFORMER_WORKER"  # in the environment of a worker and of its runs
RUNNING = {
    "PREFECT_LOGGING_LOG_PRINTS": "true",  # the epochs of a training, too
    # When a run is cancelled, Prefect imports its flow in a script whose folder has a `storage.py`, and finds that.
    "PYTHONSAFEPATH": "1",
}
NUM_RUNS = {POOL: 2, GPU_POOL: 1}  # one training, and something short beside it where no GPU is its own
SECONDS_FOR_RUNS = 40.0  # a run that is stopped saves its checkpoint and hands itself back
SECONDS_FOR_WORKER = 10.0
LOOKS = [sys.executable, "-P", "-m", "flows.service.looks"]
SECONDS_BETWEEN_STARTS = 10.0


@dataclass
class Looks:
    """The process that looks each minute, which is started again when it ends."""

    command: list[str] = field(default_factory=lambda: LOOKS)
    process: "subprocess.Popen[bytes] | None" = None
    started: float = -SECONDS_BETWEEN_STARTS

    def keep_up(self) -> None:
        """Start it if it does not run."""
        has_ended = self.process is None or self.process.poll() is not None
        if has_ended and time.monotonic() - self.started >= SECONDS_BETWEEN_STARTS:
            self.started = time.monotonic()
            self.end()
            # It reads this end of a pipe, and ends when this process does.
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603

    def end(self) -> None:
        """End it, if it runs, and the look that it is making."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGTERM)
            self.process.communicate()


def run_worker(arguments: list[str]) -> int:
    """Run `prefect worker start` with these arguments until it ends or a signal comes; returns its exit code."""
    stopping, mark, looks = Stopping(), uuid.uuid4().hex, Looks()
    command = [
        sys.executable,
        "-P",
        "-m",
        "prefect",
        "worker",
        "start",
        "--type",
        "process",
        "--no-create-pool-if-not-found",  # because Prefect would make one whose runs choose their command
        *arguments,
    ]
    with stopping.listening():
        # In a session of its own, because a terminal sends Ctrl-C to all processes of one.
        worker = subprocess.Popen(command, env={**RUNNING, **os.environ, RUNS: mark}, start_new_session=True)  # noqa: S603
        while worker.poll() is None and not stopping.wait(SECONDS_BETWEEN_LOOKS):
            looks.keep_up()
        looks.end()
        if worker.poll() is None:
            stop_worker(worker, mark, stopping.is_hurried)
    return worker.wait()


def stop_worker(worker: "subprocess.Popen[bytes]", mark: str, is_hurried: Callable[[], bool]) -> None:
    """Stop the runs of a worker, and then the worker, which is frozen meanwhile: it would take them again."""
    worker.send_signal(signal.SIGSTOP)
    end_all(lambda: [process for process in marked(mark, RUNS) if process != worker.pid], SECONDS_FOR_RUNS, is_hurried)
    worker.terminate()
    worker.send_signal(signal.SIGCONT)
    with suppress(subprocess.TimeoutExpired):
        worker.wait(SECONDS_FOR_WORKER)
    if worker.poll() is None:
        worker.kill()


def main() -> None:
    """Run a worker with the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m flows.service.worker")
    parser.add_argument("--name", help="of the worker on Prefect's pages")
    parser.add_argument("--queue", help="take runs of this queue alone, such as train or default")
    parser.add_argument("--limit", type=int, help="runs at a time")
    parser.add_argument("--pool", choices=(POOL, GPU_POOL), default=POOL, help="whose runs it takes")
    parser.add_argument("--health-port", help="on which this machine is given the worker's health, at /health")
    parser.add_argument("--parent", type=int, help="process with which it ends")
    arguments = parser.parse_args()
    if arguments.parent is not None:
        end_with(arguments.parent, seconds=None)  # its runs have their time
    options = {
        "--pool": arguments.pool,
        "--name": arguments.name,
        "--work-queue": arguments.queue,
        "--limit": str(arguments.limit or NUM_RUNS[arguments.pool]),
    }
    health = []
    if arguments.health_port:
        os.environ |= {
            "PREFECT_WORKER_WEBSERVER_HOST": "127.0.0.1",
            "PREFECT_WORKER_WEBSERVER_PORT": arguments.health_port,
        }
        health = ["--with-healthcheck"]
    sys.exit(run_worker([*health, *(text for name, value in options.items() if value for text in (name, value))]))


if __name__ == "__main__":
    main()
