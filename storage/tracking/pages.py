"""MLflow's address -> its database, made before its server starts, and the page that shows the runs."""

from pathlib import Path

from storage.layout import Layout
from storage.tracking.mlflow_client import connect
from storage.tracking.turns import turn

PREFIX = "dyformer-"  # of the experiments, see `experiment_name`


def make_database(layout: Layout) -> None:
    """Make the database of the store's runs if there is none; a server that is killed would leave a part of it."""
    with turn(layout.tracking_database, Path(layout.spool).with_name("locks"), "all"):
        connect(layout.tracking_database)


def runs_page(uri: str) -> str:
    """Address of the page with the runs of the experiment that changed last; the list of experiments if there is none.

    Without the parameter MLflow opens an experiment on its traces, of which there are none.
    """
    found = connect(uri).search_experiments(
        filter_string=f"name LIKE '{PREFIX}%'", order_by=["last_update_time DESC"], max_results=1
    )
    if not found:
        return f"{uri}/#/experiments"
    return f"{uri}/#/experiments/{found[0].experiment_id}/runs?workflowType=machine_learning"
