"""MLflow's runs that are marked as running -> the flow runs that they belong to, and their end."""

from collections.abc import Callable, Collection

from storage.tracking.pages import PREFIX
from storage.tracking.runs import Tracker

FLOW_RUN = "prefect.flow_run_id"  # the tag of a run that a flow tracks


def end_dead_runs(tracker: Tracker, ended: Callable[[Collection[str]], Collection[str]]) -> list[str]:
    """Mark runs as KILLED whose flow run has ended; returns their names. A training that resumes continues its run.

    Args:
        tracker: MLflow's address.
        ended: returns which of some flow runs have ended. It is called after the runs were read, because a run is
            tracked before its flow run ends.

    Raises:
        Exception: one of `failures()`.
    """
    client = tracker.client()
    experiments = client.search_experiments(filter_string=f"name LIKE '{PREFIX}%'")
    found = client.search_runs([each.experiment_id for each in experiments], "attributes.status = 'RUNNING'")
    flow_of = {run.info.run_id: run.data.tags[FLOW_RUN] for run in found if FLOW_RUN in run.data.tags}
    gone = set(ended(set(flow_of.values()))) if flow_of else set()
    dead = [run for run in found if flow_of.get(run.info.run_id) in gone]
    for run in dead:
        client.set_terminated(run.info.run_id, "KILLED")
    return [str(run.info.run_name) for run in dead]
