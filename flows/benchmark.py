"""Flows: methods and the steps of a protocol -> their scores of the same pairs, tracked."""

from typing import Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from dyformer.embedder import Scorer
from dyformer.evaluation.protocols import MIN_TRAINED_STEPS
from dyformer.experiments.methods import METHODS, Variation
from dyformer.experiments.ranking_tables import printed_ranking
from flows.artifacts import show_table, show_tables
from flows.console import tracked
from flows.stages import Changes, evaluate_task, experiment_of, ingest, methods_task, train_task
from flows.tasks.evaluate import metrics, steps_to_evaluate
from flows.tasks.live_update import live_update_metrics, rank_live_updates
from flows.tasks.methods import chosen_methods
from flows.tasks.rank import rank_methods, rank_model, ranking_metrics, steps_to_rank, write_queries
from flows.tasks.track import track_benchmark, track_rankings

track_task = task(name="track benchmark")(track_benchmark)
queries_task = task(name="draw queries", task_run_name="queries of step {step}", cache_policy=NO_CACHE)(write_queries)
rank_methods_task = task(name="rank by methods", task_run_name="{names}", cache_policy=NO_CACHE)(rank_methods)
rank_model_task = task(name="rank by model", task_run_name="{method}", cache_policy=NO_CACHE)(rank_model)
track_rankings_task = task(name="track rankings", cache_policy=NO_CACHE)(track_rankings)
live_update_task = task(name="rank live updates", cache_policy=NO_CACHE)(rank_live_updates)


@flow(flow_run_name="benchmark {dataset}")
def benchmark(
    dataset: str,
    reading: dict[str, Any] | None = None,
    steps: str | None = None,
    seeds: int = 1,
    changes: Changes = None,
    methods: list[str] | None = None,
) -> dict[str, Any]:
    """Fit every method for each step and seed, evaluate all on the same pairs, and track one run per method.

    Models and scores of an earlier run are reused. `methods` are titles of METHODS (by default all)
    and classes of the user's own, `package.module:Class`.

    Returns:
        snapshots: address; scores: addresses of the evaluated pairs.
    """
    experiment, chosen = experiment_of(dataset, changes), chosen_methods(methods)
    scorers = [name for name, method in chosen.items() if name in METHODS and isinstance(method, Scorer)]
    others = {name: method for name, method in chosen.items() if name not in scorers}
    snapshots = ingest(dataset, reading)["snapshots"]
    jobs = [(step, seed) for seed in range(seeds) for step in steps_to_evaluate(snapshots, steps)]
    scores: list[str] = []
    for step, seed in tracked(jobs, f"benchmark {dataset}", len(jobs)):
        if scorers:
            scores.append(methods_task(snapshots, scorers, step, seed=seed))
        for name, method in others.items():
            if isinstance(method, Variation):  # trained with checkpoints
                untils = [until for until in (step - 2, step - 1) if until >= MIN_TRAINED_STEPS]
                changed = method.changed(experiment)
                *older, model = [train_task(snapshots, until, changed, seed) for until in untils]
                scores.append(evaluate_task(snapshots, model, step, name, seed, tuple(older)))
            else:
                scores.append(methods_task(snapshots, [name], step, experiment, seed))
    show_table(dataset, metrics(scores, snapshots))
    track_task(snapshots, scores)
    return {"snapshots": snapshots, "scores": scores}


@flow(flow_run_name="prequential benchmark {dataset}")
def prequential(
    dataset: str,
    reading: dict[str, Any] | None = None,
    steps: str | None = None,
    seeds: int = 1,
    changes: Changes = None,
    methods: list[str] | None = None,
) -> dict[str, Any]:
    """Fit every method on the past of each step and seed, and rank the step's links among the same candidates.

    Queries, models and scores of an earlier run are reused. `methods` as in `benchmark`.

    Returns:
        snapshots: address; scores: addresses of the scored queries.
    """
    experiment, chosen = experiment_of(dataset, changes), chosen_methods(methods)
    scorers = [name for name, method in chosen.items() if name in METHODS and isinstance(method, Scorer)]
    others = {name: method for name, method in chosen.items() if name not in scorers}
    snapshots = ingest(dataset, reading)["snapshots"]
    jobs = [(step, seed) for seed in range(seeds) for step in steps_to_rank(snapshots, steps)]
    scores: list[str] = []
    for step, seed in tracked(jobs, f"prequential benchmark {dataset}", len(jobs)):
        queries = queries_task(snapshots, step, seed)
        if scorers:
            scores.append(rank_methods_task(snapshots, queries, scorers, seed=seed))
        for name, method in others.items():
            if isinstance(method, Variation):  # trained with checkpoints
                untils = [until for until in (step - 2, step - 1) if until >= MIN_TRAINED_STEPS]
                changed = method.changed(experiment)
                *older, model = [train_task(snapshots, until, changed, seed) for until in untils]
                scores.append(rank_model_task(snapshots, queries, model, name, seed, tuple(older)))
            else:
                scores.append(rank_methods_task(snapshots, queries, [name], experiment, seed))
    rows = ranking_metrics(scores, snapshots)
    show_tables(dataset, {"rankings": printed_ranking(rows, dataset)})
    track_rankings_task(snapshots, scores, rows)
    return {"snapshots": snapshots, "scores": scores}


@flow(flow_run_name="live-update benchmark {dataset}")
def live_update(
    dataset: str,
    reading: dict[str, Any] | None = None,
    seeds: int = 1,
    changes: Changes = None,
    methods: list[str] | None = None,
) -> dict[str, Any]:
    """Rank each week's held-out links by methods that score pairs, by default all of METHODS that do.

    Returns:
        snapshots: address; scores: addresses of the ranks.
    """
    experiment, chosen = experiment_of(dataset, changes), chosen_methods(methods)
    names = [name for name, method in chosen.items() if methods is not None or isinstance(method, Scorer)]
    snapshots = ingest(dataset, reading)["snapshots"]
    scores = [live_update_task(snapshots, names, experiment, seed) for seed in range(seeds)]
    track_rankings_task(snapshots, scores, live_update_metrics(scores, snapshots))
    return {"snapshots": snapshots, "scores": scores}
