"""What a run shows in Prefect's pages: tables and summaries. Outside a flow run there is nobody to show them to."""

import re

import polars as pl
from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.context import FlowRunContext

from dyformer.experiments.tables import score_table


def show_table(dataset: str, metrics: pl.DataFrame) -> None:
    """Show the table of scores."""
    if FlowRunContext.get() is not None:
        rows = score_table(metrics, dataset).to_dicts()
        create_table_artifact(table=rows, key=_key("scores", dataset), description=f"AUC in percent, {dataset}")


def show_summary(dataset: str, text: str) -> None:
    """Show a summary in Markdown."""
    if FlowRunContext.get() is not None:
        create_markdown_artifact(markdown=text, key=_key("summary", dataset))


def _key(kind: str, dataset: str) -> str:
    # Prefect takes lower-case letters, digits and dashes only.
    return f"{kind}-{re.sub(r'[^a-z0-9]+', '-', dataset.lower()).strip('-') or 'log'}"
