"""Without torch, Prefect, MLflow and FastAPI the core runs, and what needs one of them names its extra."""

import ast
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from core_programs import API, COMMANDS, core_commands
from packaging.requirements import Requirement

from dyformer.experiments.extras import EXTRAS, MissingExtra, missing, need

ROOT = Path(__file__).resolve().parents[1]
BLOCKED = sorted(EXTRAS)
WITHOUT = f"""
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, NotInstalled())
"""
COMMAND = """
from flows.cli import main
sys.argv = ["dyformer", *sys.argv[1:]]
main()
"""


def without_extras(code: str, *arguments: str, store: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DYFORMER_STORAGE": str(store)}
    command = [sys.executable, "-c", WITHOUT + code, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_the_python_api_needs_torch_only_where_a_method_trains_by_it(tmp_path: Path) -> None:
    done = without_extras(API, store=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("run generated", "service"),
        ("benchmark generated", "service"),
        ("up", "service"),
        ("compare a b", "service"),
        ("serve generated", "serve"),
    ],
)
def test_a_command_names_the_extra_that_it_needs(command: str, extra: str, tmp_path: Path) -> None:
    done = without_extras(COMMAND, *command.split(), store=tmp_path)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("dyformer: this needs the package ")
    assert last.endswith(f"which is not installed: pip install 'dyformer[{extra}]'")


def test_reading_querying_and_ranking_need_no_extra(tmp_path: Path) -> None:
    done = without_extras(COMMANDS, json.dumps(core_commands(tmp_path)), store=tmp_path / "store")
    assert done.returncode == 0, done.stderr
    for options, message in (
        ((), "has no champion"),
        (("--set", "model.num_layers=4"), "pip install 'dyformer[model]'"),
    ):
        done = without_extras(COMMAND, "predict", "mylog", *options, store=tmp_path / "store")
        assert done.returncode == 1
        assert message in done.stderr


WITHOUT_OPENMP = """
import sys

class NoLibrary:
    def find_spec(self, name, path=None, target=None):
        if name == "lightgbm":
            raise OSError("libgomp.so.1: cannot open shared object file: No such file or directory")

sys.meta_path.insert(0, NoLibrary())
"""


@pytest.mark.parametrize("call", ["dyformer.fit_events(log)", 'dyformer.fit(log.snapshots("3d"), FORECASTER)'])
def test_without_the_systems_openmp_a_fit_names_it(call: str) -> None:
    code = f"""
import dyformer
rows = [(f"u{{n % 7}}", f"u{{(n * n + 1) % 9}}", 3600 * n) for n in range(600)]
log, FORECASTER = dyformer.read_log(rows, time_unit="s", bipartite=False), "Forecaster without vectors"
try:
    {call}
except dyformer.scoring.trees.MissingLibrary as error:
    assert "libgomp.so.1: cannot open shared object file" in str(error), error
    assert "`apt-get install libgomp1`" in str(error)
else:
    raise AssertionError("no error")
"""
    command = [sys.executable, "-c", WITHOUT_OPENMP + code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_the_systems_openmp_a_command_names_it_at_once(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("source,target,time\n" + "".join(f"a{n % 5},b{n % 3},{n}\n" for n in range(90)))
    environment = {**os.environ, "DYFORMER_STORAGE": str(tmp_path / "store")}
    ingest = ["ingest", "mylog", "--log", str(tmp_path / "log.csv"), "--time-unit", "s", "--window", "10s"]
    for arguments in (ingest, ["rank", "mylog", "a1"]):
        command = [sys.executable, "-c", WITHOUT_OPENMP + COMMAND, *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("dyformer: LightGBM cannot be loaded (libgomp.so.1: ")


def test_the_report_needs_no_extra(tmp_path: Path) -> None:
    done = without_extras(COMMAND, "report", "mylog", store=tmp_path)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("dyformer: no events of 'mylog' in ")


def test_every_package_of_an_extra_is_named_and_none_of_them_is_in_the_core() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    imported = {"pyyaml": "yaml", "prometheus-client": "prometheus_client"}
    lines = [
        line
        for extra in ("model", "service", "serve", "tuning", "ray")
        for line in project["optional-dependencies"][extra]
    ]
    packages = {imported.get(name, name) for name in (Requirement(line).name for line in lines)} - {"dyformer"}
    assert packages | {"starlette", "httpx", "alembic", "requests", "urllib3"} == set(EXTRAS)
    core = {Requirement(line).name for line in project["dependencies"]}
    assert not core & {"dyformer", *packages, *imported}


def test_every_package_that_is_imported_is_in_the_core_or_has_an_extra() -> None:
    """A package that comes with one of an extra is missing without it, too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    core = {Requirement(line).name.replace("scikit-learn", "sklearn") for line in project["dependencies"]}
    own = {"dyformer", "storage", "flows"}
    core |= {"llvmlite", "pydantic_core", "packaging"}  # come with numba, pydantic and matplotlib
    optional = {"pandas", "boto3", "botocore"}  # of frames that a caller has, and of errors of a server's own client
    imported = {
        name.partition(".")[0]
        for package in own
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in names_of(node)
    }
    assert imported - core - own - optional - {*sys.stdlib_module_names, "_typeshed"} <= set(EXTRAS)


def names_of(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []


def test_a_package_of_every_installation_has_no_extra() -> None:
    assert missing("numpy") is None
    need("torch")
    assert issubclass(MissingExtra, ImportError)
    assert "dyformer[service]" in str(missing("prefect.client.orchestration"))
