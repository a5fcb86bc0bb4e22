"""Messages name the arguments of the Python API; the command line writes them as its options."""

import ast
import inspect
import re
from pathlib import Path

import pytest

import dyformer
from flows.tasks.reading_options import READING_OPTIONS, on_command_line
from storage.events.declarations import Declaration

ROOT = Path(dyformer.__file__).parent


@pytest.mark.parametrize(
    ("message", "written"),
    [
        ("choose with `source` and `target`", "choose with --source and --target"),
        ('use `time_unit="s"`', "use --time-unit s"),
        ('as in `window="6 equal"`', 'as in --window "6 equal"'),
        ("pass `bipartite=False` or `bipartite=True`", "pass --one-space or --bipartite"),
        ("allow more with `max_bad`", "allow more with --max-bad"),
        ("`as_of`: the time", "--as-of: the time"),
        ("leave `steps` out", "leave --steps out"),
        ("set `width`, or run `dyformer drop mine`", "set `width`, or run `dyformer drop mine`"),
    ],
)
def test_arguments_become_options(message: str, written: str):
    assert on_command_line(message) == written


def messages() -> list[str]:
    """Texts of dyformer that are no docstrings."""
    texts = []
    for path in ROOT.rglob("*.py"):
        tree = ast.parse(path.read_text())
        prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                texts.append(
                    "".join(str(part.value) if isinstance(part, ast.Constant) else "0" for part in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                texts.append(node.value)
    return texts


def test_no_message_of_the_python_api_names_an_option_of_the_command_line():
    found = [text for text in messages() if re.search(r"(?<![\w-])--[a-z]", text)]
    assert [text for text in found if "dyformer run" not in text and "--log FILE" not in text] == []


def test_arguments_that_messages_name_exist_in_the_python_api():
    named = {name for text in messages() for name in re.findall(r"`(\w+)(?:=[^`]*)?`", text)} & set(READING_OPTIONS)
    allowed = {*inspect.signature(dyformer.read_log).parameters, *inspect.signature(dyformer.Log.snapshots).parameters}
    assert named >= {"source", "time_unit", "separator", "window", "max_bad"}
    assert named <= allowed


def test_each_option_is_recorded_but_those_of_one_call_and_python_has_no_other_ones():
    of_one_call = {"log", "force", "max_bad"}
    assert READING_OPTIONS.keys() - of_one_call == Declaration.model_fields.keys() - {"format", "forms", "dataset"}
    assert inspect.signature(dyformer.read_log).parameters.keys() <= READING_OPTIONS.keys()
