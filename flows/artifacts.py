"""Scores and reports -> tables and summaries on Prefect's pages; outside a flow run nothing is written."""

import re

import polars as pl
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.context import FlowRunContext

from dyformer.experiments.tables import score_table
from flows.tasks.report import read_report


def show_table(dataset: str, metrics: pl.DataFrame) -> None:
    """Show the table of scores."""
    if FlowRunContext.get() is not None:
        rows = score_table(metrics, dataset).to_dicts()
        create_table_artifact(table=rows, key=_key("scores", dataset), description=f"AUC in percent, {dataset}")


def show_report(report: str) -> None:
    """Show the counts, the scores and the seconds of a report."""
    if FlowRunContext.get() is not None:
        metrics, summary = read_report(report)
        table = score_table(metrics, summary["dataset"])
        create_markdown_artifact(markdown=as_markdown(table, summary), key=_key("summary", summary["dataset"]))


def as_markdown(scores: pl.DataFrame, summary: dict) -> str:
    """Format the counts, scores and seconds of a report as Markdown."""
    counts = summary["counts"]
    rows = ["| " + " | ".join("" if value is None else str(value) for value in row) + " |" for row in scores.rows()]
    became = "{num_accepted:,} of {num_read:,} rows accepted, {num_quarantined:,} quarantined, {num_dropped:,} dropped."
    return "\n".join(
        [
            f"## {summary['dataset']}, event table version {counts['version']}",
            became.format(**counts),
            "",
            "| " + " | ".join(scores.columns) + " |",
            "|" + " --- |" * scores.width,
            *rows,
            "",
            *(f"- {stage}: {seconds:.1f} s" for stage, seconds in summary["seconds"].items()),
        ]
    )


def _key(kind: str, dataset: str) -> str:
    # Prefect accepts only lower-case letters, digits and dashes.
    return f"{kind}-{re.sub(r'[^a-z0-9]+', '-', dataset.lower()).strip('-') or 'log'}"
