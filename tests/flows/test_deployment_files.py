"""prefect.yaml, docker-compose.yml, .env.example and the Makefile are complete and consistent."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import yaml

from dyformer.logs.datasets import DATASETS
from flows.service.deployments import GPU_POOL, POOL, Deployment, read_deployments
from flows.service.managed import managed

ROOT = Path(__file__).resolve().parents[2]
SECRET = re.compile(r"password|secret|access_?key|auth_string", re.IGNORECASE)
REQUIRED = re.compile(r"(?:admin:)?\$\{\w+:\?[^}]+\}")


@pytest.fixture(scope="module")
def deployments() -> list[Deployment]:
    return read_deployments(ROOT / "prefect.yaml")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_every_deployment_is_of_a_known_dataset(deployments: list[Deployment]) -> None:
    for deployment in deployments:
        assert deployment.parameters.get("dataset", "generated") in DATASETS


def test_every_flow_and_every_benchmark_dataset_is_deployed(deployments: list[Deployment]) -> None:
    named = [f"{deployment.entrypoint.rpartition('.')[2]}/{deployment.name}" for deployment in deployments]
    assert len(named) == len(set(named))
    flows = ("ingest", "prepare", "train", "evaluate", "predict", "retrain", "benchmark")
    assert {f"{flow}/any" for flow in flows} <= set(named)
    assert {"retrain/uci", "retrain/generated", "benchmark/uci"} <= set(named)


def test_deployment_is_named_after_its_dataset(deployments: list[Deployment]) -> None:
    for deployment in deployments:
        assert deployment.parameters.get("dataset", "any") == deployment.name.removesuffix("-gpu")


def test_every_flow_is_managed_and_each_that_may_train_waits_in_the_queue_of_trainings(
    deployments: list[Deployment],
) -> None:
    wrapper = managed(lambda: None).__code__
    found = {
        each.flow().name: (each.flow().fn.__code__ is wrapper, each.work_pool.work_queue_name == "train")
        for each in deployments
    }
    assert found == {
        "retrain": (True, True),
        "train": (True, True),
        "evaluate": (True, True),
        "predict": (True, True),
        "benchmark": (True, True),
        "ingest": (True, False),
        "prepare": (True, False),
        "reconcile": (False, False),  # it is due every five minutes, and sends the spool itself
    }
    in_queue = {(each.flow().name, each.work_pool.work_queue_name == "train") for each in deployments}
    assert len(in_queue) == len(found)  # all deployments of a flow alike


def test_trainings_of_one_deployment_wait_for_each_other(deployments: list[Deployment]) -> None:
    for deployment in deployments:
        assert (deployment.concurrency_limit is not None) == (deployment.work_pool.work_queue_name == "train")


def test_a_training_goes_to_a_gpu_by_its_name_its_tag_and_its_pool_alike(deployments: list[Deployment]) -> None:
    on_gpu = [each for each in deployments if each.work_pool.name == GPU_POOL]
    assert {each.entrypoint.split(".")[-1] for each in on_gpu} == {"train", "retrain", "benchmark"}
    for each in deployments:
        assert ("gpu" in each.tags) == each.name.endswith("-gpu") == (each.work_pool.name == GPU_POOL)


def test_ports_are_open_to_this_machine_only(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def _leaves(value: Any, name: str = "") -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in _leaves(inner, str(key))]
    if isinstance(value, list):
        return [leaf for inner in value for leaf in _leaves(inner, name)]
    return [(name, str(value))]


def _secrets(compose: dict[str, Any]) -> set[str]:
    """Names of the variables that have to be set."""
    return set(re.findall(r"\$\{(\w+):\?", str(compose)))


def test_a_secret_is_a_whole_variable_of_the_environment(compose: dict[str, Any]) -> None:
    named = [(name, text) for name, text in _leaves(compose) if SECRET.search(name)]
    assert len(named) > 10
    assert all(REQUIRED.fullmatch(text) for _, text in named)
    assert {name for _, text in named for name in re.findall(r"\w+(?=:\?)", text)} == _secrets(compose)
    for _, text in _leaves(compose):  # in a text around it, its characters could mean something
        assert REQUIRED.fullmatch(text) or not re.search(r"\$\{\w+:\?", text), text
        assert not re.search(r"://\w+:[^@/]+@", text), text


def test_a_secret_stands_on_no_command_line_and_in_no_file(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        texts = [*service.get("command", []), *service.get("healthcheck", {}).get("test", [])]
        assert not _secrets({"command": texts})
    assert not _secrets(compose["configs"])


def test_prefect_and_mlflow_want_a_password_and_the_workers_have_it(compose: dict[str, Any]) -> None:
    services = compose["services"]
    prefect, mlflow = (services[name]["environment"] for name in ("prefect-server", "mlflow"))
    assert "--app-name=basic-auth" in services["mlflow"]["command"]
    for name in ("deploy", "worker-cpu", "worker-gpu"):
        own = services[name]["environment"]
        assert own["PREFECT_API_AUTH_STRING"] == prefect["PREFECT_SERVER_API_AUTH_STRING"]
        assert own["MLFLOW_TRACKING_USERNAME"] == mlflow["MLFLOW_AUTH_ADMIN_USERNAME"] == "admin"
        assert own["MLFLOW_TRACKING_PASSWORD"] == mlflow["MLFLOW_AUTH_ADMIN_PASSWORD"]


def test_links_have_the_address_that_a_browser_finds(compose: dict[str, Any]) -> None:
    server, worker = (compose["services"][name]["environment"] for name in ("prefect-server", "worker-cpu"))
    assert server["PREFECT_UI_API_URL"] == f"{worker['PREFECT_UI_URL']}/api"
    assert worker["PREFECT_UI_URL"].startswith("${PREFECT_PUBLIC_URL:-http://127.0.0.1:")


def test_only_s3_of_the_object_store_listens_outside_of_its_container(compose: dict[str, Any]) -> None:
    command = compose["services"]["s3"]["command"]
    assert {"-ip.bind=127.0.0.1", "-s3.ip.bind=0.0.0.0"} <= set(command)
    assert [part for part in command if "0.0.0.0" in part] == ["-s3.ip.bind=0.0.0.0"]


def test_example_environment_names_every_variable_and_no_secret(compose: dict[str, Any]) -> None:
    lines = [line for line in (ROOT / ".env.example").read_text().splitlines() if line and not line.startswith("#")]
    example = dict(line.split("=", 1) for line in lines)
    text = (ROOT / "docker-compose.yml").read_text()
    assert set(re.findall(r"\$\{(\w+)", text)) == set(example)
    assert {example[name] for name in re.findall(r"\$\{(\w+):\?", text)} == {""}
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()


def test_every_command_of_our_image_is_installed(compose: dict[str, Any]) -> None:
    installed = {script.name for script in entry_points(group="console_scripts")} | {"sh", "python"}
    ours = [service for service in compose["services"].values() if service["image"].startswith("dyformer:")]
    assert len(ours) == 6
    for service in ours:
        assert service["command"][0] in installed
        check = service.get("healthcheck", {}).get("test", ["CMD", "python"])
        assert check[1] in installed


def test_services_wait_until_others_are_healthy_or_have_ended(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for service in services.values():
        for name, condition in service.get("depends_on", {}).items():
            once = services[name].get("restart") == "no"
            assert condition == {"condition": "service_completed_successfully" if once else "service_healthy"}
            assert once or "healthcheck" in services[name]


def test_every_service_that_stays_has_a_health_check(compose: dict[str, Any]) -> None:
    assert [name for name, service in compose["services"].items() if "healthcheck" not in service] == [
        "buckets",
        "deploy",
    ]
    for name in ("worker-cpu", "worker-gpu"):
        command = compose["services"][name]["command"]
        port = command[command.index("--health-port") + 1]
        assert f"http://127.0.0.1:{port}/health" in compose["services"][name]["healthcheck"]["test"][-1]


def test_schedules_and_logs_change_without_a_new_image(compose: dict[str, Any]) -> None:
    [target] = [each["target"] for each in compose["services"]["deploy"]["configs"] if each["source"] == "deployments"]
    assert compose["services"]["deploy"]["command"] == ["dyformer", "deploy", "--file", target]
    assert compose["configs"]["deployments"] == {"file": "${DYFORMER_DEPLOYMENTS:-./prefect.yaml}"}
    assert "${DYFORMER_LOGS:-./logs}:/logs:ro" in compose["services"]["worker-cpu"]["volumes"]


def test_every_volume_and_config_is_declared(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            name = volume.split(":")[0]
            assert name.startswith(("$", ".", "/")) or name in compose["volumes"]
        for config in service.get("configs", []):
            assert config["source"] in compose["configs"]


def test_mlflow_of_the_compose_file_allows_its_host_name(compose: dict[str, Any]) -> None:
    [hosts] = [part for part in compose["services"]["mlflow"]["command"] if part.startswith("--allowed-hosts=")]
    assert "mlflow:5000" in hosts
    assert compose["services"]["worker-cpu"]["environment"]["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"


def test_every_worker_polls_a_pool_that_is_created_and_used(
    compose: dict[str, Any], deployments: list[Deployment]
) -> None:
    workers = [service["command"] for name, service in compose["services"].items() if name.startswith("worker-")]
    assert workers
    assert all(command[:3] == ["python", "-m", "flows.service.worker"] for command in workers)
    polled = {command[command.index("--pool") + 1] if "--pool" in command else POOL for command in workers}
    assert {deployment.work_pool.name for deployment in deployments} == polled == {POOL, GPU_POOL}


def test_a_gpu_is_reserved_for_the_worker_of_its_pool_alone(compose: dict[str, Any]) -> None:
    reserved = [name for name, service in compose["services"].items() if "deploy" in service]
    assert reserved == ["worker-gpu"]
    worker = compose["services"]["worker-gpu"]
    [device] = worker["deploy"]["resources"]["reservations"]["devices"]
    assert (device["capabilities"], device["count"]) == (["gpu"], 1)
    assert worker["profiles"] == ["gpu"]
    assert worker["build"]["args"] != compose["services"]["worker-cpu"]["build"]["args"]  # another build of torch
    assert worker["image"] != compose["services"]["worker-cpu"]["image"]


def test_image_carries_every_package_and_installs_torch_first() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    text = (ROOT / "Dockerfile").read_text()
    assert all(re.search(rf"^COPY .*{package}", text, re.MULTILINE) for package in packages["packages"])
    steps = ["${TORCH}", "COPY pyproject.toml", "pip install --requirement", "COPY dyformer", "pip install --no-deps"]
    positions = [text.index(step) for step in steps]  # code comes last, because it changes most
    assert positions == sorted(positions)
    assert text.index("slim") < text.index("RUN")
    assert re.search(r"^USER (?!root)", text, re.MULTILINE)


def test_image_installs_what_the_project_needs(tmp_path: Path) -> None:
    [program] = re.findall(r'python -c "(.+)" > requirements.txt', (ROOT / "Dockerfile").read_text())
    printed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert printed.stdout.splitlines() == project["dependencies"] + project["optional-dependencies"]["server"]


def test_what_the_image_copies_and_nothing_else_goes_to_its_builder() -> None:
    copied = set(re.findall(r"^COPY (.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == {name for line in copied for name in line.split()}


def test_image_keeps_compiled_loops_where_any_user_may_write() -> None:
    assert re.search(r"^ENV .*NUMBA_CACHE_DIR=/tmp/\w+", (ROOT / "Dockerfile").read_text(), re.MULTILINE)


def test_makefile_runs_the_check_line() -> None:
    text = (ROOT / "Makefile").read_text()
    steps = ["ruff format --check .", "ruff check .", "lint-imports", "pyright", "pytest"]
    positions = [text.index(step, text.index("\ntest:")) for step in steps]
    assert positions == sorted(positions)
    assert text.index('"$(TORCH)"') < text.index('--editable ".[server,dev,docs]"')
