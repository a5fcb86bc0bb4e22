"""Flow: a trained model and every simple rival -> figures of the step after the cut."""

from typing import Any

from prefect import flow, task

from flows.artifacts import show_table
from flows.tasks.evaluate import figures, judge_model, judge_rivals, steps_to_judge
from flows.tasks.snapshots import cut_snapshots, newest_cut
from flows.tasks.train import train_model

judge_task = task(name="judge model", task_run_name="{method} on step {step}")(judge_model)
rivals_task = task(name="judge rivals", task_run_name="rivals on step {step}")(judge_rivals)


@flow(flow_run_name="evaluate {dataset}")
def evaluate(
    dataset: str,
    until: int | None = None,
    changes: dict[str, Any] | None = None,
    seed: int = 0,
    version: int | None = None,
) -> list[str]:
    """Judge the model of a cut, and the rivals beside it, on the next step; returns the scores' addresses."""
    snapshots = cut_snapshots(dataset, version)
    until = newest_cut(snapshots) if until is None else until
    model = train_model(snapshots, until, changes, seed)  # at once where it is trained already
    scores = [judge_task(snapshots, model, until + 1, seed=seed), rivals_task(snapshots, until + 1, seed)]
    show_table(dataset, figures(scores, snapshots))
    return scores


@flow(flow_run_name="rivals on {dataset}")
def rivals(dataset: str, seed: int = 0, version: int | None = None) -> list[str]:
    """Judge the rivals on every step that the paper judges: what a model's figure is to be seen against."""
    snapshots = cut_snapshots(dataset, version)
    return [rivals_task(snapshots, step, seed) for step in steps_to_judge(snapshots)]
