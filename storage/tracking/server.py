"""The addresses of a store's runs and files -> MLflow's own application, for a server of ours.

`mlflow server` does the same and more; but what it starts allows every page of this machine to call it, on any port.
"""

import os
from typing import Any


def settle_server(database: str, artifacts: str | None, destination: str, hosts: str, *, has_users: bool) -> None:
    """Set the variables by which MLflow's application finds its database and files, and make the tables.

    Without a folder of `artifacts` files go through the server, which keeps them at the destination. `hosts` are the
    names by which the server is called. Tables are made here, because processes that make them at once may fail.
    """
    # Before the import, which reads some of them.
    variables = {"_MLFLOW_SGI_NAME": "uvicorn", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    os.environ |= {"MLFLOW_SERVER_ALLOWED_HOSTS": hosts, **variables}
    from mlflow.server import constants
    from mlflow.server.handlers import initialize_backend_stores

    root = artifacts or "mlflow-artifacts:/"
    os.environ |= {
        constants.BACKEND_STORE_URI_ENV_VAR: database,
        constants.REGISTRY_STORE_URI_ENV_VAR: database,
        constants.ARTIFACT_ROOT_ENV_VAR: root,
        constants.SERVE_ARTIFACTS_ENV_VAR: "true",
        constants.ARTIFACTS_DESTINATION_ENV_VAR: destination,
    }
    initialize_backend_stores(database, database, root)
    if has_users:
        from mlflow.server.auth import bootstrap_admin_user

        bootstrap_admin_user()


def application(*, has_users: bool) -> Any:
    """Make MLflow's application as an ASGI one; with users of its own, each request needs one of them."""
    if has_users:
        from mlflow.server.auth import create_app

        return create_app()
    from mlflow.server.fastapi_app import app

    return app
