"""Flow: every step of the paper's protocol, with and without pre-training, and the baselines beside them."""

from typing import Any

from prefect import flow, task

from dyformer.experiments.settings import VARIATIONS
from flows.artifacts import show_table
from flows.evaluate import baselines_task, evaluate_task
from flows.progress import tracked
from flows.stages import Changes, experiment_of, ingest, train_task
from flows.tasks.evaluate import metrics, steps_to_evaluate
from flows.tasks.track import track_benchmark

track_task = task(name="track benchmark")(track_benchmark)


@flow(flow_run_name="benchmark {dataset}")
def benchmark(
    dataset: str,
    reading: dict[str, Any] | None = None,
    steps: str | None = None,
    seeds: int = 1,
    changes: Changes = None,
) -> dict[str, Any]:
    """Train one model per step, variation and seed, evaluate all on the same pairs, and track one run per method.

    What was trained and evaluated before, by whatever run, is not done again.

    Returns:
        snapshots: address; scores: addresses of the evaluated pairs.
    """
    experiment = experiment_of(dataset, changes)
    snapshots = ingest(dataset, reading)["snapshots"]
    jobs = [(step, seed) for seed in range(seeds) for step in steps_to_evaluate(snapshots, steps)]
    scores: list[str] = []
    for step, seed in tracked(jobs, f"benchmark {dataset}", len(jobs)):
        scores.append(baselines_task(snapshots, step, seed))
        for method, variation in VARIATIONS.items():
            model = train_task(snapshots, step - 1, experiment.changed(variation), seed)
            scores.append(evaluate_task(snapshots, model, step, method, seed))
    show_table(dataset, metrics(scores, snapshots))
    track_task(snapshots, scores)
    return {"snapshots": snapshots, "scores": scores}
