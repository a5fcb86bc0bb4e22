"""The notebooks run from top to bottom, each in an empty folder and with names of its own."""

import json
import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def code_cells(path: Path) -> list[dict]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def test_there_are_notebooks_on_a_log_a_method_and_runs() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["comparing_runs", "own_log", "own_method"]


@pytest.mark.usefixtures("few_trees", "short_generated_log")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / f"{path.stem}.py"
    script.write_text("\n\n".join("".join(cell["source"]) for cell in code_cells(path)))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")  # in this process: the libraries take seconds to import
    assert {found.name for found in tmp_path.iterdir()} == {script.name}, "a notebook leaves no file behind"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_no_output_is_committed(path: Path) -> None:
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code_cells(path))
