"""The distribution: its metadata, the content of its wheel, and the time of its import."""

import subprocess
import sys
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest

import dyformer

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
HEAVY = {"torch", "prefect", "mlflow", "duckdb", "pyarrow", "numba", "sklearn", "matplotlib"}


def test_version_is_the_distributions() -> None:
    assert dyformer.__version__ == metadata("dyformer")["Version"]


def test_missing_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        dyformer.nonsense  # noqa: B018


def test_import_of_the_package_loads_nothing_heavy() -> None:
    code = "import sys, dyformer; dyformer.__version__, dir(dyformer); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & {name.partition(".")[0] for name in run.stdout.split()}


def test_every_package_of_the_wheel_is_marked_as_typed() -> None:
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert packages == ["dyformer", "storage", "flows"]
    assert all((ROOT / package / "py.typed").exists() for package in packages)


def test_deployments_are_in_the_wheel() -> None:
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {"prefect.yaml": "flows/prefect.yaml"}


def test_licence_is_the_whole_text() -> None:
    assert PROJECT["project"]["license"] == "Apache-2.0"
    text = (ROOT / "LICENSE").read_text()
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_changelog_opens_with_the_version_of_the_project() -> None:
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert headings[0].startswith(f"## {PROJECT['project']['version']}")


def test_every_name_of_the_package_is_there() -> None:
    assert set(dyformer.__all__) <= set(dir(dyformer))
    for name in dyformer.__all__:
        assert getattr(dyformer, name) is not None
