"""Runs of MLflow that are dead or old -> ended, or without their files and registered versions; metrics stay."""

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dyformer import InvalidInput
from storage.tracking.mlflow_client import PREFIX, check_server
from storage.tracking.runs import Tracker, experiment_name

FLOW_RUN = "prefect.flow_run_id"  # the tag of a run that a flow tracks
STAGES = ("retrain", "publish", "rollback")
PRUNED = "pruned"
ACTIVE, ALL = 1, 3  # of mlflow.entities.ViewType, whose import takes half a second


def end_dead_runs(tracker: Tracker, ended: Callable[[Mapping[str, datetime]], Collection[str]]) -> list[str]:
    """Mark runs as KILLED whose flow run has ended; returns their names. A training that resumes continues its run.

    Args:
        tracker: MLflow's address.
        ended: returns which of some flow runs have ended, from their ids and when their tracking began. It is called
            after the runs were read, because a run is tracked before its flow run ends.

    Raises:
        Exception: one of `failures()`.
    """
    flow_of = running_flows(tracker)
    gone = set(ended(dict(flow_of.values()))) if flow_of else set()
    dead = [run_id for run_id, (flow, _) in flow_of.items() if flow in gone]
    for run_id in dead:
        tracker.client().set_terminated(run_id, "KILLED")
    return [str(tracker.client().get_run(run_id).info.run_name) for run_id in dead]


def running_flows(tracker: Tracker) -> dict[str, tuple[str, datetime]]:
    """Return the flow run of each run that is marked as running, and when that began, by the id of the run.

    The runs that began last are the last of all. Raises one of `failures()`.
    """
    client = tracker.client()
    experiments = client.search_experiments(filter_string=f"name LIKE '{PREFIX}%'")
    running = client.search_runs(
        [experiment.experiment_id for experiment in experiments], "attributes.status = 'RUNNING'"
    )
    return {
        run.info.run_id: (run.data.tags[FLOW_RUN], datetime.fromtimestamp(run.info.start_time / 1e3, UTC))
        for run in sorted(running, key=lambda run: run.info.start_time)
        if FLOW_RUN in run.data.tags
    }


def prune_runs(tracker: Tracker, dataset: str, keep: int) -> int:
    """Remove the files and model versions of all retrainings but the newest `keep`; return the number of these runs.

    A run whose model version has an alias (champion, challenger) stays whole. The metrics, tags and settings of all
    runs stay, and a run without its files has the tag `pruned`. Raises an error of `failures()` if MLflow is
    unreachable.
    """
    client, name = tracker.client(), experiment_name(dataset)
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        return 0
    versions = list(client.search_model_versions(f"name = '{name}'"))
    aliased = {str(number) for number in client.get_registered_model(name).aliases.values()} if versions else set()
    named = {version.run_id for version in versions if str(version.version) in aliased}
    runs = [run for stage in STAGES for run in _runs(client, experiment.experiment_id, stage)]
    runs.sort(key=lambda run: run.info.start_time, reverse=True)
    old = [run for run in runs[keep:] if run.info.run_id not in named]
    for run in old:
        for version in versions:
            if version.run_id == run.info.run_id:
                client.delete_model_version(name, version.version)
        if not _is_elsewhere(run.info.artifact_uri, tracker):  # as those of a store that this one is a copy of
            _remove_files(run.info.artifact_uri, tracker.uri)
        client.set_tag(run.info.run_id, PRUNED, "true")
    return len(old)


def remove_runs(tracker: Tracker, dataset: str) -> tuple[int, bool]:
    """Remove all runs of a dataset with their files, and its model; return their number, and whether there was one.

    MLflow hides a removed run. Its database has the run's settings and metrics until `mlflow gc`; these name no node.

    Raises:
        InvalidInput: files lie outside of the store, or can be removed through a server alone; nothing was removed.
        Exception: one of `failures()`; what is left is removed by another call.
    """
    client, name = tracker.client(), experiment_name(dataset)
    experiment = client.get_experiment_by_name(name)
    runs = [] if experiment is None else _pages(client, experiment.experiment_id, "", ALL)
    for run in runs:
        check_server(client, run.info.run_id, run.info.artifact_uri)
        if _is_elsewhere(run.info.artifact_uri, tracker):
            raise InvalidInput(
                f"the files of run {run.info.run_id} lie in {run.info.artifact_uri}, outside of this store, which may"
                " be a copy: nothing was removed"
            )
    for run in runs:
        _remove_files(run.info.artifact_uri, tracker.uri)
        client.delete_run(run.info.run_id)  # hidden ones stay hidden
    has_model = bool(client.search_registered_models(filter_string=f"name = '{name}'"))
    if has_model:
        client.delete_registered_model(name)
    return sum(run.info.lifecycle_stage == "active" for run in runs), has_model


def _is_elsewhere(uri: str, tracker: Tracker) -> bool:
    """Whether files lie in a folder of this machine outside of those of the store, without a server that knows them."""
    path, root = uri.removeprefix("file://"), tracker.artifact_root
    return root is not None and path.startswith("/") and not Path(path).is_relative_to(root)


def _runs(client: Any, experiment: str, stage: str) -> list[Any]:
    return _pages(client, experiment, f"tags.stage = '{stage}' AND tags.{PRUNED} IS NULL", ACTIVE)


def _pages(client: Any, experiment: str, condition: str, view: int) -> list[Any]:
    """List the runs of an experiment that fulfil a condition, of all pages."""
    runs, token = [], None
    while True:
        page = client.search_runs([experiment], condition, view, max_results=1000, page_token=token)
        runs, token = [*runs, *page], page.token
        if not token:
            return runs


def _remove_files(uri: str, server: str) -> None:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    get_artifact_repository(uri, tracking_uri=server).delete_artifacts()
