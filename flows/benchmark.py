"""Flow: methods and the units of a protocol -> their results on the same pairs, measured, shown and tracked."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prefect import flow

from dyformer.embedder import Scorer
from dyformer.evaluation.protocols import protocol_of
from dyformer.evaluation.protocols.protocol import Protocol
from dyformer.experiments.methods import METHODS, Variation, changes_of, check_effect, default_methods
from dyformer.experiments.settings import Experiment
from dyformer.experiments.studies.studies import STUDIES
from dyformer.experiments.tables import printed_tables
from flows.console import tracked
from flows.service.managed import managed, stored_task
from flows.service.pages import show_tables
from flows.stages import (
    Changes,
    draw_task,
    evaluate_task,
    experiment_of,
    ingest,
    metrics_task,
    track_task,
    train_task,
    trained,
)
from flows.tasks.evaluation.evaluate import Group, Posed, draw, units_of
from flows.tasks.evaluation.evaluate import evaluate as evaluate_group
from flows.tasks.evaluation.measure import read_metrics
from flows.tasks.methods import check_kinds, configured, resolved, searched_dataset
from flows.tasks.snapshots import open_snapshots
from flows.tasks.tracking.benchmarks import Compared, write_benchmark
from flows.tasks.train import train_model
from storage.tracking.runs import tracking_of

Models = dict[tuple[str, int], dict[int, str]]
"""The models that a benchmark trained: by method and seed, then by the last step of their training."""

PLAIN = draw, train_model, evaluate_group  # what the tasks of the same names call
record_task = stored_task(name="record benchmark")(write_benchmark)


def groups_of(methods: Mapping[str, Any]) -> list[list[str]]:
    """Group the methods that one task evaluates: all scorers of METHODS, because they share features, else each."""
    scorers = [title for title, method in methods.items() if title in METHODS and isinstance(method, Scorer)]
    return [*([scorers] if scorers else []), *([title] for title in methods if title not in scorers)]


def searched_steps(snapshots: str, protocol: Protocol, units: Sequence[Any]) -> str | None:
    """Return the dataset whose chosen settings a benchmark may use for all of its steps, or None.

    Other units than steps are other windows, in which a search may have read what comes later.
    """
    return searched_dataset(open_snapshots(snapshots), min(units)) if protocol.unit == "step" else None


def results(
    snapshots: str,
    protocol: Protocol,
    jobs: Iterable[tuple[tuple[Any, ...], int]],
    methods: Mapping[str, Any],
    experiment: Experiment,
    *,
    has_tasks: bool = True,
) -> list[str]:
    """Evaluate methods on the units and with the seed of each job; return the addresses of the results.

    DyFormer alone is trained with checkpoints; a job takes the models that it needs of the jobs before. No task runs in
    a process that is measured, or that reaches no Prefect server (`has_tasks`).
    """
    results, has_tasks = [], has_tasks and not protocol.own_process
    draw_units, train, evaluate = (draw_task, train_task, evaluate_task) if has_tasks else PLAIN
    models_of: Models = defaultdict(dict)
    for units, seed in jobs:
        posed = Posed(snapshots=snapshots, protocol=protocol, units=units, seed=seed, experiment=experiment)
        if protocol.draw is not None:
            draw_units(posed)
        for titles in groups_of(methods):
            group = {title: methods[title] for title in titles}
            method, models = group[titles[0]], ()
            if isinstance(method, Variation) and protocol.trained_until is not None:
                changed, known = method.changed(experiment).of_seed(seed), models_of[titles[0], seed]
                models = tuple(trained(snapshots, protocol.trained_until(units), changed, seed, known, train))
            results.append(evaluate(posed, Group(group, models)))
    return results


@flow(flow_run_name="{protocol} benchmark {dataset}")
@managed
def benchmark(  # noqa: PLR0913, because each is a parameter of a deployment
    dataset: str,
    reading: dict[str, Any] | None = None,
    steps: str | None = None,
    seeds: int = 1,
    changes: Changes = None,
    methods: list[str] | dict[str, Any] | None = None,
    study: str | None = None,
    protocol: str = "paper",
    settings: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Evaluate every method on the same pairs of each unit and seed of a protocol, and track one run per method.

    Models and results of an earlier run are reused.

    Args:
        dataset: name of the log.
        reading: how its rows are read.
        steps: those to evaluate, such as "3-13"; None for those that tables report.
        seeds: number of seeds, from 0.
        changes: changed settings, or a whole experiment.
        methods: titles of METHODS (as in `resolved`) and classes of the user's own, `package.module:Class`, or methods
            by title; by default those of METHODS that the protocol evaluates.
        study: the experiment that the runs belong to, a tag.
        protocol: a name of PROTOCOLS.
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
    jobs = _jobs(f"{protocol} benchmark {dataset}", evaluated.jobs(units), seeds)
    scores = results(snapshots, evaluated, jobs, chosen, experiment)
    baselines = None if study is None else STUDIES[study].baselines
    address = metrics_task(snapshots, evaluated, scores, baselines)
    show_tables(dataset, printed_tables(evaluated, read_metrics(address), dataset))
    record = record_task(snapshots, evaluated, scores, address, Compared(experiment, chosen, study))
    track_task(open_snapshots(snapshots).layout)
    return {"snapshots": snapshots, "scores": scores, "metrics": address, "tracking": tracking_of(record)}


def _jobs(title: str, units: list[tuple[Any, ...]], seeds: int) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Give the units and the seed of each job, with a progress bar."""
    jobs = [(unit, seed) for seed in range(seeds) for unit in units]
    return tracked(jobs, title, len(jobs))
