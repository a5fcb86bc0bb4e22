"""Results on a terminal: tables, counts, and machine-readable files."""

import json
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table

COUNTS = ("num_read", "num_accepted", "num_quarantined", "num_dropped", "num_duplicates")


def print_frame(frame: pl.DataFrame, title: str = "") -> None:
    """Print a small table."""
    table = Table(title=title or None, title_justify="left")
    for name, dtype in frame.schema.items():
        table.add_column(name, justify="right" if dtype.is_numeric() else "left", overflow="fold")
    for row in frame.iter_rows():
        table.add_row(*(_cell(value) for value in row))
    # Without a terminal rich assumes 80 columns and cuts; a file or a pipe takes any width.
    console = Console()
    (console if console.is_terminal else Console(width=max(80, 24 * frame.width))).print(table)


def print_counts(counts: dict[str, Any]) -> None:
    """Say what became of every row."""
    read, accepted, quarantined, dropped, duplicates = (f"{counts[name]:,}" for name in COUNTS)
    print(
        f"{counts['dataset']}: {read} rows read = {accepted} accepted + {quarantined} quarantined + {dropped} dropped"
        f" ({duplicates} exact duplicates); event table version {counts['version']}"
        f"{'' if counts['changed'] else ', nothing new'}"
    )


def print_json(value: Any) -> None:
    """Print JSON on one line."""
    print(json.dumps(value))


def write_json(file: Path, value: Any) -> None:
    """Write JSON to a file that the user named; its folder is made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, indent=1) + "\n")


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)
