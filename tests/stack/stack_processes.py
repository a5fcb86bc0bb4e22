"""`dyformer up` as a real process on free ports, and what is left of it."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from free_ports import free_port

from flows.service.processes import marked
from flows.service.running import MLFLOW, PREFECT, RECORD, read_variables

COMMAND = [sys.executable, "-c", "from flows.cli import main; main()"]
SECONDS_TO_START = 180
UNSET = ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "PREFECT_HOME", "DYFORMER_STATE", PREFECT, *MLFLOW)


def called_prefect(address: str, path: str, body: object, login: str) -> Any:
    """Call Prefect's API; what changes something needs a token that another page cannot read."""
    if body is None:
        return called(address + path, None, login)
    client = "tests"
    token = called(f"{address}/csrf-token?client={client}", None, login)["token"]
    return called(address + path, body, login, {"prefect-csrf-client": client, "prefect-csrf-token": token})


def called(url: str, body: object = None, login: str | None = None, more: Mapping[str, str] | None = None) -> Any:
    """Call a server; as its clients do, again if it is busy or away for a moment."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json", **(more or {})}
    if login is not None:
        headers["authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
    problem: Exception | None = None
    for _ in range(60):
        try:
            with urlopen(Request(url, data, headers), timeout=30) as response:
                return json.loads(response.read() or b"null")
        except HTTPError as error:
            with error:  # which is the response, too
                if error.code != 503:
                    raise AssertionError(f"{url}: {error.code} {error.read().decode()}") from error
            problem = error
        except URLError as error:
            problem = error
        time.sleep(1)
    raise AssertionError(f"{url} was away for a minute: {problem}")


@dataclass(kw_only=True)
class Up:
    """A running stack."""

    process: "subprocess.Popen[str]"
    environment: dict[str, str]
    lines: list[str]
    record: dict[str, Any]
    login: dict[str, str] = field(default_factory=dict)
    """Variables of the file that it names for other programs."""

    def request(self, path: str, body: object = None) -> Any:
        """Call Prefect's API."""
        return called_prefect(self.record["prefect"], path, body, self.login[PREFECT])

    def tracked(self, path: str, body: object = None) -> Any:
        """Call MLflow's API."""
        login = ":".join(self.login[name] for name in MLFLOW)
        return called(f"{self.record['mlflow']}/api/2.0/mlflow/{path}", body, login)

    def stop(self, number: int = signal.SIGTERM) -> str:
        """Send a signal to all processes of its group, as a terminal does, and return its last lines."""
        os.killpg(self.process.pid, number)
        return self.process.communicate(timeout=90)[0]


def environment(store: Path) -> dict[str, str]:
    """Variables with which a command uses the store."""
    return {**{name: value for name, value in os.environ.items() if name not in UNSET}, "DYFORMER_STORAGE": str(store)}


def command(store: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run one command on the store."""
    return subprocess.run(
        [*COMMAND, *arguments], env=environment(store), capture_output=True, text=True, check=False, timeout=300
    )


@contextmanager
def running(store: Path, ports: tuple[int, int] | None = None) -> Iterator[Up]:
    """Start a stack, wait until it is ready, and end all of it at the end."""
    prefect, mlflow = ports or (free_port(), free_port())
    process = subprocess.Popen(
        [*COMMAND, "up", "--prefect-port", str(prefect), "--mlflow-port", str(mlflow)],
        env=environment(store),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    up = Up(process=process, environment=environment(store), lines=[], record={})
    assert process.stdout is not None
    try:
        for line in process.stdout:
            up.lines.append(line.rstrip())
            if line.startswith("Ctrl-C"):
                break
        assert process.poll() is None, up.lines
        up.record = json.loads((store / "service" / RECORD).read_text())
        [address] = [line.split()[1] for line in up.lines if line.startswith("  . ")]
        up.login = read_variables(Path(address))
        yield up
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait(90)
        process.stdout.close()
        for left in marked(up.record.get("mark", "none")):
            os.kill(left, signal.SIGKILL)


def seconds_to_ready(up: Up) -> float:
    """Read the seconds that the stack printed."""
    [found] = [line for line in up.lines if line.startswith("ready after")]
    return float(re.findall(r"\d+", found)[0])


def wait_until(condition: Any, seconds: float, what: str, pause: float = 0.5) -> Any:
    """Wait until a function returns something true; returns it."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, f"after {seconds:.0f} s: {what}"
        time.sleep(pause)
    return found
