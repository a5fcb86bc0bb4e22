"""The distribution: its metadata, the content of its wheel, and the time of its import."""

import ast
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from importlib import import_module
from importlib.metadata import metadata
from pathlib import Path

import pytest

import dyformer
from storage.artifacts import code

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
# Of each package: how many entries it has at most, and arrows between them. They may only go down.
ENTRIES_AND_ARROWS = {"dyformer": (10, 30), "storage": (12, 39), "flows": (16, 53)}
HEAVY = {"torch", "prefect", "mlflow", "duckdb", "pyarrow", "numba", "sklearn", "matplotlib"}


def test_version_is_the_distributions() -> None:
    assert dyformer.__version__ == metadata("dyformer")["Version"]


def test_missing_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        dyformer.nonsense  # noqa: B018 # pyright: ignore[reportAttributeAccessIssue]


def test_type_checkers_know_the_names_of_the_package() -> None:
    stub = ast.parse((ROOT / "dyformer" / "__init__.pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    imported = [alias.name for node in imports for alias in node.names]
    errors = {
        node.name: [ast.unparse(base) for base in node.bases] for node in stub.body if isinstance(node, ast.ClassDef)
    }
    [listed] = [ast.literal_eval(node.value) for node in stub.body if isinstance(node, ast.Assign)]
    assert listed == dyformer.__all__
    assert sorted([*imported, *errors, "__version__"]) == sorted(listed)
    assert errors == {name: [base.__name__ for base in getattr(dyformer, name).__bases__] for name in errors}
    for node in imports:
        for alias in node.names:
            assert getattr(import_module(str(node.module)), alias.name) is getattr(dyformer, alias.name)


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


@pytest.mark.parametrize("package", ENTRIES_AND_ARROWS)
def test_entries_of_a_package_have_few_arrows_between_them_and_none_back(package: str) -> None:
    """An arrow is an import, also one in a function, of a module in another entry."""
    entry_of = {name: name.split(".")[1] for name in code.all_modules(package)}
    arrows = {
        (entry, entry_of[imported])
        for name, entry in entry_of.items()
        for imported in code._parsed(name)[1]
        if entry_of.get(imported, entry) != entry
    }
    num_entries, num_arrows = ENTRIES_AND_ARROWS[package]
    assert len(set(entry_of.values())) <= num_entries
    assert len(arrows) <= num_arrows, sorted(arrows)
    graph = {entry: {end for start, end in arrows if start == entry} for entry in entry_of.values()}
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError where there is a way back
