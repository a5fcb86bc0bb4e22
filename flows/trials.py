"""Methods and a protocol -> trials: what is run again after a crash, here, in several processes, or on a Ray cluster.

A trial is one group of methods on all steps of one dataset, with one seed. What it scores is stored, so that a study
that was killed runs only the trials that are missing.
"""

import operator
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context, parent_process
from typing import Any, NamedTuple

from prefect import flow, tags

from dyformer.evaluation.protocols import PROTOCOLS, protocol_of
from dyformer.evaluation.protocols.protocol import Protocol
from dyformer.experiments.methods import METHODS, Variation
from dyformer.experiments.settings import Experiment
from dyformer.scoring.interfaces import Scorer
from flows.console import print_no_progress, tracked
from flows.parallel import CLUSTER, done_by_workers, uses_cluster
from flows.service import TAG
from flows.stages import draw_task, evaluate_task, train_task, trained
from flows.tasks.evaluation.evaluate import Group, Posed, draw, units_of
from flows.tasks.evaluation.evaluate import evaluate as evaluate_group
from flows.tasks.methods import configured, searched_dataset
from flows.tasks.snapshots import open_snapshots
from flows.tasks.train import train_model
from storage.artifacts.artifact import MANIFEST
from storage.bytes import files
from storage.bytes.checksums import remove_copies

Models = dict[tuple[str, int], dict[int, str]]
"""The models that a benchmark trained: by method and seed, then by the last step of their training."""

PLAIN = draw, train_model, evaluate_group  # what the tasks of the same names call


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
                untils = protocol.trained_until(open_snapshots(snapshots), units)
                models = tuple(trained(snapshots, untils, changed, seed, known, train))
            results.append(evaluate(posed, Group(group, models)))
    return results


class Trial(NamedTuple):
    """One group of methods on all steps of a dataset, with one seed."""

    protocol: str
    dataset: str
    snapshots: str
    units: list[tuple[Any, ...]]  # of each job
    seed: int
    experiment: Experiment
    methods: dict[str, Any]  # by title, with the settings that a search chose
    given: Mapping[str, str] = {}  # settings of the protocol that are not the usual ones

    @property
    def evaluated(self) -> Protocol:
        """The protocol with its settings."""
        return protocol_of(self.protocol).changed(self.given)

    @property
    def names(self) -> str:
        """Titles of the methods."""
        return ", ".join(self.methods)


class Ended(NamedTuple):
    """A trial at its end."""

    trial: Trial
    was_stored: bool  # by an earlier run, so that nothing was left to do


def trials_of(
    protocol: Protocol,
    methods: Mapping[str, Any],
    snapshots: str,
    steps: str | None,
    seeds: int,
    experiment: Experiment,
) -> list[Trial]:
    """List the trials of methods, by title, in a protocol on the log of some snapshots."""
    units, dataset = units_of(snapshots, protocol, steps), open_snapshots(snapshots).dataset
    chosen = configured(methods, experiment.max_epochs, searched_steps(snapshots, protocol, units))
    return [
        Trial(
            protocol=protocol.name,
            dataset=dataset,
            snapshots=snapshots,
            units=protocol.jobs(units),
            seed=seed,
            experiment=experiment,
            methods={title: chosen[title] for title in titles},
            given=dict(protocol.given),
        )
        for seed in range(seeds)
        for titles in groups_of(chosen)
    ]


@flow(flow_run_name="{trial.names} on {trial.dataset}, seed {trial.seed}", validate_parameters=False)
def run_trial(trial: Trial) -> list[str]:
    """Evaluate methods as the benchmark of the protocol does; return the results' addresses."""
    return _results(trial)


def _results(trial: Trial, *, has_tasks: bool = True) -> list[str]:
    """Evaluate methods on one thread of torch, so that the scores are the same for every number of processes."""
    import torch

    torch.set_num_threads(1)
    jobs = [(units, trial.seed) for units in trial.units]
    arguments = trial.snapshots, trial.evaluated, jobs, trial.methods, trial.experiment
    return results(*arguments, has_tasks=has_tasks)


def finished(trials: list[Trial], parallel: int) -> Iterator[Ended]:
    """Run trials and yield each at its end: in this process, in several that end with it, or on a Ray cluster.

    A trial of a protocol that measures its process has one of its own, on one thread, and none beside it; it never goes
    to a cluster. With DYFORMER_RAY_ADDRESS the workers of that cluster run all others, `parallel` is of no use, and
    what hinders them is an error. Raises those of `flows.cluster`, too.
    """
    is_alone = _is_alone(trials)
    if uses_cluster() and not is_alone and trials:
        yield from _on_cluster(trials)
        return
    if parallel == 1 and not is_alone:
        for trial in trials:
            yield Ended(trial, _was_stored(run_trial, trial))
        return
    context = get_context("spawn")  # because threads of torch and Prefect do not survive a fork
    num, num_trials = (1, 1) if is_alone else (parallel, None)
    settled = {"initializer": _settle, "initargs": (PROTOCOLS,)}
    pool = ProcessPoolExecutor(num, mp_context=context, max_tasks_per_child=num_trials, **settled)
    try:
        running = {pool.submit(_run, trial): trial for trial in trials}
        for future in as_completed(running):
            yield Ended(running[future], future.result())
    finally:
        pool.shutdown(cancel_futures=True)


def run_trials(name: str, trials: list[Trial], parallel: int = 1) -> None:
    """Run the missing trials, and print how many there were."""
    on_cluster = uses_cluster() and not _is_alone(trials)
    where = f"on the cluster at {os.environ[CLUSTER]}" if on_cluster else f"{parallel} at once"
    print(f"trials of {name}: {len(trials)}, {where}", flush=True)
    ended = list(
        tracked(finished(trials, parallel), f"trials of {name}", len(trials), operator.attrgetter("was_stored"))
    )
    num_stored = sum(outcome.was_stored for outcome in ended)
    print(f"trials of {name}: all ended, {num_stored} of them in an earlier run", flush=True)


def _is_alone(trials: list[Trial]) -> bool:
    """Whether each trial has a process of its own, which is measured, and none beside it."""
    return any(protocol_of(trial.protocol).own_process for trial in trials)


def _on_cluster(trials: list[Trial]) -> Iterator[Ended]:
    jobs = [partial(_run_on_worker, trial) for trial in trials]
    for number, was_stored in done_by_workers(open_snapshots(trials[0].snapshots).layout, jobs):
        yield Ended(trials[number], was_stored)


def _run_on_worker(trial: Trial) -> bool:
    """Run a trial where no Prefect server can be reached; return whether it was stored."""
    return _was_stored(partial(_results, has_tasks=False), trial)


def _run(trial: Trial) -> bool:
    """Run a trial in a process of its own, to which a function can be sent, but no flow; return whether it was stored.

    Its flow has the tag by which a run is found whose process died, because the command's own is of another process.
    One that measures its process has no tasks: as a plain function it starts no server for this process alone.
    """
    with tags(TAG):
        return _was_stored(run_trial.fn if protocol_of(trial.protocol).own_process else run_trial, trial)


def _was_stored(run: Callable[..., list[str]], trial: Trial) -> bool:
    """Run a trial; return whether an earlier run has stored all its scores."""
    started = time.time()
    return all(files.modified(f"{address}/{MANIFEST}") < started for address in run(trial))


def _settle(protocols: dict[str, str]) -> None:
    """Know the protocols of the process that started this one, print no progress, and end when that ends."""
    PROTOCOLS.update(protocols)
    print_no_progress()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    remove_copies()
    os._exit(1)
