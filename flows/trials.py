"""A study and datasets -> its trials: what is run again after a crash, in this process or in several at once.

A trial is one group of methods on all steps of one dataset, with one seed. What it scores is stored, so that a study
that was killed runs only the trials that are missing.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context, parent_process
from typing import NamedTuple

from prefect import flow

from dyformer.evaluation.node_classification import PROTOCOL as LABELS
from dyformer.evaluation.prequential import PROTOCOL as PREQUENTIAL
from dyformer.evaluation.protocols import PROTOCOL as PAPER
from dyformer.experiments.settings import Experiment
from dyformer.experiments.studies.studies import COST, Study
from flows.benchmark import groups_of, label_scores, paper_scores, prequential_scores, searched_steps
from flows.console import print_no_progress
from flows.ending import is_ours
from flows.tasks.evaluation.costs import chosen_jobs, measure_costs, step_to_cost
from flows.tasks.evaluation.evaluate import steps_to_evaluate
from flows.tasks.evaluation.labels import steps_to_score
from flows.tasks.evaluation.rank import steps_to_rank
from flows.tasks.methods import chosen_methods, label_methods
from flows.temporary_server import guard_temporary_server
from storage import files
from storage.artifacts.artifact import MANIFEST

STEPS = {PAPER: steps_to_evaluate, PREQUENTIAL: steps_to_rank, LABELS: steps_to_score, COST: step_to_cost}
CHOSEN: dict[str, Callable[[list[str]], dict]] = {
    PAPER: chosen_methods,
    PREQUENTIAL: chosen_methods,
    LABELS: label_methods,
    COST: chosen_jobs,
}
SCORES = {PAPER: paper_scores, PREQUENTIAL: prequential_scores, LABELS: label_scores, COST: measure_costs}


class Trial(NamedTuple):
    """One group of methods on all steps of a dataset, with one seed."""

    protocol: str
    dataset: str
    snapshots: str
    steps: list[int]
    seed: int
    experiment: Experiment
    names: list[str]


class Ended(NamedTuple):
    """A trial at its end."""

    trial: Trial
    was_stored: bool  # by an earlier run, so that nothing was left to do


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


def finished(trials: list[Trial], parallel: int) -> Iterator[Ended]:
    """Run trials and yield each at its end: in this process, or in several that end with it.

    A trial that measures costs has a process of its own, on one thread, and none beside it.
    """
    is_cost = any(trial.protocol == COST for trial in trials)
    if parallel == 1 and not is_cost:
        for trial in trials:
            yield Ended(trial, _was_stored(run_trial, trial))
        return
    context = get_context("spawn")  # because threads of torch and Prefect do not survive a fork
    num, num_trials = (1, 1) if is_cost else (parallel, None)
    pool = ProcessPoolExecutor(num, mp_context=context, initializer=_settle, max_tasks_per_child=num_trials)
    try:
        running = {pool.submit(_run, trial): trial for trial in trials}
        for future in as_completed(running):
            outcome = future.result()
            if isinstance(outcome, Exception):
                raise outcome
            yield Ended(running[future], outcome)
    finally:
        pool.shutdown(cancel_futures=True)


def _run(trial: Trial) -> bool | ValueError | OSError:
    """Run a trial in a process of its own, to which a function can be sent, but no flow; return whether it was stored.

    One that measures costs has no tasks: as a plain function it starts no server for this process alone. An error whose
    message is written for the user is returned, because the traceback of a raised one would end in a library.
    """
    try:
        return _was_stored(run_trial.fn if trial.protocol == COST else run_trial, trial)
    except (ValueError, OSError) as error:
        if not is_ours(error.__traceback__):
            raise
        return error


def _was_stored(run: Callable[..., list[str]], trial: Trial) -> bool:
    """Run a trial; return whether an earlier run has stored all its scores."""
    started = time.time()
    return all(files.modified(f"{address}/{MANIFEST}") < started for address in run(*trial))


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
