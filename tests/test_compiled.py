"""Machine code that numba has stored is of the formulas as they are.

Numba reuses it as long as the file of a function is the same; a function or constant of another file may have changed.
So a module whose compiled functions read such names has the digest of the files among its lines.
"""

import ast
import importlib
from pathlib import Path

import pytest

from storage.artifacts.code import all_modules, code_digest

COMPILED = "njit"


def source(module: str) -> str:
    return Path(str(importlib.import_module(module).__file__)).read_text()


COMPILING = sorted(name for name in all_modules("dyformer") if f"import {COMPILED}" in source(name))


def modules_read(text: str) -> set[str]:
    """Name the modules of the project of which compiled functions of a source read a name."""
    tree, read = ast.parse(text), set()
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and any(COMPILED in ast.unparse(d) for d in function.decorator_list):
            body = ast.Module(function.body, [])  # a decorator is no formula
            read |= {node.id for node in ast.walk(body) if isinstance(node, ast.Name)}
    return {
        each.module
        for each in tree.body
        if isinstance(each, ast.ImportFrom) and each.module is not None and each.module.startswith("dyformer.")
        if read & {alias.asname or alias.name for alias in each.names}
    }


@pytest.mark.parametrize("module", COMPILING)
def test_a_module_has_the_digest_of_what_its_compiled_functions_read(module: str):
    read = modules_read(source(module))
    wanted = code_digest(*read) if read else None
    written = getattr(importlib.import_module(module), "KERNELS", None)
    assert written == wanted, f"write KERNELS = {wanted!r} into {module}, so that its machine code is made anew"


def test_what_compiled_functions_read_is_found():
    lines = (
        "from dyformer.a import one, two",
        "from dyformer.b import three as third",
        "from dyformer.c import four",
        "@njit(cache=True)",
        "def first():",
        "    return one()",
        "@njit",
        "def second():",
        "    return third + 1",
        "def plain():",
        "    return four()",
    )
    assert modules_read("\n".join(lines)) == {"dyformer.a", "dyformer.b"}
    read = {f"dyformer.streams.kernels.{name}" for name in ("borrowed", "tables")}
    assert modules_read(source("dyformer.streams.kernels.updates")) == read
