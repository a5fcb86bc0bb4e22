"""A row of the study `cost` -> the seconds of an epoch of its training and the memory of this process, stored."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from dyformer.experiments.methods import Variation
from dyformer.experiments.settings import Experiment, as_record
from dyformer.experiments.studies.costs import SCHEMA, Job, cost_jobs, seconds_of
from dyformer.graphs.prepared_graph import prepare_graph
from flows.tasks.evaluation.evaluate import steps_to_evaluate
from flows.tasks.methods import chosen_methods, record_of
from flows.tasks.models import PARTS
from flows.tasks.snapshots import open_snapshots
from storage.artifacts.artifact import is_current, read_table, write_artifact
from storage.artifacts.code import source_digest


def chosen_jobs(rows: Sequence[str], dataset: str | None = None) -> dict[str, Job]:
    """Return the jobs of rows, with the methods of chosen_methods."""
    return cost_jobs(rows, lambda title: chosen_methods([title], dataset=dataset)[title])


def step_to_cost(snapshots: str, wanted: str | None = None) -> list[int]:
    """List the last step that is evaluated, or the last one of `wanted`; raises as steps_to_evaluate does."""
    return steps_to_evaluate(snapshots, wanted)[-1:]


def measure_costs(
    snapshots: str,
    jobs: Iterable[tuple[int, int]],
    experiment: Experiment,
    rows: Sequence[str],
    searched: str | None = None,
) -> list[str]:
    """Measure rows on each step and seed of `jobs`, unless they were; return the addresses.

    The memory is the peak of this process since its start, so that each row needs a process of its own.
    """
    chosen = chosen_jobs(rows, dataset=searched)
    return [
        _measured(snapshots, step, seed, experiment, row, job) for step, seed in jobs for row, job in chosen.items()
    ]


def read_costs(addresses: list[str]) -> pl.DataFrame:
    """Read what was measured as rows of SCHEMA."""
    return pl.concat([read_table(address, "costs") for address in addresses])


def peak_gigabytes() -> float:
    """Give the peak memory of this process; Linux alone keeps it.

    `getrusage` would give that of the process that started this one where it is larger.
    """
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024 / 1e9


def _measured(snapshots: str, step: int, seed: int, experiment: Experiment, row: str, job: Job) -> str:
    opened = open_snapshots(snapshots)
    experiment = replace(experiment, max_epochs=None)  # an epoch takes as long with a cap
    record = job.method.changed(experiment) if isinstance(job.method, Variation) else experiment
    settings = {
        "row": row,
        "measured_by": source_digest(seconds_of),
        "method": record_of(job.method),
        "seed": seed,
        "step": step,
        **as_record(record, PARTS if isinstance(job.method, Variation) else ("graph",)),
    }
    lineage = opened.lineage("costs", until=step - 1, settings=settings)
    keys = {"version": lineage.table_version, "until": step - 1, "settings": lineage.settings_hash, "seed": seed}
    address = opened.layout.costs(opened.dataset, **keys)
    if is_current(address, lineage):
        return address
    graph = prepare_graph(opened.graph(step - 1), until=step - 1, config=record.graph)
    values = (*seconds_of(job, graph, experiment, seed), peak_gigabytes())
    return write_artifact(
        address, {"costs": pl.DataFrame([(row, seed, step, *values)], orient="row", schema=SCHEMA)}, lineage
    )
