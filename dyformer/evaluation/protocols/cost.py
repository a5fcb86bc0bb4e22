"""The protocol of costs (appendix): CPU seconds of an epoch of a method's training, and the memory of its process."""

import re
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from dyformer import InvalidInput
from dyformer.evaluation.protocols.paper import possible_steps
from dyformer.evaluation.protocols.protocol import Column, Job, Log, Protocol, Result, TableOf, Tables
from dyformer.evaluation.rows import METRICS_SCHEMA
from dyformer.graphs.prepared_graph import PreparedGraph, prepare_graph
from dyformer.scoring.interfaces import EPOCHS, Embedder, Stage

NUM_MORE = 2  # epochs by which two trainings differ, whose difference is the time of these epochs alone
VALUES = {
    "CPU s an epoch": "epoch_seconds",
    "CPU s of a fit of 1 epoch": "fit_seconds",
    "peak GB": "peak_gigabytes",
}
"""Columns of the table, each with its metric."""

SCHEMA = {"method": pl.String, "seed": pl.Int64, "step": pl.Int64} | dict.fromkeys(VALUES.values(), pl.Float64)


class Known(NamedTuple):
    """What methods are trained on."""

    job: Job
    graph: PreparedGraph


def train(method: Embedder | Stage, graph: PreparedGraph, num_epochs: int, seed: int) -> None:
    """Train for so many epochs, whatever number the method has. Raises ValueError for a method without one."""
    if isinstance(method, Stage):
        method.train_epochs(graph, num_epochs, seed=seed)
        return
    parameters = {field.name for field in fields(method) if field.init} if is_dataclass(method) else set[str]()
    numbers = dict.fromkeys(parameters.intersection(EPOCHS), num_epochs)
    if not numbers or not is_dataclass(method):
        raise InvalidInput(
            "the time of an epoch is the difference of two fits: expected a dataclass with the number of epochs in a"
            f" field {' or '.join(EPOCHS)}; found {type(method).__name__}"
        )
    numbers |= {"batches": sys.maxsize} if "batches" in parameters else {}  # the epochs alone end the training
    fitted: Embedder = replace(method, **numbers)
    fitted.fit(graph, seed=seed)(np.arange(len(graph.history.node_N)))


def seconds_of(method: Embedder | Stage, graph: PreparedGraph, seed: int) -> tuple[float, float]:
    """Give the CPU seconds of an epoch, and of a whole fit of one epoch with all that it prepares.

    They are those of all threads. The seconds of an epoch are a difference of two fits, so that they hold no
    preparation. A first fit, which is not measured, compiles.
    """
    train(method, graph, 1, seed)
    seconds = []
    for num_epochs in (1, 1 + NUM_MORE):
        started = time.process_time()
        train(method, graph, num_epochs, seed)
        seconds.append(time.process_time() - started)
    return (seconds[1] - seconds[0]) / NUM_MORE, seconds[0]


def peak_gigabytes() -> float:
    """Give the peak memory of this process; Linux alone keeps it.

    `getrusage` would give that of the process that started this one where it is larger.
    """
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert peak is not None
    return int(peak[1]) * 1024 / 1e9


def _trial(job: Job) -> Known:
    return Known(job, prepare_graph(job.log.graph(job.unit - 1), until=job.unit - 1, config=job.config))


def _evaluate(title: str, method: Embedder | Stage, known: Known) -> Tables:
    """Measure a method; the memory is the peak since the start of this process, so that it needs one of its own."""
    values = (*seconds_of(method, known.graph, known.job.seed), peak_gigabytes())
    row = (title, known.job.seed, known.job.unit, *values)
    return {"costs": pl.DataFrame([row], orient="row", schema=SCHEMA)}


def _rows(results: Sequence[Result], log: Log, baselines: Collection[str]) -> Tables:
    """Give each value as a row of METRICS_SCHEMA, of its step and as the mean over steps, which is the same."""
    costs = pl.concat(result.table("costs") for result in results)
    rows = costs.unpivot(list(VALUES.values()), index=["method", "seed", "step"], variable_name="metric")
    steps = [rows.with_columns(pl.col("step").cast(pl.String)), rows.with_columns(step=pl.lit("macro"))]
    rows = pl.concat(steps).with_columns(
        dataset=pl.lit(log.dataset),
        protocol=pl.lit("cost"),
        family=pl.lit("-"),
        slice=pl.lit("all"),
        is_baseline=pl.col("method").is_in(list(baselines)),
    )
    return {"metrics": pl.concat([pl.DataFrame(schema=METRICS_SCHEMA), rows], how="diagonal")}


PROTOCOL = Protocol(
    name="cost",
    sentence="CPU seconds of an epoch of a training, and its memory",
    heading="Costs of trainings",
    methods=(Embedder, Stage),
    units=possible_steps,
    need="a step needs two earlier steps, and enough links between known nodes",
    trial=_trial,
    evaluate=_evaluate,
    rows=_rows,
    tables=(
        TableOf(
            name="cost",
            key="cost",
            slice="all",
            columns=tuple(
                Column(title=title, metric=metric, family="-", form="{:.2f}") for title, metric in VALUES.items()
            ),
            title="{dataset}, trained on the steps before {where}: CPU seconds of all threads, with one of torch",
            caption="{name}, {dataset}, trained until the step before {last}: CPU seconds of all threads, with one of"
            " torch",
            note="each method alone in a process of its own, whose peak memory it is, Python and its libraries"
            " included; an epoch of DyFormer is `batches_per_epoch` batches",
            paper_note="; the paper's values are of a GPU",
            metrics=tuple(VALUES.values()),
        ),
    ),
    kind="costs",
    last_only=True,
    own_process=True,
    reads_interactions=False,
)
