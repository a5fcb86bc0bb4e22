"""The field's words alone: names, comments, docstrings, messages and pages are searched for the banned ones."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

BANNED = {
    r"(un)?told|tells?|telling": "state, return, report, predict",
    r"rivals?": "baseline",
    r"judg(e|es|ed|ing|ement|ements)": "evaluate; validate (rows)",
    r"hears?|heard|hearing": "receive, attend to",
    r"asks?|asked|asking|answers?|answered|answering": "query, key, request, return",
    r"seats?|seated": "champion, promote",
    r"tenures?|succession": "champion, the champions before it",
    r"sealed": "checksummed",
    r"beyond doubt": "95 % interval above 0",
    r"dear|dearer|dearest": "expensive",
    r"unlinked": "negative",
    r"own vectors?": "id embedding",
    r"figures?": "metrics (numbers), plots (pictures)",
    r"(the|a|an|each|every|earlier|later|its|this|that|before|after|per) cuts?": "as of a step",
}
BANNED_PARTS = re.compile(
    "(un)?told|tell|rivals?|judge[ds]?|judging|hear|heard|ask(s|ed|ing)|answering|seat|seated|tenures?|succession|sealed|dear|unlinked|kept|shares?"
    "|places?|works?|shown"
)
"""Parts of names between underscores; `kept` is cached, `share` fraction, `place` index, `work` job, `shown` as of."""

FOREIGN = re.compile("work_(pool|queue)s?")
"""What a library calls its things, also as a part of a longer name."""

PRONOUNS = {"about", "each", "found", "given", "known", "made", "opened", "own", "wanted"}
MOST_PRONOUNS = 0.01  # of all names of local variables; it may only go down
"""Names of local variables that do not say what they hold, and how many of them there may be."""

PROSE = re.compile(rf"\b({'|'.join(BANNED)})\b", re.IGNORECASE)
HERE = Path(__file__).name
TEXTS = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None)}  # the last from Python 3.12 on


def groups() -> dict[str, list[Path]]:
    """Give the files to search, by the folder that they belong to."""
    found: dict[str, list[Path]] = {}
    for top in ("dyformer", "storage", "flows", "tests", "benchmarks", "examples"):
        for path in sorted((ROOT / top).rglob("*.py")):
            if path.name != HERE:
                found.setdefault(path.parent.relative_to(ROOT).as_posix(), []).append(path)
    found["pages"] = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "prefect.yaml"]
    return found


def faults_of_module(path: Path) -> Iterator[tuple[int, str]]:
    """Give the line and the word of each banned word of a module: in its names, and in its comments and texts."""
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type == tokenize.NAME:
            parts = FOREIGN.sub("", token.string).split("_")
            yield from ((token.start[0], token.string) for part in parts if BANNED_PARTS.fullmatch(part))
        elif token.type in TEXTS:
            yield from prose_faults(token.string, token.start[0])


def prose_faults(text: str, first_line: int = 1) -> Iterator[tuple[int, str]]:
    """Give the line and the word of each banned word of a text."""
    for number, line in enumerate(text.splitlines(), start=first_line):
        yield from ((number, found.group(0)) for found in PROSE.finditer(line))


@pytest.mark.parametrize("folder", groups())
def test_words_are_the_fields_own(folder: str):
    faults = [
        f"{path.relative_to(ROOT)}:{line}: {word}"
        for path in groups()[folder]
        for line, word in (faults_of_module(path) if path.suffix == ".py" else prose_faults(path.read_text()))
    ]
    assert not faults, f"{len(faults)} banned words (see BANNED for what to write instead):\n" + "\n".join(faults)


def test_banned_words_are_found_in_names_and_in_prose(tmp_path: Path):
    module = tmp_path / "module.py"
    module.write_text('"""The rivals are told."""\n\nplace_N = 1  # dear\nread_work_pool = replaced = "as it is"\n')
    assert sorted(faults_of_module(module)) == [(1, "rivals"), (1, "told"), (3, "dear"), (3, "place_N")]


def local_names(tree: ast.AST) -> list[str]:
    """Name of each local variable, once for each place where it is bound; parameters are none."""
    scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp)
    bound = {
        (node.lineno, node.col_offset, node.id)
        for scope in ast.walk(tree)
        if isinstance(scope, (*scopes, ast.GeneratorExp))
        for node in ast.walk(scope)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return [name for _, _, name in bound]


def test_local_variables_are_named_by_what_they_hold():
    names = {
        path.relative_to(ROOT).as_posix(): local_names(ast.parse(path.read_text()))
        for top in ("dyformer", "storage", "flows")
        for path in sorted((ROOT / top).rglob("*.py"))
    }
    pronouns = {path: num for path, found in names.items() if (num := sum(name in PRONOUNS for name in found))}
    fraction = sum(pronouns.values()) / sum(map(len, names.values()))
    assert fraction <= MOST_PRONOUNS, sorted(pronouns.items(), key=lambda item: -item[1])[:10]


def test_local_variables_are_found_wherever_they_are_bound():
    text = """
found = 1
def function(given):
    own = known = [each for each in given]
    with opened() as made, open("a") as (wanted, about):
        return lambda: {one: found for one, found in own}, (about := 1)
"""
    expected = ["about", "about", "each", "found", "known", "made", "one", "own", "wanted"]
    assert sorted(local_names(ast.parse(text))) == expected
