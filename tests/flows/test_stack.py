"""The allowed versions work together; pyproject.toml caps versions that do not."""

import os
import subprocess
import sys
import time
import tomllib
from datetime import timedelta
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.schedules import IntervalSchedule

ROOT = Path(__file__).resolve().parents[2]


@flow
def double(number: int) -> int:
    return 2 * number


def test_flow_runs_on_a_server(server: str) -> None:
    state = double(21, return_state=True)
    assert state.is_completed()
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs()
    assert [run.state_name for run in runs if run.parameters == {"number": 21}] == ["Completed"]


def test_scheduled_run_is_created_within_a_minute(server: str) -> None:
    with get_client(sync_client=True) as client:
        schedule = DeploymentScheduleCreate(schedule=IntervalSchedule(interval=timedelta(hours=1)), active=True)
        deployment = client.create_deployment(
            flow_id=client.create_flow(double), name="hourly", schedules=[schedule], parameters={"number": 1}
        )
        names = _scheduled_names(client, deployment)
        client.delete_deployment(deployment)
    assert names == {"Scheduled"}


def _scheduled_names(client: object, deployment: object) -> set[str | None]:
    for _ in range(120):
        runs = client.read_flow_runs()  # pyright: ignore[reportAttributeAccessIssue]
        names = {run.state_name for run in runs if run.deployment_id == deployment}
        if names:
            return names
        time.sleep(0.5)
    return set()


# Several commands in one process, because each start of Prefect's command line takes seconds.
COMMANDS = """
import sys
from prefect.cli import app

for arguments in {commands!r}:
    sys.argv = ["prefect", "--no-prompt", *arguments]
    try:
        app()
    except SystemExit as ending:
        assert not ending.code, (arguments, ending.code)
"""


def test_deployments_are_taken_as_they_are_written(server: str) -> None:
    commands = [
        *(
            ["work-pool", "create", pool, "--type", "process", "--overwrite"]
            for pool in ("dyformer-cpu", "dyformer-gpu")
        ),
        ["deploy", "--all"],
        ["deployment", "run", "retrain/any", "-p", "dataset=uci"],
    ]
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS.format(commands=commands)],
        cwd=ROOT,
        env={**os.environ, "PREFECT_API_URL": server},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name("retrain/any")
        runs = [run for run in client.read_flow_runs() if run.deployment_id == deployment.id]
        of_uci = [run for run in runs if run.parameters["dataset"] == "uci"]  # other tests run others
        for run in of_uci:  # no worker takes it, and a test of `dyformer doctor` would find it late
            client.delete_flow_run(run.id)
    assert (deployment.entrypoint, deployment.path, deployment.pull_steps) == ("flows.retrain.retrain", None, [])
    assert deployment.global_concurrency_limit is not None
    assert deployment.global_concurrency_limit.limit == 1
    assert len(of_uci) == 1


@pytest.mark.parametrize(
    ("name", "too_new"), [("fastapi", "0.151"), ("sqlalchemy", "2.1"), ("pyarrow", "26.0"), ("prefect", "4.0")]
)
def test_version_known_to_break_is_not_allowed(name: str, too_new: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [line for extra in ("service", "serve") for line in extras[extra]] + project["dependencies"]
    requirements = [line for line in map(Requirement, lines) if line.name == name]
    assert requirements
    assert not any(requirement.specifier.contains(too_new) for requirement in requirements)


def test_installed_versions_are_allowed() -> None:
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
