"""Another page in the browser, another user of the machine and a forged name reach nothing of `dyformer up`."""

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from logged_in import LoggedIn
from other_page import opened
from stack_processes import Up, wait_until

from flows.service.running import LOGIN, MLFLOW, PREFECT

pytestmark = pytest.mark.stack


@pytest.fixture
def file(logged_in: LoggedIn) -> Path:
    """A file that no attack may make."""
    return logged_in.folder / "hostile"


def held(up: Up) -> tuple[list[str], ...]:
    """Give what the servers hold, apart from the runs of schedules: flows, runs and experiments, by their names."""
    flows = sorted(flow["name"] for flow in up.request("/flows/filter", {}))
    runs = [run["name"] for run in up.request("/flow_runs/filter", {}) if not run["auto_scheduled"]]
    return flows, runs, [each["name"] for each in up.tracked("experiments/search?max_results=99")["experiments"]]


def test_a_page_on_another_port_reads_and_does_nothing(logged_in: LoggedIn, file: Path, tmp_path: Path) -> None:
    up = logged_in.up
    before = held(up)
    deployment = up.request("/deployments/name/retrain/any")["id"]
    servers = {name: up.record[name] for name in ("prefect", "mlflow")}
    attempts = opened(logged_in.tab, tmp_path / "page", servers, deployment=deployment, file=str(file))
    assert {"read runs", "create a run silently", "create an experiment by a form"} < attempts
    assert held(up) == before
    assert not file.exists()


TEMPORARY = """
import sys
import os
from flows.commands.temporary_server import use_temporary_server
use_temporary_server()
from prefect.client.orchestration import get_client
print(os.environ["PREFECT_API_URL"], flush=True)
sys.stdin.readline()
with get_client(sync_client=True) as client:
    print([flow.name for flow in client.read_flows()], [run.name for run in client.read_flow_runs()], flush=True)
"""


def test_a_page_on_another_port_reaches_no_temporary_server(tmp_path: Path, logged_in: LoggedIn) -> None:
    environment = {**os.environ, "PREFECT_HOME": str(tmp_path / "prefect"), "PYTHONPATH": str(Path.cwd())}
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    with subprocess.Popen([sys.executable, "-c", TEMPORARY], env=environment, text=True, **pipes) as process:
        assert process.stdin
        assert process.stdout
        address = process.stdout.readline().strip()
        assert "create a flow" in opened(logged_in.tab, tmp_path / "page", {"prefect": address})
        print(file=process.stdin, flush=True)
        assert process.stdout.readline() == "[] []\n"


def curl(*arguments: str) -> list[str]:
    return ["curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}", *arguments]


def requests_of(up: Up) -> list[tuple[str, ...]]:
    """Arguments of curl that read or change something at each server."""
    json_body = ("--header", "content-type: application/json", "--data", "{}")
    mlflow = f"{up.record['mlflow']}/api/2.0/mlflow"
    return [
        (f"{up.record['prefect']}/admin/version",),
        (*json_body, f"{up.record['prefect']}/flow_runs/filter"),
        (f"{mlflow}/experiments/search?max_results=9",),
        (*json_body, f"{mlflow}/experiments/create"),
        (f"{up.record['mlflow']}/",),
        (f"{up.record['mlflow']}/version",),
    ]


def test_another_user_is_refused_and_cannot_read_the_login(logged_in: LoggedIn) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]

    def as_nobody(command: list[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([*nobody, *command], capture_output=True, text=True, check=False, cwd="/")

    for arguments in requests_of(logged_in.up):
        is_change = "--data" in arguments  # which Prefect refuses before the login, for want of a token
        assert as_nobody(curl(*arguments)).stdout in ("401", "403" if is_change else "401"), arguments
    service = logged_in.store / "service"
    for path in (logged_in.folder, *logged_in.folder.parents):  # pytest closes its folders, which a store's may not be
        if path.stat().st_uid == os.geteuid() and path != Path("/"):
            path.chmod(path.stat().st_mode | stat.S_IXOTH | stat.S_IROTH)
    assert as_nobody(["ls", str(logged_in.store)]).returncode == 0
    for path in (service, service / LOGIN, service / "prefect-server.log", service / "prefect" / "prefect.db"):
        assert path.exists()
        assert "Permission denied" in as_nobody(["ls" if path.is_dir() else "cat", str(path)]).stderr
    password = logged_in.up.login[MLFLOW[1]]
    processes = as_nobody(
        ["sh", "-c", "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' ' '"]
    ).stdout
    assert "flows.service.prefect_server" in processes
    assert password not in processes


def test_a_forged_name_is_refused_with_the_login(logged_in: LoggedIn) -> None:
    assert shutil.which("curl")
    for login, arguments in zip((PREFECT,) * 2 + (None,) * 4, requests_of(logged_in.up), strict=True):
        own = logged_in.up.login[login] if login else ":".join(logged_in.up.login[name] for name in MLFLOW)
        forged = curl("--user", own, "--header", "host: evil.example", *arguments)
        assert subprocess.run(forged, capture_output=True, text=True, check=True).stdout == "403", arguments
        foreign = curl("--user", own, "--header", "origin: http://127.0.0.1:1", *arguments)
        assert subprocess.run(foreign, capture_output=True, text=True, check=True).stdout == "403", arguments
    version = curl("--user", logged_in.up.login[PREFECT], f"{logged_in.up.record['prefect']}/admin/version")
    assert subprocess.run(version, capture_output=True, text=True, check=True).stdout == "200"


def test_a_run_chooses_no_command_with_the_login(logged_in: LoggedIn, file: Path) -> None:
    """The worker runs what is deployed, and nothing that a run brings, though the server took it."""
    up = logged_in.up
    deployment = up.request("/deployments/name/retrain/any")["id"]
    values: dict[str, Any] = {"command": f"touch {file}", "env": {"DYFORMER_STORAGE": "/hostile"}}
    body = {"parameters": {"dataset": "none"}, "job_variables": values}
    with pytest.raises(AssertionError, match="422"):
        up.request(f"/deployments/{deployment}/create_flow_run", body)
    given = {"flow_id": up.request("/flows/name/reconcile")["id"], "work_pool_name": "dyformer-cpu"}
    deployment = up.request("/deployments/name/reconcile/any")["id"]
    state = {"type": "SCHEDULED", "name": "Scheduled"}
    hostile = {**given, "deployment_id": deployment, "job_variables": values, "state": state, "name": "hostile"}
    run = up.request("/flow_runs/", {**hostile, "work_queue_name": "default"})["id"]
    try:
        final = ("COMPLETED", "FAILED", "CRASHED")
        wait_until(lambda: up.request(f"/flow_runs/{run}")["state_type"] in final, 120, "no end")
    finally:
        assert not file.exists()


def test_the_login_is_in_no_log_and_in_no_output(logged_in: LoggedIn) -> None:
    password = logged_in.up.login[MLFLOW[1]]
    assert password not in "\n".join(logged_in.up.lines)
    for path in logged_in.store.rglob("*"):
        if path.is_file() and path.name != LOGIN:
            assert password.encode() not in path.read_bytes(), path
