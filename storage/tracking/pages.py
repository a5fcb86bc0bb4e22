"""MLflow's address -> its database, made before its server starts, and the page that shows the runs."""

import os
from urllib.parse import urlsplit

from storage.layout import Layout
from storage.tracking.addresses import without_password
from storage.tracking.mlflow_client import PREFIX, connect, follow_store
from storage.tracking.runs import turn
from storage.tracking.view import VIEW

USUAL_PAGES = "http://127.0.0.1:5000"  # of `dyformer ui`


def make_database(layout: Layout) -> None:
    """Make the database of the store's runs if there is none; a server that is killed would leave a part of it."""
    with turn(layout, layout.tracking_database, "all"):
        connect(layout.tracking_database)
        follow_store(layout)


def runs_page(uri: str) -> str:
    """Address of the page with the runs of the experiment that changed last; the list of experiments if there is none.

    Without the first parameter MLflow opens an experiment on its traces, of which there are none. On the list of
    experiments that parameter has no effect on the links; there the user has to choose Model training.
    """
    client, pages = connect(uri), f"{without_password(uri)}/#/experiments"
    experiments = client.search_experiments(
        filter_string=f"name LIKE '{PREFIX}%'", order_by=["last_update_time DESC"], max_results=1
    )
    if not experiments:
        return pages
    return f"{pages}/{experiments[0].experiment_id}/runs?workflowType=machine_learning&viewStateShareKey={VIEW}"


def run_page(uri: str, run: str, experiment: str) -> str | None:
    """Address of the page of a run of an experiment, without a password; None if MLflow is not a server.

    Where browsers reach the server by another address than its clients, that is in the variable DYFORMER_MLFLOW_PAGES.
    """
    parts = urlsplit(without_password(os.environ.get("DYFORMER_MLFLOW_PAGES") or uri))
    if parts.scheme not in ("http", "https"):
        return None
    page = f"experiments/{experiment}/runs/{run}?workflowType=machine_learning"
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/#/{page}"
