"""A study and datasets -> its trials, in one process or several, then its tables, plots and tracked runs."""

import io
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl
from matplotlib.figure import Figure

from dyformer.evaluation.protocols import protocol_of
from dyformer.experiments.plots import comparison_chart, step_curve
from dyformer.experiments.settings import Experiment
from dyformer.experiments.studies.studies import LAST_STEPS, STUDIES, Study
from dyformer.experiments.studies.study_tables import (
    Setup,
    StudyTable,
    epochs_sentence,
    numbered_steps,
    steps_sentence,
    study_tables,
)
from dyformer.logs.datasets import DATASETS
from flows.benchmark import benchmark
from flows.options import changed_names
from flows.service.managed import stored_task
from flows.stages import ingest, track_task
from flows.tasks.evaluation.evaluate import units_of
from flows.tasks.evaluation.measure import read_metrics
from flows.tasks.methods import resolved
from flows.tasks.snapshots import open_snapshots
from flows.tasks.tracking.benchmarks import write_study
from flows.trials import run_trials, searched_steps, trials_of

DRAWN = {"steps": step_curve, "comparison": comparison_chart}

write_study_task = stored_task(name="write study")(write_study)


class Finished(NamedTuple):
    """The tables of a study, and the contents of its files by name."""

    tables: list[StudyTable]
    files: dict[str, bytes]


def run_study(
    name: str,
    readings: Mapping[str, dict[str, Any]],
    experiments: Mapping[str, Experiment],
    steps: str | None = None,
    seeds: int = 1,
    parallel: int = 1,
    changes: Sequence[str] = (),
) -> Finished:
    """Run the missing trials of a study, and make its tables and plots by the benchmark of its protocol.

    Args:
        name: of STUDIES.
        readings: how the log of each dataset is read; an empty one where its rows are in the store.
        experiments: settings of each dataset.
        steps: those to evaluate, such as "3-13"; None for those of the paper.
        seeds: number of seeds, from 0.
        parallel: number of processes.
        changes: the changed settings, as in "model.width=64"; the titles of the tables state them.
    """
    study, finished = STUDIES[name], Finished([], {})
    methods = resolved(study.methods)
    snapshots = {dataset: ingest(dataset, reading)["snapshots"] for dataset, reading in readings.items()}
    setups = {
        dataset: setup_of(study, address, steps, experiments[dataset], changes)
        for dataset, address in snapshots.items()
    }
    run_trials(
        name,
        [
            trial
            for dataset, address in snapshots.items()
            for trial in trials_of(
                protocol_of(study.protocols[0]), methods, address, steps, seeds, experiments[dataset]
            )
        ],
        parallel,
    )
    for dataset, address in snapshots.items():
        benchmarks = [
            benchmark(dataset, None, steps, seeds, experiments[dataset], methods, name, protocol)
            for protocol in study.protocols
        ]
        rows = pl.concat(read_metrics(benchmark["metrics"]) for benchmark in benchmarks)
        tables = study_tables(name, study, rows, dataset, setups[dataset])
        drawn = plots(name, study, rows, dataset, setups[dataset]) | step_files(name, study, rows, dataset)
        files = {file: text.encode() for table in tables for file, text in table.files().items()} | drawn
        write_study_task(name, address, files)
        track_task(open_snapshots(address).layout)
        finished.tables.extend(tables)
        finished.files.update(files)
    return finished


def setup_of(study: Study, snapshots: str, steps: str | None, experiment: Experiment, changes: Sequence[str]) -> Setup:
    """Give how the methods of a study are run on one dataset; raises NoEffect for a setting that has none there."""
    opened, protocol = open_snapshots(snapshots), protocol_of(study.protocols[0])
    numbers, usual = units_of(snapshots, protocol, steps), units_of(snapshots, protocol)
    dataset_entry, names = DATASETS.get(opened.dataset), changed_names(changes)
    searched = searched_steps(snapshots, protocol, numbers)
    study.check_changes(names, searched)
    has_windows = dataset_entry is not None and opened.window == str(dataset_entry.window)
    has_steps = numbers == usual and numbers[-1] == LAST_STEPS.get(opened.dataset)
    has_settings = not any(name.startswith(("graph.", "model.")) or name == "pretrain" for name in names)
    return Setup(
        changes=", ".join(changes),
        experiment=experiment,
        searched=searched,
        window=opened.window,
        is_papers=has_windows and has_steps and has_settings,
    )


def plots(name: str, study: Study, metrics: pl.DataFrame, dataset: str, setup: Setup) -> dict[str, bytes]:
    """Draw the plot of a study as PNG, by the name of its file: one for all links, and one for the new ones."""
    drawn: dict[str, bytes] = {}
    rows = metrics.filter(pl.col("method").is_in(list(study.rows)), pl.col("seed").is_not_null())
    for part in ("all", "new") if study.plot is not None else ():
        if not rows.filter(slice=part, metric="auc").drop_nulls("value").is_empty():
            content = io.BytesIO()
            paper = (
                {"paper": study.paper_values(part, dataset)} if study.plot == "comparison" and setup.is_papers else {}
            )
            figure = DRAWN[study.plot or ""](rows, slice_name=part, **paper)
            _add_to_title(
                figure, f"{steps_sentence(numbered_steps(rows))}; {epochs_sentence(setup.experiment.max_epochs)}"
            )
            figure.savefig(content, format="png", dpi=150)
            drawn[f"{name}-{dataset}-{part}.png"] = content.getvalue()
    return drawn


def _add_to_title(figure: Figure, line: str) -> None:
    axes = figure.axes[0]
    axes.set_title(f"{axes.get_title(loc='left')}\n{line}", loc="left", fontsize=10)


def step_files(name: str, study: Study, metrics: pl.DataFrame, dataset: str) -> dict[str, bytes]:
    """Give the CSV of a plot by step, by the name of its file.

    It has a row for each method, seed, slice and step, "micro" and "macro" among the steps, with an AUC from 0 to 1.
    """
    if study.plot != "steps":
        return {}
    columns = ("method", "step", "seed", "slice", "value", "low", "high", "num_pairs")
    rows = metrics.filter(pl.col("method").is_in(list(study.rows)), pl.col("seed").is_not_null(), metric="auc")
    return {f"{name}-{dataset}-steps.csv": rows.select(columns).write_csv().encode()}
