"""Prefect's server behind the guard: it is called by its own names, and by no page but its own.

Prefect's own command has no check of the name by which it is called.
"""

import argparse
import os

from flows.service.environment import collect_seldom, end_with_code
from flows.service.guard import LOCAL, Guard, hosts_of
from flows.service.listening import add_address, serve
from flows.service.processes import end_with

NAMES = "DYFORMER_PREFECT_NAMES"


def application() -> Guard:
    """Make the server's application."""
    from prefect.server.api.server import create_app
    from prefect.settings import PREFECT_SERVER_CORS_ALLOWED_ORIGINS

    hosts = tuple(os.environ[NAMES].split(","))
    return Guard(
        application=create_app(), hosts=hosts, origins=tuple(PREFECT_SERVER_CORS_ALLOWED_ORIGINS.value().split(","))
    )


def main() -> None:
    """Serve until a signal comes, or the process ends that started this one and is named."""
    parser = argparse.ArgumentParser(prog="python -m flows.service.prefect_server")
    add_address(parser)
    parser.add_argument("--allowed-hosts", help="names by which it is called, separated by commas, such as localhost:*")
    parser.add_argument("--parent", type=int, help="process with which it ends")
    arguments = parser.parse_args()
    if arguments.parent is not None:
        end_with(arguments.parent)
    os.environ[NAMES] = arguments.allowed_hosts or ",".join(hosts_of(LOCAL, arguments.port))
    os.environ["PREFECT__SERVER_FINAL"] = "1"
    collect_seldom()
    serve("flows.service.prefect_server:application", arguments, log_level="error", lifespan="on")
    end_with_code(0)


if __name__ == "__main__":
    main()
