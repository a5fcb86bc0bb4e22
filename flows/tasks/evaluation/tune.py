"""Snapshots, a method and its settings -> their score on steps before the first reported one, stored once."""

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import polars as pl

from dyformer.evaluation.protocols.protocol import first_evaluated_step
from dyformer.experiments.methods import METHODS, Variation, capped
from dyformer.experiments.settings import Experiment, as_record
from dyformer.experiments.tuning.grids import with_settings
from dyformer.experiments.tuning.search import PastSteps, macro_auc, past_steps
from dyformer.scoring.interfaces import Embedder, NotFinite
from flows.tasks.made import made
from flows.tasks.methods import record_of
from flows.tasks.models import method_code
from flows.tasks.snapshots import Snapshots, open_snapshots
from storage.artifacts.artifact import digest, read_table
from storage.artifacts.code import project_modules


def steps_to_tune_on(snapshots: str) -> PastSteps:
    """Return the steps that choose settings. Of the log only rows before the first reported step are read."""
    opened = open_snapshots(snapshots)
    return past_steps(opened.graph(_last_step(opened), interactions=True))


def tune_trial(snapshots: str, title: str, settings: dict[str, Any], experiment: Experiment, seed: int = 0) -> str:
    """Score settings of a method on the steps of steps_to_tune_on, unless they are scored; return the address.

    The score is NaN where the training diverges: the search goes on with other settings.
    """
    opened = open_snapshots(snapshots)
    method, config = capped(with_settings(METHODS[title], settings), experiment.max_epochs), experiment.graph
    if isinstance(method, Variation):
        method = replace(method, experiment=experiment)
        config = method.changed(experiment).graph
    settings_record = {"method": title, "record": record_of(method), "seed": seed, **as_record(experiment, "graph")}

    def scores() -> dict[str, pl.DataFrame]:
        assert isinstance(method, Embedder)
        graph, steps, parts = _past(snapshots, digest(snapshots))
        try:
            values = macro_auc(title, method, graph, steps, config=config, seed=seed)
        except NotFinite:
            values = [math.nan] * len(steps)
        return {"tuning": pl.DataFrame({"method": title, "parts": parts, "step": steps, "auc": values})}

    code = project_modules(macro_auc, *method_code(method))
    return made(opened, "tuning", until=_last_step(opened), settings=settings_record, make=scores, code=code)


def tuning_score(address: str) -> float:
    """Return the mean over steps of the AUC that a trial has; NaN for settings that diverged."""
    return float(read_table(address, "tuning")["auc"].to_numpy().mean())


def _last_step(opened: Snapshots) -> int:
    """Return the step before the first one that tables report."""
    return min(first_evaluated_step(opened.dataset) - 1, opened.num_steps)


@lru_cache(maxsize=1)  # the trials of a search read the same steps
def _past(snapshots: str, digest: str) -> PastSteps:
    return steps_to_tune_on(snapshots)
