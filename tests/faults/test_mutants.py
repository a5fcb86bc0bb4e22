"""Mutants differ from their module in one node, and can be run."""

import ast
from pathlib import Path

import mutants
import pytest
from mutants import ROOT, TESTS


def test_modules_and_their_tests_exist():
    assert not [path for module, tests in TESTS.items() for path in (module, *tests) if not (ROOT / path).is_file()]


def test_each_operator_constant_and_condition_is_changed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    text = '"""A text."""\nlimit: int = 3\n\ndef f(a, b=True):\n    if a < limit and b:\n        return a + 1\n'
    (tmp_path / "module.py").write_text(text)
    found = mutants.mutants("module.py")
    assert {(mutant.line, mutant.before, mutant.after) for mutant in found} >= {
        (2, "3", "4"),
        (4, "True", "False"),
        (5, "a < limit", "a <= limit"),
        (5, "a < limit and b", "a < limit or b"),
        (6, "a + 1", "a - 1"),
        (6, "1", "2"),
    }
    assert len(found) == 7  # the last is the condition itself
    whole = ast.unparse(ast.parse(text))
    for mutant in found:
        compile(mutant.text, "module.py", "exec")
        changed = [
            pair for pair in zip(whole.splitlines(), mutant.text.splitlines(), strict=True) if pair[0] != pair[1]
        ]
        assert len(changed) == 1
