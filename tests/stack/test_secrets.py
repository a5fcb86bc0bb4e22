"""Who has no password is refused, and the secrets of the stack are in nothing that it wrote during a retraining."""

import base64
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import boto3
import pytest
from botocore.exceptions import ClientError
from browser import browser
from compose_stack import Stack, ends
from other_page import opened
from postgres_server import programs
from retrainings import started

from flows.service.deployments import JOB_TEMPLATE
from flows.service.processes import marked
from storage.events.table import ingested_datasets
from storage.layout import Layout

pytestmark = pytest.mark.stack

LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
LISTENING = "0A"


def status(url: str, login: str | None = None, body: bytes | None = None, **more: str) -> int:
    headers = {} if login is None else {"authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
    try:
        with urlopen(Request(url, body, {**headers, **more}), timeout=30) as response:
            return response.status
    except HTTPError as error:
        with error:
            return error.code


def addresses(stack: Stack) -> dict[str, str]:
    """Give a page of each server that wants a password."""
    own = stack.environment("worker-cpu")
    runs = f"{own['MLFLOW_TRACKING_URI']}/api/2.0/mlflow/experiments/search?max_results=1"
    return {"prefect": f"{own['PREFECT_API_URL']}/admin/version", "mlflow": runs}


def logins(stack: Stack) -> dict[str, str]:
    own = stack.environment("worker-cpu")
    mlflow = f"{own['MLFLOW_TRACKING_USERNAME']}:{own['MLFLOW_TRACKING_PASSWORD']}"
    return {"prefect": own["PREFECT_API_AUTH_STRING"], "mlflow": mlflow}


@pytest.mark.parametrize("server", ["prefect", "mlflow"])
def test_a_call_without_the_password_is_refused(stack: Stack, server: str) -> None:
    page, login = addresses(stack)[server], logins(stack)[server]
    assert status(page) == 401
    assert status(page, "admin:password1234") == 401
    assert status(page, login[:-1]) == 401
    assert status(page, login) == 200


@pytest.mark.parametrize("server", ["prefect", "mlflow"])
def test_a_call_of_another_page_or_under_another_name_is_refused_with_the_password(stack: Stack, server: str) -> None:
    page, login = addresses(stack)[server], logins(stack)[server]
    own = page.partition("/api")[0]
    assert status(page, login, origin=own) == 200
    for origin in ("http://127.0.0.1:1", "http://localhost:1", "https://evil.example", "null"):
        assert status(page, login, origin=origin) == 403
    for host in ("evil.example", "127.0.0.1:1", "localhost"):
        assert status(page, login, host=host) == 403
    assert status(page, login, None, **{"sec-fetch-site": "same-site", "sec-fetch-mode": "no-cors"}) == 403


def test_a_page_in_a_browser_that_is_logged_in_reads_and_changes_nothing(stack: Stack, tmp_path: Path) -> None:
    own = stack.environment("worker-cpu")
    mlflow = own["MLFLOW_TRACKING_URI"]
    servers = {"prefect": own["PREFECT_API_URL"], "mlflow": mlflow}

    def held() -> list[str]:
        found = [*stack.request("/flows/filter", {}), *stack.request("/flow_runs/filter", {})]
        experiments = stack.tracked("experiments/search?max_results=99")["experiments"]
        return [each["name"] for each in (*found, *experiments) if "hostile" in each["name"]]

    with browser(tmp_path / "profile") as tab:
        tab.logins[mlflow] = (own["MLFLOW_TRACKING_USERNAME"], own["MLFLOW_TRACKING_PASSWORD"])
        tab.open(own["PREFECT_API_URL"].removesuffix("/api"), "Login")
        tab.write(own["PREFECT_API_AUTH_STRING"])
        tab.wait("Dashboard")
        tab.open(f"{mlflow}/#/experiments", "Experiments")
        deployment = stack.request("/deployments/name/retrain/any")["id"]
        attempts = opened(tab, tmp_path / "page", servers, deployment=deployment)
    assert {"read runs", "create a run silently", "create an experiment by a form"} < attempts
    assert not held()


def test_prefect_takes_no_change_without_a_token(stack: Stack) -> None:
    runs = f"{stack.environment('worker-cpu')['PREFECT_API_URL']}/flow_runs/filter"
    assert status(runs, logins(stack)["prefect"], b"{}", **{"content-type": "application/json"}) == 403


def test_no_run_chooses_what_its_process_executes(stack: Stack) -> None:
    pools = stack.request("/work_pools/filter", {})
    assert {pool["name"] for pool in pools} == {"dyformer-cpu", "dyformer-gpu"}
    assert all(pool["base_job_template"] == JOB_TEMPLATE for pool in pools)


def test_s3_wants_its_key(stack: Stack) -> None:
    own = stack.environment("worker-cpu")
    assert status(f"{own['AWS_ENDPOINT_URL']}/dyformer?list-type=2") == 403
    wrong = boto3.client(
        "s3",
        aws_access_key_id=own["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key="another",
        region_name=own["AWS_REGION"],
        endpoint_url=own["AWS_ENDPOINT_URL"],
    )
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        wrong.list_objects_v2(Bucket="dyformer")


def test_every_server_listens_to_this_machine_alone(stack: Stack) -> None:
    found = list(listening(set(marked(stack.mark))))
    assert len(found) >= 8  # Prefect, MLflow, the two workers' health, and those of the object store
    assert {address for address, _ in found} <= LOOPBACK


def listening(processes: set[int]) -> Iterator[tuple[str, int]]:
    """Give the address, as the kernel writes it, and the port of each listening socket of some processes."""
    sockets = set()
    for process in processes:
        for entry in Path(f"/proc/{process}/fd").iterdir():
            try:
                sockets.add(str(entry.readlink()))
            except OSError:
                continue
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, state, inode = (line.split()[number] for number in (1, 3, 9))
            if state == LISTENING and f"socket:[{inode}]" in sockets:
                address, _, port = local.partition(":")
                yield address, int(port, 16)


@pytest.fixture
def retrained(stack: Stack, store: Layout, log: Path) -> None:
    """Retrain on this stack, unless a test before did."""
    if not ingested_datasets(store):
        ends(stack, started(stack, log, "secrets"))


@pytest.mark.usefixtures("retrained")
def test_no_secret_is_in_a_log_a_database_an_artifact_or_a_command_line(stack: Stack, store: Layout) -> None:
    secrets = [value for name, value in stack.values.items() if name != "S3_ACCESS_KEY"]
    wanted = [form for secret in secrets for form in forms(secret.rpartition("=")[2])]
    assert len(secrets) == 5
    assert [line for line in stack.command_lines if any(form in line for form in wanted)] == []
    assert len(stack.command_lines) > 20
    time.sleep(2)  # until the logs are written
    contents = dict(written(stack))
    assert {"log", "database", "object", "state"} <= {name.partition(" ")[0] for name in contents}
    assert [name for name, content in contents.items() if any(form in content for form in wanted)] == []


def forms(secret: str) -> list[bytes]:
    """Give a text as it is, and as it stands in Base64 after any number of other bytes."""
    found = [secret.encode()]
    for before in range(3):
        whole = base64.b64encode(b"x" * before + secret.encode())
        found.append(whole[4 if before else 0 : -4])
    return found


def written(stack: Stack) -> Iterator[tuple[str, bytes]]:
    """Give everything that the stack has written: logs, databases, objects, files of state."""
    for path in stack.folder.rglob("*"):
        if path.is_file() and "s3" not in path.relative_to(stack.folder).parts[:2]:
            kind = "log" if path.suffix == ".log" else "state"
            yield f"{kind} {path}", path.read_bytes()
    for database in ("prefect", "mlflow"):
        found = programs()
        assert found is not None
        folder = (found / "postgres").resolve().parent
        own = {"PGPASSWORD": stack.environment("postgres")["POSTGRES_PASSWORD"]}
        where = ["--host=127.0.0.1", f"--port={stack.port('postgres', 5432)}", "--username=dyformer", database]
        dumped = subprocess.run(
            [folder / "pg_dump", *where], env={**os.environ, **own}, capture_output=True, check=True
        )
        assert len(dumped.stdout) > 100_000
        yield f"database {database}", dumped.stdout
    own = stack.environment("worker-cpu")
    client = boto3.client(
        "s3",
        aws_access_key_id=own["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=own["AWS_SECRET_ACCESS_KEY"],
        region_name=own["AWS_REGION"],
        endpoint_url=own["AWS_ENDPOINT_URL"],
    )
    for bucket in (each["Name"] for each in client.list_buckets()["Buckets"]):
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            for each in page.get("Contents", []):
                yield f"object {bucket}/{each['Key']}", client.get_object(Bucket=bucket, Key=each["Key"])["Body"].read()
