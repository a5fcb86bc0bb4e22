"""Flow: methods and the units of a protocol -> their results on the same pairs, measured, shown and tracked."""

from collections.abc import Iterator
from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from dyformer.evaluation.protocols import protocol_of
from dyformer.experiments.methods import changes_of, check_effect, default_methods
from dyformer.experiments.studies.studies import STUDIES
from dyformer.experiments.tables import printed_tables
from flows.console import tracked
from flows.parallel import uses_cluster
from flows.service.managed import managed, stored_task
from flows.service.pages import show_tables
from flows.stages import Changes, experiment_of, ingest, metrics_task, track_task
from flows.tasks.evaluation.evaluate import units_of
from flows.tasks.evaluation.measure import read_metrics
from flows.tasks.methods import check_kinds, configured, resolved
from flows.tasks.snapshots import open_snapshots
from flows.tasks.tracking.benchmarks import Compared, write_benchmark
from flows.trials import results, run_trials, searched_steps, trials_of
from storage.tracking.runs import tracking_of

record_task = stored_task(name="record benchmark")(write_benchmark)


@flow(flow_run_name="{protocol} benchmark {dataset}")
@managed
def benchmark(  # noqa: PLR0913, because each is a parameter of a deployment
    dataset: str,
    reading: dict[str, Any] | None = None,
    steps: str | None = None,
    seeds: Annotated[int, Field(ge=1)] = 1,
    changes: Changes = None,
    methods: list[str] | dict[str, Any] | None = None,
    study: str | None = None,
    protocol: str = "paper",
    settings: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Evaluate every method on the same pairs of each unit and seed of a protocol, and track one run per method.

    Models and results of an earlier run are reused. With DYFORMER_RAY_ADDRESS the workers of that cluster train and
    evaluate first, and this process finds their results; so do, one after another, processes of their own where the
    protocol measures them.

    Args:
        dataset: name of the log.
        reading: how its rows are read.
        steps: those to evaluate, such as "3-13"; none: those that tables report.
        seeds: number of seeds, which are 0, 1, ...
        changes: changed settings, or a whole experiment.
        methods: titles such as "L3" (`dyformer benchmark --list`) and classes of your own, `package.module:Class`, or
            methods by title; none: all that the protocol evaluates by default.
        study: the experiment that the runs belong to, a tag.
        protocol: how the methods are compared: paper, prequential, or another name of `dyformer benchmark --list`.
        settings: settings of the protocol that are not the usual ones.

    Returns:
        snapshots: address; scores: addresses of the results; metrics: address of their metrics; tracking: as of
        tracking_of.
    """
    evaluated, experiment = protocol_of(protocol).changed(settings or {}), experiment_of(changes)
    experiment = experiment.check_interactions() if evaluated.reads_interactions else experiment
    named = methods if isinstance(methods, dict) else None if methods is None else resolved(methods, evaluated.methods)
    named = check_kinds(default_methods(evaluated.methods) if named is None else named, evaluated)
    snapshots = ingest(dataset, reading)["snapshots"]
    units = units_of(snapshots, evaluated, steps)
    chosen = configured(named, experiment.max_epochs, searched_steps(snapshots, evaluated, units))
    check_effect(changes_of(experiment), chosen.values())
    if study is None and (uses_cluster() or evaluated.own_process):  # a study has run its trials before
        run_trials(f"the benchmark {protocol}", trials_of(evaluated, named, snapshots, steps, seeds, experiment))
    jobs = _jobs(f"{protocol} benchmark {dataset}", evaluated.jobs(units), seeds)
    scores = results(snapshots, evaluated, jobs, chosen, experiment)
    baselines = None if study is None else STUDIES[study].compared or None
    address = metrics_task(snapshots, evaluated, scores, baselines)
    show_tables(dataset, printed_tables(evaluated, read_metrics(address), dataset))
    record = record_task(snapshots, evaluated, scores, address, Compared(experiment, chosen, study))
    track_task(open_snapshots(snapshots).layout)
    return {"snapshots": snapshots, "scores": scores, "metrics": address, "tracking": tracking_of(record)}


def _jobs(title: str, units: list[tuple[Any, ...]], seeds: int) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Give the units and the seed of each job, with a progress bar."""
    jobs = [(unit, seed) for seed in range(seeds) for unit in units]
    return tracked(jobs, title, len(jobs))
