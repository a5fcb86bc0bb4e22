"""Metrics of a study -> its tables with the paper's values beside ours, as text, Markdown, CSV and LaTeX."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import polars as pl

from dyformer.evaluation.node_classification import PROTOCOL as LABELS
from dyformer.evaluation.node_classification import PUBLISHED_PROTOCOL
from dyformer.evaluation.prequential import PROTOCOL as PREQUENTIAL
from dyformer.evaluation.protocols import PROTOCOL as PAPER
from dyformer.evaluation.query_slices import KNOWN
from dyformer.evaluation.ranking_rows import MIXED
from dyformer.experiments.settings import Experiment
from dyformer.experiments.studies.studies import Study
from dyformer.experiments.tables import PrintedTable, markdown_rows
from dyformer.experiments.tuning.chosen import tuned_sentence


class Setup(NamedTuple):
    """How the methods of a study are run on one dataset, as the titles of its tables state it."""

    changes: str = ""  # changed settings
    experiment: Experiment = Experiment()
    searched: str | None = None  # the dataset whose chosen settings the methods have; None without any
    window: str = ""
    is_papers: bool = True  # whether windows, steps and settings are the paper's, whose values are left out otherwise

    @property
    def sentence(self) -> str:
        """State the length of the trainings."""
        capped = self.experiment.capped
        stages = {"pre-training": capped.pretrain, "fine-tuning": capped.finetune}
        lengths = [
            f"{config.epochs} x {config.batches_per_epoch} batches of {stage}"
            for stage, config in stages.items()
            if config is not None
        ]
        return f"{epochs_sentence(self.experiment.max_epochs)}; DyFormer: at most {' and '.join(lengths)}"


class Contents(NamedTuple):
    """The metrics of one table of a study."""

    part: str  # in the names of its files
    title: str
    protocol: str
    wanted: Mapping[str, str]  # columns of METRICS_SCHEMA and their value
    measure: str
    values: tuple[str, ...] = ("Micro AUC", "Macro AUC")
    scale: float = 100.0
    digits: int = 2


_LABELLED = "users with a first positive label in the next step"
_SAMPLED = "balanced samples of users, most of whom were trained on, labels carried forward (as published, no forecast)"

CONTENTS: dict[str, tuple[Contents, ...]] = {
    PAPER: tuple(
        Contents(part, f"{part} links", PAPER, {"slice": part, "metric": "auc"}, "AUC in percent")
        for part in ("all", "new")
    ),
    PREQUENTIAL: (
        Contents(
            KNOWN,
            "links between known nodes",
            PREQUENTIAL,
            {"slice": KNOWN, "metric": "mrr", "family": MIXED},
            "MRR [95 % interval]",
            ("MRR",),
            1.0,
            3,
        ),
    ),
    LABELS: (
        Contents("auc", _LABELLED, LABELS, {"metric": "auc"}, "AUC in percent [95 % interval]"),
        Contents(
            "precision",
            _LABELLED,
            LABELS,
            {"metric": "average_precision"},
            "average precision (AP) in percent [95 % interval]",
            ("Micro AP", "Macro AP"),
        ),
        Contents("published", _SAMPLED, PUBLISHED_PROTOCOL, {"metric": "auc"}, "AUC in percent [95 % interval]"),
    ),
}
"""The tables of a study, by its protocol."""

SUFFIXES = ("", "_std", "_paper", "_difference", "_low", "_high", "_gain", "_gain_low", "_gain_high")
"""Columns of a value: the mean over seeds, its sample standard deviation (null for one seed), the paper's value, ours
less it; the ends of its 95 % interval, averaged over seeds; ours less the best baseline's, with its interval."""


@dataclass(frozen=True, kw_only=True)
class StudyTable:
    """One table of a study, of one dataset: a row per method, and SUFFIXES for each value such as Macro AUC."""

    name: str  # of its files: links-uci-all
    title: str
    frame: pl.DataFrame
    values: tuple[str, ...]
    digits: int
    reference: str | None = None  # what the rows are compared with; None: its text has no intervals either

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
            spread += _between(form, row, value) if self.reference else ""
            cells[value] = "" if mean is None else form.format(mean) + spread
            if self.reference and value == self.values[-1]:
                gain = _filled(signed, row[f"{value}_gain"])
                cells[f"difference to {self.reference}"] = gain and gain + _between(signed, row, f"{value}_gain")
            if has_paper:
                cells[f"{value}, paper"] = _filled(form, row[f"{value}_paper"])
                cells[f"{value}, difference"] = _filled(signed, row[f"{value}_difference"])
        return cells


def study_tables(
    name: str,
    study: Study,
    metrics: pl.DataFrame,
    dataset: str,
    setup: Setup,
) -> list[StudyTable]:
    """Give the tables of a study on one dataset, one for each slice that has values.

    Args:
        name: of the study.
        study: its rows.
        metrics: those of its protocol, with the columns of METRICS_SCHEMA.
        dataset: of the metrics.
        setup: how the methods were run, which the title states.
    """
    rows = metrics.filter(pl.col("seed").is_not_null(), dataset=dataset)
    tables = []
    for contents in CONTENTS[study.protocol]:
        own = rows.filter(protocol=contents.protocol, **contents.wanted)
        over_steps = own.filter(pl.col("step").is_in(["micro", "macro"]), pl.col("value").is_not_null())
        if over_steps.is_empty():
            continue
        steps = rows.filter(pl.col("step").str.contains(r"^\d+$"))["step"].cast(pl.Int64)
        log = metrics.filter(protocol=contents.protocol, dataset=dataset, metric="positives", step="micro")
        theirs = study.paper_values(contents.protocol if study.protocol == LABELS else contents.part, dataset)
        tables.append(
            StudyTable(
                name=f"{name}-{dataset}-{contents.part}",
                title=_title(name, dataset, contents, over_steps, steps, log, _limits(study, setup, bool(theirs))),
                frame=_frame(study, over_steps, contents, theirs if setup.is_papers else {}),
                values=contents.values,
                digits=contents.digits,
                reference="the best count" if study.protocol == LABELS else study.reference,
            )
        )
    return tables


def _frame(
    study: Study, rows: pl.DataFrame, contents: Contents, paper: Mapping[str, tuple[float, float]]
) -> pl.DataFrame:
    table: list[dict[str, Any]] = []
    beside = {"_low": "low", "_high": "high"}
    beside |= {f"_gain{end}": f"difference{end}" for end in ("", "_low", "_high")}
    for method, published in study.rows.items():
        own = rows.filter(method=method)
        row: dict[str, Any] = {"method": method, "paper_row": published, "num_seeds": own["seed"].n_unique()}
        theirs = paper.get(method, (None, None))
        for value, over_steps, of_paper in zip(
            reversed(contents.values), ("macro", "micro"), reversed(theirs), strict=False
        ):
            columns = [pl.col(name).mean() * contents.scale for name in ("value", *beside.values())]
            seeds = own.filter(step=over_steps).group_by("seed").agg(columns).sort("seed")  # so that sums are the same
            mean: Any = seeds["value"].mean()
            row |= {
                value: mean,
                f"{value}_std": seeds["value"].std() if seeds.height > 1 else None,
                f"{value}_paper": of_paper,
                f"{value}_difference": None if mean is None or of_paper is None else mean - of_paper,
                **{value + suffix: seeds[name].mean() for suffix, name in beside.items()},
            }
        table.append(row)
    schema = {"method": pl.String, "paper_row": pl.String, "num_seeds": pl.Int64}
    schema |= dict.fromkeys((value + suffix for value in contents.values for suffix in SUFFIXES), pl.Float64)
    return pl.DataFrame(table, schema=schema)


def _title(
    name: str,
    dataset: str,
    contents: Contents,
    rows: pl.DataFrame,
    steps: pl.Series,
    log: pl.DataFrame,
    limits: str,
) -> str:
    num_seeds, num_steps = rows["seed"].n_unique(), steps.n_unique()
    first, last = steps.min(), steps.max()
    which = f"step {first}" if num_steps == 1 else f"{num_steps} steps from {first} to {last}"
    for row in log.to_dicts():
        best = rows["best_baseline"].drop_nulls().first()
        which += f"; {row['value']:.0f} of {row['num_pairs']:,} scored users are positive; best count: {best}"
    return (
        f"{name}, {dataset}, {contents.title}: {contents.measure}, {contents.protocol} protocol, mean ± standard "
        f"deviation over {num_seeds} seed{'s' * (num_seeds > 1)}, {which}; {limits}"
    )


def epochs_sentence(max_epochs: int | None) -> str:
    """State the cap on the epochs of all methods."""
    return "no cap on epochs" if max_epochs is None else f"cap on epochs of every trained method: {max_epochs}"


def settings_sentence(study: Study, setup: Setup) -> str:
    """State the windows, and the settings of a study's methods that are not the usual ones."""
    which = "graph.* for all methods, others for DyFormer, where a row does not set them itself"
    changed = f"{setup.changes} ({which})" if setup.changes else "none"
    windows = f"windows: {setup.window}; " if setup.window else ""
    tuned = tuned_sentence(study.methods, setup.searched) or "settings chosen on earlier steps: none"
    return f"{windows}other changed settings: {changed}; {tuned}"


def paper_sentence(setup: Setup, has_paper: bool) -> str:
    """State why the paper's values are not there; nothing where they are, or where it has none."""
    other = "; without the paper's values, which are of other windows, steps or settings"
    return other if has_paper and not setup.is_papers else ""


def _limits(study: Study, setup: Setup, has_paper: bool) -> str:
    return f"{setup.sentence}; {settings_sentence(study, setup)}{paper_sentence(setup, has_paper)}"


def _between(form: str, row: Mapping[str, Any], value: str) -> str:
    low, high = (row[f"{value}_{end}"] for end in ("low", "high"))
    return "" if low is None else f" [{form.format(low)}, {form.format(high)}]"


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
