"""The temporary server of a run serves this run alone."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from flows.commands import temporary_server
from flows.service.environment import ServerUnreachable
from flows.service.login import PREFECT

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


def status(address: str, **headers: str) -> int:
    try:
        with urlopen(Request(address, b"{}", headers), timeout=30) as found:
            return found.status
    except HTTPError as error:
        with error:
            return error.code


def test_who_has_no_login_is_refused(tmp_path: Path) -> None:
    unset = {"PREFECT_API_URL", PREFECT}
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    run = subprocess.Popen(
        [sys.executable, "-c", RUN],
        env={**environment, "PREFECT_HOME": str(tmp_path / "prefect")},
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
