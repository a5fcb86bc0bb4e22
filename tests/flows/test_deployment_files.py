"""prefect.yaml, docker-compose.yml, .env.example and the Makefile are complete and consistent."""

import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import yaml

from dyformer.logs.datasets import DATASETS
from flows.service.deployments import POOL, Deployment, read_deployments

ROOT = Path(__file__).resolve().parents[2]
SECRET = re.compile(r"password|secret|access_?key", re.IGNORECASE)


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
        assert deployment.parameters.get("dataset", "any") == deployment.name


def test_trainings_of_one_deployment_wait_for_each_other(deployments: list[Deployment]) -> None:
    for deployment in deployments:
        trains = deployment.entrypoint.split(".")[-1] in ("train", "retrain", "benchmark")
        assert (deployment.work_pool.work_queue_name == "train") == trains
        assert (deployment.concurrency_limit is not None) == trains


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


def test_no_secret_is_written_down(compose: dict[str, Any]) -> None:
    required = re.compile(r"\$\{\w+:\?[^}]+\}")
    named = [(name, text) for name, text in _leaves(compose) if SECRET.search(name)]
    assert named
    assert all(required.fullmatch(text) for _, text in named)
    for _, text in _leaves(compose):
        assert not re.search(r"://\w+:(?!\$\{\w+:\?)[^@/]+@", text), text
        for found in re.findall(r'"(?:accessKey|secretKey)": "([^"]*)"', text):
            assert required.fullmatch(found)


def test_example_environment_names_every_variable_and_no_secret(compose: dict[str, Any]) -> None:
    lines = [line for line in (ROOT / ".env.example").read_text().splitlines() if line and not line.startswith("#")]
    example = dict(line.split("=", 1) for line in lines)
    text = (ROOT / "docker-compose.yml").read_text()
    assert set(re.findall(r"\$\{(\w+)", text)) == set(example)
    assert {example[name] for name in re.findall(r"\$\{(\w+):\?", text)} == {""}
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()


def test_every_command_of_our_image_is_installed(compose: dict[str, Any]) -> None:
    installed = {script.name for script in entry_points(group="console_scripts")} | {"sh", "python"}
    ours = [service for service in compose["services"].values() if service["image"] == "dyformer:local"]
    assert len(ours) >= 4
    for service in ours:
        assert service["command"][0] in installed
        check = service.get("healthcheck", {}).get("test", ["CMD", "python"])
        assert check[1] in installed


def test_services_wait_only_for_services_with_a_health_check(compose: dict[str, Any]) -> None:
    services = compose["services"]
    for service in services.values():
        for name, condition in service.get("depends_on", {}).items():
            assert condition == {"condition": "service_healthy"}
            assert "healthcheck" in services[name]


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
    assert compose["services"]["deploy"]["command"] == ["dyformer", "deploy"]
    assert {deployment.work_pool.name for deployment in deployments} == {POOL}


def test_image_carries_every_package_and_installs_torch_first() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    text = (ROOT / "Dockerfile").read_text()
    assert all(re.search(rf"^COPY .*{package}", text, re.MULTILINE) for package in packages["packages"])
    assert text.index("${TORCH}") < text.index('pip install ".[server]"')
    assert re.search(r"^USER (?!root)", text, re.MULTILINE)


def test_image_keeps_compiled_loops_where_any_user_may_write() -> None:
    assert re.search(r"^ENV .*NUMBA_CACHE_DIR=/tmp/\w+", (ROOT / "Dockerfile").read_text(), re.MULTILINE)


def test_makefile_runs_the_check_line() -> None:
    text = (ROOT / "Makefile").read_text()
    steps = ["ruff format --check .", "ruff check .", "lint-imports", "pyright", "pytest"]
    positions = [text.index(step, text.index("\ntest:")) for step in steps]
    assert positions == sorted(positions)
    assert text.index('"$(TORCH)"') < text.index('--editable ".[server,dev,docs]"')
