"""MLflow's runs that are marked as running -> the flow runs that they belong to, and their end."""

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime

from storage.tracking.mlflow_client import PREFIX
from storage.tracking.runs import Tracker

FLOW_RUN = "prefect.flow_run_id"  # the tag of a run that a flow tracks


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
    found = client.search_runs([each.experiment_id for each in experiments], "attributes.status = 'RUNNING'")
    return {
        run.info.run_id: (run.data.tags[FLOW_RUN], datetime.fromtimestamp(run.info.start_time / 1e3, UTC))
        for run in sorted(found, key=lambda run: run.info.start_time)
        if FLOW_RUN in run.data.tags
    }
