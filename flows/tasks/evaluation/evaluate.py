"""A method, fitted or with stored weights -> the scored pairs of a step, evaluated in the paper's protocol."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import polars as pl

from dyformer.embedder import Scorer
from dyformer.evaluation.metric_rows import log_metrics, metrics_of
from dyformer.evaluation.protocols import PROTOCOL, Trial, evaluate_method
from dyformer.evaluation.scored_pairs import ScoredPairs, from_table, to_table
from dyformer.experiments.methods import BASELINES, METHODS, Method
from dyformer.experiments.settings import Experiment, as_record, experiment_for
from dyformer.sampling.pairs import evaluated_steps
from flows.console import ongoing
from flows.tasks.methods import chosen_methods, fitted_once, own_errors, record_of, title_of
from flows.tasks.models import space_of, stored_method
from flows.tasks.snapshots import FIRST_EVALUATED_STEP, Snapshots, StepOutOfRange, first_evaluated_step, open_snapshots
from storage.artifacts.artifact import digest, is_current, read_table, write_artifact


def evaluate_model(
    snapshots: str, model: str, step: int, method: str = "DyFormer", seed: int = 0, older: tuple[str, ...] = ()
) -> str:
    """Evaluate stored weights, under the title `method`, on a step after their training; return the scores' address.

    `older` and errors as in stored_method.
    """
    opened = open_snapshots(snapshots)
    stored, experiment = stored_method(opened, model, older, step)
    trial = {"step": step, "seed": seed, "config": experiment.graph}
    settings = {"method": method, "models": list(map(space_of, (*older, model)))}
    return _evaluated(opened, {method: stored}, trial, settings, inputs=(model, *older))


def evaluate_methods(
    snapshots: str,
    names: list[str],
    step: int,
    experiment: Experiment | None = None,
    seed: int = 0,
    searched: str | None = None,
) -> str:
    """Fit methods on the steps before `step`; evaluate them; return the address.

    `names` as in chosen_methods; they have the settings that a search chose for the dataset `searched`.
    """
    opened = open_snapshots(snapshots)
    experiment = experiment_for(opened.dataset) if experiment is None else experiment
    methods = {
        title_of(name): method for name, method in chosen_methods(names, experiment.max_epochs, searched).items()
    }
    records = {title: record_of(method) for title, method in methods.items()}
    settings = {"methods": records, **as_record(experiment, "graph")}
    once = fitted_once(methods, snapshots, experiment.graph)
    return _evaluated(opened, once, {"step": step, "seed": seed, "config": experiment.graph}, settings)


def evaluate_baselines(snapshots: str, step: int, seed: int = 0) -> str:
    """Evaluate all METHODS that score pairs without vectors."""
    scorers = [title for title, method in METHODS.items() if isinstance(method, Scorer)]
    return evaluate_methods(snapshots, scorers, step, seed=seed)


def read_scores(address: str) -> list[ScoredPairs]:
    """Read the scored pairs of an artifact."""
    return from_table(read_table(address, "pairs"))


def _evaluated(
    opened: Snapshots,
    methods: Mapping[str, Method],
    trial: dict[str, Any],
    settings: dict[str, Any],
    inputs: tuple[str, ...] = (),
) -> str:
    """Evaluate methods, by title, on one trial, unless their scores exist already."""
    step, seed = trial["step"], trial["seed"]
    settings = {"protocol": PROTOCOL, "seed": seed, **settings}
    lineage = opened.lineage("scores", until=step, settings=settings, inputs=inputs)
    keys = {"version": lineage.table_version, "until": step - 1, "settings": lineage.settings_hash, "seed": seed}
    address = opened.layout.scores(opened.dataset, **keys)
    if is_current(address, lineage):
        return address
    posed = Trial(graph=opened.graph(step, interactions=True), **trial)
    scored: list[ScoredPairs] = []
    with ongoing(f"evaluate {opened.dataset} step {step}"):
        for title, method in methods.items():
            with own_errors(title, method):
                scored += evaluate_method(title, method, posed)
    return write_artifact(address, {"pairs": to_table(scored)}, lineage)


def steps_to_evaluate(snapshots: str, wanted: str | None = None) -> list[int]:
    """List the steps that are evaluated: those of the paper, or `wanted` such as "3-13" or "5,7".

    Raises:
        StepOutOfRange: a step without a history to learn from, or beyond the newest.
    """
    need = "a step needs two earlier steps, and enough links between known nodes"
    return chosen_steps(snapshots, possible_steps(snapshots), wanted, need)


def possible_steps(snapshots: str) -> list[int]:
    """List the steps with enough links between known nodes."""
    opened = open_snapshots(snapshots)
    return evaluated_steps(opened.graph(opened.num_steps), first_step=FIRST_EVALUATED_STEP)


def chosen_steps(snapshots: str, possible: list[int], wanted: str | None, need: str) -> list[int]:
    """List the possible steps from the dataset's first evaluated one on, or those of `wanted`.

    Raises:
        StepOutOfRange: a step that is not possible; the message has the possible ones and what a step needs.
    """
    opened = open_snapshots(snapshots)
    first = first_evaluated_step(opened.dataset)
    steps = [step for step in possible if step >= first] if wanted is None else wanted_steps(wanted)
    wrong = [step for step in steps if step not in possible]
    if wrong or not steps:
        is_range = possible == list(range(min(possible, default=0), max(possible, default=-1) + 1))
        listed = f"{possible[0]} to {possible[-1]}" if possible and is_range else ", ".join(map(str, possible))
        can = f"steps {listed} can" if possible else "no step can"
        raise StepOutOfRange(
            f"{opened.dataset}: {', '.join(map(str, wrong)) or 'no step'} cannot be evaluated; {can} ({need})"
        )
    return steps


def wanted_steps(text: str) -> list[int]:
    """Read "5", "3-13" or "3,5,7" as ascending steps, each once; raises StepOutOfRange for anything else."""
    return sorted({step for part in text.split(",") for step in _range(part)})


def metrics(scores: list[str], snapshots: str) -> pl.DataFrame:
    """Return the metrics of scores artifacts as rows of METRICS_SCHEMA: per step, micro and macro.

    The methods of BASELINES among them are those that all are compared with.
    """
    return _metrics(tuple((address, digest(address)) for address in scores), snapshots)


@lru_cache(maxsize=16)  # a flow shows, tracks and prints the same metrics, and resampling takes seconds
def _metrics(scores: tuple[tuple[str, str], ...], snapshots: str) -> pl.DataFrame:
    opened = open_snapshots(snapshots)
    scored = [pairs for address, _ in scores for pairs in read_scores(address)]
    steps = sorted({pairs.step for pairs in scored})
    log = log_metrics(opened.graph(max(steps)), steps, opened.dataset)
    return pl.concat([metrics_of(scored, opened.dataset, PROTOCOL, baselines=BASELINES), log])


def _range(text: str) -> list[int]:
    first, dash, last = text.strip().partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise StepOutOfRange(f'{text!r} is not a list of steps: write "5", "3-13" or "3,5,7"')
    if int(last or first) < int(first):
        raise StepOutOfRange(f"the range {text!r} is descending: write {last}-{first}")
    return list(range(int(first), int(last or first) + 1))
