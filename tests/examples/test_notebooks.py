"""The notebooks run from top to bottom, and their stored outputs are of the cells as they stand, up to the numbers."""

import ast
import io
import json
import re
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from execute_notebooks import EXAMPLES, check_seconds, children_seconds

NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))
REMEDY = "run `make notebooks`, and look at what changed"
# Numbers, ids, the order of equal rows and the width of columns depend on the log and on the processor.
VALUES = re.compile(r"u?[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def run(cell: dict[str, Any], names: dict[str, Any]) -> str:
    """Run a cell with the names of those before it; give what it prints and the text of its last expression."""
    tree, printed = ast.parse("".join(cell["source"])), io.StringIO()
    last = tree.body[-1] if isinstance(tree.body[-1], ast.Expr) else None
    if last is not None:
        tree.body.pop()
    with redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    return printed.getvalue() + ("" if value is None else repr(value))


def stored(cell: dict[str, Any]) -> str:
    """Give the text of a cell's stored outputs; an error or a warning is none that a notebook should have."""
    texts = []
    for output in cell["outputs"]:
        assert output["output_type"] in ("stream", "execute_result")
        assert output.get("name", "stdout") == "stdout", output
        texts += output["text"] if output["output_type"] == "stream" else output["data"]["text/plain"]
    return "".join(texts)


def columns(text: str) -> list[str]:
    """Give the lines of a text without values: of a table its shape, names and types."""
    is_table = text.startswith("shape: ")
    lines = text.splitlines()[:5] if is_table else text.splitlines()
    return [" ".join(VALUES.sub("0", line).replace("─", "").replace("┬", "").split()) for line in lines]


def test_there_are_notebooks_on_a_log_a_method_and_runs() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["comparing_runs", "own_log", "own_method"]


@pytest.mark.usefixtures("few_trees", "short_generated_log")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_has_outputs_of_this_form(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begun = time.process_time() + children_seconds()
    names: dict[str, Any] = {"__name__": "__main__"}  # in this process: the libraries take seconds to import
    for cell in code_cells(path):
        found, known = run(cell, names), stored(cell)
        assert columns(known) == columns(found), REMEDY
    check_seconds(path.name, time.process_time() + children_seconds() - begun)
    assert not list(tmp_path.iterdir()), "a notebook leaves no file behind"


def test_a_notebook_that_takes_more_than_a_minute_of_a_processor_is_named() -> None:
    check_seconds("own_log", 60.0)
    with pytest.raises(ValueError, match="own_log takes 61 CPU s, and a reader waits at most 60"):
        check_seconds("own_log", 61.0)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_was_run_in_order(path: Path) -> None:
    assert [cell["execution_count"] for cell in code_cells(path)] == list(range(1, len(code_cells(path)) + 1)), REMEDY
