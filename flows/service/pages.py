"""Scores and reports -> tables and summaries on Prefect's pages; outside a flow run nothing is written."""

import re
from collections.abc import Mapping

import polars as pl
from prefect import get_run_logger
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.context import FlowRunContext

from dyformer.evaluation.drift import drift_texts
from dyformer.experiments.printed import PrintedTable, markdown_rows
from dyformer.experiments.tables import run_tables
from flows.console import print_frame
from flows.tasks.drift import drift_line, read_drift
from flows.tasks.report import read_report, verdict_of
from storage.tracking.pages import run_page


def show_tables(dataset: str, tables: Mapping[str, PrintedTable]) -> None:
    """Show tables, each under its name."""
    if FlowRunContext.get() is not None:
        for kind, table in tables.items():
            text = "\n\n".join([table.title, *table.sentences])
            create_table_artifact(table=table.frame.to_dicts(), key=_key(kind, dataset), description=text)


def show_first(dataset: str, title: str, rows: pl.DataFrame) -> None:
    """Show the first forecasts of a dataset, on the terminal as well, before the long training."""
    print_frame(rows, f"{dataset}: {title}")
    show_page("first-forecasts", dataset, "\n".join(markdown_rows(rows.cast(pl.String))), title)


def show_report(report: str) -> None:
    """Show the outcome, the counts, the scores and the seconds of a report; the outcome is in the run's log as well."""
    if FlowRunContext.get() is not None:
        metrics, summary = read_report(report)
        sentences = verdict_of(metrics, summary).sentences
        get_run_logger().info("\n".join(sentences))
        tables = run_tables(metrics, summary["dataset"])
        drift, _ = read_drift(summary["addresses"]["drift"])
        newest = drift_texts(drift.filter(pl.col("step") == drift["step"].max()))
        create_table_artifact(
            table=newest.to_dicts(), key=_key("drift", summary["dataset"]), description=drift_line(summary["drift"])
        )
        show_page("summary", summary["dataset"], as_markdown(tables, metrics, summary), sentences[0])


def show_page(kind: str, dataset: str, page: str, outcome: str) -> None:
    """Show a page of Markdown, with its outcome in the list of the pages."""
    if FlowRunContext.get() is not None:
        create_markdown_artifact(markdown=page, key=_key(kind, dataset), description=outcome)


def as_markdown(tables: list[PrintedTable], metrics: pl.DataFrame, summary: dict) -> str:
    """Format a report as Markdown: first the verdict, then the scores, the counts and the seconds."""
    counts, tracking = summary["counts"], summary["tracking"]
    page = None if tracking["problem"] else run_page(tracking["tracker"], tracking["run"], tracking["experiment"])
    first, *others = verdict_of(metrics, summary).sentences
    became = "{num_accepted:,} of {num_read:,} rows accepted, {num_quarantined:,} quarantined, {num_dropped:,} dropped."
    return "\n".join(
        [
            f"## {summary['dataset']}, event table version {counts['version']}",
            f"**{first}**",
            "",
            *(f"- {sentence}" for sentence in others),
            f"- {drift_line(summary['drift'])}",
            f"- challenger: {summary['training']}",
            *(["", f"[The run in MLflow]({page})"] if page else []),
            *(line for table in tables for line in _table_lines(table)),
            "",
            became.format(**counts),
            "",
            *(f"- {stage}: {seconds:.1f} s" for stage, seconds in summary["seconds"].items()),
        ]
    )


def _table_lines(table: PrintedTable) -> list[str]:
    rows = markdown_rows(table.frame)
    return ["", table.title, "", *rows, "", *(f"- {sentence}" for sentence in table.sentences)]


def _key(kind: str, dataset: str) -> str:
    # Prefect accepts only lower-case letters, digits and dashes.
    return f"{kind}-{re.sub(r'[^a-z0-9]+', '-', dataset.lower()).strip('-') or 'log'}"
