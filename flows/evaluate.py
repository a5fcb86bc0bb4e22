"""Flow: a trained model and every simple baseline -> metrics of the step after the training."""

from prefect import flow, task
from prefect.cache_policies import NO_CACHE

from flows.artifacts import show_table
from flows.stages import Changes, experiment_of, snapshots_task, train_task
from flows.tasks.evaluate import evaluate_baselines, evaluate_methods, evaluate_model, metrics
from flows.tasks.snapshots import newest_until

evaluate_task = task(name="evaluate model", task_run_name="{method} on step {step}", cache_policy=NO_CACHE)(
    evaluate_model
)
methods_task = task(name="evaluate methods", task_run_name="{names} on step {step}", cache_policy=NO_CACHE)(
    evaluate_methods
)
baselines_task = task(name="evaluate baselines", task_run_name="baselines on step {step}", cache_policy=NO_CACHE)(
    evaluate_baselines
)


@flow(flow_run_name="evaluate {dataset}")
def evaluate(
    dataset: str,
    until: int | None = None,
    changes: Changes = None,
    seed: int = 0,
    version: int | None = None,
) -> list[str]:
    """Evaluate the model trained until a step, and the baselines, on the next step; returns the scores' addresses."""
    experiment, snapshots = experiment_of(dataset, changes), snapshots_task(dataset, version)
    until = newest_until(snapshots) if until is None else until
    model = train_task(snapshots, until, experiment, seed)  # at once where it is trained already
    scores = [evaluate_task(snapshots, model, until + 1, seed=seed), baselines_task(snapshots, until + 1, seed)]
    show_table(dataset, metrics(scores, snapshots))
    return scores
