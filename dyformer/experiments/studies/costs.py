"""A method and a history -> the CPU seconds of an epoch of its training, and the table of the study `cost`."""

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from dyformer.embedder import Embedder
from dyformer.experiments.methods import EPOCHS, METHODS, Method, Variation
from dyformer.experiments.settings import Experiment
from dyformer.experiments.studies.paper_tables import COSTS
from dyformer.experiments.studies.studies import Study
from dyformer.experiments.studies.study_tables import Setup, StudyTable, paper_sentence, settings_sentence
from dyformer.graphs.prepared_graph import PreparedGraph
from dyformer.training.stages import finetune, pretrain

NUM_MORE = 2  # epochs by which two trainings differ, whose difference is the time of these epochs alone
VALUES = ("CPU s an epoch", "CPU s of a fit of 1 epoch", "peak GB")
STAGES = {"pre-training": "pretrain", "fine-tuning": "finetune"}
SCHEMA = {"method": pl.String, "seed": pl.Int64, "step": pl.Int64} | dict.fromkeys(VALUES, pl.Float64)


class Job(NamedTuple):
    """A method, and the stage of DyFormer's training that a row of the table is about: pretrain, finetune or None."""

    method: Method
    stage: str | None


def cost_jobs(rows: Sequence[str], method_of: Callable[[str], Method] = METHODS.__getitem__) -> dict[str, Job]:
    """Give the jobs of rows such as "DySAT" and "DyFormer, pre-training"; `method_of` gives the method of a title."""
    named = {row: row.partition(", ") for row in rows}
    return {row: Job(method_of(title), STAGES.get(stage)) for row, (title, _, stage) in named.items()}


def train(job: Job, graph: PreparedGraph, experiment: Experiment, num_epochs: int, seed: int) -> None:
    """Train for so many epochs, whatever number the method has; fine-tuning starts from random weights."""
    method = job.method
    if isinstance(method, Variation):
        changed = method.changed(experiment).changed({f"{job.stage}.epochs": num_epochs, f"{job.stage}.patience": None})
        if job.stage == "pretrain":
            assert changed.pretrain is not None
            epochs = pretrain(graph, changed.model, changed.pretrain, seed=seed)
        else:
            epochs = finetune(graph, None, changed.model, changed.finetune, seed=seed)
        deque(epochs, maxlen=0)
        return
    assert isinstance(method, Embedder)
    assert is_dataclass(method)
    own = {field.name for field in fields(method)}
    numbers = dict.fromkeys(own.intersection(EPOCHS), num_epochs)
    numbers |= {"batches": sys.maxsize} if "batches" in own else {}  # the epochs alone end the training
    replace(method, **numbers).fit(graph, seed=seed)(np.arange(len(graph.history.node_N)))


def seconds_of(job: Job, graph: PreparedGraph, experiment: Experiment, seed: int) -> tuple[float, float]:
    """Give the CPU seconds of an epoch, and of a whole fit of one epoch with all that it prepares.

    They are those of all threads. The seconds of an epoch are a difference of two fits, so that they hold no
    preparation. A first fit, which is not measured, compiles.
    """
    train(job, graph, experiment, 1, seed)
    seconds = []
    for num_epochs in (1, 1 + NUM_MORE):
        started = time.process_time()
        train(job, graph, experiment, num_epochs, seed)
        seconds.append(time.process_time() - started)
    return (seconds[1] - seconds[0]) / NUM_MORE, seconds[0]


def cost_table(name: str, study: Study, rows: pl.DataFrame, dataset: str, setup: Setup) -> StudyTable:
    """Give the table of the study from rows of SCHEMA, with the paper's memory and seconds, which are of a GPU.

    `setup` as in study_tables.
    """
    table: list[dict[str, Any]] = []
    for method, published in study.rows.items():
        own = rows.filter(method=method)
        theirs = COSTS.get(dataset, {}).get(published or "") if setup.is_papers else None
        paper: Mapping[str, float | None] = dict.fromkeys(VALUES)
        if theirs is not None:
            paper = {**paper, VALUES[0]: theirs.epoch_seconds, VALUES[2]: theirs.gigabytes}
        row: dict[str, Any] = {"method": method, "paper_row": published, "num_seeds": own["seed"].n_unique()}
        for value in VALUES:
            mean: Any = own[value].mean()
            beside = paper[value]
            row |= {value: mean, f"{value}_std": own[value].std() if own.height > 1 else None}
            row |= {f"{value}_paper": beside, f"{value}_minus_paper": mean - beside if mean and beside else None}
        table.append(row)
    schema = {"method": pl.String, "paper_row": pl.String, "num_seeds": pl.Int64}
    columns = [value + suffix for value in VALUES for suffix in ("", "_std", "_paper", "_minus_paper")]
    steps = ", ".join(map(str, rows["step"].unique().sort()))
    caption = f"{name}, {dataset}, trained until the step before {steps}: CPU seconds of all threads, with one of torch"
    limits = (
        f"each method alone in a process of its own, whose peak memory it is, Python and its libraries included; an "
        f"epoch of DyFormer is `batches_per_epoch` batches; {settings_sentence(study, setup)}"
        f"{paper_sentence(setup, dataset in COSTS)}"
    )
    limits += "; the paper's values are of a GPU" if setup.is_papers and dataset in COSTS else ""
    frame = pl.DataFrame(table, schema=schema | dict.fromkeys(columns, pl.Float64))
    name = f"{name}-{dataset}-cost"
    return StudyTable(name=name, caption=caption, limits=limits, frame=frame, values=VALUES, digits=2)
