"""The temporary server of a run serves this run alone."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prefect.settings import PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS, temporary_settings

from flows.commands import temporary_server
from flows.service import TAG
from flows.service.running import PREFECT
from flows.service.server import ServerUnreachable

RUN = """
import json, os, sys
import flows.commands.runs
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL

@flow
def waiting():
    print(PREFECT_API_URL.value(), int("prefect.server.api.server" in sys.modules), flush=True)
    sys.stdin.read()

with flows.commands.runs.announced():
    waiting()
with get_client(sync_client=True) as client:
    print(json.dumps([run.state_name for run in client.read_flow_runs()]))
"""


TWICE = """
import os, subprocess, sys
from flows.commands import runs, temporary_server
from prefect.settings import PREFECT_API_URL

SERVER = '''
import http.server, socket, sys
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", 0), Healthy, bind_and_activate=False)
server.socket = socket.socket(fileno=int(sys.argv[1]))
server.serve_forever()
'''

def started(listener):
    number = listener.fileno()
    return subprocess.Popen(
        [sys.executable, "-c", SERVER, str(number)], pass_fds=[number], stderr=subprocess.DEVNULL
    )

temporary_server._started = started
for use in range(3):
    with runs.announced():
        [(address, server)] = temporary_server.STARTED.items()
        assert PREFECT_API_URL.value() == os.environ["PREFECT_API_URL"] == address
        print(address, flush=True)
    if use == 1:
        server.kill()
        server.wait()
"""


def without_server(tmp_path: Path) -> dict[str, str]:
    """Give an environment in which no server is configured."""
    unset = {"PREFECT_API_URL", PREFECT}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    return {**environment, "PREFECT_HOME": str(tmp_path / "prefect")}


def test_a_second_use_in_one_process_has_the_same_server_and_one_that_ended_is_followed_by_another(
    tmp_path: Path,
) -> None:
    run = subprocess.run(
        [sys.executable, "-c", TWICE], env=without_server(tmp_path), capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[::2] == ["running on a temporary Prefect server"] * 3
    first, second, third = lines[1::2]
    assert first == second != third


def status(address: str, **headers: str) -> int:
    try:
        with urlopen(Request(address, b"{}", headers), timeout=30) as found:
            return found.status
    except HTTPError as error:
        with error:
            return error.code


def test_who_has_no_login_is_refused(tmp_path: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", RUN],
        env=without_server(tmp_path),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    assert run.stdout.readline() == "running on a temporary Prefect server\n"
    address, is_imported = run.stdout.readline().split()
    server = address.removesuffix("/api")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", server)
    assert is_imported == "0", "the client has imported all of the server, which takes seconds"
    json_type = {"Content-Type": "application/json"}
    for path in ("flow_runs/filter", "logs/filter", "flows/"):
        assert status(f"{server}/api/{path}", **json_type) == 401
    assert status(f"{server}/api/flow_runs/filter", Authorization="Basic ZHlmb3JtZXI6", **json_type) == 401
    assert status(f"{server}/api/flow_runs/filter", Origin="http://127.0.0.1:8000", **json_type) == 403
    assert status(f"{server}/api/flow_runs/filter", Host="evil.example", **json_type) == 403
    output, _ = run.communicate("", timeout=60)
    assert json.loads(output) == ["Completed"]
    assert run.returncode == 0


def test_a_server_that_ends_before_it_serves_is_named_at_once() -> None:
    ending = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    with ending as server, pytest.raises(ServerUnreachable, match="ended with code 3"):
        temporary_server._wait(server, "http://127.0.0.1:9/api")


def test_a_server_that_never_serves_is_named_once_the_time_is_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, subprocess.Popen(["sleep", "600"]) as server:
        address, started = f"http://127.0.0.1:{silent.getsockname()[1]}/api", time.monotonic()
        seconds = PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS
        with (
            temporary_settings({seconds: 2}),
            pytest.raises(ServerUnreachable, match="server takes too long to start: run"),
        ):
            temporary_server._wait(server, address)
        assert 2 <= time.monotonic() - started < 60
        server.kill()


TRIALS = """
import json, os
from own_snapshots import own_snapshots
from prefect.client.orchestration import get_client
from dyformer.experiments.settings import Experiment
from flows.commands.runs import announced
from flows.tasks.methods import resolved
from flows.trials import Trial, finished

if __name__ == "__main__":
    from pathlib import Path
    snapshots = own_snapshots(Path())
    trials = [
        Trial("prequential", "mylog", snapshots, [(3,)], seed, Experiment(), resolved(["Preferential attachment"]))
        for seed in range(2)
    ]
    with announced():
        ended = list(finished(trials, 2))
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs()
    print(json.dumps([[run.name, run.state_name, run.tags] for run in runs]))
"""


def test_trials_in_processes_of_their_own_are_runs_of_the_same_server(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TRIALS)
    folders = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    run = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={
            **without_server(tmp_path),
            "DYFORMER_STORAGE": str(tmp_path / "store"),
            "PYTHONPATH": folders,
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "600",  # beside other tests
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    runs = json.loads(run.stdout.splitlines()[-1])
    name = "Preferential attachment on mylog, seed"
    assert sorted(runs) == [[f"{name} {seed}", "Completed", [TAG]] for seed in range(2)]
