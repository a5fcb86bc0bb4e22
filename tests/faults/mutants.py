"""Mutants of the modules that matter most -> how many of them their tests notice.

A mutant is a module with one changed operator or constant. The tests that mirror the module run on it, in a copy of
the project. `python tests/faults/mutants.py --tries 200` (`make test-mutants`) draws a sample and prints the outcomes;
`--seed S --only N` repeats one.
"""

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("dyformer", "storage", "flows", "tests", "pyproject.toml")
TESTS = {
    "dyformer/evaluation/promotion.py": ("tests/evaluation/test_promotion.py",),
    "dyformer/evaluation/labelled_steps.py": ("tests/evaluation/test_prequential.py",),
    "dyformer/evaluation/protocols/paper.py": ("tests/evaluation/test_protocols.py",),
    "dyformer/sampling/pairs.py": ("tests/sampling/test_pairs.py",),
    "dyformer/scoring/link_features.py": ("tests/scoring/test_link_features.py",),
    "dyformer/scoring/pair_features.py": ("tests/scoring/test_pair_features.py",),
    "dyformer/graphs/windows.py": ("tests/graphs/test_windows.py",),
    "storage/events/table.py": ("tests/storage/test_events_table.py",),
    "storage/events/commits.py": ("tests/storage/test_events_table.py", "tests/storage/test_commits.py"),
    "storage/events/versions.py": ("tests/storage/test_commits.py",),
}
OPPOSITES: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}  # fmt: skip
MOST_SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A module, the line of the change, what it was and what it is, and the whole changed text."""

    module: str
    line: int
    before: str
    after: str
    text: str


def mutants(module: str) -> list[Mutant]:
    """Make every mutant of a module."""
    tree = ast.parse((ROOT / module).read_text())
    found = []
    for number, node in enumerate(_nodes(tree)):
        change = _change(node)
        if change is not None:
            other = copy.deepcopy(tree)
            target = next(each for index, each in enumerate(_nodes(other)) if index == number)
            for name, value in change.items():
                setattr(target, name, value)
            texts = {"before": ast.unparse(node), "after": ast.unparse(target), "text": ast.unparse(other)}
            found.append(Mutant(module=module, line=getattr(node, "lineno", 0), **texts))
    return found


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk what is computed: no annotations, decorators, imports and texts that stand alone."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            is_text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if isinstance(child, ast.AST) and not is_text and not isinstance(child, ast.Import | ast.ImportFrom):
                yield child
                yield from _nodes(child)


def _change(node: ast.AST) -> dict[str, Any] | None:
    """Give the fields of a changed node: an operator to its opposite, a number by one, a truth value, a condition."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OPPOSITES:
        return {"ops": [OPPOSITES[type(node.ops[0])](), *node.ops[1:]]}
    if isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in OPPOSITES:
        return {"op": OPPOSITES[type(node.op)]()}
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        return {"value": not node.value if isinstance(node.value, bool) else node.value + 1}
    if isinstance(node, ast.If | ast.IfExp):
        return {"test": ast.UnaryOp(ast.Not(), node.test)}
    return None


def survives(mutant: Mutant, project: Path) -> bool:
    """Run the tests of a mutant's module on it, in a copy of the project; a run without end is noticed too."""
    path = project / mutant.module
    whole = path.read_bytes()
    path.write_text(mutant.text)
    try:
        return _passes(mutant.module, project)
    finally:
        path.write_bytes(whole)


def _passes(module: str, project: Path) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTS[module]]
    environment = {**os.environ, "PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, cwd=project, env=environment, capture_output=True, timeout=MOST_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main() -> None:
    """Draw mutants, the modules in turn, and print the outcome of each and the score."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="number of the one mutant to repeat")
    options = parser.parse_args()
    started, generator = time.monotonic(), random.Random(options.seed)
    drawn = {module: mutants(module) for module in TESTS}
    for each in drawn.values():
        generator.shuffle(each)
    in_turn = [each[index] for index in range(options.tries) for each in drawn.values() if index < len(each)]
    num_tried, survivors = 0, 0
    with tempfile.TemporaryDirectory() as name:
        project = Path(name).resolve()
        for part in PARTS:
            copied = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copied(ROOT / part, project / part)
        unsound = [module for module in TESTS if options.only is None and not _passes(module, project)]
        if unsound:
            sys.exit(f"the tests of the unchanged {', '.join(unsound)} do not pass")
        for number, mutant in enumerate(in_turn[: options.tries]):
            if options.only in (None, number):
                survived = survives(mutant, project)
                num_tried, survivors = num_tried + 1, survivors + survived
                change = f"{mutant.module}:{mutant.line}: {mutant.before} -> {mutant.after}"
                print(f"{number}: {'SURVIVED' if survived else 'noticed'} {change}".replace("\n", " "), flush=True)
    seconds = time.monotonic() - started
    print(f"mutants: {num_tried - survivors} of {num_tried} noticed, seed {options.seed}, {seconds:.0f} s")


if __name__ == "__main__":
    main()
