"""A table of texts -> Markdown, LaTeX, and plain values to store.

No protocol is imported: a finished benchmark prints its tables without.
"""

from typing import Any, NamedTuple

import polars as pl

TOO_FEW = "too few to say"
"""Stands in place of an interval of few queries."""


class PrintedTable(NamedTuple):
    """A table of one slice, as text, with its title and the sentences below it."""

    title: str
    frame: pl.DataFrame
    sentences: list[str]

    def record(self) -> dict[str, Any]:
        """Give the table as plain values, which `from_record` reads."""
        return {"title": self.title, "columns": self.frame.to_dict(as_series=False), "sentences": self.sentences}


def from_record(record: dict[str, Any]) -> PrintedTable:
    """Give the table of a record."""
    columns = record["columns"]
    return PrintedTable(record["title"], pl.DataFrame(columns, dict.fromkeys(columns, pl.String)), record["sentences"])


def markdown_rows(frame: pl.DataFrame) -> list[str]:
    """Give the lines of a table of texts in Markdown."""
    rows = ["| " + " | ".join(value or "" for value in row) + " |" for row in frame.rows()]
    return ["| " + " | ".join(frame.columns) + " |", "|" + " --- |" * frame.width, *rows]


def latex_table(frame: pl.DataFrame, *, caption: str, label: str, note: str) -> str:
    """Give a table of texts in LaTeX, with a note below it."""
    lines = [" & ".join(_escaped(value or "") for value in row) + r" \\" for row in [frame.columns, *frame.rows()]]
    columns = "l" + "r" * (frame.width - 1)
    body = [lines[0], r"\hline", *lines[1:]]
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escaped(caption)}}}",
            rf"\label{{tab:{label}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            *body,
            r"\end{tabular}",
            rf"\par\footnotesize {_escaped(note)}.",
            r"\end{table}",
            "",
        ]
    )


def _escaped(text: str) -> str:
    for mark in "&%#_$":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("±", r"$\pm$")
