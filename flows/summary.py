"""A report as Markdown, for Prefect's pages."""

from dyformer.experiments.tables import score_table
from flows.tasks.report import read_report


def as_markdown(report: str) -> str:
    """Write counts, scores and addresses of a report."""
    metrics, summary = read_report(report)
    dataset, counts = summary["dataset"], summary["counts"]
    table = score_table(metrics, dataset)
    rows = ["| " + " | ".join("" if value is None else str(value) for value in row) + " |" for row in table.rows()]
    kept = "{num_accepted:,} of {num_read:,} rows accepted, {num_quarantined:,} quarantined, {num_dropped:,} dropped."
    return "\n".join(
        [
            f"## {dataset}, event table version {counts['version']}",
            kept.format(**counts),
            "",
            "| " + " | ".join(table.columns) + " |",
            "|" + " --- |" * table.width,
            *rows,
            "",
            *(f"- {stage}: {seconds:.1f} s" for stage, seconds in summary["seconds"].items()),
        ]
    )
