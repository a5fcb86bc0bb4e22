"""Metrics of a study -> its tables with the paper's values beside ours, as text, Markdown, CSV and LaTeX."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import polars as pl

from dyformer.evaluation.protocols import protocol_of
from dyformer.evaluation.protocols.protocol import Column, Protocol, TableOf
from dyformer.experiments.printed import PrintedTable, files_of
from dyformer.experiments.settings import Experiment
from dyformer.experiments.studies.studies import Study
from dyformer.experiments.tables import OF_A_UNIT
from dyformer.experiments.tuning.grids import tuned_sentence


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
    columns: tuple[Column, ...]
    reference: str | None = None  # what the text compares all rows with
    compared: Mapping[str, str] = field(default_factory=dict)  # row -> that with which the text compares it

    @property
    def values(self) -> tuple[str, ...]:
        """Titles of the values."""
        return tuple(column.title for column in self.columns)

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
        of_text = files_of(self.name, self.text(), caption=self.caption, limits=self.limits)
        return of_text | {f"{self.name}.csv": self.frame.write_csv()}

    def _cells(self, row: Mapping[str, Any]) -> dict[str, str]:
        cells = {"method": row["method"], "seeds": str(row["num_seeds"])}
        has_paper = any(self.frame[f"{value}_paper"].is_not_null().any() for value in self.values)
        for column in self.columns:
            value, form, signed = column.title, column.form, column.form.replace("{:", "{:+")
            mean, deviation = row[value], row[f"{value}_std"]
            spread = "" if deviation is None else f" ± {form.format(deviation)}"
            cells[value] = "" if mean is None else form.format(mean) + spread + _between(form, row, value)
            if self.reference and column is self.columns[-1]:
                cells[f"difference to {self.reference}"] = _compared(signed, row, value)
            elif self.compared and column is self.columns[-1]:
                cells["difference to a row"] = _compared(signed, row, value)
                cells["that row"] = self.compared.get(row["method"], "") if cells["difference to a row"] else ""
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
    steps = numbered_steps(rows)
    keys = {
        "dataset": dataset,
        "steps": "" if not steps else str(steps[0]) if len(steps) == 1 else f"{steps[0]}-{steps[-1]}",
        "max_epochs": setup.experiment.max_epochs,
    }
    tables, others = [], list(set(study.compared.values()))
    for protocol in map(protocol_of, study.protocols):
        for table in protocol.tables:
            table_rows = rows.filter(protocol=protocol.name, slice=table.slice).filter(
                pl.any_horizontal(
                    pl.col("metric").eq(column.metric) & pl.col("family").eq(column.family) for column in table.values
                )
            )
            over_steps = table_rows.filter(~OF_A_UNIT, pl.col("value").is_not_null())
            if over_steps.is_empty():
                continue
            theirs = study.paper_values(table.name, dataset)
            log = metrics.filter(protocol=protocol.name, dataset=dataset, metric="positives", step="micro")
            tables.append(
                StudyTable(
                    name=f"{name}-{dataset}-{table.name}",
                    caption=_caption(name, dataset, protocol, table, over_steps, steps, log),
                    limits=_limits(study, setup, table, bool(theirs)),
                    frame=_frame(study, over_steps, table, theirs if setup.is_papers else {}, keys),
                    columns=tuple(column for column in table.values if len(steps) > 1 or column.single is not None),
                    reference=table.reference or (others[0] if len(others) == 1 else None),
                    compared=study.compared,
                )
            )
    return tables


def numbered_steps(rows: pl.DataFrame) -> list[int]:
    """Give the steps that rows of METRICS_SCHEMA have a value of, in ascending order."""
    return sorted(set(rows.filter(pl.col("step").str.contains(r"^\d+$"))["step"].cast(pl.Int64)))


def _frame(
    study: Study,
    rows: pl.DataFrame,
    contents: TableOf,
    paper: Mapping[str, tuple[float | None, ...]],
    about: Mapping[str, Any],
) -> pl.DataFrame:
    table: list[dict[str, Any]] = []
    beside = {"_low": "low", "_high": "high"}
    beside |= {f"_minus_best{end}": f"difference{end}" for end in ("", "_low", "_high")}
    nothing = (None,) * len(contents.values)
    for method, published in study.rows.items():
        of_method = rows.filter(method=method)
        row: dict[str, Any] = {"method": method, "paper_row": published, "num_seeds": of_method["seed"].n_unique()}
        row |= {**about, "part": contents.name, "num_pairs": of_method["num_pairs"].max()}
        for column, of_paper in zip(contents.values, paper.get(method, nothing), strict=True):
            value, columns = column.title, [pl.col(name).mean() * column.scale for name in ("value", *beside.values())]
            column_rows = of_method.filter(metric=column.metric, family=column.family, step=column.over)
            seeds = column_rows.group_by("seed").agg(columns).sort("seed")  # so that sums are the same
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
    schema |= dict.fromkeys((column.title + suffix for column in contents.values for suffix in SUFFIXES), pl.Float64)
    return pl.DataFrame(table, schema=schema)


def _caption(
    name: str,
    dataset: str,
    protocol: Protocol,
    table: TableOf,
    rows: pl.DataFrame,
    steps: list[int],
    log: pl.DataFrame,
) -> str:
    num_seeds, num_pairs = rows["seed"].n_unique(), rows["num_pairs"].max()
    of_log = [f"{row['value']:.0f} of {row['num_pairs']:,} scored users are positive" for row in log.to_dicts()]
    counted = of_log or ([] if num_pairs is None else [f"{num_pairs:,} {table.counted}"])
    best = rows["best_baseline"].drop_nulls().first() if of_log else None
    compared = [] if best is None else [f"best count: {best}"]
    return table.caption.format(
        name=name,
        dataset=dataset,
        contents=table.contents,
        measure=table.measure,
        protocol=protocol.name,
        over="1 seed" if num_seeds == 1 else f"mean ± standard deviation over {num_seeds} seeds",
        steps=steps_sentence(steps),
        last=steps[-1],
        counted="".join(f"; {text}" for text in (*counted, *compared)),
    )


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


def _limits(study: Study, setup: Setup, table: TableOf, has_paper: bool) -> str:
    note = table.note or setup.sentence
    beside = table.paper_note if has_paper and setup.is_papers else ""
    return f"{note}; {settings_sentence(study, setup)}{paper_sentence(setup, has_paper)}{beside}"


def _between(form: str, row: Mapping[str, Any], value: str) -> str:
    low, high = (row.get(f"{value}_{end}") for end in ("low", "high"))
    return "" if low is None else f" [{form.format(low)}, {form.format(high)}]"


def _compared(form: str, row: Mapping[str, Any], value: str) -> str:
    beside = _filled(form, row[f"{value}_minus_best"])
    return beside and beside + _between(form, row, f"{value}_minus_best")


def _filled(form: str, value: float | None) -> str:
    return "" if value is None else form.format(value)
