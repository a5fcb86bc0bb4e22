"""Tables of docs/results, those with the paper's values and those by step -> their plots, as PNG in docs/plots.

python benchmarks/results_plots.py
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import polars as pl

from dyformer.experiments.methods import BASELINES
from dyformer.experiments.plots import comparison_chart, step_curve
from dyformer.experiments.studies.studies import STUDIES

DOCS = Path(__file__).resolve().parents[1] / "docs"
DRAWN = ("pretraining", "encodings", "towers")
BY_STEP = "steps"
SECTIONS = {
    "## uci: links": ("links", "uci"),
    "## yelp: links": ("links", "yelp"),
    "## rds: links": ("links", "rds"),
    "## ml-10m: links": ("links", "ml-10m"),
    "## snap-wikipedia: labels of users": ("labels", "snap-wikipedia"),
}
"""The experiment and the log of a section whose tables have no line of their own that names them."""


class ResultsTable(NamedTuple):
    """A table of the page; `above` is the block before it, which has its number of pairs."""

    experiment: str
    dataset: str
    part: str  # "all" or "new"; "published" for labels
    above: str
    rows: list[dict[str, str]]  # cells by column


def pages() -> str:
    """Read the pages of the paper's tables, one after the other."""
    return "\n\n".join(path.read_text().strip() for path in sorted((DOCS / "results").glob("*.md")))


def results_tables(page: str) -> Iterator[ResultsTable]:
    """Read the tables of the page that have the paper's values."""
    experiment = dataset = above = ""
    for block in page.split("\n\n"):
        experiment, dataset = SECTIONS.get(block, (experiment, dataset))
        columns, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        if columns[0] == "method" and "Macro AUC, paper" in columns:
            described = re.match(r"(\w+), ([\w-]+), (all|new) links:", above)
            usual = "published" if experiment == "labels" else "new" if above.endswith("New links:") else "all"
            names = described.groups() if described else (experiment, dataset, usual)
            cells = [dict(zip(columns, row, strict=True)) for row in rows[1:]]
            yield ResultsTable(names[0], names[1], names[2], above, cells)
        above = block


def step_tables(page: str) -> Iterator[ResultsTable]:
    """Read the tables of the page that have a column for each step."""
    above = ""
    for block in page.split("\n\n"):
        columns, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        if columns[0] == "method" and columns[1].isdigit():
            described = re.match(r"(\w+), ([\w-]+), (all|new) links:", above)
            assert described, above
            yield ResultsTable(*described.groups(), above, [dict(zip(columns, row, strict=True)) for row in rows[1:]])
        above = block


def as_step_metrics(table: ResultsTable) -> pl.DataFrame:
    """Give the cells of a table by step as metrics; without an interval, which such a table lacks."""
    rows = [
        {
            "dataset": table.dataset,
            "protocol": "paper",
            "method": row["method"],
            "seed": 0,
            "step": column,
            "metric": "auc",
            "family": "random",
            "slice": table.part,
            "num_pairs": None,
            "is_baseline": row["method"] in BASELINES,
            "best_baseline": None,
            **dict.fromkeys(("value", "low", "high"), float(cell) / 100),
        }
        for row in table.rows
        for column, cell in row.items()
        if column.isdigit()
    ]
    return pl.DataFrame(rows)


def as_metrics(table: ResultsTable) -> pl.DataFrame:
    """Give the rows of a table as those of metrics; each seed has the mean of all, which a plot of means draws."""
    pairs = re.search(r"([\d,]+) test pairs", table.above)
    rows = [
        {
            "dataset": table.dataset,
            "protocol": "paper",
            "method": row["method"],
            "seed": seed,
            "step": step,
            "metric": "auc",
            "family": "random",
            "slice": table.part,
            "num_pairs": None if pairs is None else int(pairs[1].replace(",", "")),
            **values_of(row[f"{step.title()} AUC"]),
        }
        for row in table.rows
        for seed in range(int(row["seeds"]))
        for step in ("micro", "macro")
    ]
    return pl.DataFrame(rows)


def values_of(cell: str) -> Mapping[str, float]:
    """Read a cell such as "84.82 ± 0.67 [82.89, 86.56]": the value and the ends of its interval, of 1."""
    value, *_, low, high = (float(number) / 100 for number in re.findall(r"\d+\.\d+", cell))
    return {"value": value, "low": low, "high": high}


def description(table: ResultsTable) -> str:
    """Give what a plot shows, as the picture's own description: a test compares it with the page."""
    columns = [f"{name} AUC{more}" for name in ("Micro", "Macro") for more in ("", ", paper")]
    if table.experiment == BY_STEP:
        columns = [column for column in table.rows[0] if column.isdigit()]
    return "\n".join("; ".join([row["method"], *(row[column] for column in columns)]) for row in table.rows)


def drawn_tables(page: str) -> dict[str, ResultsTable]:
    """Give the studies of DRAWN at full length, all links, and the tables by step, by the name of their picture."""
    compared = [
        table
        for table in results_tables(page)
        if table.experiment in DRAWN and table.part == "all" and "no cap on epochs" in table.above
    ]
    return {f"{table.experiment}-{table.dataset}.png": table for table in (*compared, *step_tables(page))}


def main() -> None:
    """Draw them."""
    for name, table in drawn_tables(pages()).items():
        values = STUDIES[table.experiment].paper_values("all", table.dataset).items()
        paper = {method: (micro, macro) for method, (micro, macro) in values if micro is not None and macro is not None}
        is_by_step = table.experiment == BY_STEP
        figure = step_curve(as_step_metrics(table)) if is_by_step else comparison_chart(as_metrics(table), paper=paper)
        metadata = {"Software": None, "Description": description(table)}
        figure.savefig(DOCS / "plots" / name, dpi=100, metadata=metadata)


if __name__ == "__main__":
    main()
