"""Flow: methods and the steps of the paper's protocol -> their scores on the same pairs, tracked."""

from typing import Any

from prefect import flow, task

from dyformer.embedder import Scorer
from dyformer.evaluation.protocols import MIN_TRAINED_STEPS
from dyformer.experiments.methods import METHODS, Variation
from flows.artifacts import show_table
from flows.console import tracked
from flows.stages import Changes, evaluate_task, experiment_of, ingest, methods_task, train_task
from flows.tasks.evaluate import metrics, steps_to_evaluate
from flows.tasks.methods import chosen_methods
from flows.tasks.track import track_benchmark

track_task = task(name="track benchmark")(track_benchmark)


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
