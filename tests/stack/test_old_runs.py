"""Files of old runs are removed from S3 by MLflow's server, which alone has the keys to them."""

import polars as pl
import pytest
from compose_stack import Stack

from storage.layout import Layout
from storage.tracking.runs import open_tracker
from storage.tracking.upkeep import prune_runs

pytestmark = pytest.mark.stack


def test_oldest_run_loses_its_files_and_no_metric(stack: Stack, store: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in stack.environment("worker-cpu").items():
        if name.startswith("MLFLOW_"):
            monkeypatch.setenv(name, value)
    tracker = open_tracker(store)
    for number in range(3):
        with tracker.run(dataset="old-runs", name=str(number), tags={"stage": "retrain"}) as run:
            run.metrics({"mrr": number})
            run.table("metrics.csv", pl.DataFrame({"mrr": [number]}))

    def have_files() -> list[bool]:
        client = tracker.client()
        experiment = client.get_experiment_by_name("dyformer-old-runs")
        assert experiment is not None
        found = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time"])
        assert [run.data.metrics["mrr"] for run in found] == [0, 1, 2]
        assert all(str(run.info.artifact_uri).startswith("mlflow-artifacts:") for run in found)
        return [bool(client.list_artifacts(run.info.run_id)) for run in found]

    assert have_files() == [True, True, True]
    assert prune_runs(tracker, "old-runs", 2) == 1
    assert have_files() == [False, True, True]
    assert prune_runs(tracker, "old-runs", 2) == 0
