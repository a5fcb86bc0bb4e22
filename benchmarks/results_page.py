"""RESULTS.md: one section for each make target, rewritten without touching the others."""

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
PAGE = FOLDER / "RESULTS.md"
TITLE = "# Results\n\nEach make target `bench...` rewrites its own sections; others are by hand.\n"
PACKAGES = ("numpy", "scipy", "polars", "duckdb", "torch", "numba", "pyarrow", "igraph", "networkit", "pandas")


def with_section(page: str, heading: str, body: str) -> str:
    """Replace the section `## heading`, or append it; the others stay."""
    head, *sections = re.split(r"(?m)^(?=## )", page or TITLE)
    fresh = f"## {heading}\n\n{body.strip()}\n"
    sections = [section.strip() + "\n" for section in sections]
    starts = [section.startswith(f"## {heading}\n") for section in sections]
    if any(starts):
        sections[starts.index(True)] = fresh
    else:
        sections.append(fresh)
    return "\n".join([head.strip() + "\n", *sections])


def write_section(heading: str, body: str) -> None:
    """Rewrite one section of RESULTS.md."""
    PAGE.write_text(with_section(PAGE.read_text() if PAGE.exists() else "", heading, body))


def surroundings() -> str:
    """Give the machine, the versions, the date and the commit of the measurements."""
    versions = [f"{name} {found}" for name in PACKAGES if (found := _version(name))]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return "\n".join(
        [
            f"- machine: {_processor()}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()}",
            f"- versions: python {platform.python_version()}, {', '.join(versions)}",
            f"- date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            f"- commit: {_commit()}",
        ]
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    facts = Path("/proc/cpuinfo")
    names = re.findall(r"(?m)^model name\s*:\s*(.+)$", facts.read_text()) if facts.exists() else []
    return names[0] if names else platform.machine()


def _commit() -> str:
    def git(*arguments: str) -> str:
        run = subprocess.run(["git", *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)
        return run.stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", "..", ":!RESULTS.md")
    return (git("rev-parse", "--short", "HEAD") or "none") + (" with uncommitted changes" if changed else "")
