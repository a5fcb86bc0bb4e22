"""Flows of single stages, and their tasks: a dataset's name and plain values -> addresses of artifacts."""

from collections.abc import Callable
from typing import Annotated, Any

from prefect import flow
from pydantic import Field

from dyformer.evaluation.protocols.paper import PROTOCOL as PAPER
from dyformer.experiments.settings import Experiment
from dyformer.experiments.tables import printed_tables
from flows.console import counts_line
from flows.service.commit_events import announce
from flows.service.managed import managed, stored_task
from flows.service.pages import show_page, show_tables
from flows.tasks.complete_windows import later_windows, make_complete_snapshots
from flows.tasks.evaluation.audit import audit_log, read_audit
from flows.tasks.evaluation.evaluate import Group, Posed, draw, evaluate_baselines
from flows.tasks.evaluation.evaluate import evaluate as evaluate_group
from flows.tasks.evaluation.measure import measure, read_metrics
from flows.tasks.evaluation.promote import champion_to_publish
from flows.tasks.ingest import ingest_log
from flows.tasks.models import DYFORMER, Contender
from flows.tasks.predict import write_forecasts
from flows.tasks.prepare import prepare_tables
from flows.tasks.publishing.publications import publish, published_vectors, vectors_to_publish
from flows.tasks.snapshots import make_snapshots, newest_until, open_snapshots
from flows.tasks.tracking.projection import project
from flows.tasks.tracking.retraining import tracked_epochs, write_training
from flows.tasks.train import train_model, trained_steps
from storage.layout import Layout
from storage.tracking.runs import tracking_of

Changes = dict[str, Any] | Experiment | None
"""Changed settings of a dataset's experiment, as a deployment has them, or a whole experiment."""
Seed = Annotated[int, Field(ge=0, lt=2**32)]  # as the option --seed


def ingest_and_count(dataset: str, reading: dict[str, Any] | None = None) -> dict[str, Any]:
    """Do as ingest_log does, and print the counts of new rows; a command has printed those that it committed before."""
    counts = ingest_log(dataset, reading)
    if counts["changed"]:
        print(counts_line(counts), flush=True)
    return counts


ingest_task = stored_task(name="ingest log", task_run_name="ingest {dataset}")(ingest_and_count)
snapshots_task = stored_task(name="make snapshots", task_run_name="snapshots of {dataset}")(make_snapshots)
complete_task = stored_task(name="make snapshots", task_run_name="snapshots of {dataset}")(make_complete_snapshots)
prepare_task = stored_task(name="prepare tables", task_run_name="tables until step {until}")(prepare_tables)
draw_task = stored_task(name="draw", task_run_name="{posed.protocol.name}: {posed}")(draw)
evaluate_task = stored_task(name="evaluate", task_run_name="{group} on {posed}, {posed.protocol.name}")(evaluate_group)
baselines_task = stored_task(name="evaluate baselines", task_run_name="baselines on step {step}")(evaluate_baselines)
metrics_task = stored_task(name="measure", task_run_name="metrics of {protocol.name}")(measure)
vectors_task = stored_task(name="write vectors", task_run_name="vectors")(published_vectors)
champions_vectors_task = stored_task(name="write vectors", task_run_name="vectors")(vectors_to_publish)
forecasts_task = stored_task(name="write forecasts", task_run_name="forecasts")(write_forecasts)
publish_task = stored_task(name="publish")(publish)
announce_task = stored_task(name="announce snapshot")(announce)
track_task = stored_task(name="send to MLflow")(project)
# A try after an outage continues from the training's own checkpoint.
training = stored_task(name="train model", task_run_name="train until step {until}")
train_task = training(train_model)
audit_task = stored_task(name="audit")(audit_log)


@training
def tracked_train_task(
    snapshots: str, until: int, experiment: Experiment, seed: int = 0, start: str | None = None
) -> str:
    """Train, and track every epoch as it ends; returns the model's address."""
    with tracked_epochs(snapshots) as on_epoch:
        return train_model(snapshots, until, experiment, seed, on_epoch, start)


def trained(
    snapshots: str,
    untils: list[int],
    experiment: Experiment,
    seed: int,
    models: dict[int, str],
    train: Callable[..., str] | None = None,
) -> list[str]:
    """Return the models of these steps, and add the new ones to `models`, those of a benchmark by their last step.

    With the setting `warm_start` a new one starts from the weights of the newest earlier one.
    """
    for until in untils:
        if until not in models:
            earlier = [step for step in models if step < until]
            start = models[max(earlier)] if earlier and experiment.warm_start is not None else None
            models[until] = (train or train_task)(snapshots, until, experiment, seed, start=start)
    return [models[until] for until in untils]


def experiment_of(changes: Changes) -> Experiment:
    """Return a whole experiment unchanged, else the defaults with the changes; raises as `changed` does."""
    return changes if isinstance(changes, Experiment) else Experiment().changed(changes or {})


@flow(flow_run_name="ingest {dataset}")
@managed
def ingest(dataset: str, reading: dict[str, Any] | None = None) -> dict[str, Any]:
    """Commit the new rows of a log and make its snapshots; returns the counts and the snapshots' address.

    A complete snapshot is announced by an event; `reconcile` starts the retraining of a scheduled dataset.
    """
    counts = ingest_task(dataset, reading)
    announce_task(dataset)
    return {**counts, "snapshots": snapshots_task(dataset, counts["version"])}


@flow(flow_run_name="prepare {dataset}")
@managed
def prepare(
    dataset: str, until: int | None = None, changes: Changes = None, version: int | None = None
) -> dict[str, str]:
    """Write the PageRank and distance tables of the steps up to `until`, the last but one by default.

    They are for queries alone: nothing that is trained, evaluated or forecast reads them.
    """
    experiment, snapshots = experiment_of(changes), snapshots_task(dataset, version)
    return prepare_task(snapshots, newest_until(snapshots) if until is None else until, experiment)


@flow(flow_run_name="train {dataset}")
@managed
def train(
    dataset: str,
    until: int | None = None,
    changes: Changes = None,
    seed: Seed = 0,
    version: int | None = None,
    as_of: str | None = None,
) -> str:
    """Pre-train and fine-tune on the steps up to `until`, the last but one by default; returns the model's address."""
    experiment, snapshots = experiment_of(changes), complete_task(dataset, as_of, version)
    model = tracked_train_task(snapshots, newest_until(snapshots) if until is None else until, experiment, seed)
    write_training(snapshots, model)
    track_task(open_snapshots(snapshots).layout)
    return model


@flow(flow_run_name="evaluate {dataset}")
@managed
def evaluate(
    dataset: str,
    until: int | None = None,
    changes: Changes = None,
    seed: Seed = 0,
    version: int | None = None,
    as_of: str | None = None,
) -> list[str]:
    """Evaluate the model trained until a step, and the baselines, on the next step; returns the scores' addresses."""
    experiment, snapshots = experiment_of(changes), complete_task(dataset, as_of, version)
    until = newest_until(snapshots) if until is None else until
    model = train_task(snapshots, until, experiment, seed)  # returns at once if the model exists
    posed = Posed(snapshots=snapshots, protocol=PAPER, units=(until + 1,), seed=seed)
    scores = [
        evaluate_task(posed, Group({"DyFormer": None}, (model,))),
        baselines_task(snapshots, PAPER, until + 1, seed),
    ]
    show_tables(dataset, printed_tables(PAPER, read_metrics(metrics_task(snapshots, PAPER, scores)), dataset))
    return scores


@flow(flow_run_name="predict {dataset}")
@managed
def predict(
    dataset: str, changes: Changes = None, seed: Seed = 0, version: int | None = None, as_of: str | None = None
) -> dict[str, str]:
    """Write the champion's vectors and forecasts as of the newest step; returns the addresses.

    A champion without vectors has those of the model whose vectors were published last, if there are some. With changed
    settings, DyFormer is trained first, unless it was trained before. Forecasts as of a time after which further
    windows are complete are not published. Raises ValueError.
    """
    experiment, snapshots = experiment_of(changes).check_interactions(), complete_task(dataset, as_of, version)
    too_late = later_windows(snapshots)
    if changes:
        models = [train_task(snapshots, until, experiment, seed) for until in trained_steps(snapshots)]
        contender = Contender(title=DYFORMER, models=tuple(models))
    else:
        contender = champion_to_publish(snapshots)
    vectors = champions_vectors_task(snapshots, contender, seed=seed)
    forecasts = forecasts_task(snapshots, contender, vectors if contender.models else None, seed=seed)
    if too_late is None:
        publish_task(snapshots, contender, forecasts, vectors)
        print(f"{dataset}: published what {contender.title} forecasts: {forecasts}", flush=True)
    else:
        print(f"not published: {too_late}", flush=True)
    return {"forecasts": forecasts} if vectors is None else {"vectors": vectors, "forecasts": forecasts}


@flow(flow_run_name="audit {dataset}")
@managed
def audit(
    dataset: str,
    reading: dict[str, Any] | None = None,
    step: int | None = None,
    changes: Changes = None,
    methods: list[str] | None = None,
    seed: Seed = 0,
) -> dict[str, Any]:
    """Audit methods (by default all scorers and DyFormer) on a log as of a step.

    Returns:
        report: address of the checks; tracking: as of tracking_of; failed: the checks that failed.
    """
    experiment = experiment_of(changes).check_interactions()
    snapshots = ingest(dataset, reading)["snapshots"]
    report = audit_task(snapshots, methods, step, experiment, seed)
    _, page, record = read_audit(report)
    show_page("audit", dataset, page, f"failed: {', '.join(record['failed']) or 'none'}")
    track_task(Layout.from_environment())
    return {"report": report, "tracking": tracking_of(report), "failed": record["failed"]}
