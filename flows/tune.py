"""A dataset and titles of methods -> the settings that a search of each one's grid chooses."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from prefect import flow

from dyformer.experiments.settings import Experiment
from dyformer.experiments.tuning.grids import grid_of, num_points, usual_point
from dyformer.experiments.tuning.search import Tried, best, points_of, search
from flows.console import tracked
from flows.service.managed import managed, stored_task
from flows.stages import Changes, experiment_of, ingest
from flows.tasks.evaluation.tune import steps_to_tune_on, tune_trial, tuning_score

trial_task = stored_task(name="try settings", task_run_name="{title}: {settings}")(tune_trial)


class Searched(NamedTuple):
    """The steps that chose, and the points that the search of each method tried."""

    steps: str
    max_epochs: int | None
    tried: dict[str, list[Tried]]

    def record(self) -> dict[str, dict[str, Any]]:
        """Give what was chosen for each method, in the form of the files in `dyformer/experiments/tuning/chosen`."""
        return {
            title: {
                "settings": best(tried).settings,
                "auc": round(best(tried).score, 4),
                "usual_auc": None if math.isnan(tried[0].score) else round(tried[0].score, 4),
                "trials": len(tried),
                "max_epochs": self.max_epochs,
                "chosen_on": self.steps,
            }
            for title, tried in self.tried.items()
        }


@flow(flow_run_name="tune {dataset}")
@managed
def tune(
    dataset: str,
    titles: list[str],
    reading: dict[str, Any] | None = None,
    num_trials: int = 6,
    seed: int = 0,
    changes: Changes = None,
) -> Searched:
    """Search the grid of each method with the same number of trials; trials of an earlier run are reused.

    Raises ValueError for a method without a grid, as points_of does, and for a log without steps to choose on.
    """
    experiment = experiment_of(changes)
    for title in titles:
        points_of(grid_of(title), usual_point(title, experiment), num_trials)  # raises before anything is trained
    snapshots = ingest(dataset, reading)["snapshots"]
    steps = str(steps_to_tune_on(snapshots))  # first, because a log without such steps needs no training
    tried = {title: _searched(snapshots, title, experiment, num_trials, seed) for title in titles}
    return Searched(steps, experiment.max_epochs, tried)


def _searched(snapshots: str, title: str, experiment: Experiment, num_trials: int, seed: int) -> list[Tried]:
    score = partial(_score, snapshots, title, experiment, seed)
    trials = search(grid_of(title), usual_point(title, experiment), score, num_trials=num_trials, seed=seed)
    return list(tracked(trials, f"settings of {title}", min(num_trials, num_points(title))))


def _score(snapshots: str, title: str, experiment: Experiment, seed: int, settings: Mapping[str, Any]) -> float:
    return tuning_score(trial_task(snapshots, title, dict(settings), experiment, seed))
