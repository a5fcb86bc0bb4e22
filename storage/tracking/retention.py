"""Runs of a dataset's retrainings -> files and registered versions of the newest alone; metrics stay."""

from typing import Any

from storage.tracking.runs import Tracker, experiment_name

STAGES = ("retrain", "publish")
PRUNED = "pruned"


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
        _remove_files(run.info.artifact_uri, tracker.uri)
        client.set_tag(run.info.run_id, PRUNED, "true")
    return len(old)


def _runs(client: Any, experiment: str, stage: str) -> list[Any]:
    found, token = [], None
    while True:
        wanted = f"tags.stage = '{stage}' AND tags.{PRUNED} IS NULL"
        page = client.search_runs([experiment], wanted, max_results=1000, page_token=token)
        found, token = [*found, *page], page.token
        if not token:
            return found


def _remove_files(uri: str, server: str) -> None:
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    get_artifact_repository(uri, tracking_uri=server).delete_artifacts()
