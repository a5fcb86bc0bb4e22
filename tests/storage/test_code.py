"""The digest of code changes with what runs in it, and with nothing else."""

import ast
import gc
import hashlib
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

from storage.artifacts import code
from storage.artifacts.code import (
    all_modules,
    bytes_digest,
    code_digest,
    code_version,
    modules_behind,
    source_digest,
    source_of,
)

SOURCES = {
    "__init__": "",
    "formula": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from toy import table\n"
    "from toy.deep import inner\n\n\n"
    'def double(x):\n    """Double a number."""\n    return 2 * x  # exactly\n',
    "deep/__init__": "",
    "deep/inner": "def late():\n    try:\n        import toy.late\n    finally:\n        import toy.last\n"
    "    return toy.late.value\n",
    "last": "value = 1\n",
    "late": "value = 1\n",
    "table": "import toy.formula\nvalue = 1\n",
}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Let a package of a few modules be a part of the project."""
    folder = tmp_path / "toy"
    for name, text in SOURCES.items():
        path = folder / f"{name}.py"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(code, "PACKAGES", (*code.PACKAGES, "toy"))
    forget()
    yield folder
    forget()


def forget() -> None:
    for function in (code._parsed, code._path, code._folder, modules_behind, code_version):
        function.cache_clear()


def digest_after(toy: Path, name: str, old: str, new: str) -> str:
    """Edit a module, and give the digest of `toy.formula`."""
    path = toy / f"{name}.py"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    forget()
    return code_digest("toy.formula")


def test_a_module_stands_on_all_that_it_imports_when_it_runs(toy: Path):
    assert modules_behind("toy.formula") == {"toy.formula", "toy.deep.inner", "toy.late", "toy.last"}
    assert modules_behind("toy.table") == {"toy.table", "toy.formula", "toy.deep.inner", "toy.late", "toy.last"}


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("formula", "2 * x", "3 * x"),
        ("formula", "2 * x", "x * 2"),
        ("formula", "double(x)", "double(x, *, y=None)"),
        ("deep/inner", "toy.late.value", "toy.late.values"),
        ("late", "value = 1", "value = 2"),
    ],
)
def test_an_edit_of_the_code_or_of_what_it_imports_changes_the_digest(toy: Path, name: str, old: str, new: str):
    before = code_digest("toy.formula")
    assert digest_after(toy, name, old, new) != before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("formula", "# exactly", "# about"),
        ("formula", "Double a number.", "Give twice a number."),
        ("formula", '    """Double a number."""\n', ""),
        ("formula", "2 * x", "(2 *\n        x)"),
        ("late", "value = 1", 'value = 1\n"""A number."""\n'),
        ("table", "value = 1", "value = 2"),
    ],
)
def test_comments_formatting_and_other_modules_change_nothing(toy: Path, name: str, old: str, new: str):
    before = code_digest("toy.formula")
    assert digest_after(toy, name, old, new) == before


def test_the_order_of_modules_is_no_part_of_the_digest(toy: Path):
    assert code_digest("toy.late", "toy.deep.inner") == code_digest("toy.deep.inner") == code_digest("toy.deep.inner")
    assert code_digest("toy.late") != code_digest("toy.deep.inner")


def test_a_root_is_no_part_of_the_digest(toy: Path):
    """So that a new public name makes nothing anew: no root has a formula."""
    (toy / "formula.py").write_text("import toy\nfrom toy import names\n")
    before = digest_after(toy, "formula", "names", "other")
    assert modules_behind("toy.formula") == {"toy.formula"}
    assert digest_after(toy, "__init__", "", "names = 1\n") == before
    for package in set(code.PACKAGES) - {"toy"}:
        path = code._path(package)
        assert path is not None
        functions = {node.name for node in ast.walk(ast.parse(source_of(path))) if isinstance(node, ast.FunctionDef)}
        assert functions <= {"__getattr__", "__dir__"}, package


def test_a_name_of_no_module_is_refused(toy: Path):
    for name in ("toy.nothing", "numpy", "toy.formula.double"):
        with pytest.raises(ValueError, match=f"'{name}' is no module of dyformer, storage, flows"):
            code_digest(name)


def test_what_computes_stands_on_no_flow_and_on_no_table():
    """So that an edit of a flow, or of how a store is read, makes nothing anew."""
    for module in all_modules("dyformer"):
        behind = modules_behind(module)
        assert {name.split(".")[0] for name in behind} == {"dyformer"}
        if not module.startswith(code.PRESENTATION):
            assert not {name for name in behind if name.startswith(code.PRESENTATION)}


def test_weights_stand_on_no_baseline_and_on_no_reader_of_logs():
    behind = modules_behind("dyformer.training.stages") - {"dyformer.scoring.interfaces"}  # which scores nothing
    folders = {name.split(".")[1] for name in behind}
    assert not folders & {"baselines", "evaluation", "experiments", "scoring"}
    assert not {name for name in behind if name.startswith("dyformer.logs")} - {"dyformer.logs.time_windows"}


def test_a_baseline_stands_on_no_other_and_not_on_the_model():
    for module in all_modules("dyformer"):
        if module.startswith("dyformer.baselines."):
            own = module.split(".")[2]  # a module, or a package of its method and its network
            folders = {name.split(".")[1] for name in modules_behind(module) if name.split(".")[2:3] != [own]}
            assert not folders & {"baselines", "model", "training", "evaluation", "experiments"}
    assert "dyformer.baselines.dysat.network" in modules_behind("dyformer.baselines.dysat.method")


def test_the_version_names_release_and_sources():
    release, _, digest = code_version().partition("+")
    assert release == version("dyformer")
    assert len(digest) == 12


def test_the_digest_of_bytes_changes_with_any_module_and_any_comment(toy: Path) -> None:
    digests = [bytes_digest("toy")]
    for name in ("formula", "deep/inner", "last"):
        with (toy / f"{name}.py").open("a") as stream:
            stream.write("# a comment\n")
        digests.append(bytes_digest("toy"))
    (toy / "last.py").rename(toy / "first.py")
    forget()
    digests += [bytes_digest("toy"), bytes_digest("toy", "storage")]
    assert len(set(digests)) == len(digests)
    assert bytes_digest("toy") == digests[-2]


class Cycle:
    """Garbage whose end runs Python code, in which another thread may get its turn."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.sleep(0)


OWN = {
    "own_method.py": "import numpy\nimport own_parts.scores\n\nclass Method:\n    pass\n",
    "own_parts/__init__.py": "",
    "own_parts/scores.py": "from . import factors\n",
    "own_parts/factors.py": "FACTOR = 1\n",
    "own_other.py": "NAME = 1\n",
}


def own_digest(folder: Path, monkeypatch: pytest.MonkeyPatch, module: str = "own_method") -> str:
    for name, text in OWN.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if not (folder / name).exists():
            (folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(folder))
    for name in [name for name in sys.modules if name.startswith("own_")]:
        monkeypatch.delitem(sys.modules, name)
    return source_digest(import_module(module).Method)


@pytest.mark.parametrize(
    "name", ["own_method.py", "own_parts/__init__.py", "own_parts/scores.py", "own_parts/factors.py"]
)
def test_a_users_method_stands_on_the_users_files_that_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    before = own_digest(tmp_path, monkeypatch)
    (tmp_path / "own_other.py").write_text("NAME = 2\n")
    assert own_digest(tmp_path, monkeypatch) == before
    (tmp_path / name).write_text(f"{OWN[name]}# changed\n")
    assert own_digest(tmp_path, monkeypatch) != before


def test_a_method_in_one_file_has_the_digest_of_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own_method.py").write_text("import numpy\n\nclass Method:\n    pass\n")
    digest = own_digest(tmp_path, monkeypatch)
    assert digest == hashlib.sha256((tmp_path / "own_method.py").read_bytes()).hexdigest()


def test_a_method_of_an_installed_package_stands_on_no_neighbour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "site-packages"
    before = own_digest(folder, monkeypatch)
    (folder / "own_parts" / "factors.py").write_text("FACTOR = 2\n")
    assert own_digest(folder, monkeypatch) == before
    (folder / "own_parts" / "scores.py").write_text("from own_parts import factors\n\nclass Method:\n    pass\n")
    before = own_digest(folder, monkeypatch, "own_parts.scores")
    (folder / "own_parts" / "factors.py").write_text("FACTOR = 3\n")
    assert own_digest(folder, monkeypatch, "own_parts.scores") != before


def test_threads_that_read_modules_at_once_get_one_digest() -> None:
    """Python 3.11 fails where a thread makes a syntax tree while another one is within its own."""
    modules = all_modules("dyformer")[:60]
    expected, threshold = code_digest(*modules), gc.get_threshold()

    def digest() -> str:
        garbage = [Cycle() for _ in range(2_000)]
        del garbage
        return code_digest(*modules)

    code._parsed.cache_clear()
    gc.set_threshold(50)
    try:
        with ThreadPoolExecutor(8) as pool:
            digests = {job.result() for job in [pool.submit(digest) for _ in range(8)]}
    finally:
        gc.set_threshold(*threshold)
    assert digests == {expected}


def test_a_library_that_parses_in_another_thread_fails_no_digest() -> None:
    """Numba and torch make syntax trees, too; each collection of garbage gives the other thread a turn."""
    modules = all_modules("dyformer")[:10]
    expected, threshold = code_digest(*modules), gc.get_threshold()
    is_done = threading.Event()

    def turn(_phase: str, _information: dict[str, int]) -> None:
        time.sleep(0.0005)

    def parse() -> None:
        while not is_done.is_set():
            with suppress(SystemError):
                ast.parse("value")

    code._parsed.cache_clear()
    gc.callbacks.append(turn)
    gc.set_threshold(50)
    library = threading.Thread(target=parse)
    library.start()
    try:
        assert code_digest(*modules) == expected
    finally:
        is_done.set()
        library.join()
        gc.set_threshold(*threshold)
        gc.callbacks.remove(turn)
