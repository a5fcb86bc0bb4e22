"""Metrics of a study -> its tables with the paper's values beside ours, as text, Markdown, CSV and LaTeX."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from dyformer.evaluation.protocols import PROTOCOL as PAPER
from dyformer.evaluation.query_slices import KNOWN
from dyformer.evaluation.ranking_rows import MIXED
from dyformer.experiments.studies.studies import Study
from dyformer.experiments.tables import PrintedTable, markdown_rows

SLICE_TITLES = {"all": "all links", "new": "new links", KNOWN: "links between known nodes"}


@dataclass(frozen=True, kw_only=True)
class StudyTable:
    """One table of a study: of one dataset and one slice of its links.

    `frame` has a row per method; for each value such as macro the columns macro (mean over seeds), macro_std (its
    sample standard deviation, null for one seed), macro_paper and macro_difference (ours less the paper's).
    """

    name: str  # of its files: links-uci-all
    title: str
    frame: pl.DataFrame
    values: tuple[str, ...]
    digits: int

    def text(self) -> pl.DataFrame:
        """Give the cells as text: "86.84 ± 0.31", the paper's value, and the difference."""
        return pl.DataFrame([self._cells(row) for row in self.frame.iter_rows(named=True)])

    def printed(self) -> PrintedTable:
        """Give the table for a terminal."""
        return PrintedTable(self.title, self.text(), [])

    def files(self) -> dict[str, str]:
        """Give the contents of its files by name: Markdown and LaTeX of the text, CSV of the numbers."""
        return {
            f"{self.name}.md": "\n".join([f"{self.title}.", "", *markdown_rows(self.text())]) + "\n",
            f"{self.name}.csv": self.frame.write_csv(),
            f"{self.name}.tex": _latex(self.title, self.text()),
        }

    def _cells(self, row: Mapping[str, Any]) -> dict[str, str]:
        cells = {"method": row["method"], "seeds": str(row["num_seeds"])}
        form, signed = f"{{:.{self.digits}f}}", f"{{:+.{self.digits}f}}"
        has_paper = self.frame[f"{self.values[-1]}_paper"].is_not_null().any()
        for value in self.values:
            mean, deviation = row[value], row[f"{value}_std"]
            spread = "" if deviation is None else f" ± {form.format(deviation)}"
            cells[value] = "" if mean is None else form.format(mean) + spread
            if has_paper:
                cells[f"{value}, paper"] = _filled(form, row[f"{value}_paper"])
                cells[f"{value}, difference"] = _filled(signed, row[f"{value}_difference"])
        return cells


def study_tables(
    name: str, study: Study, metrics: pl.DataFrame, dataset: str, changes: str = "", max_epochs: int | None = None
) -> list[StudyTable]:
    """Give the tables of a study on one dataset, one for each slice that has values.

    Args:
        name: of the study.
        study: its rows.
        metrics: those of its protocol, with the columns of METRICS_SCHEMA.
        dataset: of the metrics.
        changes: changed settings, which the title states.
        max_epochs: the cap on the epochs of all methods, which the title states; None without one.
    """
    rows = metrics.filter(pl.col("seed").is_not_null(), dataset=dataset)
    is_paper = study.protocol == PAPER
    tables = []
    for part in ("all", "new") if is_paper else (KNOWN,):
        own = rows.filter(slice=part, metric="auc") if is_paper else rows.filter(slice=part, metric="mrr", family=MIXED)
        own = own.filter(pl.col("step").is_in(["micro", "macro"]), pl.col("value").is_not_null())
        if own.is_empty():
            continue
        values, scale = (("Micro AUC", "Macro AUC"), 100.0) if is_paper else (("MRR",), 1.0)
        steps = rows.filter(pl.col("step").str.contains(r"^\d+$"))["step"].cast(pl.Int64)
        title = _title(name, dataset, study, part, own, steps, _limits(changes, max_epochs))
        frame = _frame(study, own, values, scale, study.paper.get(part, {}).get(dataset, {}))
        digits = 2 if is_paper else 3
        tables.append(
            StudyTable(name=f"{name}-{dataset}-{part}", title=title, frame=frame, values=values, digits=digits)
        )
    return tables


def _frame(
    study: Study,
    rows: pl.DataFrame,
    values: tuple[str, ...],
    scale: float,
    paper: Mapping[str, tuple[float, float]],
) -> pl.DataFrame:
    table: list[dict[str, Any]] = []
    for method, published in study.rows.items():
        own = rows.filter(method=method)
        row: dict[str, Any] = {"method": method, "paper_row": published, "num_seeds": own["seed"].n_unique()}
        theirs = paper.get(published or "", (None, None))
        for value, over_steps, beside in zip(reversed(values), ("macro", "micro"), reversed(theirs), strict=False):
            of_seed = own.filter(step=over_steps).group_by("seed").agg(pl.col("value").mean() * scale)["value"]
            mean: Any = of_seed.mean()
            row |= {value: mean, f"{value}_std": of_seed.std() if len(of_seed) > 1 else None, f"{value}_paper": beside}
            row[f"{value}_difference"] = None if mean is None or beside is None else mean - beside
        table.append(row)
    suffixes = ("", "_std", "_paper", "_difference")
    schema = {"method": pl.String, "paper_row": pl.String, "num_seeds": pl.Int64}
    schema |= dict.fromkeys((value + suffix for value in values for suffix in suffixes), pl.Float64)
    return pl.DataFrame(table, schema=schema)


def _title(name: str, dataset: str, study: Study, part: str, rows: pl.DataFrame, steps: pl.Series, limits: str) -> str:
    num_seeds, num_steps = rows["seed"].n_unique(), steps.n_unique()
    first, last = steps.min(), steps.max()
    which = f"step {first}" if num_steps == 1 else f"{num_steps} steps from {first} to {last}"
    what = "AUC in percent" if study.protocol == PAPER else "MRR"
    return (
        f"{name}, {dataset}, {SLICE_TITLES[part]}: {what}, {study.protocol} protocol, mean ± standard deviation over "
        f"{num_seeds} seed{'s' * (num_seeds > 1)}, {which}; {limits}"
    )


def epochs_sentence(max_epochs: int | None) -> str:
    """State the cap on the epochs of all methods."""
    return "no cap on epochs" if max_epochs is None else f"cap on epochs of every trained method: {max_epochs}"


def _limits(changes: str, max_epochs: int | None) -> str:
    changed = f"{changes} for DyFormer, baselines as by default" if changes else "none, all methods as by default"
    return f"{epochs_sentence(max_epochs)}; other changed settings: {changed}"


def _filled(form: str, value: float | None) -> str:
    return "" if value is None else form.format(value)


def _latex(title: str, cells: pl.DataFrame) -> str:
    lines = [" & ".join(_escaped(value or "") for value in row) + r" \\" for row in [cells.columns, *cells.rows()]]
    columns = "l" + "r" * (cells.width - 1)
    body = [lines[0], r"\hline", *lines[1:]]
    return "\n".join(
        [
            r"\begin{table}",
            rf"\caption{{{_escaped(title)}}}",
            rf"\begin{{tabular}}{{{columns}}}",
            *body,
            r"\end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def _escaped(text: str) -> str:
    for mark in "&%#_$":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("±", r"$\pm$")
