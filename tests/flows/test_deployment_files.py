"""prefect.yaml, the Dockerfile and the Makefile are complete and consistent."""

import re
import tomllib
from pathlib import Path

import pytest

from flows.service.deployments import GPU_POOL, Deployment, read_deployments
from flows.service.managed import managed

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def deployments() -> list[Deployment]:
    return read_deployments(ROOT / "prefect.yaml")


def test_every_flow_has_one_deployment_for_any_dataset_and_one_for_a_gpu_where_it_trains(
    deployments: list[Deployment],
) -> None:
    named = sorted(f"{deployment.entrypoint.rpartition('.')[2]}/{deployment.name}" for deployment in deployments)
    flows = ("ingest", "prepare", "train", "evaluate", "predict", "retrain", "benchmark", "reconcile")
    on_gpu = ("train", "retrain", "benchmark")
    assert named == sorted([*(f"{flow}/any" for flow in flows), *(f"{flow}/any-gpu" for flow in on_gpu)])
    assert not any(deployment.parameters for deployment in deployments)


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
        "reconcile": (False, False),  # a look follows within a minute
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


def test_image_carries_every_package_and_installs_torch_first() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    text = (ROOT / "Dockerfile").read_text()
    assert all(re.search(rf"^COPY .*{package}", text, re.MULTILINE) for package in packages["packages"])
    steps = ["${TORCH}", "COPY pyproject.toml", 'pip install ".[server,ray]"', "COPY dyformer", "pip install --no-deps"]
    positions = [text.index(step) for step in steps]  # code comes last, because it changes most
    assert positions == sorted(positions)
    assert text.index("slim") < text.index("RUN")
    assert re.search(r"^USER (?!root)", text, re.MULTILINE)


def test_image_installs_all_that_a_service_needs() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "dyformer[all]" in extras["server"]
    assert {"dyformer[model,service,serve]"} == set(extras["all"])
    folders, install, removed = (
        (ROOT / "Dockerfile").read_text().index(step)
        for step in ("mkdir dyformer storage flows", 'pip install ".[server,ray]"', "pip uninstall --yes dyformer")
    )
    assert folders < install < removed


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
