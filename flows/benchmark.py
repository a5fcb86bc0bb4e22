"""Flows: methods and the steps of a protocol -> their scores of the same pairs, tracked."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prefect import flow

from dyformer.embedder import NodeScorer, Scorer
from dyformer.evaluation.forecasts.forecast_rows import reliability
from dyformer.evaluation.protocols import MIN_TRAINED_STEPS, model_steps
from dyformer.experiments.changes import changes_of, check_effect
from dyformer.experiments.methods import BASELINES, METHODS, NODE_METHODS, Method, Variation
from dyformer.experiments.ranking_tables import printed_forecasts, printed_ranking
from dyformer.experiments.settings import Experiment
from dyformer.experiments.studies.studies import STUDIES
from flows.artifacts import show_table, show_tables
from flows.console import tracked
from flows.service.managed import managed
from flows.service.outages import stored_task
from flows.stages import (
    Changes,
    evaluate_task,
    experiment_of,
    ingest,
    methods_task,
    queries_task,
    rank_methods_task,
    rank_model_task,
    trained,
)
from flows.tasks.evaluation.backtest import backtest_forecasts, backtest_metrics, read_backtests, steps_to_backtest
from flows.tasks.evaluation.evaluate import metrics, steps_to_evaluate
from flows.tasks.evaluation.labels import score_labels, scored_labels_metrics, steps_to_score
from flows.tasks.evaluation.live_update import live_update_metrics, rank_week, weeks_to_rank
from flows.tasks.evaluation.rank import ranking_metrics, steps_to_rank
from flows.tasks.methods import chosen_methods, label_methods, searched_dataset, title_of
from flows.tasks.snapshots import open_snapshots
from flows.tasks.tracking.benchmarks import Compared, track_benchmark, track_rankings

Models = dict[tuple[str, int], dict[int, str]]
"""The models that a benchmark trained: by method and seed, then by the last step of their training."""

track_task = stored_task(name="track benchmark")(track_benchmark)
track_rankings_task = stored_task(name="track rankings")(track_rankings)
backtest_task = stored_task(name="backtest forecasts", task_run_name="{name} on step {step}")(backtest_forecasts)
labels_task = stored_task(name="score labels", task_run_name="{name}")(score_labels)
week_task = stored_task(name="rank live updates", task_run_name="{names} in week {week}")(rank_week)


def _jobs(title: str, steps: list[int], seeds: int) -> Iterator[tuple[int, int]]:
    """Give each step and seed, with a progress bar."""
    jobs = [(step, seed) for seed in range(seeds) for step in steps]
    return tracked(jobs, title, len(jobs))


def groups_of(chosen: Mapping[str, Method | NodeScorer]) -> list[list[str]]:
    """Group the methods that one task evaluates: all scorers of METHODS, because they share features, else each."""
    scorers = [name for name, method in chosen.items() if name in METHODS and isinstance(method, Scorer)]
    return [*([scorers] if scorers else []), *([name] for name in chosen if name not in scorers)]


def searched_steps(snapshots: str, steps: list[int]) -> str | None:
    """Return the dataset whose chosen settings a benchmark of these steps may use for all of them, or None."""
    return searched_dataset(open_snapshots(snapshots), min(steps))


def _compared(
    dataset: str, experiment: Experiment, chosen: Mapping[str, Method | NodeScorer], study: str | None = None
) -> Compared:
    """Give what a benchmark compares, for its tracked runs. Raises NoEffect for a change that no method reads."""
    check_effect(changes_of(experiment, dataset), chosen.values())
    return Compared(experiment, {title_of(name): method for name, method in chosen.items()}, study)


def _fitted(
    snapshots: str, step: int, experiment: Experiment, chosen: dict[str, Method], seed: int, known: Models
) -> Iterator[tuple[list[str], tuple[str, ...]]]:
    """Give the methods that one task evaluates, and the models trained for it, the newest last.

    The methods are grouped as in groups_of; only DyFormer is trained with checkpoints. Its models are added to
    `known`, from which the next step takes what it needs.
    """
    for names in groups_of(chosen):
        method = chosen[names[0]]
        if isinstance(method, Variation):
            changed, models = method.changed(experiment).of_seed(seed), known[names[0], seed]
            yield names, tuple(trained(snapshots, model_steps(step - 1), changed, seed, models))
        else:
            yield names, ()


def paper_scores(
    snapshots: str,
    jobs: Iterable[tuple[int, int]],
    experiment: Experiment,
    names: list[str],
    searched: str | None = None,
) -> list[str]:
    """Evaluate methods on each step and seed of `jobs` in the paper's protocol; return the scores' addresses.

    `names` as in chosen_methods; they have the settings that a search chose for the dataset `searched`.
    """
    chosen = chosen_methods(names, dataset=searched)
    scores: list[str] = []
    models_of: Models = defaultdict(dict)
    for step, seed in jobs:
        for names, models in _fitted(snapshots, step, experiment, chosen, seed, models_of):
            scores.append(
                evaluate_task(snapshots, models[-1], step, names[0], seed, models[:-1])
                if models
                else methods_task(snapshots, names, step, experiment.of_seed(seed), seed, searched)
            )
    return scores


def prequential_scores(
    snapshots: str,
    jobs: Iterable[tuple[int, int]],
    experiment: Experiment,
    names: list[str],
    searched: str | None = None,
) -> list[str]:
    """Rank the links of each step and seed of `jobs` by methods; return the addresses of the scored queries.

    `names` and `searched` as in paper_scores.
    """
    chosen = chosen_methods(names, dataset=searched)
    scores: list[str] = []
    models_of: Models = defaultdict(dict)
    for step, seed in jobs:
        queries = queries_task(snapshots, step, seed)
        for names, models in _fitted(snapshots, step, experiment, chosen, seed, models_of):
            scores.append(
                rank_model_task(snapshots, queries, models[-1], names[0], seed, models[:-1])
                if models
                else rank_methods_task(snapshots, queries, names, experiment, seed, searched)
            )
    return scores


def label_scores(
    snapshots: str,
    jobs: Iterable[tuple[int, int]],
    experiment: Experiment,
    names: list[str],
    searched: str | None = None,
) -> list[str]:
    """Score the nodes of the steps and seeds of `jobs` by methods; return the scores' addresses.

    `names` as in label_methods; `searched` as in paper_scores.
    """
    chosen = label_methods(names, dataset=searched)
    scores: list[str] = []
    steps_of: dict[int, list[int]] = defaultdict(list)
    for step, seed in jobs:
        steps_of[seed].append(step)
    for seed, steps in steps_of.items():
        for name, method in chosen.items():
            models: list[str] = []
            if isinstance(method, Variation):
                untils = list(range(MIN_TRAINED_STEPS, max(steps)))
                models = trained(snapshots, untils, method.changed(experiment), seed, {})
            scores.append(labels_task(snapshots, name, steps, experiment, seed, models, searched))
    return scores


@flow(flow_run_name="benchmark {dataset}")
@managed
def benchmark(
    dataset: str,
    reading: dict[str, Any] | None = None,
    steps: str | None = None,
    seeds: int = 1,
    changes: Changes = None,
    methods: list[str] | None = None,
    study: str | None = None,
) -> dict[str, Any]:
    """Fit every method for each step and seed, evaluate all on the same pairs, and track one run per method.

    Models and scores of an earlier run are reused. `methods` are titles of METHODS (as in chosen_methods)
    and classes of the user's own, `package.module:Class`. `study` is the experiment that the runs belong to, a tag.

    Returns:
        snapshots: address; scores: addresses of the evaluated pairs.
    """
    experiment, names = experiment_of(dataset, changes), list(chosen_methods(methods))
    snapshots = ingest(dataset, reading)["snapshots"]
    numbers = steps_to_evaluate(snapshots, steps)
    searched = searched_steps(snapshots, numbers)
    compared = _compared(dataset, experiment, chosen_methods(names, experiment.max_epochs, searched), study)
    jobs = _jobs(f"benchmark {dataset}", numbers, seeds)
    scores = paper_scores(snapshots, jobs, experiment, names, searched)
    show_table(dataset, metrics(scores, snapshots))
    track_task(snapshots, scores, compared)
    return {"snapshots": snapshots, "scores": scores}


@flow(flow_run_name="prequential benchmark {dataset}")
@managed
def prequential(
    dataset: str,
    reading: dict[str, Any] | None = None,
    steps: str | None = None,
    seeds: int = 1,
    changes: Changes = None,
    methods: list[str] | None = None,
    study: str | None = None,
) -> dict[str, Any]:
    """Fit every method on the past of each step and seed, and rank the step's links among the same candidates.

    Queries, models and scores of an earlier run are reused. `methods` and `study` as in `benchmark`.

    Returns:
        snapshots: address; scores: addresses of the scored queries.
    """
    experiment, names = experiment_of(dataset, changes).check_interactions(), list(chosen_methods(methods))
    snapshots = ingest(dataset, reading)["snapshots"]
    numbers = steps_to_rank(snapshots, steps)
    searched = searched_steps(snapshots, numbers)
    compared = _compared(dataset, experiment, chosen_methods(names, experiment.max_epochs, searched), study)
    jobs = _jobs(f"prequential benchmark {dataset}", numbers, seeds)
    scores = prequential_scores(snapshots, jobs, experiment, names, searched)
    rows = ranking_metrics(scores, snapshots, BASELINES if study is None else STUDIES[study].baselines)
    show_tables(dataset, {"rankings": printed_ranking(rows, dataset)})
    track_rankings_task(snapshots, scores, rows, compared)
    return {"snapshots": snapshots, "scores": scores}


@flow(flow_run_name="labels benchmark {dataset}")
@managed
def labels(
    dataset: str,
    reading: dict[str, Any] | None = None,
    steps: str | None = None,
    seeds: int = 1,
    changes: Changes = None,
    methods: list[str] | None = None,
    study: str | None = None,
) -> dict[str, Any]:
    """Fit every method on the past of each step, and forecast which nodes get a positive label in the step.

    `methods` are titles as in label_methods, by default NODE_METHODS; `study` as in `benchmark`. Models and scores of
    an earlier run are reused. Raises NoLabels for a log without labels.

    Returns:
        snapshots: address; scores: addresses of the scored nodes.
    """
    experiment, names = experiment_of(dataset, changes).check_interactions(), methods or list(NODE_METHODS)
    label_methods(names)  # raises for an unknown one, before anything is committed
    snapshots = ingest(dataset, reading)["snapshots"]
    numbers = steps_to_score(snapshots, steps)
    searched = searched_steps(snapshots, numbers)
    compared = _compared(dataset, experiment, label_methods(names, experiment.max_epochs, searched), study)
    jobs = _jobs(f"labels of {dataset}", numbers, seeds)
    scores = label_scores(snapshots, jobs, experiment, names, searched)
    track_rankings_task(snapshots, scores, scored_labels_metrics(scores, snapshots), compared)
    return {"snapshots": snapshots, "scores": scores}


@flow(flow_run_name="forecasts benchmark {dataset}")
@managed
def forecasts(
    dataset: str,
    reading: dict[str, Any] | None = None,
    steps: str | None = None,
    seeds: int = 1,
    changes: Changes = None,
    methods: list[str] | None = None,
) -> dict[str, Any]:
    """Make the forecasts that every method would have published for past steps, and compare them with the links.

    A method with weights has those that a retraining publishes: trained until two steps before the forecast one, as
    the step between decided on the promotion. `methods` as in `benchmark`.

    Returns:
        snapshots: address; scores: addresses of the backtests.
    """
    experiment, names = experiment_of(dataset, changes).check_interactions(), list(chosen_methods(methods))
    snapshots = ingest(dataset, reading)["snapshots"]
    numbers = steps_to_backtest(snapshots, steps)
    searched = searched_steps(snapshots, numbers)
    chosen = chosen_methods(names, experiment.max_epochs, searched)
    compared = _compared(dataset, experiment, chosen)
    scores: list[str] = []
    models_of: Models = defaultdict(dict)
    for step, seed in _jobs(f"forecasts of {dataset}", numbers, seeds):
        for group, models in _fitted(snapshots, step - 1, experiment, chosen, seed, models_of):
            scores += [backtest_task(snapshots, name, step, experiment, seed, models, searched) for name in group]
    rows = backtest_metrics(scores, snapshots)
    show_tables(dataset, {"forecasts": printed_forecasts(rows, dataset)})
    reliable = reliability(read_backtests(scores), baselines=BASELINES)
    track_rankings_task(snapshots, scores, rows, compared, reliable)
    return {"snapshots": snapshots, "scores": scores}


@flow(flow_run_name="live-update benchmark {dataset}")
@managed
def live_update(
    dataset: str,
    reading: dict[str, Any] | None = None,
    seeds: int = 1,
    changes: Changes = None,
    methods: list[str] | None = None,
) -> dict[str, Any]:
    """Rank each week's held-out links by methods that score pairs, by default all of METHODS that do.

    Weeks of an earlier run are reused.

    Returns:
        snapshots: address; scores: addresses of the ranks, one of each week and seed.
    """
    experiment = experiment_of(dataset, changes).check_interactions()
    chosen = chosen_methods(methods, experiment.max_epochs)
    names = [name for name, method in chosen.items() if methods is not None or isinstance(method, Scorer)]
    compared = _compared(dataset, experiment, {name: chosen[name] for name in names})
    snapshots = ingest(dataset, reading)["snapshots"]
    scores = [
        week_task(snapshots, week, names, experiment, seed)
        for week, seed in _jobs(f"weeks of {dataset}", weeks_to_rank(snapshots), seeds)
    ]
    track_rankings_task(snapshots, scores, live_update_metrics(scores, snapshots), compared)
    return {"snapshots": snapshots, "scores": scores}
