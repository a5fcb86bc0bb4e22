"""The digest of the sources changes with each module that computes, and with nothing else."""

from importlib.metadata import version
from pathlib import Path

import pytest

from storage.artifacts.code import code_version, sources_digest


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name in ("formula.py", "deep/formula.py", "experiments/table.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("value = 1\n")
    return tmp_path


@pytest.mark.parametrize("change", ["edit", "edit deep", "add", "rename", "remove"])
def test_a_change_of_a_module_changes_the_digest(package: Path, change: str):
    before = sources_digest(package)
    module = package / "formula.py"
    if change == "edit":
        module.write_text("value = 2\n")
    elif change == "edit deep":
        (package / "deep" / "formula.py").write_text("value = 2\n")
    elif change == "add":
        (package / "other.py").write_text("")
    elif change == "rename":
        module.rename(package / "other.py")
    else:
        module.unlink()
    assert sources_digest(package) != before


def test_presentation_and_compiled_files_do_not_count(package: Path):
    before = sources_digest(package)
    (package / "experiments" / "table.py").write_text("value = 2\n")
    (package / "formula.pyc").write_bytes(b"1")
    assert sources_digest(package) == before


def test_the_version_names_release_and_sources():
    release, _, digest = code_version().partition("+")
    assert release == version("dyformer")
    assert len(digest) == 12
