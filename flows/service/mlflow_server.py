"""MLflow's server behind the guard: it is called by its own names, with a login, and by no page but its own."""

import argparse
import os

from flows.service.guard import LOCAL, Guard, hosts_of
from flows.service.listening import add_address, serve
from flows.service.processes import end_with
from flows.service.running import MLFLOW
from storage.tracking.server import application as mlflow_application
from storage.tracking.server import settle_server

NAMES, PAGES, HAS_USERS = "DYFORMER_MLFLOW_NAMES", "DYFORMER_MLFLOW_ORIGINS", "DYFORMER_MLFLOW_HAS_USERS"

DATABASE = "MLFLOW_BACKEND_STORE_URI"  # MLflow's own


def application() -> Guard:
    """Make the server's application, with the login of the environment or with users of MLflow's own."""
    has_users = HAS_USERS in os.environ
    return Guard(
        application=mlflow_application(has_users=has_users),
        hosts=tuple(os.environ[NAMES].split(",")),
        origins=tuple(os.environ[PAGES].split(",")),
        login=None if has_users else ":".join(os.environ[name] for name in MLFLOW),
    )


def main() -> None:
    """Serve until a signal comes, or the process ends that started this one and is named."""
    parser = argparse.ArgumentParser(prog="python -m flows.service.mlflow_server")
    add_address(parser)
    parser.add_argument("--backend-store-uri", help=f"the database of the runs; by default that of {DATABASE}")
    parser.add_argument("--default-artifact-root", help="where clients write files; by default to this server")
    parser.add_argument("--artifacts-destination", required=True, help="where this server writes files")
    parser.add_argument("--allowed-hosts", help="names by which it is called, separated by commas, such as localhost:*")
    parser.add_argument("--allowed-origins", default="", help="pages that may call it, beside its own")
    parser.add_argument("--app-name", choices=["basic-auth"], help="MLflow's own users, instead of one login")
    parser.add_argument("--workers", type=int, default=1, help="number of processes")
    parser.add_argument("--parent", type=int, help="process with which it ends")
    arguments = parser.parse_args()
    if arguments.parent is not None:
        end_with(arguments.parent)
    hosts = arguments.allowed_hosts or ",".join(hosts_of(LOCAL, arguments.port))
    database, has_users = arguments.backend_store_uri or os.environ[DATABASE], arguments.app_name is not None
    artifacts = (arguments.default_artifact_root, arguments.artifacts_destination)
    settle_server(database, *artifacts, hosts, has_users=has_users)
    os.environ |= {NAMES: hosts, PAGES: arguments.allowed_origins, **({HAS_USERS: "yes"} if has_users else {})}
    serve("flows.service.mlflow_server:application", arguments, workers=arguments.workers, log_level="warning")


if __name__ == "__main__":
    main()
