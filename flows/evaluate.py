"""Flow: a trained model and every simple baseline -> metrics of the step after the cut."""

from typing import Any

from prefect import flow, task

from flows.artifacts import show_table
from flows.tasks.evaluate import evaluate_baselines, evaluate_model, metrics, steps_to_evaluate
from flows.tasks.snapshots import make_snapshots, newest_until
from flows.tasks.train import train_model

evaluate_task = task(name="evaluate model", task_run_name="{method} on step {step}")(evaluate_model)
baselines_task = task(name="evaluate baselines", task_run_name="baselines on step {step}")(evaluate_baselines)


@flow(flow_run_name="evaluate {dataset}")
def evaluate(
    dataset: str,
    until: int | None = None,
    changes: dict[str, Any] | None = None,
    seed: int = 0,
    version: int | None = None,
) -> list[str]:
    """Judge the model of a cut, and the baselines beside it, on the next step; returns the scores' addresses."""
    snapshots = make_snapshots(dataset, version)
    until = newest_until(snapshots) if until is None else until
    model = train_model(snapshots, until, changes, seed)  # at once where it is trained already
    scores = [evaluate_task(snapshots, model, until + 1, seed=seed), baselines_task(snapshots, until + 1, seed)]
    show_table(dataset, metrics(scores, snapshots))
    return scores


@flow(flow_run_name="baselines on {dataset}")
def baselines(dataset: str, seed: int = 0, version: int | None = None) -> list[str]:
    """Judge the baselines on every step that the paper evaluates: what a model's figure is to be seen against."""
    snapshots = make_snapshots(dataset, version)
    return [baselines_task(snapshots, step, seed) for step in steps_to_evaluate(snapshots)]
