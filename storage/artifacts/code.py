"""Names of modules -> a digest of the project's code that runs in them, on which artifacts depend.

It is that of the modules' syntax trees, and of those of all modules of the project that they import, inside functions
too. Comments, docstrings and formatting are no part of it, nor is the root of a package, which has names and the
classes of errors alone.
"""

import ast
import gc
import hashlib
import inspect
import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dyformer import InvalidInput

PACKAGES = ("dyformer", "storage", "flows")
NUM_DIGITS = 12
PRESENTATION = "dyformer.experiments."
INIT = "__init__.py"
INSTALLED = {"site-packages", "dist-packages"}  # folders of packages, whose neighbours are not a user's
FOR_TYPES = "TYPE_CHECKING"  # imports below this test are never made
_PARSING = threading.Lock()


@cache
def code_version() -> str:
    """Name the release and a digest of all that computes, which tables and plots are no part of: `0.2.0+1f0a...`."""
    modules = [name for name in all_modules("dyformer") if not name.startswith(PRESENTATION)]
    return f"{version('dyformer')}+{code_digest(*modules)}"


def code_digest(*modules: str) -> str:
    """First digits of a SHA-256 of modules of the project and of all that they import, in any order.

    Raises ValueError for a name that is no module of the project.
    """
    digest = hashlib.sha256()
    for name in sorted(frozenset().union(*map(modules_behind, modules))):
        digest.update(f"{name} {_parsed(name)[0]}\n".encode())
    return digest.hexdigest()[:NUM_DIGITS]


def bytes_digest(*packages: str) -> str:
    """First digits of a SHA-256 of all modules of packages of the project, with their comments.

    It takes less than a tenth of the time of `code_digest`, which parses them.
    """
    digest = hashlib.sha256()
    for name in (name for package in packages for name in all_modules(package)):
        path = _path(name)
        assert path is not None, name
        digest.update(f"{name} {hashlib.sha256(source_of(path)).hexdigest()}\n".encode())
    return digest.hexdigest()[:NUM_DIGITS]


@cache
def modules_behind(module: str) -> frozenset[str]:
    """Name a module and all modules of the project that it imports, directly or through others."""
    modules, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        if name not in modules:
            modules.add(name)
            waiting += _parsed(name)[1]
    return frozenset(modules)


def all_modules(package: str) -> list[str]:
    """Name all modules of a package of the project."""
    folder = _folder(package)
    paths = (path.relative_to(folder).with_suffix("").parts for path in sorted(folder.rglob("*.py")))
    return [".".join((package, *parts)) for parts in paths if parts[-1] != "__init__"]


def project_modules(*things: Callable[..., Any]) -> tuple[str, ...]:
    """Name the modules of the project in which functions and classes stand; a user's own are left out."""
    return tuple(name for name in map(module_of, things) if name.partition(".")[0] in PACKAGES)


def module_of(thing: Callable[..., Any]) -> str:
    """Name the module in which a function or a class stands; of a partial one, that of the function itself."""
    while isinstance(thing, partial):
        thing = thing.func
    return thing.__module__


def source_digest(thing: Any) -> str:
    """SHA-256 of the file that defines a class or a function of a user, and of the user's files that it imports.

    These are the modules beside it, or for an installed package those of this package, imported directly or through
    others.
    """
    path, parts = Path(inspect.getfile(thing)).absolute(), thing.__module__.split(".")
    root = path.parents[len(parts) - (path.name != INIT)]
    own = parts[0] if INSTALLED & set(root.parts) else None
    files, waiting = set(), [path]
    while waiting:
        file = waiting.pop()
        if file not in files:
            files.add(file)
            waiting += _imported_files(file, root, own)
    if len(files) == 1:  # the digest that results have had since before imports were followed
        return hashlib.sha256(source_of(path)).hexdigest()
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{file.relative_to(root)} {hashlib.sha256(source_of(file)).hexdigest()}\n".encode())
    return digest.hexdigest()


def _imported_files(file: Path, root: Path, own: str | None) -> Iterator[Path]:
    """Give the files below a folder that one of them imports; with `own`, those of this package alone."""
    package = list(file.parent.relative_to(root).parts)
    for node in ast.walk(_tree(source_of(file))) if file.suffix == ".py" else ():
        names: list[list[str]] = []
        if isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = above + (node.module.split(".") if node.module else [])
            names = [[*module, alias.name] for alias in node.names]
        for parts in names:
            if parts[0] not in PACKAGES and own in (None, parts[0]):
                stems = [root.joinpath(*parts[:number]) for number in range(1, len(parts) + 1)]
                yield from (path for stem in stems for path in (stem / INIT, stem.with_suffix(".py")) if path.is_file())


@cache
def _parsed(module: str) -> tuple[str, frozenset[str]]:
    """Give the digest of a module's syntax tree, and the modules of the project that it imports itself."""
    path = _path(module)
    if path is None:
        raise InvalidInput(f"{module!r} is no module of {', '.join(PACKAGES)}")
    tree = _tree(source_of(path))
    parts: list[str] = []
    _write_node(tree, parts)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest(), frozenset(_imports(tree))


def _tree(source: bytes) -> ast.Module:
    """Parse a source while no other thread gets a turn.

    Python 3.11 and 3.12 count the depth of the trees that all threads make together, and fail where a thread makes one
    (numba and torch do, too) while another one is within its own, as it may be when garbage is collected there.
    """
    with _PARSING:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return ast.parse(source)
        finally:
            if was_enabled:
                gc.enable()


def source_of(path: Path) -> bytes:
    """Read the source of a module."""
    return path.read_bytes()


def _write_node(node: ast.AST, parts: list[str]) -> None:
    """Append the kinds and the values of a tree; empty fields are left out, because Python's versions differ there."""
    parts.append(type(node).__name__)
    for name in node._fields:
        value = getattr(node, name, None)
        if name == "body" and isinstance(value, list):
            value = _without_docstring(node, value)
        items = value if isinstance(value, list) else [value] if value is not None else []
        for item in items:
            parts.append(name if isinstance(item, ast.AST) else f"{name} {item!r}")
            if isinstance(item, ast.AST):
                _write_node(item, parts)
    parts.append(")")


def _without_docstring(node: ast.AST, body: list[Any]) -> list[Any]:
    is_documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    # Of a variable, too: a text as a statement of its own has no effect.
    return [item for item in body if not (is_documented and _is_text(item))]


def _is_text(item: ast.AST) -> bool:
    return isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant) and isinstance(item.value.value, str)


def _imports(node: ast.AST) -> Iterator[str]:
    """Name the modules of the project below the roots that a statement, or a part of one, imports when it runs."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if "." in alias.name and _path(alias.name) is not None)
    elif isinstance(node, ast.ImportFrom) and node.module is not None:
        assert node.level == 0, f"the relative import of {node.module}"
        for alias in node.names:
            name = f"{node.module}.{alias.name}"
            yield from [each for each in (name, node.module) if "." in each and _path(each) is not None][:1]
    else:
        for statement in _statements(node):
            yield from _imports(statement)


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Give what stands below a statement, because no expression imports; nothing that only type checkers read."""
    is_for_types = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == FOR_TYPES
    for name in ("orelse",) if is_for_types else ("body", "orelse", "handlers", "finalbody", "cases"):
        part = getattr(node, name, None)
        yield from part if isinstance(part, list) else ()


@cache
def _path(module: str) -> Path | None:
    """Find the file of a module of the project, None where there is none."""
    package, *parts = module.split(".")
    if package not in PACKAGES:
        return None
    stem = _folder(package).joinpath(*parts)
    paths = (stem / INIT, *([stem.with_suffix(".py")] if parts else []))
    return next((path for path in paths if path.is_file()), None)


@cache
def _folder(package: str) -> Path:
    spec = find_spec(package)  # of a package without a dot in its name, which imports nothing
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])
