"""Metrics of a study -> its tables with the paper's values beside ours, as text, Markdown, CSV and LaTeX."""

from collections.abc import Mapping, Sequence
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
from dyformer.experiments.tables import PrintedTable, latex_table, markdown_rows
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
    counted: str = "test pairs"
    scale: float = 100.0
    digits: int = 2


_LABELLED = "users with a first positive label in the next step"
_SAMPLED = "balanced samples of users, most of whom were trained on, labels carried forward (as published, no forecast)"

CONTENTS: dict[str, tuple[Contents, ...]] = {
    PAPER: tuple(
        Contents(part, f"{part} links", PAPER, {"slice": part, "metric": "auc"}, "AUC in percent [95 % interval]")
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
            "ranked links",
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

SUFFIXES = ("", "_std", "_low", "_high", "_paper", "_minus_paper", "_minus_best", "_minus_best_low", "_minus_best_high")
"""Columns of a value: the mean over seeds, its sample standard deviation (null for one seed), the ends of its 95 %
interval, averaged over seeds; the paper's value, and ours less it; ours less the value of the best baseline (of the row
with which a study compares the others), with its interval."""


@dataclass(frozen=True, kw_only=True)
class StudyTable:
    """One table of a study, of one dataset: a row per method, and SUFFIXES for each value such as Macro AUC."""

    name: str  # of its files: links-uci-all
    caption: str
    limits: str  # windows, settings and lengths of trainings
    frame: pl.DataFrame
    values: tuple[str, ...]
    digits: int
    reference: str | None = None  # what the text compares the rows with

    @property
    def title(self) -> str:
        """The caption with the limits."""
        return f"{self.caption}; {self.limits}"

    def text(self) -> pl.DataFrame:
        """Give the cells as text: "86.84 ± 0.31 [85.90, 87.70]", the paper's value, and the difference."""
        return pl.DataFrame([self._cells(row) for row in self.frame.iter_rows(named=True)])

    def printed(self) -> PrintedTable:
        """Give the table for a terminal."""
        return PrintedTable(self.title, self.text(), [])

    def files(self) -> dict[str, str]:
        """Give the contents of its files by name: Markdown and LaTeX of the text, CSV of the numbers."""
        return {
            f"{self.name}.md": "\n".join([f"{self.title}.", "", *markdown_rows(self.text())]) + "\n",
            f"{self.name}.csv": self.frame.write_csv(),
            f"{self.name}.tex": latex_table(self.text(), caption=self.caption, label=self.name, note=self.limits),
        }

    def _cells(self, row: Mapping[str, Any]) -> dict[str, str]:
        cells = {"method": row["method"], "seeds": str(row["num_seeds"])}
        form, signed = f"{{:.{self.digits}f}}", f"{{:+.{self.digits}f}}"
        has_paper = self.frame[f"{self.values[-1]}_paper"].is_not_null().any()
        for value in self.values:
            mean, deviation = row[value], row[f"{value}_std"]
            spread = "" if deviation is None else f" ± {form.format(deviation)}"
            cells[value] = "" if mean is None else form.format(mean) + spread + _between(form, row, value)
            if self.reference and value == self.values[-1]:
                beside = _filled(signed, row[f"{value}_minus_best"])
                between = _between(signed, row, f"{value}_minus_best")
                cells[f"difference to {self.reference}"] = beside and beside + between
            if has_paper:
                cells[f"{value}, paper"] = _filled(form, row[f"{value}_paper"])
                cells[f"{value}, difference"] = _filled(signed, row[f"{value}_minus_paper"])
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
        steps = numbered_steps(rows)
        log = metrics.filter(protocol=contents.protocol, dataset=dataset, metric="positives", step="micro")
        theirs = study.paper_values(contents.protocol if study.protocol == LABELS else contents.part, dataset)
        about = {
            "dataset": dataset,
            "part": contents.part,
            "steps": str(steps[0]) if len(steps) == 1 else f"{steps[0]}-{steps[-1]}",
            "max_epochs": setup.experiment.max_epochs,
        }
        tables.append(
            StudyTable(
                name=f"{name}-{dataset}-{contents.part}",
                caption=_caption(name, dataset, contents, over_steps, steps, log),
                limits=_limits(study, setup, bool(theirs)),
                frame=_frame(study, over_steps, contents, theirs if setup.is_papers else {}, about),
                values=contents.values if len(steps) > 1 else contents.values[-1:],  # of one step micro is macro
                digits=contents.digits,
                reference="the best count" if study.protocol == LABELS else study.reference,
            )
        )
    return tables


def numbered_steps(rows: pl.DataFrame) -> list[int]:
    """Give the steps that rows of METRICS_SCHEMA have a value of, in ascending order."""
    return sorted(set(rows.filter(pl.col("step").str.contains(r"^\d+$"))["step"].cast(pl.Int64)))


def _frame(
    study: Study,
    rows: pl.DataFrame,
    contents: Contents,
    paper: Mapping[str, tuple[float, float]],
    about: Mapping[str, Any],
) -> pl.DataFrame:
    table: list[dict[str, Any]] = []
    beside = {"_low": "low", "_high": "high"}
    beside |= {f"_minus_best{end}": f"difference{end}" for end in ("", "_low", "_high")}
    for method, published in study.rows.items():
        own = rows.filter(method=method)
        row: dict[str, Any] = {"method": method, "paper_row": published, "num_seeds": own["seed"].n_unique(), **about}
        row |= {"num_pairs": own["num_pairs"].max()}
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
                f"{value}_minus_paper": None if mean is None or of_paper is None else mean - of_paper,
                **{value + suffix: seeds[name].mean() for suffix, name in beside.items()},
            }
        table.append(row)
    schema: dict[str, Any] = {"method": pl.String, "paper_row": pl.String, "num_seeds": pl.Int64}
    schema |= {
        "dataset": pl.String,
        "part": pl.String,
        "steps": pl.String,
        "max_epochs": pl.Int64,
        "num_pairs": pl.Int64,
    }
    schema |= dict.fromkeys((value + suffix for value in contents.values for suffix in SUFFIXES), pl.Float64)
    return pl.DataFrame(table, schema=schema)


def _caption(
    name: str, dataset: str, contents: Contents, rows: pl.DataFrame, steps: list[int], log: pl.DataFrame
) -> str:
    num_seeds, num_pairs = rows["seed"].n_unique(), rows["num_pairs"].max()
    over = "1 seed" if num_seeds == 1 else f"mean ± standard deviation over {num_seeds} seeds"
    of_log = [f"{row['value']:.0f} of {row['num_pairs']:,} scored users are positive" for row in log.to_dicts()]
    counted = of_log or ([] if num_pairs is None else [f"{num_pairs:,} {contents.counted}"])
    best = rows["best_baseline"].drop_nulls().first() if of_log else None
    compared = [] if best is None else [f"best count: {best}"]
    measured = f"{name}, {dataset}, {contents.title}: {contents.measure}, {contents.protocol} protocol, {over}"
    return "; ".join([f"{measured}, {steps_sentence(steps)}", *counted, *compared])


def steps_sentence(steps: Sequence[int]) -> str:
    """State the evaluated steps, which are in ascending order."""
    return f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps from {steps[0]} to {steps[-1]}"


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
    low, high = (row.get(f"{value}_{end}") for end in ("low", "high"))
    return "" if low is None else f" [{form.format(low)}, {form.format(high)}]"


def _filled(form: str, value: float | None) -> str:
    return "" if value is None else form.format(value)
