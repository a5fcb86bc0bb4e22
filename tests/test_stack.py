"""The versions that are allowed together work together: what the caps in pyproject.toml are there for."""

import os
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from packaging.requirements import Requirement
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

ROOT = Path(__file__).resolve().parents[1]


@flow
def double(number: int) -> int:
    return 2 * number


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a real Prefect server with its own database, as its own process group."""
    home, port = tmp_path_factory.mktemp("prefect"), free_port()
    environment = {
        **os.environ,
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{home}/prefect.db",
        "DO_NOT_TRACK": "1",
    }
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    log = home / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
        try:
            _wait_for(f"http://127.0.0.1:{port}/api/health", process, log)
            with temporary_settings({PREFECT_API_URL: environment["PREFECT_API_URL"], PREFECT_HOME: home}):
                yield environment["PREFECT_API_URL"]
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(30)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(240):
        assert process.poll() is None, log.read_text()
        try:
            with urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
        except (URLError, OSError):
            time.sleep(0.5)
    pytest.fail(f"no server after 120 s:\n{log.read_text()}")


def test_flow_runs_on_a_server(server: str) -> None:
    state = double(21, return_state=True)
    assert state.is_completed()
    with get_client(sync_client=True) as client:
        [run] = client.read_flow_runs()
    assert (run.state_name, run.parameters) == ("Completed", {"number": 21})


def test_scheduled_run_is_created_within_a_minute(server: str) -> None:
    with get_client(sync_client=True) as client:
        schedule = DeploymentScheduleCreate(schedule=IntervalSchedule(interval=timedelta(hours=1)), active=True)
        deployment = client.create_deployment(
            flow_id=client.create_flow(double), name="hourly", schedules=[schedule], parameters={"number": 1}
        )
        names = _scheduled_names(client, deployment)
    assert names == {"Scheduled"}


def _scheduled_names(client: object, deployment: object) -> set[str | None]:
    for _ in range(120):
        runs = client.read_flow_runs()  # pyright: ignore[reportAttributeAccessIssue]
        names = {run.state_name for run in runs if run.deployment_id == deployment}
        if names:
            return names
        time.sleep(0.5)
    return set()


def test_deployments_are_taken_as_they_are_written(server: str) -> None:
    def prefect(*arguments: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
            cwd=ROOT,
            env={**os.environ, "PREFECT_API_URL": server},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    prefect("work-pool", "create", "dyformer-cpu", "--type", "process", "--overwrite")
    prefect("deploy", "--all")
    prefect("deployment", "run", "retrain/uci")
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name("retrain/uci")
        runs = [run for run in client.read_flow_runs() if run.deployment_id == deployment.id]
    assert (deployment.entrypoint, deployment.path, deployment.pull_steps) == ("flows.retrain.retrain", None, [])
    assert deployment.global_concurrency_limit is not None
    assert deployment.global_concurrency_limit.limit == 1
    assert [run.parameters["dataset"] for run in runs] == ["uci"]


@pytest.mark.parametrize(
    ("name", "too_new"), [("fastapi", "0.151"), ("sqlalchemy", "2.1"), ("pyarrow", "26.0"), ("prefect", "4.0")]
)
def test_version_known_to_break_is_not_allowed(name: str, too_new: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [requirement] = [line for line in map(Requirement, project["dependencies"]) if line.name == name]
    assert not requirement.specifier.contains(too_new)


def test_installed_versions_are_allowed() -> None:
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
