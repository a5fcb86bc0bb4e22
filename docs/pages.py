"""pyproject.toml, the folders' docstrings and the settings' descriptions -> settings.md and architecture.md."""

import ast
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parents[1]

SETTINGS = """# Every setting

A setting is changed with `--set name=value` on the command line, with `settings={"name": value}` in Python, and with
`changes` as a parameter of a deployment. A misspelt name is refused with the three nearest ones. `--set pretrain=none`
leaves pre-training out. `dyformer settings` prints the same table.

This page is made from the code when the site is built.
"""

ARCHITECTURE = """# Architecture

`dyformer` computes, `storage` keeps, `flows` order. Data goes one way: a raw log becomes events, events become
snapshots and a graph as of a step, the graph becomes batches, batches become vectors, vectors and the past of a pair
become scores.

This page is made from the code when the site is built. The contracts stand at the end of `pyproject.toml`, and
import-linter checks them in CI.
"""


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the generated pages to the site."""
    from mkdocs.structure.files import File

    results = (ROOT / "benchmarks" / "RESULTS.md").read_text()
    pages = {"settings.md": settings_page(), "architecture.md": architecture_page(), "measurements.md": results}
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point links to the page of measurements at its copy on the site."""
    return markdown.replace("(../benchmarks/RESULTS.md", "(measurements.md")


def settings_page() -> str:
    """Write one table for each part of an experiment: setting, default, allowed values, meaning."""
    from dyformer.experiments.settings import settings_table

    parts: dict[str, list[str]] = {}
    for setting in settings_table():
        cells = (f"`{setting.name}`", f"`{setting.default}`", setting.kind, setting.meaning)
        row = f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
        parts.setdefault(setting.name.partition(".")[0], []).append(row)
    head = "| setting | default | allowed | meaning |\n|---|---|---|---|"
    return "\n".join([SETTINGS, *("\n".join([f"## {part}", "", head, *rows, ""]) for part, rows in parts.items())])


def architecture_page() -> str:
    """Write the layers and the docstring of each folder, and the contracts."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract.get("containers") == ["dyformer"])
    parts = [ARCHITECTURE, "## dyformer\n", "A folder imports only from folders further down; `|` means neither way.\n"]
    parts += ["| folder | in and out |", "|---|---|"]
    for layer in layers:
        names = [name.strip() for name in layer.split("|")]
        joined = " \\| ".join(f"`{name}`" for name in names)
        parts.append(f"| {joined} | {'<br>'.join(_purpose(ROOT / 'dyformer' / name) for name in names)} |")
    for package in ("storage", "flows"):
        folders = sorted(path.parent for path in (ROOT / package).glob("*/__init__.py"))
        rows = [f"| `{folder.name}` | {_purpose(folder)} |" for folder in folders]
        parts += [f"\n## {package}\n", _purpose(ROOT / package), "\n| folder | in and out |", "|---|---|", *rows]
    return "\n".join([*parts, "\n## The contracts\n", *(f"- {contract['name']}" for contract in contracts), ""])


def _purpose(path: Path) -> str:
    """Give the first line of a folder's, or of a module's, docstring."""
    module = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return (ast.get_docstring(ast.parse(module.read_text())) or "").partition("\n")[0].replace("|", "\\|")
