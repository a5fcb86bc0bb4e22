"""A study and datasets -> its trials, in one process or several, then its tables, plots and tracked runs.

A trial is one group of methods on all steps of one dataset, with one seed. What it scores is stored, so that a study
that was killed runs only the trials that are missing.
"""

import io
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context, parent_process
from typing import Any, NamedTuple

import polars as pl
from prefect import flow

from dyformer.evaluation.node_classification import PROTOCOL as LABELS
from dyformer.evaluation.prequential import PROTOCOL as PREQUENTIAL
from dyformer.evaluation.protocols import PROTOCOL as PAPER
from dyformer.experiments.plots import comparison_chart, step_curve
from dyformer.experiments.settings import Experiment
from dyformer.experiments.studies.costs import cost_table
from dyformer.experiments.studies.paper_tables import LAST_STEPS
from dyformer.experiments.studies.studies import COST, STUDIES, Study
from dyformer.experiments.studies.study_tables import Setup, StudyTable, study_tables
from dyformer.logs.datasets import DATASETS
from flows.benchmark import (
    benchmark,
    groups_of,
    label_scores,
    labels,
    paper_scores,
    prequential,
    prequential_scores,
    searched_steps,
)
from flows.console import print_no_progress, tracked
from flows.ending import is_ours
from flows.options import changed_names
from flows.service.outages import stored_task
from flows.stages import ingest
from flows.tasks.evaluation.costs import chosen_jobs, measure_costs, read_costs, step_to_cost
from flows.tasks.evaluation.evaluate import metrics, steps_to_evaluate
from flows.tasks.evaluation.labels import scored_labels_metrics, steps_to_score
from flows.tasks.evaluation.rank import ranking_metrics, steps_to_rank
from flows.tasks.methods import chosen_methods, label_methods
from flows.tasks.snapshots import open_snapshots
from flows.tasks.tracking.benchmarks import track_study
from flows.temporary_server import guard_temporary_server

STEPS = {PAPER: steps_to_evaluate, PREQUENTIAL: steps_to_rank, LABELS: steps_to_score, COST: step_to_cost}
CHOSEN: dict[str, Callable[[list[str]], dict]] = {
    PAPER: chosen_methods,
    PREQUENTIAL: chosen_methods,
    LABELS: label_methods,
    COST: chosen_jobs,
}
SCORES = {PAPER: paper_scores, PREQUENTIAL: prequential_scores, LABELS: label_scores, COST: measure_costs}
FLOWS = {PAPER: benchmark, PREQUENTIAL: prequential, LABELS: labels}
DRAWN = {"steps": step_curve, "comparison": comparison_chart}

track_study_task = stored_task(name="track study")(track_study)


class Trial(NamedTuple):
    """One group of methods on all steps of a dataset, with one seed."""

    protocol: str
    dataset: str
    snapshots: str
    steps: list[int]
    seed: int
    experiment: Experiment
    names: list[str]


class Finished(NamedTuple):
    """The tables of a study, and the contents of its files by name."""

    tables: list[StudyTable]
    files: dict[str, bytes]


@flow(flow_run_name="{names} on {dataset}, seed {seed}")
def run_trial(
    protocol: str,
    dataset: str,
    snapshots: str,
    steps: list[int],
    seed: int,
    experiment: Experiment,
    names: list[str],
) -> list[str]:
    """Evaluate methods by the functions of the protocol's benchmark; return the scores' addresses.

    On one thread of torch, so that the scores are the same for every number of processes.
    """
    import torch

    torch.set_num_threads(1)
    jobs = [(step, seed) for step in steps]
    return SCORES[protocol](snapshots, jobs, experiment, names, searched_steps(snapshots, steps))


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
    study, made = STUDIES[name], Finished([], {})
    snapshots = {dataset: ingest(dataset, reading)["snapshots"] for dataset, reading in readings.items()}
    setups = {
        dataset: setup_of(study, address, steps, experiments[dataset], changes)
        for dataset, address in snapshots.items()
    }
    trials = [
        trial
        for dataset, address in snapshots.items()
        for trial in trials_of(study, dataset, address, steps, seeds, experiments[dataset])
    ]
    for _ in tracked(finished(trials, parallel), f"trials of {name}", len(trials)):
        pass
    for dataset, address in snapshots.items():
        setup = setups[dataset]
        if study.protocol == COST:
            measured = [address for trial in trials if trial.dataset == dataset for address in run_trial(*trial)]
            tables, drawn = [cost_table(name, study, read_costs(measured), dataset, setup)], {}
        else:
            scored = FLOWS[study.protocol](dataset, None, steps, seeds, experiments[dataset], study.methods, name)
            rows = metrics_of(study, scored["scores"], scored["snapshots"])
            tables = study_tables(name, study, rows, dataset, setup)
            drawn = plots(name, study, rows, dataset, setup) | step_files(name, study, rows, dataset)
        files = {file: text.encode() for table in tables for file, text in table.files().items()} | drawn
        track_study_task(name, address, files)
        made.tables.extend(tables)
        made.files.update(files)
    return made


def metrics_of(study: Study, scores: list[str], snapshots: str) -> pl.DataFrame:
    """Return the metrics of a study's scores as rows of METRICS_SCHEMA."""
    if study.protocol == PREQUENTIAL:
        return ranking_metrics(scores, snapshots, study.baselines)
    return {PAPER: metrics, LABELS: scored_labels_metrics}[study.protocol](scores, snapshots)


def setup_of(study: Study, snapshots: str, steps: str | None, experiment: Experiment, changes: Sequence[str]) -> Setup:
    """Give how the methods of a study are run on one dataset; raises NoEffect for a setting that has none there."""
    opened, numbers = open_snapshots(snapshots), STEPS[study.protocol](snapshots, steps)
    known, names, searched = DATASETS.get(opened.dataset), changed_names(changes), searched_steps(snapshots, numbers)
    study.check_changes(names, searched)
    has_windows = known is not None and opened.window == str(known.window)
    has_steps = numbers == STEPS[study.protocol](snapshots, None) and numbers[-1] == LAST_STEPS.get(opened.dataset)
    has_settings = not any(name.startswith(("graph.", "model.")) or name == "pretrain" for name in names)
    return Setup(
        changes=", ".join(changes),
        experiment=experiment,
        searched=searched,
        window=opened.window,
        is_papers=has_windows and has_steps and has_settings,
    )


def trials_of(
    study: Study, dataset: str, snapshots: str, steps: str | None, seeds: int, experiment: Experiment
) -> list[Trial]:
    """List the trials of a study on one dataset."""
    numbers = STEPS[study.protocol](snapshots, steps)
    return [
        Trial(study.protocol, dataset, snapshots, numbers, seed, experiment, names)
        for seed in range(seeds)
        for names in groups_of(CHOSEN[study.protocol](study.methods))
    ]


def finished(trials: list[Trial], parallel: int) -> Iterator[Trial]:
    """Run trials and yield each at its end: in this process, or in several that end with it.

    A trial that measures costs has a process of its own, on one thread, and none beside it.
    """
    is_cost = any(trial.protocol == COST for trial in trials)
    if parallel == 1 and not is_cost:
        for trial in trials:
            run_trial(*trial)
            yield trial
        return
    context = get_context("spawn")  # because threads of torch and Prefect do not survive a fork
    num, num_trials = (1, 1) if is_cost else (parallel, None)
    pool = ProcessPoolExecutor(num, mp_context=context, initializer=_settle, max_tasks_per_child=num_trials)
    try:
        running = {pool.submit(_run, trial): trial for trial in trials}
        for future in as_completed(running):
            error = future.result()
            if error is not None:
                raise error
            yield running[future]
    finally:
        pool.shutdown(cancel_futures=True)


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
            DRAWN[study.plot or ""](rows, slice_name=part, **paper).savefig(content, format="png", dpi=150)
            drawn[f"{name}-{dataset}-{part}.png"] = content.getvalue()
    return drawn


def step_files(name: str, study: Study, metrics: pl.DataFrame, dataset: str) -> dict[str, bytes]:
    """Give the CSV of a plot by step, by the name of its file.

    It has a row for each method, seed, slice and step, "micro" and "macro" among the steps, with an AUC from 0 to 1.
    """
    if study.plot != "steps":
        return {}
    columns = ("method", "step", "seed", "slice", "value", "low", "high", "num_pairs")
    rows = metrics.filter(pl.col("method").is_in(list(study.rows)), pl.col("seed").is_not_null(), metric="auc")
    return {f"{name}-{dataset}-steps.csv": rows.select(columns).write_csv().encode()}


def _run(trial: Trial) -> ValueError | OSError | None:
    """Run a trial in a process of its own, to which a function can be sent, but no flow.

    One that measures costs has no tasks: as a plain function it starts no server for this process alone. An error whose
    message is written for the user is returned, because the traceback of a raised one would end in a library.
    """
    try:
        (run_trial.fn if trial.protocol == COST else run_trial)(*trial)
    except (ValueError, OSError) as error:
        if not is_ours(error.__traceback__):
            raise
        return error
    return None


def _settle() -> None:
    """Leave the progress to the study's own process, and end when that ends, however it ends."""
    print_no_progress()
    guard_temporary_server()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
