"""Results on a terminal: tables, counts, and machine-readable files."""

import json
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table

MAX_WIDTH = 10_000
COUNTS = ("num_read", "num_accepted", "num_quarantined", "num_dropped", "num_duplicates")


def print_frame(frame: pl.DataFrame, title: str = "") -> None:
    """Print a small table."""
    table = Table(title=title or None, title_justify="left")
    for name, dtype in frame.schema.items():
        table.add_column(name, justify="right" if dtype.is_numeric() else "left", overflow="fold")
    for row in frame.iter_rows():
        table.add_row(*(_cell(value) for value in row))
    # Without a terminal rich assumes 80 columns and folds; a file or a pipe takes any width.
    console = Console()
    if not console.is_terminal:
        console = Console(width=Console(width=MAX_WIDTH).measure(table).maximum)
    console.print(table)


def counts_line(counts: dict[str, Any]) -> str:
    """Say what became of every row."""
    read, accepted, quarantined, dropped, duplicates = (f"{counts[name]:,}" for name in COUNTS)
    return (
        f"{counts['dataset']}: {read} rows read = {accepted} accepted + {quarantined} quarantined + {dropped} dropped"
        f" ({duplicates} exact duplicates); event table version {counts['version']}"
        f"{'' if counts['changed'] else ', nothing new'}"
    )


def tracked_line(tracking: dict[str, Any]) -> str:
    """Say where a run is tracked, and what the tracker did not take."""
    model = f", registered model version {tracking['model_version']}" if tracking["model_version"] else ""
    problem = f"; kept for later, because: {tracking['problem']}" if tracking["problem"] else ""
    return f"tracked: run {tracking['run']} in {tracking['tracker']}{model}{problem}"


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
