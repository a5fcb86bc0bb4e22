"""A table of texts -> Markdown, LaTeX, and plain values to store.

No protocol is imported: a finished benchmark prints its tables without.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import polars as pl

TOO_FEW = "too few to say"
"""Stands in place of an interval of few queries."""

# A backslash before a line that parts two cells would take the meaning of the escape. `_` after a letter, a lone `&`
# and the brackets of an interval begin nothing in Markdown.
_OF_MARKDOWN = re.compile(r"[\\|<*`~]|(?<![^\W_])_|&(?=#?\w+;)|(?<=\])\(")
_BREAKS = str.maketrans("\n\r", "  ")
_OF_LATEX = str.maketrans(
    {
        **{mark: f"\\{mark}" for mark in "&%#_${}"},
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "±": r"$\pm$",
        "<": r"\textless{}",  # in the usual fonts of LaTeX the marks themselves are others
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
    }
)


class PrintedTable(NamedTuple):
    """A table of one slice, as text, with its title and the sentences below it."""

    title: str
    frame: pl.DataFrame
    sentences: list[str]
    name: str = "table"  # of its files

    def record(self) -> dict[str, Any]:
        """Give the table as plain values, which `from_record` reads."""
        return {**self._asdict(), "frame": self.frame.to_dict(as_series=False)}

    def files(self) -> dict[str, str]:
        """Give the contents of its files by name: Markdown and LaTeX."""
        return files_of(self.name, self.frame, caption=self.title, sentences=self.sentences)


def from_record(record: dict[str, Any]) -> PrintedTable:
    """Give the table of a record."""
    columns = record["frame"]
    return PrintedTable(**{**record, "frame": pl.DataFrame(columns, dict.fromkeys(columns, pl.String))})


def files_of(
    name: str, frame: pl.DataFrame, *, caption: str, limits: str = "", sentences: Sequence[str] = ()
) -> dict[str, str]:
    """Give the contents of the files of a table of texts by name: Markdown and LaTeX.

    In Markdown the limits end the title above the table, in LaTeX they begin the note below it, as the sentences do.
    """
    ended = [sentence.rstrip(".") for sentence in sentences]
    title, below = "; ".join(filter(None, (caption, limits))), [line for end in ended for line in ("", f"{end}.")]
    note = "; ".join(filter(None, (limits, *ended)))
    return {
        f"{name}.md": "\n".join([f"{title}.", "", *markdown_rows(frame), *below]) + "\n",
        f"{name}.tex": latex_table(frame, caption=caption, label=name, note=note),
    }


def markdown_rows(frame: pl.DataFrame) -> list[str]:
    """Give the lines of a table of texts in Markdown; a cell is one line, and its marks are escaped."""
    header, *rows = [
        "| " + " | ".join(_OF_MARKDOWN.sub(r"\\\g<0>", (value or "").translate(_BREAKS)) for value in row) + " |"
        for row in [frame.columns, *frame.rows()]
    ]
    return [header, "|" + " --- |" * frame.width, *rows]


def latex_table(frame: pl.DataFrame, *, caption: str, label: str, note: str) -> str:
    """Give a table of texts in LaTeX, with a note below it unless that is empty."""
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
            *([rf"\par\footnotesize {_escaped(note)}."] if note else []),
            r"\end{table}",
            "",
        ]
    )


def _escaped(text: str) -> str:
    return text.translate(_OF_LATEX)
