"""The commands of the service: servers, deployments, schedules."""

from pathlib import Path
from typing import Annotated

import typer

from flows.console import printable


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    for command in (up, deploy):
        app.command()(command)


def _port_option(server: str, usual: int) -> object:
    text = f"port of {server} (by default {usual}, or a free one if that is taken)"
    return typer.Option(help=text, min=1, max=65_535, show_default=False)


def up(
    prefect_port: Annotated[int | None, _port_option("Prefect", 4200)] = None,
    mlflow_port: Annotated[int | None, _port_option("MLflow", 5000)] = None,
    workers: Annotated[int, typer.Option(help="number of workers", min=1, max=16)] = 1,
) -> None:
    """Start Prefect, MLflow, the deployments and a worker on this machine, until Ctrl-C; they listen to it alone."""
    from flows.service.stack import Ports, run_stack
    from storage.layout import Layout

    layout = Layout.from_environment()
    run_stack(layout, Ports(prefect=prefect_port, mlflow=mlflow_port), workers, _print)


def deploy(
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", help="deployments (by default those of the package)", dir_okay=False, show_default=False
        ),
    ] = None,
) -> None:
    """Send work pools, queues and deployments to the configured Prefect server; a second time changes nothing."""
    from flows.service.deployments import file_of_deployments, read_deployments

    deployments = read_deployments(file_of_deployments() if file is None else file)
    _print(f"deploying to {configured_server()}")
    from flows.service.deployments import deploy as send

    for line in send(deployments):
        _print(line)


def configured_server() -> str:
    """Describe the server of PREFECT_API_URL, or of the running stack; raises ServerUnreachable if there is none."""
    from prefect.settings import PREFECT_API_URL

    from flows.environment import ServerUnreachable, server_in_use

    if not PREFECT_API_URL.value():
        raise ServerUnreachable("no Prefect server is configured: run `dyformer up`, or set PREFECT_API_URL")
    return server_in_use()


def _print(text: str) -> None:
    print(printable(text), flush=True)
