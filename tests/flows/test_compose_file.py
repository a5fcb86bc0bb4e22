"""docker-compose.yml and .env.example are complete and consistent, and open to this machine alone."""

import json
import re
import shutil
import subprocess
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import yaml

from dyformer.logs.raw_file import ReadLimits
from dyformer.model.cuda_graphs import CUDA_GRAPHS, are_recorded
from flows.parallel import CLUSTER
from flows.service.deployments import GPU_POOL, POOL, read_deployments
from flows.tasks.drift import WEBHOOK
from flows.tasks.ranks import RANKS, num_ranks
from storage.events.scratch_database import DEFAULT_MEMORY, MEMORY_VARIABLE, memory_bytes
from storage.raw.log_files import limits_from_environment

ROOT = Path(__file__).resolve().parents[2]
SECRET = re.compile(r"password|secret|access_?key|auth_string", re.IGNORECASE)
REQUIRED = re.compile(r"(?:admin:)?\$\{\w+:\?[^}]+\}")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_ports_are_open_to_this_machine_only(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
    assert not any("network_mode" in service for service in compose["services"].values())  # a host's has no such list


@pytest.fixture
def docker() -> str:
    """Path of Docker, where it has the command `compose`; it needs no daemon for reading a file."""
    program = shutil.which("docker")
    if program is None or subprocess.run([program, "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("`docker compose` is not installed")
    return program


def test_docker_reads_the_compose_file_and_opens_its_ports_to_this_machine_only(
    docker: str, compose: dict[str, Any], tmp_path: Path
) -> None:
    given = tmp_path / "env"
    given.write_text(re.sub(r"=$", "='p@:/%$#\" word'", (ROOT / ".env.example").read_text(), flags=re.MULTILINE))
    command = [
        docker,
        "compose",
        "--env-file",
        str(given),
        "--profile",
        "gpu",
        "--profile",
        "ray",
        "config",
        "--format",
        "json",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    assert services.keys() == compose["services"].keys()
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert {port.get("host_ip") for port in ports} == {"127.0.0.1"}
    assert services["worker-cpu"]["environment"]["PREFECT_API_AUTH_STRING"] == 'admin:p@:/%$$#" word'


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
    for name in ("deploy", "deploy-gpu", "worker-cpu", "worker-gpu"):
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


def test_every_setting_that_the_docs_name_reaches_the_workers(compose: dict[str, Any]) -> None:
    named = {name for page in (ROOT / "docs").glob("*.md") for name in re.findall(r"DYFORMER_\w+", page.read_text())}
    assert {"DYFORMER_ALARM_WEBHOOK", "DYFORMER_MEMORY", "DYFORMER_MAX_LINE_BYTES"} < named
    for name in ("worker-cpu", "worker-gpu"):
        assert named - compose["services"][name]["environment"].keys() == {
            "DYFORMER_DEPLOYMENTS",  # of `deploy`
            *("DYFORMER_SERVE_URL", "DYFORMER_SERVE_LOGIN"),  # which `serve` writes for its clients
            CLUSTER,  # of a process on a node of the cluster, which these are not
        }


def test_an_optional_setting_is_empty_by_default_which_is_as_if_it_were_not_set(
    compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = compose["services"]["worker-cpu"]["environment"]
    optional = [name for name, text in environment.items() if text.endswith(":-}")]
    assert [environment[name] for name in optional] == [f"${{{name}:-}}" for name in optional]
    assert set(optional) == {
        WEBHOOK,
        MEMORY_VARIABLE,
        RANKS,
        CUDA_GRAPHS,
        *(f"DYFORMER_{field.upper()}" for field in ReadLimits.__dataclass_fields__),
    }
    for name in optional:
        monkeypatch.setenv(name, "")
    assert (limits_from_environment(), memory_bytes(), num_ranks()) == (ReadLimits(), DEFAULT_MEMORY << 20, 1)
    assert are_recorded()


def test_every_command_of_our_image_is_installed(compose: dict[str, Any]) -> None:
    installed = {script.name for script in entry_points(group="console_scripts")} | {"sh", "python"}
    ours = [service for service in compose["services"].values() if service["image"].startswith("dyformer:")]
    assert len(ours) == 9
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
        "deploy-gpu",
    ]
    for name in ("worker-cpu", "worker-gpu"):
        command = compose["services"][name]["command"]
        port = command[command.index("--health-port") + 1]
        assert f"http://127.0.0.1:{port}/health" in compose["services"][name]["healthcheck"]["test"][-1]


def test_schedules_and_logs_change_without_a_new_image(compose: dict[str, Any]) -> None:
    [target] = [each["target"] for each in compose["services"]["deploy"]["configs"] if each["source"] == "deployments"]
    assert compose["services"]["deploy"]["command"] == ["dyformer", "deploy", "--file", target]
    on_gpu = compose["services"]["deploy-gpu"]
    assert on_gpu["command"] == ["dyformer", "deploy", "--gpu", "--file", target]
    assert on_gpu["profiles"] == ["gpu"]
    assert compose["configs"]["deployments"] == {"file": "${DYFORMER_DEPLOYMENTS:-./prefect.yaml}"}
    assert "${DYFORMER_LOGS:-./logs}:/logs:ro" in compose["services"]["worker-cpu"]["volumes"]


def test_every_volume_and_config_is_declared(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for volume in service.get("volumes", []):
            name = volume.split(":")[0]
            assert name.startswith(("$", ".", "/")) or name in compose["volumes"]
        for config in service.get("configs", []):
            assert config["source"] in compose["configs"]


@pytest.mark.parametrize(("server", "address"), [("mlflow", "mlflow:5000"), ("prefect-server", "prefect-server:4200")])
def test_a_server_is_called_by_its_own_names_and_by_no_page_but_its_own(
    compose: dict[str, Any], server: str, address: str
) -> None:
    service, worker = compose["services"][server], compose["services"]["worker-cpu"]["environment"]
    assert service["command"][:3] == [
        "python",
        "-m",
        f"flows.service.{server.replace('-', '_').removesuffix('_server')}_server",
    ]
    [hosts] = [part for part in service["command"] if part.startswith("--allowed-hosts=")]
    names = hosts.rpartition(":-")[2].rstrip("}").split(",")
    port = address.rpartition(":")[2]
    assert names == [address, f"localhost:{port}", f"127.0.0.1:{port}"]
    assert f"http://{address}" in (worker["MLFLOW_TRACKING_URI"], worker["PREFECT_API_URL"].removesuffix("/api"))
    public = {"mlflow": worker["DYFORMER_MLFLOW_PAGES"], "prefect-server": worker["PREFECT_UI_URL"]}[server]
    pages = {
        "mlflow": [part.partition("=")[2] for part in service["command"] if part.startswith("--allowed-origins=")],
        "prefect-server": [service["environment"].get("PREFECT_SERVER_CORS_ALLOWED_ORIGINS")],
    }
    assert pages[server] == [public]


def test_prefect_takes_a_change_with_a_token_only(compose: dict[str, Any]) -> None:
    environment = compose["services"]["prefect-server"]["environment"]
    assert environment["PREFECT_SERVER_API_CSRF_PROTECTION_ENABLED"] == "true"


def test_every_worker_polls_a_pool_that_is_created_and_used(compose: dict[str, Any]) -> None:
    workers = [service["command"] for name, service in compose["services"].items() if name.startswith("worker-")]
    assert workers
    assert all(command[:3] == ["python", "-m", "flows.service.worker"] for command in workers)
    polled = {command[command.index("--pool") + 1] if "--pool" in command else POOL for command in workers}
    assert {each.work_pool.name for each in read_deployments(ROOT / "prefect.yaml")} == polled == {POOL, GPU_POOL}


def test_ray_wants_a_token_and_opens_no_port(compose: dict[str, Any]) -> None:
    for name in ("ray-head", "ray-node"):
        service = compose["services"][name]
        assert service["profiles"] == ["ray"]
        assert "ports" not in service
        environment = service["environment"]
        assert (environment["RAY_AUTH_MODE"], environment["RAY_AUTH_TOKEN"]) == ("token", "${RAY_AUTH_TOKEN:-}")
        assert environment["RAY_worker_niceness"] == "0"
        assert environment[CLUSTER] == "ray-head:6379"
        assert "DYFORMER_STORAGE" in environment


def test_a_gpu_is_reserved_for_the_worker_of_its_pool_alone(compose: dict[str, Any]) -> None:
    reserved = [name for name, service in compose["services"].items() if "deploy" in service]
    assert reserved == ["worker-gpu"]
    worker = compose["services"]["worker-gpu"]
    [device] = worker["deploy"]["resources"]["reservations"]["devices"]
    assert (device["capabilities"], device["count"]) == (["gpu"], 1)
    assert worker["profiles"] == ["gpu"]
    assert worker["build"]["args"] != compose["services"]["worker-cpu"]["build"]["args"]  # another build of torch
    assert worker["image"] != compose["services"]["worker-cpu"]["image"]
